"""The completion pipeline: texts, finish reasons, choices, limits, cancellation, callbacks that misbehave."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest

from rase.completion import MAX_CHOICES, Completion, Piece, TextRequest, normalise_stop, prepare, run, start
from rase.engine.config import GenerationConfig
from rase.errors import (
    ContextLengthExceeded,
    InvalidGenerationConfig,
    InvalidLogits,
    InvalidRequest,
    NoChatTemplate,
)
from rase.text.messages import ChatMessage
from tests.support import toys


def ask(session, prompt="Hi ", *, on_piece=None, cancelled=None, stop=(), n=1, **config: Any) -> Completion:
    config = {"temperature": 0.0, "max_tokens": 16} | config
    request = TextRequest(prompt=prompt, config=GenerationConfig(**config), stop=stop, n=n)
    return run(session, prepare(session, request), on_piece, cancelled)


def test_a_chain_gives_its_text_and_stops_at_the_end_token(folder, load) -> None:
    session = load(toys.chain(folder, ["x", "y", "z"], name="xyz"))
    done = ask(session)
    choice = done.choices[0]
    assert (choice.text, choice.finish_reason) == ("xyz", "stop")
    assert choice.token_ids == [session.tokenizer.token_to_id(letter) for letter in "xyz"]
    assert done.prompt_tokens == len(session.tokenizer.encode("Hi ")) and done.completion_tokens == 3
    assert done.cached_tokens == 0 and done.model == session.id and done.fingerprint == session.fingerprint
    assert 0 < done.prefill_s <= done.ttft_s and done.decode_s > 0


def test_max_tokens_ends_with_length(endless) -> None:
    done = ask(endless, max_tokens=5)
    assert (done.text, done.choices[0].finish_reason, done.completion_tokens) == ("abcab", "length", 5)


def test_pieces_joined_are_the_text_and_carry_every_token(tiny) -> None:
    pieces: list[Piece] = []
    done = ask(tiny, on_piece=pieces.append, max_tokens=40, temperature=0.9, seed=3)
    assert "".join(piece.text for piece in pieces) == done.text
    assert [id for piece in pieces for id in piece.token_ids] == done.choices[0].token_ids
    assert done.text == tiny.tokenizer.decode(done.choices[0].token_ids)
    assert done.text == ask(tiny, max_tokens=40, temperature=0.9, seed=3).text


def test_same_request_same_answer_and_another_seed_another(tiny) -> None:
    first = ask(tiny, temperature=1.0, top_k=None, seed=1, max_tokens=24).choices[0]
    assert ask(tiny, temperature=1.0, top_k=None, seed=1, max_tokens=24).choices[0] == first
    assert (
        ask(tiny, temperature=1.0, top_k=None, seed=2, max_tokens=24).choices[0].token_ids != first.token_ids
    )


def test_choices_differ_repeat_and_the_first_is_that_of_n_1(tiny) -> None:
    options = {"temperature": 1.0, "top_k": None, "seed": 1, "max_tokens": 12}
    three = ask(tiny, n=3, **options)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len({tuple(choice.token_ids) for choice in three.choices}) == 3
    assert ask(tiny, n=3, **options).choices == three.choices, "the batch decides nothing"
    assert ask(tiny, n=1, **options).choices[0] == three.choices[0]
    assert three.completion_tokens == sum(len(choice.token_ids) for choice in three.choices) == 36


def test_greedy_choices_are_equal_since_each_starts_from_the_prompt_alone(tiny) -> None:
    done = ask(tiny, n=3, max_tokens=10)
    assert {tuple(choice.token_ids) for choice in done.choices} == {
        tuple(ask(tiny, max_tokens=10).choices[0].token_ids)
    }


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1, 1_000_000, 1.5, "2", True, None])
def test_a_bad_n_is_refused_at_once(tiny, n) -> None:
    start = time.perf_counter()
    with pytest.raises(InvalidRequest) as caught:
        prepare(tiny, TextRequest(prompt="Hi", n=n))
    assert caught.value.param == "n"
    assert time.perf_counter() - start < 0.1


def test_stop_strings_in_normal_form() -> None:
    assert normalise_stop(None) == normalise_stop([]) == ()
    assert normalise_stop("X") == ("X",)
    assert normalise_stop(["X", "Y", "X"]) == ("X", "Y")


@pytest.mark.parametrize("stop", ["", [""], ["", "X"], [1], {}, 1, ["x"] * 17, ["x" * 100_000]])
def test_stop_strings_that_are_refused(stop) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise_stop(stop)
    assert caught.value.param == "stop"


def test_a_stop_string_ends_the_text_before_it(endless) -> None:
    pieces: list[str] = []
    done = ask(endless, stop=("ca",), on_piece=lambda piece: pieces.append(piece.text), max_tokens=50)
    assert (done.text, done.choices[0].finish_reason) == ("ab", "stop")
    assert "".join(pieces) == "ab"
    assert done.completion_tokens == 4, (
        "generation goes on to the token that completes the stop string, not beyond"
    )


def test_a_stop_string_that_never_completes_is_given_back(endless) -> None:
    done = ask(endless, stop=("bcX",), max_tokens=3)
    assert (done.text, done.choices[0].finish_reason) == ("abc", "length")


def test_logprobs_belong_to_the_tokens(tiny) -> None:
    pieces: list[Piece] = []
    done = ask(tiny, logprobs=3, max_tokens=6, on_piece=pieces.append)
    choice = done.choices[0]
    assert [entry.id for entry in choice.logprobs] == choice.token_ids
    assert [entry for piece in pieces for entry in piece.logprobs] == choice.logprobs
    for entry in choice.logprobs:
        assert len(entry.top) == 3 and entry.top[0][0] == entry.id, "greedy takes the best"
        assert entry.top[0][2] == pytest.approx(entry.logprob) and math.exp(entry.logprob) <= 1
        assert entry.text == tiny.tokenizer.piece(entry.id)
    assert ask(tiny, max_tokens=2).choices[0].logprobs == []


def test_a_prompt_may_be_token_ids(tiny) -> None:
    ids = tiny.tokenizer.encode("Hi ")
    assert ask(tiny, ids).choices == ask(tiny, "Hi ").choices


@pytest.mark.parametrize("prompt", [[], "", [-1], [10**9], [1.5], ["a"], [True]])
def test_prompts_that_are_refused(folder, load, prompt) -> None:
    session = load(toys.logits(folder, [1, 2, 3], name="plain", tokenizer=toys.toy_bpe(add_bos=False)))
    with pytest.raises(InvalidRequest) as caught:
        prepare(session, TextRequest(prompt=prompt))
    assert caught.value.param == "prompt"
    assert ask(session, max_tokens=2).choices[0].token_ids == [2, 2]


def test_a_request_holds_messages_or_a_prompt_not_both(tiny) -> None:
    message = ChatMessage(role="user", content="Hi")
    for request in (TextRequest(), TextRequest(prompt="Hi", messages=[message])):
        with pytest.raises(InvalidRequest):
            prepare(tiny, request)


def test_a_chat_without_a_template_is_refused_and_a_completion_is_not(folder, load, monkeypatch) -> None:
    session = load(toys.logits(folder, [1, 2, 3], name="bare", chat_template=None))
    session.chat_template = None  # llama files fall back to a template; a file of an architecture without one
    with pytest.raises(NoChatTemplate):
        prepare(session, TextRequest(messages=[ChatMessage(role="user", content="Hi")]))
    assert ask(session, max_tokens=1).completion_tokens == 1


def test_the_context_limits_the_answer(folder, load) -> None:
    session = load(toys.chain(folder, ["a", "b"], then="a", name="short", context_length=64))
    ids = session.tokenizer.encode("x" * 80)
    full = ask(session, ids[:60], max_tokens=100)
    assert (full.completion_tokens, full.choices[0].finish_reason) == (4, "length")
    last = ask(session, ids[:63], max_tokens=100)
    assert (last.completion_tokens, last.choices[0].finish_reason) == (1, "length")
    with pytest.raises(ContextLengthExceeded) as caught:
        prepare(session, TextRequest(prompt=ids[:64]))
    assert (caught.value.prompt_tokens, caught.value.context_length) == (64, 64)


def test_a_biased_id_outside_the_vocabulary_is_refused_before_any_compute(tiny) -> None:
    with pytest.raises(InvalidGenerationConfig) as caught:
        prepare(tiny, TextRequest(prompt="Hi", config=GenerationConfig(logit_bias={10**6: 1.0})))
    assert caught.value.param == "logit_bias"


def test_a_callback_that_returns_false_stops_its_choice_only(endless) -> None:
    seen: list[tuple[int, str]] = []

    def on_piece(piece: Piece) -> bool:
        seen.append((piece.index, piece.text))
        return not (piece.index == 0 and piece.text == "b")

    done = ask(endless, n=2, max_tokens=4, on_piece=on_piece)
    assert [(choice.text, choice.finish_reason) for choice in done.choices] == [
        ("ab", "cancelled"),
        ("abca", "length"),
    ]
    assert [text for index, text in seen if index == 0] == ["a", "b"]
    assert [text for index, text in seen if index == 1] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("value", [None, True, 0, "", [], 1.5])
def test_only_false_stops(endless, value) -> None:
    assert ask(endless, max_tokens=4, on_piece=lambda piece: value).text == "abca"


def test_cancelled_before_the_start(endless) -> None:
    done = ask(endless, cancelled=lambda: True, n=2)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in done.choices] == [
        (0, "", "cancelled"), (1, "", "cancelled"),
    ]  # fmt: skip
    assert ask(endless, max_tokens=3).text == "abc"


def test_cancelled_after_some_tokens_keeps_what_there_is(endless) -> None:
    pieces: list[str] = []
    done = ask(
        endless,
        max_tokens=1000,
        on_piece=lambda piece: pieces.append(piece.text),
        cancelled=lambda: len(pieces) >= 5,
    )
    assert (done.text, done.choices[0].finish_reason) == ("abcab", "cancelled")


def test_cancelled_between_chunks_of_the_prompt(folder, load) -> None:
    session = load(toys.chain(folder, ["a", "b"], then="a", name="chunks", context_length=4096))
    runs: list[int] = []
    program, real = session.decoder.program, session.decoder.program.run

    def counted(batch):
        runs.append(len(batch.ids))
        return real(batch)

    program.run = counted
    done = ask(session, "x" * 2000, cancelled=lambda: len(runs) >= 2)
    assert done.choices[0].finish_reason == "cancelled" and done.completion_tokens == 0
    assert 2 <= len(runs) <= 3 and sum(runs) < 2000, "it ends with the step that was under way"
    assert ask(session, max_tokens=2).text == "ab"


def test_a_callback_that_raises_leaves_the_session_right(tiny) -> None:
    class Odd(Exception):
        pass

    before = ask(tiny, max_tokens=8).choices
    for fail_at in (1, 3, 8):
        count = 0

        def on_piece(piece: Piece, fail_at=fail_at) -> None:
            nonlocal count
            count += 1
            if count == fail_at:
                raise Odd

        with pytest.raises(Odd):
            ask(tiny, max_tokens=8, on_piece=on_piece)
        assert ask(tiny, max_tokens=8).choices == before


def test_a_callback_may_use_the_model_that_calls_it(endless) -> None:
    nested: list[str] = []
    done = ask(endless, max_tokens=3, on_piece=lambda piece: nested.append(ask(endless, max_tokens=2).text))
    assert (done.text, nested) == ("abc", ["ab", "ab", "ab"])


def test_the_cancel_hook_may_raise_too(endless) -> None:
    def cancelled() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(endless, cancelled=cancelled)
    assert ask(endless, max_tokens=3).text == "abc"


def test_requests_from_many_threads_run_together_and_are_right(tiny) -> None:
    expected = {seed: ask(tiny, temperature=1.0, seed=seed, max_tokens=12).text for seed in range(8)}
    found: dict[int, str] = {}

    def work(seed: int) -> None:
        found[seed] = ask(tiny, temperature=1.0, seed=seed, max_tokens=12).text

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == expected


def test_a_waiting_request_can_be_cancelled(folder, load, monkeypatch) -> None:
    monkeypatch.setenv("RASE_MAX_BATCH_SEQS", "1")
    chain = toys.chain(folder, ["a", "b", "c"], then="a", name="alone", context_length=200_000)
    session = load(chain)
    request = TextRequest(prompt="a", config=GenerationConfig(temperature=0.0, max_tokens=150_000))
    first = start(session, prepare(session, request))
    while session.scheduler.running == 0:
        time.sleep(0.001)
    gone = threading.Event()
    results: list[Completion] = []
    second = threading.Thread(target=lambda: results.append(ask(session, cancelled=gone.is_set)))
    second.start()
    while session.scheduler.waiting == 0:
        time.sleep(0.001)
    gone.set()
    second.join(5)
    assert results[0].choices[0].finish_reason == "cancelled"
    first.cancel()


def test_an_idle_session_holds_pages_for_its_prefix_cache_only(tiny) -> None:
    done = ask(tiny, "Hi " * 40, max_tokens=8)
    assert 0 < tiny.scheduler.pool.in_use[0] <= tiny.scheduler.pool.capacity[0]
    again = ask(tiny, "Hi " * 40, max_tokens=8)
    assert again.choices == done.choices and again.cached_tokens == (again.prompt_tokens - 1) // 32 * 32
    tiny.scheduler.forget_prefixes()
    assert tiny.scheduler.pool.in_use == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_model_that_gives_no_number_is_an_error_each_time(folder, load, bad) -> None:
    session = load(toys.logits(folder, [1.0, bad, 2.0], name=f"bad-{bad}"))
    for _ in range(2):
        with pytest.raises(InvalidLogits):
            ask(session)
    session.scheduler.forget_prefixes()
    assert session.scheduler.pool.in_use == (0,)
