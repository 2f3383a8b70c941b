"""A model shared by two processes (gloo): the same logits as in one; when one is killed the other says so."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rase.backends.torch import TorchBackend
from rase.errors import BackendError, BackendUnavailable
from rase.testing.programs import assert_close, assert_same_bits, decode_each, nmse, run_chunks
from rase.testing.small_models import SMALL_MODELS
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.proof

DEADLINE = 5.0


@contextmanager
def shared(tiny, monkeypatch, **options):
    """A program of two processes, whose operations may take five seconds."""
    monkeypatch.setenv("RASE_TENSOR_PARALLEL_SIZE", "2")
    monkeypatch.setenv("RASE_TP_OPERATION_TIMEOUT_SECS", str(DEADLINE))
    with tiny.compile(TorchBackend(), **options) as program:
        yield program


@pytest.mark.parametrize("name", ["llama3.1", "qwen2", "gemma2", "granite", "qwen3moe", "nomic-bert"])
def test_two_processes_give_the_logits_of_one(name, monkeypatch, figure):
    tiny = SMALL_MODELS[name]
    ids = tiny.ids(70)

    def rows(program):
        found = run_chunks(program, ids)
        if program.graph.whole_input:
            return found
        return np.concatenate([found, decode_each(program, ids[:4], start=70)])

    with tiny.compile(TorchBackend()) as program:
        expected = rows(program)
    with shared(tiny, monkeypatch) as program:
        found = rows(program)
        assert program.numerics_class.endswith("/tp-2")
    figure(f"{name}: NMSE {nmse(found, expected):.2g} from one process")
    assert_close(found, expected, 1e-6, name)


def test_quantized_rows_are_cut_between_blocks(monkeypatch):
    tiny = WIDE_QWEN3.but(matrices="Q4_K", n_kv_heads=2, hidden=512)
    ids = tiny.ids(50)
    with tiny.compile(TorchBackend()) as program:
        expected = run_chunks(program, ids)
    with shared(tiny, monkeypatch) as program:
        assert_close(run_chunks(program, ids), expected, 1e-3)


def test_a_process_may_load_for_longer_than_an_operation_takes(monkeypatch):
    from rase.backends._torch_group import Follower

    give, ids, timers = Follower.give, TINY_LLAMA.ids(4), []

    def stopped(self, info, data):
        """After the last tensor the process stands still for two seconds."""
        for timer in timers:
            timer.cancel()
        self.process.send_signal(signal.SIGCONT)
        give(self, info, data)
        self.process.send_signal(signal.SIGSTOP)
        timers[:] = [threading.Timer(2, self.process.send_signal, [signal.SIGCONT])]
        timers[0].start()

    monkeypatch.setenv("RASE_TENSOR_PARALLEL_SIZE", "2")
    monkeypatch.setenv("RASE_TP_OPERATION_TIMEOUT_SECS", "1")
    monkeypatch.setattr(Follower, "give", stopped)
    with TINY_LLAMA.compile(TorchBackend()) as program:
        assert run_chunks(program, ids).shape[0] == len(ids)


def test_nobody_else_can_reach_it(monkeypatch):
    before = listening()
    with shared(TINY_LLAMA, monkeypatch) as program:
        run_chunks(program, TINY_LLAMA.ids(4))
        meeting = Path(program._meeting)
        assert meeting.stat().st_mode & 0o077 == 0, "a folder of this user's"
        assert [address for address in listening() - before if not address.is_loopback] == []
    assert not meeting.exists()


def listening():
    """The addresses on which any process of this machine waits for connections, with their ports."""
    import psutil

    return {
        Address(connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp") if connection.status == psutil.CONN_LISTEN
    }  # fmt: skip


class Address(NamedTuple):
    ip: str
    port: int

    @property
    def is_loopback(self):
        return ipaddress.ip_address(self.ip).is_loopback


def test_pages_hold_all_shares(monkeypatch):
    tiny, ids = TINY_LLAMA, TINY_LLAMA.ids(40)
    with shared(tiny, monkeypatch) as program:
        expected = run_chunks(program, ids, pages=[0, 1])
        data = [program.save_page(0, page) for page in (0, 1)]
        assert [len(part) for part in data] == [program.page_bytes[0]] * 2
        run_chunks(program, tiny.ids(40, 5), pages=[0, 1])
        for page, part in enumerate(data):
            program.restore_page(0, 7 + page, part, 40)
        program.copy_page(0, 8, 9)
        found = run_chunks(program, ids[36:], pages=[7, 9], start=36)
        assert_close(found, expected[36:], 1e-7)
        assert_same_bits(np.frombuffer(program.save_page(0, 7), np.uint32).view(np.float32),
                         np.frombuffer(data[0], np.uint32).view(np.float32))  # fmt: skip


@pytest.mark.parametrize("moment", ["before a step", "in a step"])
def test_a_killed_follower_ends_the_model_with_a_typed_error(moment, monkeypatch, figure):
    tiny = TINY_LLAMA.but(dim=256, hidden=1024, head_dim=64, n_layers=8)
    ids = tiny.ids(400)
    with shared(tiny, monkeypatch) as program:
        run_chunks(program, ids)
        process = program.followers[0].process
        if moment == "before a step":
            process.kill()
            process.wait()
        else:
            threading.Timer(0.02, process.kill).start()
        begin = time.monotonic()
        with pytest.raises(BackendError, match="has ended or hangs"):
            while time.monotonic() < begin + 2 * DEADLINE:
                run_chunks(program, ids)
        took = time.monotonic() - begin
        figure(f"follower killed {moment}: typed error after {took:.2f} s")
        assert took < DEADLINE
        with pytest.raises(BackendError):
            run_chunks(program, ids)


def test_a_follower_that_hangs_ends_the_model_at_the_deadline(monkeypatch, figure):
    with shared(TINY_LLAMA, monkeypatch) as program:
        ids = TINY_LLAMA.ids(40)
        run_chunks(program, ids)
        process = program.followers[0].process
        os.kill(process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        try:
            with pytest.raises(BackendError, match="has ended or hangs"):
                run_chunks(program, ids)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        took = time.monotonic() - begin
        figure(f"follower stopped: typed error after {took:.1f} s, deadline {DEADLINE:g} s")
        assert took < DEADLINE + 2


LEADER = """
import sys
from rase.backends.torch import TorchBackend
from rase.testing.programs import run_chunks
from rase.testing.tiny import TINY_LLAMA
tiny = TINY_LLAMA.but(dim=256, hidden=1024, head_dim=64, n_layers=8)
program = tiny.compile(TorchBackend())
print(program.followers[0].process.pid, flush=True)
while True:
    run_chunks(program, tiny.ids(400))
"""


def test_a_killed_leader_ends_its_followers(figure):
    environment = {**os.environ, "RASE_TENSOR_PARALLEL_SIZE": "2", "RASE_TP_OPERATION_TIMEOUT_SECS": "5"}
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=environment)  # fmt: skip
    follower = int(leader.stdout.readline())
    time.sleep(0.5)
    leader.kill()
    begin = time.monotonic()
    words = leader.stderr.read()  # both write there: it ends when the last of them has ended
    took = time.monotonic() - begin
    leader.wait()
    figure(f"leader killed: the follower ended after {took:.2f} s")
    assert took < DEADLINE and not Path(f"/proc/{follower}/exe").exists()
    assert "Traceback" not in words and (not words or "BackendError" in words), words


def test_a_process_that_does_not_come_up_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    begin = time.monotonic()
    with pytest.raises(BackendError), shared(TINY_LLAMA, monkeypatch):
        pass
    assert time.monotonic() - begin < 10


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setenv("RASE_TENSOR_PARALLEL_SIZE", "2")
    with pytest.raises(BackendUnavailable, match=r"2 GPUs.*found 1"):
        TINY_LLAMA.compile(TorchBackend("cuda"))
