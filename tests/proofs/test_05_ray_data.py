"""Proof 5 of list 05, apart from its cluster: a Ray data set, and the target of ``serve run``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rase
from rase.registry import ModelRegistry
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]

TOPICS = ("rivers", "bridges", "bread", "clocks", "maps", "glass")


def test_rows_of_a_data_set(smollm2: Path) -> None:
    """Two processes answer a data set with the token ids and logprobs of this one."""
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": 0}
    code = f"""
import json, sys
from rase.cluster.data import Completions  # before Ray: it turns its reports off
import ray, logging
ray.init("local", num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = [
    {{"id": number, "messages": [{{"role": "user", "content": text}}]}}
    for number, text in enumerate({TOPICS!r})
]
found = ray.data.from_items(rows, override_num_blocks=3).map_batches(
    Completions, fn_constructor_kwargs={{"model": {str(smollm2)!r}, **{options!r}}},
    batch_size=2, concurrency=2, num_cpus=0.5,
).take_all()
keys = ("id", "text", "token_ids", "logprobs", "finish_reason", "error")
plain = lambda value: value.tolist() if hasattr(value, "tolist") else value
json.dump([{{key: plain(row[key]) for key in keys}} for row in found], sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = sorted(json.loads(done.stdout.splitlines()[-1]), key=lambda row: row["id"])
    with rase.load(smollm2) as model:
        for row, topic in zip(rows, TOPICS, strict=True):
            (choice,) = model.chat(topic, **options).completion.choices
            assert (row["text"], row["token_ids"], row["error"]) == (choice.text, choice.token_ids, None)
            assert row["logprobs"] == [token.logprob for token in choice.logprobs]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningServer]:
    """What ``serve run rase.cluster.ray:app`` runs, with settings by their keys, in a Ray of its own."""
    words, store, port = ("one ", "two "), tmp_path / "store", 18500 + os.getpid() % 1000
    model = toys.chain(
        tmp_path, words, then=words[0], tokenizer=toys.toy_bpe(words=words), context_length=200_000
    )
    ModelRegistry.open(store).import_local("endless", model)
    args = {
        "models": "endless", "store": str(store), "max_replicas": "2", "target_ongoing_requests": "1",
        "replica_cpus": "1", "router": "ray",
    }  # fmt: skip
    code = f"""
import sys
from rase.cluster.ray import app
import ray
from ray import serve
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as built
ray.init("local", num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
serve.start(http_options={{"port": {port}}})
serve.run(built(app, {args!r}), name="rase")
print("up", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n", process.communicate()[1][-3000:]
        yield RunningServer(None, port, None, [])  # type: ignore[arg-type]
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()


def test_the_target_of_serve_run_follows_the_load(
    served: RunningServer, figure: Callable[[str], None]
) -> None:
    """Ray's own router for prefixes finds what it needs, and requests above the target start a replica."""
    assert served.both("endless", max_tokens=4) == ("one two one two ", "length")
    assert len(served.get("/v1/ps").json["data"]) == 1
    body = chat_body("endless", stream=True, max_tokens=190_000)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(served.send("/v1/chat/completions", body))
        wait_until(lambda: len(served.get("/v1/ps").json["data"]) == 2, 300)
    figure(f"a second replica {time.monotonic() - began:.0f} s after six requests came")
