"""The generation loop: what it emits, when it stops, and that it leaves the decoder usable."""

from __future__ import annotations

import pytest

from rase.engine import generation
from rase.engine.generation import (
    GenerationConfig,
    GenerationStopReason,
    generate,
    generate_with,
)
from rase.errors import Cancelled, ContextLengthExceeded, InvalidGenerationConfig, InvalidLogits, SessionBusy
from tests.support.decoders import Chain, FixedLogits
from tests.support.processes import interrupted_at

GREEDY = GenerationConfig(temperature=0.0, max_tokens=10, stop_tokens=(0,))


def test_a_chain_runs_to_its_stop_token_which_is_not_emitted():
    seen = []
    result = generate_with(Chain([1, 2, 3, 4]), [1], GREEDY, None, seen.append)
    assert result.tokens == seen == [2, 3, 4]
    assert result.stop_reason is GenerationStopReason.StopToken
    assert result.logprobs is None


def test_the_eos_of_the_decoder_stops_only_when_the_caller_asks():
    config = GenerationConfig(temperature=0.0, max_tokens=5)
    assert generate(Chain([1, 2]), [1], config).tokens == [2, 0, 0, 0, 0]


def test_max_tokens_ends_without_evaluating_the_last_token():
    decoder = FixedLogits([0, 1, 0])
    result = generate(decoder, [0, 0], GenerationConfig(temperature=0.0, max_tokens=3))
    assert result.tokens == [1, 1, 1] and result.stop_reason is GenerationStopReason.MaxTokens
    assert decoder.calls == [[0, 0], 1, 1], "the third token needs no logits after it"


@pytest.mark.parametrize("prompt", [3, 6, 7])
def test_a_full_context_ends_like_max_tokens(prompt):
    decoder = Chain([1, 1], context_length=8)
    result = generate(decoder, [1] * prompt, GenerationConfig(temperature=0.0, max_tokens=100))
    assert len(result.tokens) == 8 - prompt, "prompt and answer together fill the context"
    assert result.stop_reason is GenerationStopReason.MaxTokens


@pytest.mark.parametrize("prompt", [8, 9, 200])
def test_a_prompt_without_room_for_a_token_is_refused_before_any_compute(prompt):
    decoder = Chain([1, 1], context_length=8)
    with pytest.raises(ContextLengthExceeded) as caught:
        generate(decoder, [1] * prompt, GREEDY)
    assert (caught.value.prompt_tokens, caught.value.context_length) == (prompt, 8)
    assert decoder.length == 0


def test_cancel_before_the_prompt_computes_nothing():
    decoder = FixedLogits([0, 1])
    result = generate(decoder, [0], GREEDY, lambda: True)
    assert (result.tokens, result.stop_reason, decoder.calls) == ([], GenerationStopReason.Cancelled, [])


@pytest.mark.parametrize("after", [1, 2, 3])
def test_cancel_is_asked_before_every_token(after):
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > after

    result = generate(Chain([1, 2, 3, 4, 5, 6]), [1], GREEDY, cancelled)
    assert result.stop_reason is GenerationStopReason.Cancelled
    assert result.tokens == [2, 3, 4][: after - 1]


def test_the_decoder_gets_the_hook_and_its_cancel_is_a_result():
    class Slow(Chain):
        def prefill(self, ids):
            hooks.append(self.cancelled)
            assert self.cancelled() is False and asked == [1, 1], "before the prompt, and here"
            raise Cancelled("prefill")

    hooks, asked = [], []
    decoder = Slow([1, 2])
    result = generate(decoder, [1], GREEDY, lambda: asked.append(1) is not None)
    assert (result.tokens, result.stop_reason) == ([], GenerationStopReason.Cancelled)
    assert decoder.cancelled is None
    assert hooks[0]() is False and len(asked) == 2, "a hook that is left behind is not asked any more"


def test_an_interrupt_at_any_instruction_leaves_the_decoder_free():
    """Ctrl-C is raised at each bytecode of the loop in turn; the next call must be right every time."""
    decoder, gone = Chain([1, 2]), []
    moment = 0
    while True:
        struck = interrupted_at(
            moment, generation.__file__, lambda: generate(decoder, [1], GREEDY, lambda: bool(gone))
        )
        gone.append(1)  # a hook that the interrupted call left behind would cancel the next one
        result = generate(decoder, [1], GREEDY)
        gone.clear()
        assert (result.tokens, result.stop_reason) == ([2], GenerationStopReason.StopToken), moment
        if not struck:
            break
        moment += 1
    assert moment > 100, f"only {moment} moments"


def test_false_from_on_token_stops_and_keeps_the_token():
    result = generate_with(Chain([1, 2, 3, 4]), [1], GREEDY, None, lambda id: id != 3)
    assert (result.tokens, result.stop_reason) == ([2, 3], GenerationStopReason.Cancelled)


@pytest.mark.parametrize("value", [None, 0, "", True, []])
def test_only_false_itself_stops(value):
    assert generate_with(Chain([1, 2, 3]), [1], GREEDY, None, lambda id: value).tokens == [2, 3]


@pytest.mark.parametrize("place", ["on_token", "cancelled", "decode"])
def test_an_exception_propagates_unchanged_and_the_next_call_is_right(place):
    class Mine(BaseException):
        pass

    error = Mine("mine")

    def fail(*_):
        raise error

    decoder = Chain([1, 2, 3])
    if place == "decode":
        decoder.on_step = fail
    with pytest.raises(Mine) as caught:
        generate_with(
            decoder,
            [1],
            GREEDY,
            fail if place == "cancelled" else None,
            fail if place == "on_token" else None,
        )
    assert caught.value is error
    decoder.on_step = lambda: None
    assert generate(decoder, [1], GREEDY).tokens == [2, 3]


def test_generating_from_the_callback_is_refused_and_does_not_disturb():
    decoder = Chain([1, 2, 3])
    errors = []

    def again(id):
        with pytest.raises(SessionBusy) as caught:
            generate(decoder, [1], GREEDY)
        errors.append(caught.value)

    assert generate_with(decoder, [1], GREEDY, None, again).tokens == [2, 3]
    assert len(errors) == 2
    other = Chain([1, 2])
    assert generate_with(
        decoder, [1], GREEDY, None, lambda id: bool(generate(other, [1], GREEDY))
    ).tokens == [2, 3]


def test_a_biased_id_outside_the_vocabulary_is_refused_before_any_compute():
    decoder = FixedLogits([1, 2, 3], vocab_size=3)
    with pytest.raises(InvalidGenerationConfig):
        generate(decoder, [0], GenerationConfig(logit_bias={3: 1.0}))
    assert decoder.calls == []


def test_bad_logits_are_a_typed_error():
    with pytest.raises(InvalidLogits, match="NaN"):
        generate(FixedLogits([1, float("nan")]), [0], GREEDY)


def test_logprobs_come_with_each_token_when_asked_for():
    config = GenerationConfig(temperature=0.0, max_tokens=2, logprobs=2)
    result = generate(FixedLogits([0, 1, 2]), [0], config)
    assert [sampled.id for sampled in result.logprobs] == result.tokens == [2, 2]
    assert [id for id, _ in result.logprobs[0].top] == [2, 1]


def test_penalties_see_the_prompt_and_the_answer():
    logits = [1.0, 0.9, 0.8, 0.7]
    plain = GenerationConfig(temperature=0.0, max_tokens=3)
    assert generate(FixedLogits(logits), [0], plain).tokens == [0, 0, 0]
    repetition = GenerationConfig(temperature=0.0, max_tokens=3, repetition_penalty=2.0)
    assert generate(FixedLogits(logits), [0], repetition).tokens == [1, 2, 3]
    presence = GenerationConfig(temperature=0.0, max_tokens=4, presence_penalty=0.25)
    assert generate(FixedLogits(logits), [0], presence).tokens == [0, 1, 2, 0], "the prompt does not count"
    frequency = GenerationConfig(temperature=0.0, max_tokens=4, frequency_penalty=0.15)
    assert generate(FixedLogits(logits), [0], frequency).tokens == [0, 1, 0, 2]
