"""Measures the limits of this processor with the kernels and threads of a cpu program."""

from __future__ import annotations

from typing import Any

from rase.backends.limits import Limits

__all__ = ["measure_limits", "tile_mode"]

UNITS = {"f32": "float32", "bf16": "bf16 tiles", "int8": "int8 dot products"}  # by prompt arithmetic
TILE_FLOP = 2 * 16 * 16 * 32  # of one product of bf16 tiles
SLOW_NS = 11.0  # a product takes 4 to 8 ns, or on some hosts, for minutes at a time, 15 to 19


def tile_mode(product_ns: float) -> str:
    """ "fast" or "slow": virtual machines may share the tile unit of a core with neighbours."""
    return "slow" if product_ns > SLOW_NS else "fast"


def measure_limits(variant: Any, threads: tuple[int, int], prompt: str, buffer_bytes: int) -> Limits:
    """Limits for ``threads`` (generated tokens, prompts) and prompts in the arithmetic ``prompt``.

    Takes about two seconds. Raises what ``read_bandwidth`` does.
    """
    from rase._kernels.limits import fma_peak, read_bandwidth, tile_times

    peaks = {"float32": fma_peak(variant, threads[1])}
    details: dict[str, Any] = {
        "isa": variant.name, "decode_threads": threads[0], "prefill_threads": threads[1],
        "buffer_bytes": buffer_bytes,
    }  # fmt: skip
    if (times := tile_times(variant, threads[1])) is not None:
        peaks[UNITS["bf16"]] = threads[1] * TILE_FLOP / times[0]
        details["tiles"] = f"{tile_mode(times[0])} ({times[0]:.1f} ns a product, {times[1]:.1f} ns a load)"
    return Limits(
        read_gb_per_s=read_bandwidth(variant, threads[0], nbytes=buffer_bytes),
        peaks=peaks,
        prompt_unit=UNITS[prompt],
        details=details,
    )
