"""RASE_PROFILE: nanosecond and call counters of the forward pass, off unless asked for.

The variable is read once, by the first call of :func:`enabled`; setting it later has no effect. When it is
off nothing is timed, so the forward pass pays nothing. Counting never changes what is computed.
"""

from __future__ import annotations

import json
import threading
from functools import cache

from rase import env

__all__ = ["COUNTERS", "add", "enabled", "profiling_snapshot", "snapshot"]

COUNTERS: dict[str, str] = {
    "prefill_calls": "forward passes that held prompt tokens",
    "prefill_tokens": "prompt tokens processed",
    "prefill_forward_ns": "wall time of those passes, embedding to logits",
    "gemm_dequant_ns": "prefill matrix products: unpacking weights",
    "gemm_matmul_ns": "prefill matrix products: multiplying",
    "gemm_gpu_ns": "prefill matrix products computed on a GPU",
    "gemm_gpu_calls": "number of those products",
    "attn_blocked_ns": "prefill attention, blocked kernel",
    "attn_flash_ns": "prefill attention, flash kernel of an accelerator",
    "decode_steps": "forward passes of generated tokens only",
    "decode_forward_ns": "wall time of those passes",
    "decode_matvec_ns": "decode: quantized matrix-vector products",
    "decode_attn_ns": "decode: fused attention",
}

_values = dict.fromkeys(COUNTERS, 0)
_lock = threading.Lock()


@cache
def enabled() -> bool:
    """Whether this process counts; the setting of the first call holds for the whole process."""
    return bool(env.get("RASE_PROFILE"))


def add(name: str, amount: int) -> None:
    """Add ``amount`` (nanoseconds, calls or tokens) to the counter ``name``; nothing happens when off.

    Raises ``KeyError`` for a name that is not in ``COUNTERS``: a misspelt counter must not vanish.
    """
    if enabled():
        with _lock:
            _values[name] += int(amount)


def snapshot(reset: bool = True) -> dict[str, int]:
    """Return all counters; with ``reset`` they start again at zero, so two calls bound a window."""
    with _lock:
        values = dict(_values)
        if reset:
            for name in _values:
                _values[name] = 0
    return values


def profiling_snapshot(reset: bool = True) -> str:
    """Return all counters as a JSON object in text form; see :func:`snapshot`."""
    return json.dumps(snapshot(reset))
