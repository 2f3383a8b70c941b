"""Whatever the bytes, opening a file ends in a model that can be read or in a typed error, fast and small.

The suite runs a short form; ``python -m tests.gguf.test_fuzz 1000000 [seed]`` runs as long as you like.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rase.errors import CorruptModelFile, ModelFileNotFound, UnsupportedFormat
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import FORMATS, format_named
from rase.gguf.reader import GgufFile
from rase.gguf.stream import HashedTensors
from rase.testing.blocks import random_blocks
from tests.support.gguf_build import ALL_FORMATS, HandMade

INTERESTING = [
    0, 1, 2, 3, 4, 7, 8, 9, 10, 12, 13, 31, 32, 33, 127, 128, 255, 256, 4096, 65535, 65536, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1,
]  # fmt: skip


def seeds() -> list[tuple[bytes, list[int]]]:
    """Well-formed files with the offsets of their fields: every value type, format, version, split keys."""
    rng = np.random.default_rng(1)
    numbers = [
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "float32",
        "bool",
        "uint64",
        "int64",
        "float64",
    ]
    scalars: list[tuple[str, str, Any]] = [(f"k.{kind}", kind, 1) for kind in numbers]
    arrays = [(f"a.{kind}", "array", (kind, [1, 0, 1])) for kind in numbers]
    words = [("w", "array", ("string", ["alpha", "", "語", "d" * 40])), ("s", "string", "text")]
    tensors, data = [], b""
    for fmt in ALL_FORMATS:
        tensors.append((f"t.{fmt}", [256, 2], format_named(fmt).ggml_id, len(data)))
        data += random_blocks(fmt, (2, 256), rng)
        data += bytes(-len(data) % 32)
    files = [
        HandMade(scalars, tensors[:2], data[:4096]),
        HandMade(arrays + words, tensors, data),
        HandMade(words, [("x", [8], 0, 0)], bytes(32), version=2),
        HandMade([("general.alignment", "uint32", 8), *words], [("x", [2], 0, 0), ("y", [2, 1, 1, 1], 0, 8)],
                 bytes(16), alignment=8),
        HandMade([("split.no", "uint16", 0), ("split.count", "uint16", 1)], [("x", [8], 0, 0)], bytes(32)),
        HandMade(),
    ]  # fmt: skip
    return [(file.build(), file.borders) for file in files]


def mutate(data: bytes, borders: list[int], rng: random.Random) -> bytes:
    """One to four changes, most of them at the border of a field, where a count or a length lies."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = min(
            rng.choice(borders) if rng.random() < 0.8 else rng.randrange(len(out) + 1), max(len(out) - 1, 0)
        )
        kind = rng.randrange(7)
        if kind <= 2:  # a number of some width
            width = rng.choice((1, 4, 8, 8))
            value = rng.choice(INTERESTING) if rng.random() < 0.8 else rng.getrandbits(64)
            out[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 3 and out:  # a bit
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 4:  # a cut
            del out[at:]
        elif kind == 5:  # a piece removed or doubled
            piece = out[at : at + rng.choice((1, 4, 8, 12, 40))]
            out[at : at + len(piece)] = piece * rng.choice((0, 2))
        else:  # a piece of elsewhere
            other = rng.randrange(len(out) + 1)
            piece = out[other : other + rng.randrange(1, 64)]
            out[at : at + len(piece)] = piece
    return bytes(out)


def check(path: Path, data: bytes) -> str:
    """Open the file; return how it ended, or fail when that is neither a typed error nor a sound model."""
    path.write_bytes(data)
    start = time.perf_counter()
    try:
        with GgufFile.open(path) as file:
            source = HashedTensors(file)
            taken: dict[str, bytes] = {}
            grains = {name: info.nbytes for name, info in file.tensors.items()}
            source.deliver(grains, lambda info, _, raw: taken.setdefault(info.name, bytes(raw)))
            assert source.digests == (hashlib.sha256(data).hexdigest(),)
            for name, info in file.tensors.items():
                raw = data[info.offset : info.offset + info.nbytes]
                assert len(raw) == info.nbytes and taken[name] == raw == file.read(info)
                assert dequantize(info.format, raw, info.shape).shape == info.shape
            ended = "model"
    except (CorruptModelFile, UnsupportedFormat, ModelFileNotFound) as error:
        assert str(path) in str(error) and error.data["path"], f"an error that names no file: {error}"
        ended = type(error).__name__
    seconds = time.perf_counter() - start
    assert seconds < 1, f"{seconds:.1f} s for {len(data)} bytes"
    return ended


def fuzz(count: int, seed: int, folder: Path) -> Counter[str]:
    """Mutate ``count`` files; every 16th is watched for memory. A failing file stays in ``folder``."""
    rng = random.Random(seed)
    files = seeds()
    path = folder / "fuzz.gguf"
    ends: Counter[str] = Counter(check(path, data) for data, _ in files)
    assert ends == {"model": len(files)}, "the seeds themselves are well-formed"
    for number in range(count):
        data = mutate(*rng.choice(files), rng)
        watched = number % 16 == 0
        if watched:
            tracemalloc.start()
        try:
            ends[check(path, data)] += 1
            if watched:
                peak = tracemalloc.get_traced_memory()[1]
                assert peak <= 4 * len(data) + 16 * 2**20, f"{peak} bytes of memory for {len(data)} bytes"
        finally:
            if watched:
                tracemalloc.stop()
    return ends


def test_mutated_files(tmp_path: Path) -> None:
    ends = fuzz(1500, 20, tmp_path)
    # A mutator that only breaks the magic, or never breaks anything, would prove nothing.
    assert ends["model"] > 100 and ends["CorruptModelFile"] > 250 and ends["UnsupportedFormat"] > 50, ends


def test_random_bytes_after_the_magic(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(300):
        counts = b"".join(rng.choice((0, 1, 2, 5)).to_bytes(8, "little") for _ in range(2))
        check(tmp_path / "m.gguf", b"GGUF\x03\0\0\0" + counts + rng.randbytes(rng.randrange(200)))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = {f"{sign}int{bits}": (bits, sign) for bits in (8, 16, 32, 64) for sign in ("", "u")}


def numbers_of(kind: str) -> st.SearchStrategy[Any]:
    if kind == "bool":
        return st.booleans()
    if kind.startswith("float"):
        return st.floats(allow_nan=False, width=32 if kind == "float32" else 64)
    bits, sign = whole[kind]
    return st.integers(0, 2**bits - 1) if sign else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


kinds = st.sampled_from([*whole, "bool", "float32", "float64"])
values = st.one_of(
    kinds.flatmap(lambda kind: st.tuples(st.just(kind), numbers_of(kind))),
    st.tuples(st.just("string"), texts),
    st.tuples(
        st.just("array"),
        st.one_of(
            kinds.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(numbers_of(kind), max_size=9))),
            st.tuples(st.just("string"), st.lists(texts, max_size=9)),
        ),
    ),
)
shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3)
entries = st.tuples(st.sampled_from(list(FORMATS.values())), shapes, st.integers(1, 2))


@settings(max_examples=100)
@given(
    metadata=st.dictionaries(texts, values, max_size=8),
    tensors=st.dictionaries(texts, entries, max_size=6),
    version=st.sampled_from([2, 3]),
    alignment=st.sampled_from([8, 32, 128]),
    data=st.data(),
)
def test_what_is_written_is_read(
    metadata: dict[str, Any], tensors: dict[str, Any], version: int, alignment: int, data: st.DataObject
) -> None:
    metadata.pop("general.alignment", None)
    for key in [key for key in metadata if key.startswith("split.")]:
        del metadata[key]
    pairs = [(key, *value) for key, value in metadata.items()] + [("general.alignment", "uint32", alignment)]
    table, content, wanted = [], b"", {}
    for name, (form, outer, blocks) in tensors.items():
        shape = (*outer, blocks * form.block_size)
        raw = np.random.default_rng(len(content)).bytes(form.tensor_bytes(shape))
        table.append((name, shape[::-1], form.ggml_id, len(content)))
        wanted[name] = (shape, form, raw)
        content += raw + bytes(-len(raw) % alignment)
    table = data.draw(st.permutations(table))  # the table need not follow the order of the data
    with tempfile.TemporaryDirectory() as folder:
        path = HandMade(pairs, table, content, version=version, alignment=alignment).write(
            Path(folder) / "m.gguf"
        )
        with GgufFile.open(path) as file:
            assert file.metadata.pop("general.alignment") == alignment == file.alignment
            assert file.metadata.keys() == metadata.keys()
            for key, (kind, value) in metadata.items():
                found = file.metadata[key]
                expected = value[1] if kind == "array" else value
                assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
                assert file.types[key] == (f"array of {value[0]}" if kind == "array" else kind)
            assert list(file.tensors) == list(wanted), "tensors come in the order of their data"
            for name, (shape, form, raw) in wanted.items():
                info = file.tensors[name]
                assert (info.shape, info.format, file.read(info)) == (shape, form, raw)


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, Path(tempfile.mkdtemp())))
