"""What a tokenizer is built from: toy files against the library, and files that are refused."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from rase.errors import EngineError, ModelFileNotFound, TokenizerError
from rase.text.segments import Segment
from rase.text.tokenizer import LocalTokenizer
from tests.support.texts import generated_texts
from tests.support.toy_tokenizers import ToyTokenizer, toy_bpe, toy_spm

TOYS = {
    "llama-bpe": toy_bpe(add_bos=True),
    "qwen2": toy_bpe(pre="qwen2", words=("hello", " wor", "12", "\n\n", "  ")),
    "gpt-2": toy_bpe(pre="gpt-2"),
    "spm": toy_spm(words=("▁Hello", "ello", "▁▁", "abc", "▁the")),
    "spm bare": toy_spm(add_space_prefix=False, add_bos=False),
}


@pytest.mark.parametrize("name", TOYS)
def test_both_sources_give_the_ids_of_the_library(name: str) -> None:
    toy = TOYS[name]
    reference = Tokenizer.from_str(toy.json().decode())
    sources = [LocalTokenizer.from_gguf(toy.metadata()), LocalTokenizer.from_json(toy.json())]
    for text in generated_texts(250, 21, (*toy.specials(), "▁Hello", "<0x41>")):
        wanted = reference.encode(text).ids
        start = [] if not toy.add_bos or not toy.bos else [toy.id(toy.bos)]
        if start and wanted[:2] == start * 2:
            wanted = wanted[1:]  # the text began with it
        for local in sources:
            assert local.encode(text) == wanted, (name, text)


def test_spelling_a_token_does_not_make_it() -> None:
    """Control, byte and unused tokens come from no merge, even where their parts are tokens."""
    toy = toy_spm(words=("▁Hello", "<s", "<s>x", "<0x4", "1>", "</s"))
    for local in (LocalTokenizer.from_gguf(toy.metadata()), LocalTokenizer.from_json(toy.json())):
        for text in ("<s>", "</s>", "<unk>", "<0x41>", "<|im_end|>"):
            ids = local.encode_segments([Segment(text, "text")])[1:]
            assert toy.id(text) not in ids, text
            assert local.decode(ids) == text


def test_merges_that_build_an_added_token_are_left_out() -> None:
    toy = toy_bpe(words=("<think", "<thinks"), control=("<|im_end|>",), bos=None, eos="<|im_end|>")
    merges = [*toy.merges, ("<think", ">")]
    local = LocalTokenizer.from_gguf(toy.with_(merges=merges).metadata())
    assert toy.id("<think>") not in local.encode("<think>", parse_special=False)
    assert local.encode("<think>") == [toy.id("<think>")]


def test_blanks_that_are_tokens_of_their_own_are_found_in_data_too() -> None:
    """Gemma's runs of blanks are user-defined tokens: they say how text is cut, not what it means."""
    toy = toy_bpe(user_defined=("\n\n", "   ", "<table>"))
    local = LocalTokenizer.from_gguf(toy.metadata())
    ids = local.encode_segments([Segment("a\n\n   <table>", "text")])
    assert ids[:3] == [toy.byte(ord("a")), toy.id("\n\n"), toy.id("   ")]
    assert toy.id("<table>") not in ids


@pytest.mark.parametrize(
    "flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"lstrip": True, "rstrip": True}]
)
def test_flags_of_added_tokens(flags: dict[str, bool]) -> None:
    source = json.loads(toy_bpe().json())
    for token in source["added_tokens"]:
        if token["content"] in ("<|im_start|>", "<think>"):
            token.update(flags)
    data = json.dumps(source)
    local, reference = LocalTokenizer.from_json(data.encode()), Tokenizer.from_str(data)
    for text in generated_texts(
        300, 22, ("<|im_start|>", "<think>", " <|im_start|> ", "x<think>x", "\n<think>\n")
    ):
        assert local.encode(text) == reference.encode(text).ids, repr(text)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace(scheme: str) -> None:
    """Files that write the prefix blank in the pre-tokenizer; "first" means the start of the prompt only."""
    source = json.loads(toy_spm().json())
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    source.update(normalizer=None, pre_tokenizer=space, decoder=space)
    data = json.dumps(source)
    local, reference = LocalTokenizer.from_json(data.encode()), Tokenizer.from_str(data)
    for text in generated_texts(200, 23, ("<|im_end|>", "Hello", "<|im_end|>Hello")):
        ids = reference.encode(text, add_special_tokens=False).ids
        assert local.encode(text, add_special_tokens=False) == ids, repr(text)
    assert local.decode([reference.token_to_id("▁Hello")]) == ("Hello" if scheme != "never" else " Hello")


def test_names_outside_the_byte_alphabet_are_literal() -> None:
    """DeepSeek's control tokens are spelled with characters that a byte-level vocabulary does not use."""
    end = "<｜end▁of▁sentence｜>"
    toy = toy_bpe(control=(end, "<|im_end|>"), bos=None, eos="<|im_end|>")
    local = LocalTokenizer.from_gguf(toy.metadata())
    assert local.encode(end) == [toy.id(end)]
    assert local.decode([toy.id(end)], skip_special_tokens=False) == end
    assert toy.id(end) in local.end_ids


def test_holes_and_padding_are_no_tokens() -> None:
    toy = toy_bpe()
    padded = toy.with_(tokens=[*toy.tokens, "[PAD0]", "[PAD1]"], types=[*toy.types, 5, 5])
    local = LocalTokenizer.from_gguf(padded.metadata())
    assert local.vocab_size == len(toy) + 2
    assert len(toy) not in local.encode("[PAD0]")


def metadata_with(**changes: Any) -> dict[str, Any]:
    metadata = toy_bpe().metadata()
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    return metadata


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "'rwkv'"),
        ({"model": None}, "no such key"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"tokens": np.zeros(3)}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "merge 0"),
        ({"merges": ["a zzz"]}, "merge 0"),
        ({"token_type": np.zeros(3, dtype=np.int32)}, "token_type"),
        ({"token_type": "x"}, "token_type"),
        ({"bos_token_id": 10**6}, "bos_token_id"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"model": "llama"}, "scores"),
        ({"model": "llama", "scores": np.zeros(2, dtype=np.float32)}, "scores"),
    ],
    ids=str,
)
def test_a_contradictory_vocabulary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        LocalTokenizer.from_gguf(metadata_with(**changes))


def test_an_attached_tokenizer_must_belong_to_the_model() -> None:
    toy = toy_bpe()
    attached = LocalTokenizer.from_json(toy.json())
    assert attached.with_metadata(toy.metadata()).end_ids == LocalTokenizer.from_gguf(toy.metadata()).end_ids
    other = toy_bpe(control=("<other>", *toy.specials()[1:8]), bos="<other>")
    with pytest.raises(TokenizerError, match="does not belong"):
        attached.with_metadata(other.metadata())
    smaller = toy.with_(tokens=toy.tokens[:-3], types=toy.types[:-3])
    with pytest.raises(TokenizerError, match="more tokens"):
        attached.with_metadata(smaller.metadata())
    assert attached.with_metadata({}).bos_id is None  # a file without a vocabulary says nothing


def test_an_attached_tokenizer_takes_the_flags_of_the_file() -> None:
    toy = toy_bpe(add_bos=False)
    attached = LocalTokenizer.from_json(toy.json())
    assert attached.encode("Hi") == [toy.id("Hi")]
    metadata = {**toy.metadata(), "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    assert attached.with_metadata(metadata).encode("Hi") == [toy.id(toy.bos or ""), toy.id("Hi"), toy.eos_id]


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound):
        LocalTokenizer.from_file(tmp_path / "absent.json")
    with pytest.raises(ModelFileNotFound):
        LocalTokenizer.from_file(tmp_path)
    for data in (b"", b"{}", b"[]", b"\xff\xfe", b'{"version": "1.0"}', b"[" * 100_000):
        with pytest.raises(TokenizerError):
            LocalTokenizer.from_json(data)
    path = toy_bpe().write_json(tmp_path)
    assert LocalTokenizer.from_file(path).encode("Hi") == [toy_bpe().id("Hi")]


def test_decoders_that_are_not_supported_are_named() -> None:
    source = json.loads(toy_bpe().json())
    for decoder, name in (
        ({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}, "CTC"),
        (None, "None"),
    ):
        source["decoder"] = decoder
        with pytest.raises(TokenizerError, match=name):
            LocalTokenizer.from_json(json.dumps(source).encode())


def test_a_wild_id_costs_no_memory() -> None:
    source = json.loads(toy_bpe().json())
    source["model"]["vocab"]["zz"] = 4_000_000_000
    with pytest.raises(TokenizerError, match="holes"):
        LocalTokenizer.from_json(json.dumps(source).encode())


def _damage(value: Any, random_: random.Random) -> Any:
    """Change one thing somewhere in a JSON value."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        key = random_.choice(list(value))
        if random_.random() < 0.15:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _damage(value[key], random_)}
    if isinstance(value, list) and value and random_.random() < 0.9:
        index = random_.randrange(len(value))
        return [*value[:index], _damage(value[index], random_), *value[index + 1 :]]
    return random_.choice(
        [None, True, -1, 0, 2**40, 1.5, "", "x", "▁", "(", [], {}, [value, value], {"type": "x"}]
    )


@pytest.mark.parametrize(
    "toy", [toy_bpe(words=("hello",)), toy_spm(words=("▁a",), bytes_too=False)], ids=["bpe", "spm"]
)
def test_a_damaged_tokenizer_json_is_refused_or_works(toy: ToyTokenizer) -> None:
    random_ = random.Random(31)
    source = json.loads(toy.json())
    refused = 0
    for _ in range(400):
        damaged = json.dumps(_damage(source, random_)).encode()
        try:
            local = LocalTokenizer.from_json(damaged)
            ids = local.encode("hello <|im_end|> 안\n" * 20)
            local.decode(ids)
        except EngineError:
            refused += 1
    assert 50 < refused < 400


@pytest.mark.parametrize("toy", [toy_bpe(words=("hello",)), toy_spm(words=("▁a",))], ids=["bpe", "spm"])
def test_a_damaged_vocabulary_is_refused_or_works(toy: ToyTokenizer) -> None:
    random_ = random.Random(32)
    metadata = toy.metadata()
    refused = 0
    for _ in range(400):
        damaged = dict(metadata)
        key = random_.choice(list(damaged))
        value = damaged[key]
        if isinstance(value, list) and random_.random() < 0.7:
            value = list(value)
            value[random_.randrange(len(value))] = random_.choice(
                ["", "x", "a b", "<|im_end|>", "\x00", "é", value[0]]
            )
            damaged[key] = value
        elif isinstance(value, np.ndarray) and random_.random() < 0.7:
            value = value.copy()
            value[random_.randrange(len(value))] = random_.choice([-1, 0, 2, 3, 4, 5, 6, 99])
            damaged[key] = value
        elif random_.random() < 0.3:
            del damaged[key]
        else:
            damaged[key] = random_.choice([None, True, -1, 2**40, 1.5, "", "x", [], ["x"], np.zeros(2)])
        try:
            local = LocalTokenizer.from_gguf(damaged)
            ids = local.encode("hello <|im_end|> 안\n" * 20)
            local.decode(ids)
        except EngineError:
            refused += 1
    assert 30 < refused < 400


@pytest.mark.parametrize(
    ("toy", "token", "kind"),
    [
        (toy_spm(), "a" * 30_000, 1),  # every cut of a normal token is looked up
        (toy_bpe(), "<" * 1_000_000, 3),  # the pattern of added tokens grows with each character
        (toy_spm(), "<" * 1_000_000, 4),
    ],
)
def test_a_token_of_absurd_length_is_refused_at_once(toy: ToyTokenizer, token: str, kind: int) -> None:
    scores = [*toy.scores, -1.0] if toy.scores else []
    long = toy.with_(tokens=[*toy.tokens, token], types=[*toy.types, kind], scores=scores)
    start = time.process_time()
    with pytest.raises(TokenizerError) as caught:
        LocalTokenizer.from_gguf(long.metadata())
    assert time.process_time() - start < 2 and len(str(caught.value)) < 400


def test_an_added_token_of_absurd_length_in_a_tokenizer_json() -> None:
    tree = json.loads(toy_bpe().json())
    tree["added_tokens"].append({**tree["added_tokens"][0], "id": 400, "content": "<" * 1_000_000})
    with pytest.raises(TokenizerError, match="4096 characters"):
        LocalTokenizer.from_json(json.dumps(tree).encode())


def test_tokens_that_are_all_prefixes_of_each_other() -> None:
    """n tokens of 1 to n letters have n²/2 merges: gigabytes long before n reaches the usual size."""
    toy = toy_spm()
    runs = ["a" * length for length in range(2, 2000)]
    many = toy.with_(
        tokens=toy.tokens + runs, types=toy.types + [1] * len(runs), scores=toy.scores + [-1.0] * len(runs)
    )
    with pytest.raises(TokenizerError, match="too long"):
        LocalTokenizer.from_gguf(many.metadata())


def test_a_merge_of_absurd_length_is_cut_in_the_message() -> None:
    toy = toy_bpe()
    with pytest.raises(TokenizerError) as caught:
        LocalTokenizer.from_gguf(toy.with_(merges=[("a" * 1_000_000, "b")]).metadata())
    assert len(str(caught.value)) < 400
