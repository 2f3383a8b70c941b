"""Whole small models of every architecture against the float64 reference: the gates of rule R9."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rase.backends.reference import ReferenceBackend
from rase.errors import UnsupportedArchitecture, UnsupportedFormat
from rase.testing.programs import assert_close, decode_each, run_chunks
from rase.testing.promises import Promises
from rase.testing.random_model import RandomModel
from rase.testing.tiny import WIDE_QWEN3, ZOO
from rase.testing.tiny_encoders import ENCODERS

__all__ = ["SMALL_MODELS", "ModelContract"]

PROMPT_IDS, ANSWER_IDS = 70, 4  # past windows and original contexts; encoders have a prompt only
SMALL_MODELS: dict[str, RandomModel] = {
    **ZOO, **ENCODERS,
    **{f"qwen3 {name}": WIDE_QWEN3.but(matrices=name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_K", "Q6_K")},
}  # fmt: skip


class ModelContract(Promises):
    """Float weights within the gate of each numerics class, quantized ones within theirs."""

    @pytest.mark.parametrize("name", SMALL_MODELS)
    def test_a_small_model_is_near_the_reference(self, name: str) -> None:
        tiny = SMALL_MODELS[name]
        if name in self.refused:
            with pytest.raises((UnsupportedArchitecture, UnsupportedFormat)):
                self.compile(tiny)
            return
        expected = _reference(name)
        for numerics in self.numerics:
            with self.compile(tiny, numerics=numerics) as program:
                found = run_chunks(program, _ids(tiny), None if program.graph.whole_input else [30, 40])
                if not program.graph.whole_input:
                    answer = decode_each(program, tiny.ids(ANSWER_IDS, 9), start=PROMPT_IDS)
                    found = np.concatenate([found, answer])
            gate = self.gates[numerics if getattr(tiny, "matrices", "F32") == "F32" else "quantized"]
            assert_close(found, expected, gate, f"{name}, {numerics}")


def _ids(tiny: RandomModel) -> list[int]:
    return tiny.ids(PROMPT_IDS)


@cache
def _reference(name: str) -> np.ndarray:
    tiny = SMALL_MODELS[name]
    whole = tiny.graph().whole_input
    ids = _ids(tiny) + ([] if whole else tiny.ids(ANSWER_IDS, 9))
    with tiny.compile(ReferenceBackend("float16")) as program:
        return run_chunks(program, ids)
