"""Write what llama.cpp makes of texts by each name of ``tokenizer.ggml.pre`` that rase knows, too.

From the root of the repository, with llama-cpp-python (what it imports beside it):

    PYTHONPATH=FOLDER python -m tests.text.goldens.make_cuts

Made with llama-cpp-python 0.3.36. The vocabulary is trained without a pre-tokenizer, so that its merges reach
over every boundary: text that is cut elsewhere gets other ids.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rase.text.pretokenizers import PRE_TOKENIZERS
from tests.support.gguf_build import write_gguf
from tests.support.texts import PROSE, generated_texts
from tests.support.toy_tokenizers import byte_letters

TARGET = Path(__file__).resolve().parent / "cuts.json"
TEXTS = (*PROSE, *generated_texts(60, seed=3))


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens, the bytes first, and merges ("left right")."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = byte_letters()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=letters, show_progress=False, max_token_length=6
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    joined = dict.fromkeys(left + right for left, right in merges)
    return [*letters, *(name for name in joined if name not in letters)], [" ".join(pair) for pair in merges]


def ids(pre: str, tokens: list[str], merges: list[str], folder: Path) -> list[list[int]]:
    from llama_cpp import Llama

    keys: dict[str, Any] = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges,
                            "token_type": [1] * len(tokens), "add_bos_token": False}  # fmt: skip
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    path = write_gguf(folder / "vocab.gguf", {"general.architecture": "llama", **metadata}, {})
    model = Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=False) for text in TEXTS]


def main() -> None:
    tokens, merges = vocabulary()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in sorted(PRE_TOKENIZERS):
            found.setdefault(json.dumps(ids(pre, tokens, merges, Path(folder))), []).append(pre)
    families = [{"names": names, "ids": json.loads(own)} for own, names in found.items()]
    lines = (json.dumps(value, ensure_ascii=False) for value in families)
    head = f'"tokens": {json.dumps(tokens)},\n"merges": {json.dumps(merges)},\n"texts": {json.dumps(TEXTS)}'
    TARGET.write_text("{\n" + head + ',\n"families": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
