"""Bug cases STP: stop strings (what is shown; the request's fields are checked by the surfaces)."""

from __future__ import annotations

from rase.text.stream import StopText
from rase.text.tokenizer import LocalTokenizer
from tests.support.toy_tokenizers import toy_bpe

PIECES = ("alpha ", "be", "ta ga", "mma", " delta")


def test_stp_1_a_stop_string_that_spans_tokens() -> None:
    toy = toy_bpe(pieces=PIECES)
    stream = LocalTokenizer.from_gguf(toy.metadata()).stream()
    stop = StopText(["beta gamma"])
    shown = []
    for piece in PIECES:
        shown.append(stop.push(stream.push(toy.id(piece))))
        if stop.stopped:
            break
    assert shown == ["alpha ", "", "", ""]
    assert stop.stopped and stop.finish() == ""


def test_stp_1_a_false_start_is_shown_in_the_end() -> None:
    stop = StopText(["beta gamma"])
    assert [stop.push(piece) for piece in ("alpha ", "be", "ta ", "x", "bet")] == [
        "alpha ",
        "",
        "",
        "beta x",
        "",
    ]
    assert stop.finish() == "bet"
    assert not stop.stopped


def test_stp_3_an_empty_stop_string_never_matches() -> None:
    for stops in ([], [""]):
        stop = StopText(stops)
        assert stop.push("text") == "text"
        assert not stop.stopped
    stop = StopText(["", "X"])
    assert stop.push("aXb") == "a"
    assert stop.stopped
