"""Bug cases CTX-1, CTX-3, CTX-5: limits of the context, memory that grows with use, no memory of others."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import rase
from rase.completion import TextRequest, prepare, run
from rase.engine.config import GenerationConfig
from rase.errors import ContextLengthExceeded
from rase.session import ModelSession
from rase.text.messages import ChatMessage
from tests.support import toys


def ask(session: ModelSession, prompt, max_tokens: int = 1, on_piece=None, stop=()) -> str:
    config = GenerationConfig(temperature=0.0, max_tokens=max_tokens)
    return run(session, prepare(session, TextRequest(prompt=prompt, config=config, stop=stop)), on_piece).text


@pytest.mark.parametrize("length", [64, 65, 200])
def test_ctx_1_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(tmp_path: Path, length: int) -> None:
    session = ModelSession.load_file(toys.chain(tmp_path, ["x", "y"], context_length=64))
    ran: list[object] = []
    session.decoder.program.run = ran.append
    with pytest.raises(ContextLengthExceeded) as caught:
        prepare(session, TextRequest(prompt=[1] * length))
    assert str(length) in str(caught.value) and "64" in str(caught.value)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    assert ran == [], "refused before any compute"


def test_ctx_1_a_stream_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    model = rase.load(toys.chain(tmp_path, ["x", "y"], context_length=64))
    for call in (model.stream, model.chat):
        with pytest.raises(ContextLengthExceeded) as caught:
            call("Hi " * 100)
        assert caught.value.context_length == 64 and caught.value.param == "messages"
    assert model.chat("Hi", temperature=0) == "xy"


def test_ctx_1_one_token_less_gets_its_one_token(tmp_path: Path) -> None:
    session = ModelSession.load_file(toys.chain(tmp_path, ["x", "y"], context_length=64))
    assert ask(session, [1] * 63, max_tokens=10) == "x"


@pytest.mark.parametrize("text", ["a" * 200_000, "é" * 100_000, "." * 200_000, "a b " * 50_000])
def test_ctx_1_a_text_that_cannot_fit_by_far_is_refused_without_encoding_it(
    tmp_path: Path, text: str
) -> None:
    session = ModelSession.load_file(toys.chain(tmp_path, ["x", "y"], context_length=64))
    encode = {"encode_first": None, "encode_later": None}  # neither is called
    object.__setattr__(session.tokenizer, "_core", dataclasses.replace(session.tokenizer._core, **encode))
    for request in (
        TextRequest(prompt=text),
        TextRequest(messages=[ChatMessage(role="user", content=text)]),
    ):
        with pytest.raises(
            ContextLengthExceeded, match=r"at least \d+ tokens .* context is 64 tokens"
        ) as caught:
            prepare(session, request)
        assert 64 < caught.value.prompt_tokens <= len(text) * 2


def test_ctx_3_memory_grows_with_use_not_with_the_declared_context(tmp_path: Path) -> None:
    """28 layers, 8 KV heads of 128: 15,032,385,536 bytes at 128k, yet 1 GiB is enough for a short chat."""
    path = toys.tiny_qwen3(
        tmp_path, n_layers=28, n_heads=8, n_kv_heads=8, head_dim=128, dim=64, hidden_dim=64,
        context_length=262144,
    )  # fmt: skip
    code = f"""
import resource
import numpy, psutil, rase.api
now = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (max(now + 2**29, 2**30), resource.RLIM_INFINITY))
from rase.session import ModelSession
from rase.completion import TextRequest, prepare, run
from rase.engine.config import GenerationConfig
session = ModelSession.load_file({str(path)!r})
done = run(session, prepare(session, TextRequest(prompt=[1] * 10, config=GenerationConfig(max_tokens=3))))
print(done.completion_tokens, sum(session.decoder.program.page_bytes))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    tokens, page_bytes = map(int, done.stdout.split())
    assert tokens == 3
    in_16_bit = 2 * 28 * 8 * 128 * 2  # bytes a token
    assert in_16_bit * 131072 == 15_032_385_536
    assert page_bytes == 32 * in_16_bit


@pytest.fixture(scope="module")
def hist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.hist(tmp_path_factory.mktemp("hist"))


def test_ctx_5_a_conversation_leaves_no_trace_in_the_next(hist: Path) -> None:
    session = ModelSession.load_file(hist)
    m, ab = " ".join("M" * 20), "A B"
    fresh = ask(ModelSession.load_file(hist), ab)
    assert fresh.strip() == "B"
    ask(session, m, max_tokens=50, on_piece=lambda piece: False)  # cancelled after one token
    assert ask(session, ab) == fresh
    with pytest.raises(ZeroDivisionError):
        ask(session, m, max_tokens=50, on_piece=lambda piece: 1 / 0)
    assert ask(session, ab) == fresh
    ask(session, m, max_tokens=50, stop=("M M",))
    assert ask(session, ab) == fresh
    with pytest.raises(ContextLengthExceeded):
        ask(session, [3] * 5000)
    assert ask(session, ab) == fresh


def test_ctx_5_a_prefix_of_an_earlier_prompt_is_computed_like_in_a_fresh_process(hist: Path) -> None:
    session = ModelSession.load_file(hist)
    a = session.tokenizer.token_to_id("▁A")
    mixed = [a + (7 * place) % 26 for place in range(600)]
    ask(session, mixed)
    again = session.decoder.prefill(mixed[:10]).tobytes()
    assert again == ModelSession.load_file(hist).decoder.prefill(mixed[:10]).tobytes()
