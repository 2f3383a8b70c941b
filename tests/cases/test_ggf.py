"""Cases GGF: GGUF containers that other engines misread."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase import models
from rase.backends.base import CompileOptions
from rase.engine.config import GenerationConfig
from rase.engine.decoder import ProgramDecoder
from rase.engine.generation import generate
from rase.engine.kv_cache import PagePool
from rase.engine.scheduler import Scheduler
from rase.errors import CorruptModelFile, EngineError, InvalidLogits, ModelFileNotFound, UnsupportedFormat
from rase.gguf.formats import format_named
from rase.gguf.reader import GgufFile
from rase.gguf.stream import HashedTensors
from rase.registry import ModelRegistry
from rase.testing.blocks import random_blocks
from tests.support import toys
from tests.support.backends import BACKENDS, backend_named
from tests.support.gguf_build import HandMade, write_gguf, write_split_gguf

F32, Q4_K = 0, 12


def hand_made(**options: Any) -> HandMade:
    """Two tensors that fill the data section to its last byte, and metadata of several kinds."""
    rng = np.random.default_rng(0)
    data = random_blocks("Q4_K", (2, 256), rng) + random_blocks("F32", (8, 4), rng)
    pairs: list[tuple[str, str, Any]] = [
        ("general.architecture", "string", "llama"),
        ("llama.block_count", "uint32", 1),
        ("empty", "string", ""),
        ("words", "array", ("string", ["a", "", "語"])),
        ("numbers", "array", ("float32", [1.0, 2.0])),
    ]
    tensors = [("first.weight", [256, 2], Q4_K, 0), ("second.weight", [4, 8], F32, 288)]
    return HandMade(pairs, tensors, data, **options)


def test_ggf_1_a_cut_file_is_a_typed_error(tmp_path: Path) -> None:
    file = hand_made()
    whole = file.build()
    path = tmp_path / "m.gguf"
    cuts = (
        {len(whole) * part // 64 for part in range(64)}
        | set(file.borders)
        | {len(whole) - 1, file.data_start - 1}
    )
    for length in sorted(cuts - {len(whole)}):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptModelFile) as caught:
            GgufFile.open(path)
        message = str(caught.value)
        if length == 0:
            assert "is empty" in message
        elif "tensor" in caught.value.data:  # the header is whole
            assert length >= file.header_end
            name, start, end = ("first", 0, 288) if length < file.data_start + 288 else ("second", 288, 416)
            assert caught.value.data["tensor"] == f"{name}.weight" and f"tensor '{name}.weight'" in message
            assert caught.value.data["missing"] == (
                max(length, file.data_start + start),
                file.data_start + end,
            )
            assert (
                f"misses bytes {max(length, file.data_start + start)} to {file.data_start + end}" in message
            )
        elif "missing" in caught.value.data:
            start, end = caught.value.data["missing"]
            assert length < file.header_end and start == length < end, f"cut at {length}: {message}"
        else:
            assert "expected at most" in message, (
                f"cut at {length}: {message}"
            )  # a count that the rest cannot hold
    path.write_bytes(whole)
    with GgufFile.open(path) as opened:
        assert b"".join(opened.read(info) for info in opened.tensors.values()) == whole[file.data_start :]


def test_ggf_1_import_refuses_a_cut_file_and_leaves_no_manifest(tmp_path: Path) -> None:
    whole = toys.tiny_llama(tmp_path).read_bytes()
    path = tmp_path / "cut.gguf"
    registry = ModelRegistry.open(tmp_path / "store")
    for length in (
        len(whole) // 64,
        len(whole) // 2,
        len(whole) - 1 - trailing_padding(tmp_path / "tiny-llama.gguf"),
    ):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptModelFile, match="it is cut"):
            registry.import_local("cut", path)
        assert registry.list() == []
    path.write_bytes(whole)
    registry.import_local("cut", path)
    assert [manifest.id for manifest in registry.list()] == ["cut"]


def trailing_padding(path: Path) -> int:
    """Bytes after the last tensor: cutting those takes nothing from the model."""
    with GgufFile.open(path) as file:
        last = list(file.tensors.values())[-1]
        return file.shards[0].size - last.offset - last.nbytes


@pytest.mark.parametrize("version", [2, 3])
def test_ggf_3_versions_2_and_3_are_the_same_model(tmp_path: Path, version: int) -> None:
    with GgufFile.open(hand_made(version=version).write(tmp_path / "m.gguf")) as file:
        assert file.version == version
        assert file.metadata["words"] == ["a", "", "語"] and file.metadata["empty"] == ""
        assert file.metadata["numbers"].tolist() == [1.0, 2.0] and file.metadata["llama.block_count"] == 1
        assert {name: (info.shape, info.format.name) for name, info in file.tensors.items()} == {
            "first.weight": ((2, 256), "Q4_K"), "second.weight": ((8, 4), "F32")
        }  # fmt: skip
        assert b"".join(file.read(info) for info in file.tensors.values()) == hand_made().data


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (hand_made(version=0), "found version 0"),
        (hand_made(version=1), "found version 1"),
        (HandMade([("", "string", "")], version=1), "found version 1"),
        (hand_made(version=4), "found version 4"),
        (hand_made(version=0x03000000), "found a big-endian file"),
        (hand_made(order=">"), "found a big-endian file"),
        (hand_made(order=">", version=2), "found a big-endian file"),
        (hand_made(magic=b"FUGG"), "a big-endian writer"),
        (hand_made(magic=b"GGUG"), "found b'GGUG"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_ggf_3_every_other_version_and_order_is_refused_by_name(
    tmp_path: Path, file: HandMade, words: str
) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        GgufFile.open(file.write(tmp_path / "m.gguf"))
    assert words in str(caught.value)


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096])
def test_ggf_5_a_declared_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(alignment)
    arrays = {f"t{index}": rng.normal(size=(3, 5 + index)).astype(np.float32) for index in range(3)}
    starts = set()
    for padding in range(32):  # the header's size takes every residue
        metadata = {"general.architecture": "llama", "padding": "x" * padding}
        with GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata, arrays, alignment=alignment)) as file:
            assert file.alignment == alignment
            for name, array in arrays.items():
                assert file.read(file.tensors[name]) == array.tobytes(), (
                    f"{name} after {padding} bytes of padding"
                )
                assert file.tensors[name].offset % alignment == 0
            starts.add(len(file.shards[0].header))
    assert len(starts) > 1 or alignment == 4096


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("uint32", 0, "found 0 as uint32"), ("uint32", 1, "found 1 as"), ("uint32", 4, "found 4 as"),
        ("uint32", 13, "found 13 as"), ("uint32", 24, "found 24 as"),
        ("uint32", 2**32 - 1, "found 4294967295 as"),
        ("int32", 32, "found 32 as int32"), ("uint64", 32, "found 32 as uint64"),
        ("string", "32", "found '32' as string"), ("bool", True, "found True as bool"),
        ("array", ("uint32", [32]), "as array of uint32"),
    ],
)  # fmt: skip
def test_ggf_5_every_other_alignment_is_refused_by_name(
    tmp_path: Path, kind: str, value: Any, words: str
) -> None:
    file = HandMade([("general.alignment", kind, value)], [("t", [8], F32, 0)], bytes(32))
    with pytest.raises(UnsupportedFormat, match=r"general\.alignment.*a power of two from 8 up") as caught:
        GgufFile.open(file.write(tmp_path / "m.gguf"))
    assert words in str(caught.value)


def test_ggf_7_all_shards_or_a_refusal_that_names_the_missing_one(tmp_path: Path) -> None:
    arrays = {f"t{index}": np.full((2, 4), index, dtype=np.float32) for index in range(2)}
    shards = write_split_gguf(tmp_path, "m", {"general.architecture": "llama"}, arrays, tensors_per_shard=1)
    for given in shards:
        with GgufFile.open(given) as file:
            assert [np.frombuffer(file.read(file.tensors[name]), "<f4")[0] for name in arrays] == [0, 1]
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(shards[0].read_bytes())
    with pytest.raises(CorruptModelFile, match=r"one of 2 shards.*plain-00001-of-00002\.gguf"):
        GgufFile.open(plain)
    shards[1].unlink()
    with pytest.raises(ModelFileNotFound, match=r"'m-00002-of-00002\.gguf' is not in"):
        GgufFile.open(shards[0])


def test_ggf_7_a_single_shard_by_name_loads(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m-00001-of-00001.gguf", {"general.architecture": "llama"}, {"t": np.ones((1, 4))}
    )
    with GgufFile.open(path) as file:
        assert list(file.tensors) == ["t"]


INFINITY, NEGATIVE_INFINITY, NAN = 0x7C00, 0xFC00, 0x7E00
PROMPT = [72, 105, 300]


def poison(path: Path, tensor: str, row: int, half: int) -> None:
    """Overwrite the scale of the first block of a Q8_0 row, or the first value of an F32 vector with NaN."""
    with GgufFile.open(path) as file:
        info = file.tensors[tensor]
    assert info.format in (format_named("Q8_0"), format_named("F32"))
    raw = struct.pack("<H", half) if info.format.name == "Q8_0" else struct.pack("<f", float("nan"))
    with path.open("r+b") as out:
        out.seek(info.offset + row * info.format.row_bytes(info.shape[-1]))
        out.write(raw)


def first_tokens(path: Path, backend: str) -> list[int]:
    """Load the model and generate four tokens, greedily."""
    with np.errstate(all="ignore"), GgufFile.open(path) as file:
        graph = models.build(file.metadata, file.tensors)
        program = backend_named(backend).compile(graph, HashedTensors(file), CompileOptions(threads=1))
    try:
        decoder = ProgramDecoder(Scheduler(program, PagePool(program, 64 * sum(program.page_bytes))))
        with np.errstate(all="ignore"):
            return generate(decoder, PROMPT, GenerationConfig(max_tokens=4, temperature=0.0)).tokens
    finally:
        program.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("half", [INFINITY, NEGATIVE_INFINITY, NAN])
@pytest.mark.parametrize(
    ("tensor", "row"),
    [("blk.0.ffn_down.weight", 3), ("token_embd.weight", PROMPT[-1]), ("output.weight", 5),
     ("output.weight", 6), ("blk.1.attn_norm.weight", 0), ("output_norm.weight", 0)],
)  # fmt: skip
def test_ggf_9_no_token_is_chosen_from_broken_weights(
    tmp_path: Path, backend: str, tensor: str, row: int, half: int
) -> None:
    path = toys.tiny_llama(tmp_path, fmt="Q8_0")
    assert len(first_tokens(path, backend)) == 4, "the model works before it is broken"
    poison(path, tensor, row, half)
    with pytest.raises(EngineError) as caught:
        first_tokens(path, backend)
    assert isinstance(caught.value, InvalidLogits | CorruptModelFile)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ggf_9_a_broken_row_that_no_token_meets_does_no_harm(tmp_path: Path, backend: str) -> None:
    path = toys.tiny_llama(tmp_path, fmt="Q8_0")
    tokens = first_tokens(path, backend)
    unused = next(row for row in range(256) if row not in PROMPT and row not in tokens)
    poison(path, "token_embd.weight", unused, INFINITY)
    assert first_tokens(path, backend) == tokens
