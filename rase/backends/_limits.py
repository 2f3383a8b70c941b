"""Measures the limits of this processor with the kernels and threads of a cpu program."""

from __future__ import annotations

from typing import Any

from rase.backends.limits import Limits

__all__ = ["measure_limits"]

UNITS = {"f32": "float32", "bf16": "bf16 tiles", "int8": "int8 dot products"}  # by prompt arithmetic


def measure_limits(variant: Any, threads: tuple[int, int], prompt: str, buffer_bytes: int) -> Limits:
    """Limits for ``threads`` (generated tokens, prompts) and prompts in the arithmetic ``prompt``.

    Takes about two seconds. Raises what ``read_bandwidth`` does.
    """
    from rase._kernels.limits import fma_peak, read_bandwidth

    return Limits(
        read_gb_per_s=read_bandwidth(variant, threads[0], nbytes=buffer_bytes),
        peaks={"float32": fma_peak(variant, threads[1])},
        prompt_unit=UNITS[prompt],
        details={
            "isa": variant.name, "decode_threads": threads[0], "prefill_threads": threads[1],
            "buffer_bytes": buffer_bytes,
        },
    )  # fmt: skip
