"""A model shared by several processes of one machine: the leader's program drives all shares."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from rase import env
from rase.backends._stacks import file_names
from rase.backends._tensor_parallel import cut, divide, shared_infos
from rase.backends._torch_group import Follower, Group, lost
from rase.backends._torch_load import Resident, make_program
from rase.backends.base import Batch, Program
from rase.errors import BackendError, BackendUnavailable

if TYPE_CHECKING:
    from rase.backends.base import CompileOptions, WeightSource
    from rase.backends.torch import TorchBackend
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["ParallelProgram", "load_parallel"]


def load_parallel(
    backend: TorchBackend, graph: Graph, infos: Mapping[str, TensorInfo], weights: WeightSource,
    options: CompileOptions, world: int,
) -> ParallelProgram:  # fmt: skip
    """Start the followers, deal out the weights as they are read, and meet.

    Raises ``BackendUnavailable`` where there are fewer GPUs than processes, ``UnsupportedArchitecture`` and
    ``UnsupportedFormat`` for what cannot be divided, before anything starts; ``BackendError`` when a process
    does not come up in time.
    """
    from rase.backends.torch import DEVICES

    kind = DEVICES[backend.device]
    if kind not in ("cpu", "cuda"):
        raise BackendUnavailable(f"tensor parallelism on device '{backend.device}'", expected="cuda")
    if kind == "cuda" and torch.cuda.device_count() < world:
        raise BackendUnavailable(f"{world} GPUs", found=str(torch.cuda.device_count()),
                                 hint="Set RASE_TENSOR_PARALLEL_SIZE to at most that.")  # fmt: skip
    shares = [divide(graph, rank, world) for rank in range(world)]
    local = shared_infos(shares[0], infos, world)
    names, prompt = file_names(graph), backend.prompt(options)
    timeouts = (env.get("RASE_TP_STARTUP_TIMEOUT_SECS"), env.get("RASE_TP_OPERATION_TIMEOUT_SECS"))
    devices = [f"cuda:{rank}" if kind == "cuda" else kind for rank in range(world)]
    meeting = tempfile.mkdtemp(prefix="rase-")  # nobody else may look into it; a port would be open to all
    store = dist.FileStore(os.path.join(meeting, "store"), world)
    followers = [Follower(rank) for rank in range(1, world)]
    try:
        for follower in followers:
            rank = follower.rank
            share = (shares[rank].graph, local, names, devices[rank], prompt, backend.weights, options)
            follower.say("join", store.path, timeouts[1], rank, world, share)
        resident = Resident(local, names, torch.device(devices[0]), backend.weights)

        def take(info: TensorInfo, _: int, data: memoryview) -> None:
            axis = shares[0].cuts.get(names[info.name][0])
            axis = axis if axis is None else axis - len(infos[names[info.name][0]].shape)  # also of parts
            whole = np.frombuffer(data, np.uint8)
            for rank in range(world):
                own, part = cut(info, axis, rank, world)
                raw = np.ascontiguousarray(part(whole)).reshape(-1)
                if rank:
                    followers[rank - 1].give(own, raw)
                else:
                    resident.take(own, 0, raw.data)

        weights.deliver({name: weights.tensors[name].nbytes for name in names}, take)
        device = torch.device(devices[0])
        program = make_program(shares[0].graph, resident, device, prompt, backend.weights, options)
        for follower in followers:  # however long it loads: whoever meets then has seconds only
            follower.hear(timeouts[0])
        program.group = Group(store, 0, world, program.device, timeouts[1])
        for follower in followers:
            follower.hear(timeouts[1])
    except BaseException:
        for follower in followers:
            follower.end()
        shutil.rmtree(meeting, ignore_errors=True)
        raise
    return ParallelProgram(graph, program, followers, meeting, timeouts[1])


class ParallelProgram(Program):
    """``local`` is the leader's share. A page's bytes are those of all shares, in order of rank."""

    def __init__(
        self, graph: Graph, local: Any, followers: list[Follower], meeting: str, timeout: float
    ) -> None:
        self.graph, self._local, self.followers, self._meeting = graph, local, followers, meeting
        self._timeout, self._broken = timeout, False
        self.numerics_class = f"{local.numerics_class}/tp-{len(followers) + 1}"
        self.one_arithmetic, self.max_batch_tokens = local.one_arithmetic, local.max_batch_tokens
        self.page_bytes = tuple((len(followers) + 1) * size for size in local.page_bytes)

    @property
    def reserved_pages(self) -> tuple[int, ...]:  # type: ignore[override]
        reserved: tuple[int, ...] = self._local.reserved_pages
        return reserved

    def _tell(self, command: str, *arguments: Any) -> None:
        if self._broken:
            raise lost("an earlier step failed")
        try:
            for follower in self.followers:
                follower.say(command, *arguments)
        except BackendError:
            self._broken = True
            raise

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        self._tell("reserve_pages", n, group)
        self._local.reserve_pages(n, group)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self._tell("copy_page", group, source, target)
        self._local.copy_page(group, source, target)

    def save_page(self, group: int, page: int) -> bytes:
        self._tell("save_page", group, page)
        parts = [self._local.save_page(group, page)]
        return b"".join([*parts, *(follower.hear(self._timeout) for follower in self.followers)])

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        if len(data) != self.page_bytes[group]:
            raise ValueError(f"{len(data)} bytes for a page of {self.page_bytes[group]}")
        size = self._local.page_bytes[group]
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        if self._broken:
            raise lost("an earlier step failed")
        for follower in self.followers:
            follower.say("restore_page", group, page, parts[follower.rank], tokens)
        self._local.restore_page(group, page, parts[0], tokens)

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        batch.check(self)  # a refused batch is nobody's business but the caller's
        with self._local.exclusive():
            self._tell("run", batch)
            try:
                rows: np.ndarray[Any, np.dtype[np.float32]] = self._local.run_checked(batch)
                return rows
            except BaseException:  # the others are somewhere in this step, and will not come back
                self._broken = True
                raise

    def close(self) -> None:
        self._local.close()
        for follower in self.followers:
            follower.end()
        shutil.rmtree(self._meeting, ignore_errors=True)
