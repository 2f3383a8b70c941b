"""A follower of a tensor-parallel model: holds its share of weights and pages, does what the leader says.

Ends when the leader's socket closes; with exit code 3 and a line on stderr when a step fails.
"""

from __future__ import annotations

import contextlib
import sys
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["main"]


def main(handle: int) -> int:
    """Serve the leader at the other end of the socket ``handle``."""
    pipe = Connection(handle)
    program: Any = None
    try:
        while True:
            command, *arguments = pipe.recv()
            if command == "join":
                program = _join(pipe, *arguments)
                pipe.send(("ready", None))
            elif command == "save_page":
                pipe.send(("page", program.save_page(*arguments)))
            else:
                getattr(program, command)(*arguments)
    except EOFError:
        return 0
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(("error", f"{type(error).__name__}: {error}"))
        print(f"rase: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 3


def _join(pipe: Connection, meeting: str, timeout: float, rank: int, world: int, share: Any) -> Any:
    """Take this process's share of the weights, and meet the others."""
    import torch
    import torch.distributed as dist

    from rase.backends._torch_group import Group
    from rase.backends._torch_load import Resident, make_program

    graph, infos, names, device, prompt, weights, options = share
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    resident = Resident(infos, names, device, weights)
    for _ in names:
        info = pipe.recv()
        resident.take(info, 0, memoryview(pipe.recv_bytes()))
    program = make_program(graph, resident, device, prompt, weights, options)
    store = dist.FileStore(meeting, world)
    pipe.send(("loaded", None))
    program.group = Group(store, rank, world, device, timeout)
    return program


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
