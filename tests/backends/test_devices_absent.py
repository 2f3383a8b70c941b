"""Accelerators without their packages: found by name, refused with words, never imported by rase itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rase.backends._stacks import file_names, weight_infos
from rase.backends._tensor_parallel import AllGather, AllReduce, cut, divide, shared_infos
from rase.backends.base import CompileOptions
from rase.backends.torch import TorchBackend
from rase.errors import BackendUnavailable, UnsupportedArchitecture, UnsupportedFormat
from rase.graph import ops
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3, ZOO

IMPORTS = """
import sys
import rase, rase.api, rase.session, rase.loading, rase.device, rase.backends
for name in rase.backends.names():
    rase.backends.get_backend(name)
rase.RuntimeDevice.select("auto")
heavy = [name for name in ("torch", "wgpu") if name in sys.modules]
assert not heavy, heavy
"""


def test_importing_rase_imports_no_torch_and_no_wgpu():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def no_torch(monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))


def test_torch_without_its_package_is_refused_by_name(no_torch):
    assert TorchBackend().available() == (
        False, "package torch is not installed: pip install 'rase-llm[torch]'")  # fmt: skip
    for call in ("estimate", "compile"):
        source = TINY_LLAMA.source.tensors if call == "estimate" else TINY_LLAMA.source
        with pytest.raises(BackendUnavailable, match=r"backend 'torch'.*pip install"):
            getattr(TorchBackend(), call)(TINY_LLAMA.graph(), source, CompileOptions())


# Tensor parallelism is a matter of graphs and bytes; tests/proofs/test_05_parallel.py runs it


@pytest.mark.parametrize("name", ["llama3.1", "qwen2", "gemma3", "qwen3moe", "nomic-bert"])
def test_the_shares_of_a_model_hold_all_of_it_once(name):
    from rase.testing.small_models import SMALL_MODELS

    tiny, world = SMALL_MODELS[name], 2
    graph, source = tiny.graph(), tiny.source
    infos, names = weight_infos(graph, source.tensors), file_names(graph)
    shares = [divide(graph, rank, world) for rank in range(world)]
    local = shared_infos(shares[0], infos, world)
    for tensor, (weight, _) in names.items():
        whole, axis = np.frombuffer(source.raw[tensor], np.uint8), shares[0].cuts.get(weight)
        parts = [cut(source.tensors[tensor], axis, rank, world) for rank in range(world)]
        taken = [np.asarray(part(whole)) for _, part in parts]
        assert all(piece.size == info.nbytes for piece, (info, _) in zip(taken, parts, strict=True))
        if axis is None:
            continue
        joined = np.concatenate(taken, axis).reshape(-1)
        assert np.array_equal(joined, whole), tensor
        assert local[weight].nbytes * world == infos[weight].nbytes
    for share in shares:
        sums = [op for op in share.graph.ops if isinstance(op, AllReduce)]
        layers = len({op.layer for op in graph.ops if isinstance(op, ops.Attention)})
        assert len(sums) >= layers and share.graph.output.dim == graph.output.dim
        heads = [op.n_heads for op in share.graph.ops if isinstance(op, ops.Attention)]
        assert name == "nomic-bert" or set(heads) == {tiny.n_heads // world}


def test_a_tied_vocabulary_is_not_divided_and_its_own_one_is():
    own, tied = (divide(TINY_LLAMA.but(vocab=102, tied=tied).graph(), 0, 2) for tied in (False, True))
    assert any(isinstance(op, AllGather) for op in own.graph.ops) and "output.weight" in own.cuts
    assert (
        not any(isinstance(op, AllGather) for op in tied.graph.ops) and "token_embd.weight" not in tied.cuts
    )


@pytest.mark.parametrize(
    ("tiny", "world", "message"),
    [
        (ZOO["olmo2"], 2, "RmsNorm of 'olmo2'.*among 2: found a norm over 64"),
        (ZOO["qwen35"], 2, "recurrent state"),
        (ZOO["phi3"], 2, "no matrix of 'phi3'"),
        (TINY_LLAMA, 4, "Attention of 'llama'.*2 K/V heads"),
        (TINY_LLAMA, 5, "64 elements"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(tiny, world, message):
    with pytest.raises(UnsupportedArchitecture, match=message):
        divide(tiny.graph(), 0, world)


def test_a_cut_never_goes_through_a_block():
    tiny = WIDE_QWEN3.but(matrices="Q4_K", n_kv_heads=2)  # 256 hidden elements are one block
    share = divide(tiny.graph(), 0, 2)
    infos = weight_infos(tiny.graph(), tiny.source.tensors)
    with pytest.raises(UnsupportedFormat, match=r"ffn_down.* of format Q4_K.*whole blocks of 256"):
        shared_infos(share, infos, 2)
