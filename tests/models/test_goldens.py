"""Every architecture against ``transformers``: a small random model's logits, past windows and contexts.

The expected logits are committed; tests/models/goldens/make.py writes them in an environment of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.reference import ReferenceBackend
from rase.models import resolve
from rase.testing.programs import assert_close, assert_same_bits, decode_each, nmse, run_chunks
from rase.testing.tiny import GOLDEN_IDS, GOLDEN_ROWS, ZOO
from rase.testing.tiny_encoders import ENCODERS
from tests.support.backends import BACKENDS, backend_named

FOLDER = Path(__file__).parent / "goldens"
# transformers keeps rotary angles, norms and softmax in float32; design rule R9 gates the cpu backend.
SAME, UNROUNDED_KV = 1e-10, 1e-5


def golden(name: str) -> np.ndarray:
    return np.load(FOLDER / f"{name}.npy")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_transformers(name, backend):
    tiny = ZOO[name]
    with tiny.compile(backend_named(backend), numerics="portable", threads=1) as program:
        found = run_chunks(program, tiny.ids(GOLDEN_IDS))[list(GOLDEN_ROWS)]
    assert_close(found, golden(name), SAME if backend == "reference" else UNROUNDED_KV, name)


@pytest.mark.parametrize("name", ZOO)
def test_decode_and_chunks_give_the_bits_of_a_prompt_at_once(name):
    tiny = ZOO[name]
    ids = tiny.ids(GOLDEN_IDS)
    with tiny.compile(get_backend("cpu"), numerics="portable", threads=2) as program:
        expected = run_chunks(program, ids)
        assert_same_bits(run_chunks(program, ids, [33, 1, 30, 26]), expected, f"{name} in chunks")
        assert_same_bits(decode_each(program, ids), expected, f"{name} token by token")


def test_every_architecture_has_a_golden():
    built = {resolve(tiny.architecture).name for tiny in (*ZOO.values(), *ENCODERS.values())}
    import rase.models

    assert built == {found.name for found in map(resolve, rase.models.names())}
    assert {path.stem for path in FOLDER.glob("*.npy")} == set(ZOO)


# One wrong constant each: what the traps of real files look like when they are missed
MISTAKES = {
    "a window of one token less": ("mistral-window", {"window": 23}, {}),
    "no frequency factors": ("llama3.1", {}, "no factors"),
    "linear scaling left out": ("llama-linear", {"rope_scale": 1.0}, {}),
    "YaRN as linear scaling": ("qwen2-yarn", {}, {"rope.scaling.type": "linear"}),
    "another original context": ("olmo3", {}, {"rope.scaling.original_context_length": 64}),
    "short factors for long": ("phi3-long", {}, {"rope.scaling.original_context_length": 128}),
    "no attention factor": ("phi3-long", {}, {"rope.scaling.attn_factor": 1.0}),
    "no window": ("phi3", {}, {"attention.sliding_window": 0}),
    "logits not divided": ("granite", {}, {"logit_scale": 1.0}),
    "residuals not multiplied": ("granite", {}, {"residual_scale": 1.0}),
    "embeddings not multiplied": ("granite", {}, {"embedding_scale": 1.0}),
    "no cap of scores": ("gemma2", {}, {"attn_logit_softcapping": 0.0}),
    "no cap of logits": ("gemma2", {}, {"final_logit_softcapping": 0.0}),
    "one rotary base": ("gemma3", {}, {"rope.freq_base_swa": 1e6}),
    "another pattern": ("gemma3", {}, {"attention.sliding_window_pattern": 5}),
    "rotary embedding everywhere": ("smollm3", {"architecture": "llama"}, {}),
    "rotary embedding of whole heads": ("qwen35", {"rope_dim": 32}, {}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_gate_sees_a_mistake(mistake):
    name, changes, extra = MISTAKES[mistake]
    if extra == "no factors":
        changes, extra = {"factors": (1.0,) * 8}, {}
    tiny = ZOO[name].but(**changes)
    tiny = tiny.but(extra={**tiny.extra, **extra})
    with tiny.compile(ReferenceBackend()) as program:
        found = run_chunks(program, tiny.ids(GOLDEN_IDS))[list(GOLDEN_ROWS)]
    error = nmse(found, golden(name))
    assert error > 2 * UNROUNDED_KV, f"{mistake} costs only {error:.3g}: the gate would not see it"
