"""``rase batch``: OpenAI's format in and out, the bits of the server; no kill loses or doubles an answer."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rase.errors import InvalidRequest, StoreError
from rase.server.batch_files import Answers, answer_line, read_requests
from rase.store import open_store
from tests.cli.conftest import Rase
from tests.support import toys
from tests.support.http_server import RunningServer, running

WORDS = ["one ", "two ", "three "]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``dice`` draws from 64 equal ids; ``chain`` says its words for ever."""
    monkeypatch.delenv("RASE_BACKEND")
    registry = open_store(tmp_path / "store")
    registry.import_local("dice", toys.logits(tmp_path, [0.0] * 64, name="dice"))
    tokenizer = toys.toy_bpe(pieces=WORDS)
    chain = toys.chain(
        tmp_path, WORDS, then=WORDS[0], tokenizer=tokenizer, name="chain", context_length=100_000
    )
    registry.import_local("chain", chain)
    return tmp_path


def chat(number: int, model: str = "dice", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": f"Question {number}"}], "max_tokens": 20}
    return {
        "custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions",
        "body": {**body, "seed": number, "temperature": 1.0, **fields},
    }  # fmt: skip


def completion(number: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "chain", "prompt": f"Text {number}", "temperature": 0, "max_tokens": 6, **fields}
    return {"custom_id": f"c{number}", "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def answers(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found), "an answer is doubled"
    return {line["custom_id"]: line for line in found}


def said(line: dict[str, Any]) -> list[str]:
    choices = line["response"]["body"]["choices"]
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


def test_answers_are_those_of_the_server(rase: Rase, models: Path) -> None:
    asked = [*(chat(number) for number in range(12)), *(completion(number) for number in range(5))]
    asked += [chat(100, n=3), completion(101, prompt=["a", "b"]), chat(102, stream=True)]
    result = rase("batch", write(models / "in", asked), models / "out")
    assert result.code == 0, result.err
    assert "20 of 20 answered, 0 with an error" in result.err
    found = answers(models / "out")
    assert found.keys() == {line["custom_id"] for line in asked}
    for line in found.values():
        assert set(line) == {"id", "custom_id", "response", "error"} and line["error"] is None
        assert line["response"]["status_code"] == 200 and line["id"].startswith("batch_req_")
        assert line["response"]["body"]["usage"]["completion_tokens"] > 0
    with running(models, {}) as server:
        assert isinstance(server, RunningServer)
        for line in asked:
            line["body"].pop("stream", None)
            body = server.post(line["url"], line["body"]).json
            mine = found[line["custom_id"]]["response"]["body"]
            assert mine["choices"] == body["choices"] and mine["model"] == body["model"]
            assert mine["system_fingerprint"] == body["system_fingerprint"]
    assert len(said(found["r100"])) == 3 and len(said(found["c101"])) == 2


def test_what_is_wrong_with_a_request_is_its_answer(rase: Rase, models: Path) -> None:
    asked = [chat(1), chat(2, temperature=-1), chat(3, tools=[{"x": 1}]), completion(4, prompt="x" * 500_000)]
    assert rase("batch", write(models / "in", asked), models / "out").code == 1
    found = answers(models / "out")
    statuses = {name: line["response"]["status_code"] for name, line in found.items()}
    assert statuses == {"r1": 200, "r2": 400, "r3": 400, "c4": 400}
    assert found["r2"]["response"]["body"]["error"]["param"] == "temperature"
    assert found["c4"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    again = rase("batch", models / "in", models / "out")
    assert again.code == 1 and "4 of 4 answers are there already" in again.err
    assert answers(models / "out") == found


@pytest.mark.parametrize(("line", "words"), [
    ("{", "line 2"), ("[]", "line 2"), ('{"custom_id": "a"}', "url"),
    (json.dumps({**chat(1), "custom_id": 7}), "custom_id"),
    (json.dumps({**chat(1), "url": "/v1/embeddings"}), "/v1/completions"),
    (json.dumps({**chat(1), "method": "GET"}), "POST"),
    (json.dumps({**chat(1), "custom_id": "r0"}), "of its own"), ("\xff", "line 2"),
])  # fmt: skip
def test_files_that_are_no_batch_are_refused_before_anything_runs(
    rase: Rase, models: Path, line: str, words: str
) -> None:
    (models / "in").write_bytes((json.dumps(chat(0)) + "\n" + line + "\n").encode("latin-1"))
    result = rase("batch", models / "in", models / "out")
    assert result.code == 2 and "line 2" in result.err and words in result.err
    assert not (models / "out").exists()


def test_a_model_that_is_not_there_ends_the_batch(rase: Rase, models: Path) -> None:
    result = rase("batch", write(models / "in", [chat(1), chat(2, model="absent")]), models / "out")
    assert result.code == 3 and answers(models / "out").keys() == {"r1"}
    assert rase("batch", models / "absent", models / "out").code == 1
    assert rase("batch", models / "in", models / "no" / "folder").code == 1


def test_answers_to_other_requests_are_not_mixed(rase: Rase, models: Path) -> None:
    write(models / "in", [chat(1)])
    assert rase("batch", models / "in", models / "out").code == 0
    result = rase("batch", write(models / "other", [chat(2)]), models / "out")
    assert result.code == 2 and "r1" in result.err and len(answers(models / "out")) == 1


def test_torn_lines_are_cut_off_and_strange_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "out"
    whole = answer_line("a", "1", 200, b"{}") + b"\n"
    for torn in (b"", b"{", whole[:-1], b"x" * 5000):
        path.write_bytes(whole.replace(b'"a"', b'"b"') + torn)
        with Answers(path) as found:
            assert found.finished == {"b"} and found.failed == 0
            found.add(answer_line("c", "2", 500, b"{}"))
        with Answers(path) as found:
            assert found.finished == {"b", "c"} and found.failed == 1
    for strange in (b"words\n", whole + whole, b"{}\n"):
        path.write_bytes(strange)
        with pytest.raises(InvalidRequest):
            Answers(path)
        assert path.read_bytes() == strange
    path.write_bytes(whole)
    with Answers(path), pytest.raises(StoreError, match="another batch"):
        Answers(path)
    assert [one.custom_id for one in read_requests(write(tmp_path / "in", [chat(1)]))] == ["r1"]


def test_a_kill_loses_and_doubles_nothing(rase: Rase, models: Path, command: list[str]) -> None:
    """Killed again and again at random moments, the answers are those of an undisturbed run."""
    asked = [completion(k, max_tokens=40) if k % 2 else chat(k, max_tokens=200) for k in range(60)]
    write(models / "in", asked)
    rng, out, counts = random.Random(6), models / "out", [0]
    line = [*command, "batch", str(models / "in"), str(out), "--max-batch-seqs", "4"]
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as process:
            before, deadline = out.stat().st_size if out.exists() else 0, time.monotonic() + 60
            while not (out.exists() and out.stat().st_size > before) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.02))
            process.send_signal(number)
            assert process.wait(60) == (-9 if number == signal.SIGKILL else 130)
        counts.append(out.read_bytes().count(b"\n"))
        assert counts[-2] < counts[-1] < len(asked), "it was not killed in the middle"
    assert rase("batch", models / "in", out).code == 0
    assert rase("batch", models / "in", models / "whole").code == 0
    found, undisturbed = answers(out), answers(models / "whole")
    assert found.keys() == {one["custom_id"] for one in asked}
    assert {name: said(one) for name, one in found.items()} == {
        name: said(one) for name, one in undisturbed.items()
    }
