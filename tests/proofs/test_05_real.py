"""Proof 2: SmolLM2 and a Qwen3-shaped Q4_K_M file on a device, beside the cpu backend, on 20 fixed prompts.

The device is RASE_PROOF_DEVICE: wgpu (prompts on lavapipe) or torch (its CPU device).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rase
from bench.synth import SHAPES, synthesize
from bench.vocabulary import generated
from rase import profiling
from rase.backends import get_backend
from rase.backends.base import GENERATED, PROMPT, Backend, Batch, Program
from rase.graph import ops
from rase.testing.programs import nmse
from tests.support.real import load, prose_ids

DEVICE = os.environ.get("RASE_PROOF_DEVICE", "")
pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(1500)]

PROMPTS, ANSWER = 20, 8
GATE = 1e-3  # NMSE of logits from the CPU's


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    if not DEVICE:
        pytest.skip("RASE_PROOF_DEVICE names no device")
    monkeypatch.setenv("RASE_GPU_SOFTWARE", "1")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of Qwen3's shape and of Q4_K_M's mix of formats, in small."""
    shape = replace(SHAPES["qwen3-0.6b"], n_layers=6, dim=512, hidden_dim=1536, n_heads=8, n_kv_heads=2,
                    vocab_size=4096)  # fmt: skip
    path = tmp_path_factory.mktemp("qwen3") / "qwen3.gguf"
    synthesize(shape, path, generated(shape.vocab_size))
    return path


@dataclass
class Rows:
    """All prompts in one batch, each a sequence of its own, then greedy tokens, all decoded together."""

    logits: np.ndarray  # of every prompt token
    tokens: list[list[int]]
    steps: list[np.ndarray]  # (prompts, vocabulary) behind which each token was chosen


def prompts_of(path: Path, vocab: int) -> list[list[int]]:
    """20 fixed prompts of 6 to 25 tokens: of the prose, or drawn where the vocabulary is made up."""
    if "qwen3" in path.name:
        rng = np.random.default_rng(20)
        return [rng.integers(0, vocab, 6 + i).tolist() for i in range(PROMPTS)]
    ids = prose_ids(path)
    return [ids[7 * i : 7 * i + 6 + i] for i in range(PROMPTS)]


def rows_of(program: Program, prompts: list[list[int]]) -> Rows:
    counts = [len(prompt) for prompt in prompts]
    pages = np.arange(2 * PROMPTS, dtype=np.int32).reshape(PROMPTS, 2)
    tables = np.stack([pages] * len(program.page_bytes))
    logits = program.run(Batch(
        ids=np.concatenate(prompts).astype(np.int32),
        positions=np.concatenate([np.arange(n) for n in counts])[None].astype(np.int32),
        sequences=np.repeat(np.arange(PROMPTS, dtype=np.int32), counts), page_tables=tables,
        roles=np.full(sum(counts), PROMPT, np.uint8), logits_rows=np.arange(sum(counts), dtype=np.int32),
    )).copy()  # fmt: skip
    steps, tokens = [logits[np.cumsum(counts) - 1]], []
    for step in range(ANSWER):
        tokens.append(steps[-1].argmax(1).tolist())
        steps.append(program.run(Batch(
            ids=np.array(tokens[-1], np.int32), positions=np.array([counts], np.int32) + step,
            sequences=np.arange(PROMPTS, dtype=np.int32), page_tables=tables,
            roles=np.full(PROMPTS, GENERATED, np.uint8), logits_rows=np.arange(PROMPTS, dtype=np.int32),
        )).copy())  # fmt: skip
    return Rows(logits, tokens, steps)


def offloaded_share(program: Any, prompts: list[list[int]]) -> float:
    """The part of the multiplications of all prompts, with the logits behind each, that the GPU does."""
    linears = [op for op in program.graph.ops if isinstance(op, ops.Linear)]
    size = {op.weight.name: op.weight.shape[0] * op.weight.shape[1] for op in linears}
    there = sum(size[op.weight.name] for op in linears if op.weight.name in program.offloaded)
    (last,) = (op.weight.shape for op in program.graph.ops if isinstance(op, ops.Logits))
    tokens = sum(map(len, prompts))
    return there * tokens / (sum(size.values()) * tokens + last[0] * last[1] * len(prompts))


@pytest.mark.parametrize("model", ["smollm2", "qwen3"])
def test_logits_and_greedy_text_are_those_of_the_cpu(model, request, monkeypatch, figure):
    path: Path = request.getfixturevalue(model)
    monkeypatch.setenv("RASE_PROFILE", "1")
    profiling.enabled.cache_clear()
    backend: Backend = get_backend(DEVICE)
    with load(path, tokens=64 * PROMPTS) as cpu, load(path, backend, tokens=64 * PROMPTS) as program:
        prompts = prompts_of(path, cpu.graph.vocab_size)
        expected = rows_of(cpu, prompts)
        profiling.snapshot()
        found = rows_of(program, prompts)
        counts = profiling.snapshot()
        if DEVICE == "wgpu":
            share = offloaded_share(program, prompts)
            seconds = counts["gemm_gpu_ns"] / 1e9
            figure(f"{model}: {share:.1%} of the prompts' matrix work in {counts['gemm_gpu_calls']} products "
                   f"on the GPU, {seconds:.0f} s, {program.numerics_class}")  # fmt: skip
            assert share >= 0.9 and counts["gemm_gpu_calls"] > 0
    profiling.enabled.cache_clear()
    starts = np.cumsum([0, *map(len, prompts)])
    errors = [nmse(found.logits[a:b], expected.logits[a:b])
              for a, b in pairwise(starts)]  # fmt: skip
    figure(f"{model}: NMSE of logits from the CPU's, 20 prompts: median {np.median(errors):.1e}, "
           f"most {max(errors):.1e} (gate {GATE:.0e})")  # fmt: skip
    assert max(errors) <= GATE
    equal, flips, wrong = 0, [], []
    for prompt in range(PROMPTS):
        for step in range(ANSWER):
            mine, theirs = found.tokens[step][prompt], expected.tokens[step][prompt]
            if mine == theirs:
                equal += 1
                continue
            row = expected.steps[step][prompt].astype(np.float64)
            margin = np.sort(row)[-1] - np.sort(row)[-2]
            allowed = 2 * np.sqrt(GATE * (row**2).mean())  # two logits, each off by what the gate allows
            place = f"prompt {prompt} token {step}: margin {margin:.3f}, gate {allowed:.3f}"
            (flips if margin <= allowed else wrong).append(place)
            break  # behind it both texts go their own ways
    figure(f"{model}: greedy text of 20 x {ANSWER} tokens: {equal} equal, {len(flips)} flips "
           f"within the gate {flips}")  # fmt: skip
    assert not wrong, wrong


@pytest.mark.skipif(DEVICE != "wgpu", reason="of the GPU beside the CPU")
def test_a_device_that_is_killed_in_a_prompt(smollm2, monkeypatch, figure):
    """Some chunks of the prompt are there when the device goes: the answer is the CPU's, bit for bit."""
    from rase.backends import _wgpu_device, _wgpu_program

    text = Path(__file__).parents[1].joinpath("data", "prose.txt").read_text("utf-8")[:400]
    options = {"temperature": 0, "max_tokens": 8, "logprobs": 1}
    monkeypatch.setenv("RASE_MAX_BATCH_TOKENS", "32")
    with rase.load(str(smollm2)) as model:
        expected = model.complete(text, **options)
        cpu_class = model.session.numerics_class
    monkeypatch.setenv("RASE_GPU", "1")
    monkeypatch.setattr(_wgpu_device, "_state", _wgpu_device._State())
    calls, own = [0], _wgpu_device.Products.run

    def run(self, x, matrices):
        calls[0] += 1
        if calls[0] == 200:  # of 120 in each chunk of 32 tokens
            self.gpu.device.destroy()
        return own(self, x, matrices)

    monkeypatch.setattr(_wgpu_program.Products, "run", run)
    with rase.load(str(smollm2)) as model:
        assert rase.gpu_info().startswith("active: ")
        gpu_print = model.session.fingerprint
        assert model.session.numerics_class.startswith("wgpu-")
        found = model.complete(text, **options)
        assert rase.gpu_info() == "fallback(runtime-failure)"
        assert model.session.numerics_class == cpu_class and model.session.fingerprint != gpu_print
    assert found == expected and calls[0] == 200
    assert repr(found.completion.choices[0].logprobs) == repr(expected.completion.choices[0].logprobs)
    figure(f"killed in product 200: {found!r}, as the CPU alone says it, log probabilities included")
