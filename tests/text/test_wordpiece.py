"""WordPiece vocabularies of GGUF files: the ids of the library's BERT pipeline, between [CLS] and [SEP]."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from rase.errors import TokenizerError
from rase.text.tokenizer import LocalTokenizer
from tests.support.texts import PROSE, generated_texts
from tests.support.toy_wordpiece import VOCAB, metadata, source


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_all_sources_give_the_ids_of_the_library(lowercase: bool) -> None:
    vocab = VOCAB if lowercase else [*VOCAB, "Hello", "##É", *"ABC"]
    reference = Tokenizer.from_str(source(vocab, lowercase).decode())
    reference.no_padding()
    reference.no_truncation()
    kept = metadata(vocab, tokens=vocab)  # a file that kept the ## of vocab.txt
    locals_ = [
        LocalTokenizer.from_gguf(metadata(vocab)),
        LocalTokenizer.from_gguf(kept),
        LocalTokenizer.from_json(source(vocab, lowercase)),
    ]
    texts = [
        *PROSE,
        "Unaffable naïve hello-testing",
        "東京 东京",
        "x" * 120,
        *generated_texts(200, 3, ("##ing",)),
    ]
    for text in texts:
        wanted = reference.encode(text).ids
        assert wanted[0] == 2 and wanted[-1] == 3
        for local in locals_:
            assert local.encode(text, parse_special=False) == wanted, text
            assert local.encode(text, False, parse_special=False) == wanted[1:-1], text


def test_small_letters_follow_the_file_else_the_vocabulary() -> None:
    cased = [*VOCAB, "Hello"]
    hello, small = VOCAB.index("hello"), LocalTokenizer.from_gguf(metadata())
    assert small.encode("HELLO", False) == [hello]
    assert LocalTokenizer.from_gguf(metadata(cased)).encode("Hello", False) == [len(VOCAB)]
    forced = LocalTokenizer.from_gguf(metadata(cased, **{"normalizer.lowercase": True}))
    assert forced.encode("HELLO", False) == [hello]


def test_text_between_its_ends_once() -> None:
    local = LocalTokenizer.from_gguf(metadata())
    assert local.bos_id == 2 and local.eos_id == 3
    assert local.encode("[CLS]hello[SEP]") == local.encode("hello") == [2, VOCAB.index("hello"), 3]
    assert 3 not in local.encode("[SEP]", parse_special=False)[:-1], "text is data"
    assert local.encode("") == [2, 3]
    assert local.decode(local.encode("hello unaffable")) == "hello unaffable"


@pytest.mark.parametrize("lacking", ["[UNK]", "[CLS]", "[SEP]"])
def test_a_vocabulary_without_its_ends_is_refused(lacking: str) -> None:
    vocab = [f"<{name}>" if name == lacking else name for name in VOCAB]
    bare = metadata(vocab, unknown_token_id=None, cls_token_id=None, seperator_token_id=None)
    with pytest.raises(TokenizerError, match="special token"):
        LocalTokenizer.from_gguf(bare)
