"""Unigram vocabularies of GGUF files: the best sum of scores, as the library and a plain search find it."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from rase.errors import TokenizerError
from rase.text.tokenizer import LocalTokenizer

BLANK = "\u2581"
PIECES = [
    ("<s>", 0.0, 3), ("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2),
    (BLANK, -2.0, 1), ("a", -3.0, 1), ("b", -3.5, 1), ("c", -4.0, 1), ("ab", -4.5, 1), ("bc", -5.0, 1),
    ("abc", -9.0, 1), (f"{BLANK}a", -3.2, 1), (f"{BLANK}ab", -6.0, 1), ("é", -7.0, 1), ("<", -6.0, 1),
    ("s", -6.0, 1), (">", -6.0, 1), ("<mask>", 0.0, 3),
]  # fmt: skip
BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]


def metadata(pieces: list[tuple[str, float, int]] = PIECES, **changes: Any) -> dict[str, Any]:
    keys = {
        "model": "t5", "pre": "default", "tokens": [name for name, _, _ in pieces],
        "scores": [score for _, score, _ in pieces], "token_type": [kind for _, _, kind in pieces],
        "bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "add_bos_token": True,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def best(text: str) -> list[int]:
    """The cut with the highest sum (Viterbi 1967); what nothing spells is unknown, and a run of it is one."""
    usable = {name: (score, place) for place, (name, score, kind) in enumerate(PIECES) if kind == 1}
    unknown = min(score for score, _ in usable.values()) - 10
    paths: list[tuple[float, list[int]] | None] = [(0.0, [])] + [None] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            before = paths[start]
            assert before is not None
            if text[start:end] in usable:
                score, place = usable[text[start:end]]
            elif end - start == 1:
                score, place = unknown, 3
            else:
                continue
            if paths[end] is None or before[0] + score > paths[end][0]:  # type: ignore[index]
                paths[end] = (before[0] + score, [*before[1], place])
    last = paths[-1]
    assert last is not None
    return [place for i, place in enumerate(last[1]) if not (place == 3 and i and last[1][i - 1] == 3)]


def test_the_cut_has_the_best_score() -> None:
    local = LocalTokenizer.from_gguf(metadata())
    rng = random.Random(5)
    for _ in range(300):
        words = ["".join(rng.choice("abcé<s>x") for _ in range(rng.randint(1, 9))) for _ in range(3)]
        wanted = [place for word in words for place in best(BLANK + word)]
        assert local.encode(" ".join(words), False, parse_special=False) == wanted, words


def test_blanks_and_ends_follow_the_file() -> None:
    local = LocalTokenizer.from_gguf(metadata())
    once = local.encode("ab c")
    assert once[0] == 0 and once[-1] == 2 and local.add_bos
    assert local.encode("  ab   c ") == once, "runs of blanks are one"
    kept = LocalTokenizer.from_gguf(metadata(remove_extra_whitespaces=False))
    assert len(kept.encode("ab   c")) == len(once) + 2
    bare = LocalTokenizer.from_gguf(
        metadata(add_space_prefix=False, add_bos_token=False, add_eos_token=False)
    )
    assert bare.encode("ab") == [8]
    assert local.decode(local.encode("ab c")) == "ab c"
    assert 0 not in local.encode("<s>", False, parse_special=False), "text is data"


def test_bytes_stand_for_what_nothing_spells() -> None:
    pieces = [*PIECES, *BYTES]
    local = LocalTokenizer.from_gguf(metadata(pieces))
    ids = local.encode("a한", False)
    first = len(PIECES)
    assert ids == [11, *(first + byte for byte in "한".encode())]
    assert local.decode(ids) == "a한"
    spelled = local.encode("<0x41>", False, parse_special=False)
    assert first + 0x41 not in spelled, "the spelling of a byte's token is text"
    assert local.decode(spelled) == "<0x41>"


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None},
        {"unknown_token_id": None, "tokens": ["?" if name == "<unk>" else name for name, _, _ in PIECES]},
        {"precompiled_charsmap": [1, 2, 3]},
        {"precompiled_charsmap": [255] * 40},
        {"precompiled_charsmap": "text"},
    ],
    ids=["no scores", "no unknown", "short table", "damaged table", "a string"],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError):
        LocalTokenizer.from_gguf(metadata(**changes))


GOLDENS: dict[str, Any] = json.loads((Path(__file__).parent / "goldens" / "unigram.json").read_text())


@pytest.mark.parametrize("name", sorted(set(GOLDENS) - {"texts"}))
def test_ids_are_those_of_sentencepiece(name: str) -> None:
    """Models that SentencePiece trained, with a table of normalisation (goldens/make_unigram.py)."""
    keys = GOLDENS[name]["metadata"]
    local = LocalTokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    for text, ids in zip(GOLDENS["texts"], GOLDENS[name]["ids"], strict=True):
        assert local.encode(text, False, parse_special=False) == ids, repr(text)


def test_a_long_text_is_normalised_in_time() -> None:
    keys = GOLDENS["rules"]["metadata"]
    local = LocalTokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    for text in ("s\u0323\u0307" * 50_000, "Z" * 131_072, " " * 200_000, "\u200d" * 100_000):
        start = time.perf_counter()
        local.encode(text, False)
        assert time.perf_counter() - start < 10, "seconds, on a machine that does other things, too"


def test_a_table_of_noise_is_refused_or_harmless() -> None:
    rng = random.Random(7)
    for size in (4, 16, 64, 400):
        for _ in range(50):
            units = rng.randbytes(4 * size)
            table = [*(4 * size).to_bytes(4, "little"), *units, *rng.randbytes(20), 0]
            with contextlib.suppress(TokenizerError):
                LocalTokenizer.from_gguf(metadata(precompiled_charsmap=table)).encode("ab \u00e9 c")
