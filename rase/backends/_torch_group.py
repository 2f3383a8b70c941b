"""The processes that share a model: how they meet, and what they say to each other.

Tensors go through gloo, or NCCL between GPUs, in a process group of its own, so that a host may have another.
Commands go from the leader, the host's process, to each follower through a socket pair. Whoever notices that
another is gone ends with a typed error: at once where a connection breaks, else at the operation's deadline.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from rase.errors import BackendError, BackendUnavailable

__all__ = ["Follower", "Group", "lost"]


def lost(found: object) -> BackendError:
    """A process of the group is gone, or too late."""
    return BackendError(
        "a process of this tensor-parallel model has ended or hangs", found=str(found),
        hint="Load the model again.")  # fmt: skip


class Group:
    """Process ``rank`` of ``world``. The leader's ``store`` is where they meet, within ``timeout`` seconds,
    which is what every later operation may take, too. Raises ``BackendError``.
    """

    def __init__(self, store: Any, rank: int, world: int, device: Any, timeout: float) -> None:
        self.rank, self.world = rank, world
        if device.type == "cuda":
            self._group: Any = dist.ProcessGroupNCCL(store, rank, world, timedelta(seconds=timeout))
            return
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout)
        try:
            self._group = dist.ProcessGroupGloo(store, rank, world, options)
        except RuntimeError as error:
            raise lost(_first_line(error)) from None

    def add(self, x: Any) -> Any:
        """The sum of x over all processes. Raises ``BackendError``."""
        x = x.contiguous()
        try:
            self._group.allreduce([x]).wait()
        except RuntimeError as error:
            raise lost(_first_line(error)) from None
        return x

    def gather(self, x: Any) -> Any:
        """The columns of x of all processes, in order of rank. Raises ``BackendError``."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.world)]
        try:
            self._group.allgather([parts], [x]).wait()
        except RuntimeError as error:
            raise lost(_first_line(error)) from None
        return torch.cat(parts, 1)


class Follower:
    """A process that the leader started: ``python -m rase.backends._torch_follower``."""

    def __init__(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rase.backends._torch_follower", str(theirs.fileno())]
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is the leader's business
        )  # fmt: skip
        theirs.close()
        self.rank, self._pipe = rank, Connection(ours.detach())

    def say(self, *message: Any) -> None:
        """Hand over a command. Raises ``BackendError`` when the process is gone."""
        try:
            self._pipe.send(message)
        except OSError:
            raise lost(f"process {self.rank} is gone") from None

    def give(self, info: Any, data: Any) -> None:
        """Hand over the bytes of its part of a tensor, whose own ``info`` this is."""
        try:
            self._pipe.send(info)
            self._pipe.send_bytes(data)
        except OSError:
            raise lost(f"process {self.rank} is gone") from None

    def hear(self, seconds: float) -> Any:
        """Its answer. Raises ``BackendError`` when there is none in time."""
        try:
            if not self._pipe.poll(seconds):
                raise lost(f"no answer of process {self.rank} within {seconds:g} s")
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise lost(f"process {self.rank} is gone") from None
        if kind == "error":
            raise BackendUnavailable(f"process {self.rank} of the model", found=answer)
        return answer

    def end(self) -> None:
        """Let it end by itself, or end it."""
        self._pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
