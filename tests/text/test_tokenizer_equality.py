"""Tokenizers read from a GGUF against the `tokenizers` library on the tokenizer.json of the same model."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rase.gguf.reader import GgufFile
from rase.text.segments import Segment
from rase.text.tokenizer import LocalTokenizer
from tests.support.texts import generated_texts

COUNT = int(os.environ.get("RASE_TEST_STRINGS", "1000"))  # strings per tokenizer; the proof takes 10,000


def write_vocabulary(path: Path, source: dict, *, pre: str) -> None:
    """Write the vocabulary of a byte-level tokenizer.json into a GGUF file as public converters do."""
    import gguf

    added = {token["id"]: token for token in source["added_tokens"]}
    names = {token: name for name, token in source["model"]["vocab"].items()}
    names.update({token: entry["content"] for token, entry in added.items()})
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([names[token] for token in range(len(names))])
    kinds = [
        gguf.TokenType.NORMAL
        if token not in added
        else gguf.TokenType.CONTROL
        if added[token]["special"]
        else gguf.TokenType.USER_DEFINED
        for token in range(len(names))
    ]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in source["model"]["merges"]])
    writer.add_eos_token_id(source["model"]["vocab"].get("<|im_end|>") or 151645)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def compare(
    local: LocalTokenizer, reference: Tokenizer, count: int, seed: int, specials: tuple[str, ...]
) -> None:
    """Encode ``count`` generated strings with both; decode what came out."""
    for text in generated_texts(count, seed, specials):
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert local.encode(text, add_special_tokens=False) == wanted, repr(text)
        assert local.decode(wanted, skip_special_tokens=False) == reference.decode(
            wanted, skip_special_tokens=False
        )


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalTokenizer, bytes]:
    data = lzma.decompress((qwen3_tokenizer / "tokenizer.json.xz").read_bytes())
    path = tmp_path_factory.mktemp("qwen3") / "vocabulary.gguf"
    write_vocabulary(path, json.loads(data), pre="qwen2")
    with GgufFile.open(path) as file:
        return LocalTokenizer.from_gguf(file.metadata), data


def test_qwen3_in_a_gguf_gives_the_ids_of_its_tokenizer_json(qwen3: tuple[LocalTokenizer, bytes]) -> None:
    local, data = qwen3
    specials = (
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "<|im_start|>user\n",
        "<|im_",
    )
    compare(local, Tokenizer.from_str(data.decode()), COUNT, 3, specials)


def test_qwen3_tokenizer_json_read_by_rase_gives_the_ids_of_the_library(
    qwen3: tuple[LocalTokenizer, bytes],
) -> None:
    _, data = qwen3
    local = LocalTokenizer.from_json(data)
    compare(local, Tokenizer.from_str(data.decode()), COUNT // 2, 4, ("<|im_end|>", "<think>"))
    assert local.end_ids == {151643, 151645}


def test_both_sources_agree_about_data(qwen3: tuple[LocalTokenizer, bytes]) -> None:
    """Text segments: no special token is parsed, and the library's own switch for that gives the same ids."""
    embedded, data = qwen3
    attached = LocalTokenizer.from_json(data)
    reference = Tokenizer.from_str(data.decode())
    reference.encode_special_tokens = True  # special tokens as text; user-defined ones are still parsed
    for text in generated_texts(300, 5, ("<|im_end|>", "<|im_start|>", "<|endoftext|>")):
        segments = [Segment(text, "text")]
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert embedded.encode_segments(segments) == attached.encode_segments(segments) == wanted, repr(text)
    for text in generated_texts(300, 6, ("<|im_end|>", "<think>", "</think>")):
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert embedded.encode_segments([Segment(text, "assistant")]) == wanted, repr(text)


def test_any_cut_into_segments_gives_the_ids_of_the_whole(qwen3: tuple[LocalTokenizer, bytes]) -> None:
    """Merges across the border between markup and content are those of the whole rendered string."""
    local, _ = qwen3
    for index, text in enumerate(generated_texts(300, 7)):
        head = "<|im_start|>user\n"
        cut = index % (len(text) + 1)
        segments = [
            Segment(head + text[:cut], "markup"),
            Segment(text[cut:], "text"),
            Segment("<|im_end|>\n", "markup"),
        ]
        whole = local.encode(head + text + "<|im_end|>\n", add_special_tokens=False)
        assert local.encode_segments(segments) == whole, repr(text)
