"""Bug cases TXT: characters of several tokens in a stream (the tokenizer's half)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rase.errors import InvalidRequest
from rase.text.tokenizer import LocalTokenizer
from tests.support.toy_tokenizers import toy_bpe, toy_spm

BPE, SPM = toy_bpe(), toy_spm()
LOCAL_BPE, LOCAL_SPM = LocalTokenizer.from_gguf(BPE.metadata()), LocalTokenizer.from_gguf(SPM.metadata())
LIBRARY_BPE = Tokenizer.from_str(BPE.json().decode())


def streamed(local: LocalTokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = local.stream(skip)
    return [*(stream.push(token) for token in ids), stream.flush()]


@pytest.mark.parametrize("toy", [BPE, SPM], ids=["bpe", "spm"])
@pytest.mark.parametrize("text", ["😸", "안", "é", "\u0000"])
def test_txt_1_a_character_appears_when_it_is_whole(toy, text: str) -> None:
    local = LocalTokenizer.from_gguf(toy.metadata())
    ids = [toy.byte(value) for value in text.encode()] + [toy.byte(ord("!"))]
    assert streamed(local, ids) == [""] * (len(text.encode()) - 1) + [text, "!", ""]


@pytest.mark.parametrize(("left", "shown"), [([0xF0, 0x9F], ["", "", "\ufffd"]), ([0xFF], ["\ufffd", ""])])
def test_txt_1_what_never_becomes_a_character_is_replaced(left: list[int], shown: list[str]) -> None:
    assert streamed(LOCAL_BPE, [BPE.byte(value) for value in left]) == shown


def test_txt_1_a_control_token_between_the_bytes_of_a_character_is_skipped() -> None:
    ids = [BPE.byte(0xC3), BPE.id("<|im_end|>"), BPE.byte(0xA9)]
    assert streamed(LOCAL_BPE, ids) == ["", "", "é", ""]
    assert LOCAL_BPE.decode(ids) == "é"


@settings(max_examples=500)
@given(st.lists(st.integers(0, len(BPE) - 1) | st.integers(0x7F, 0xFF), max_size=24), st.booleans())
def test_txt_1_a_stream_is_the_decoding_of_the_whole(ids: list[int], skip: bool) -> None:
    pieces = streamed(LOCAL_BPE, ids, skip)
    raw = b"".join(
        LOCAL_BPE.piece_bytes(token)
        for token in ids
        if not (skip and LOCAL_BPE.piece(token) in BPE.specials()[:8])
    )
    assert "".join(pieces) == LOCAL_BPE.decode(ids, skip) == raw.decode("utf-8", "replace")
    assert "".join(pieces) == LIBRARY_BPE.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300)
@given(st.lists(st.integers(0, len(SPM) - 1), max_size=24))
def test_txt_1_a_sentencepiece_stream_is_the_decoding_of_the_whole(ids: list[int]) -> None:
    assert "".join(streamed(LOCAL_SPM, ids)) == LOCAL_SPM.decode(ids)


@settings(max_examples=300)
@given(st.text(max_size=30))
def test_txt_1_text_survives_the_way_there_and_back(text: str) -> None:
    assert LOCAL_BPE.decode(LOCAL_BPE.encode(text, parse_special=False), skip_special_tokens=False) == text
    assert LOCAL_SPM.decode(LOCAL_SPM.encode(text, parse_special=False)) == text


def test_txt_3_separators_and_quotes_come_out_exact() -> None:
    texts = ("\r\n", "\n\n", "\u2028", "data: x", "[DONE]", '"', "\0")
    toy = toy_bpe(pieces=texts)
    local = LocalTokenizer.from_gguf(toy.metadata())
    assert streamed(local, [toy.id(text) for text in texts]) == [*texts, ""]


@pytest.mark.parametrize("token", [-1, len(BPE), 2**40])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        LOCAL_BPE.decode([token])


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="U\\+D800"):
        LOCAL_BPE.encode("a\ud800")
