"""From what clients saw to figures: to the first token, per token, between tokens, end to end, goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bench.load_client import Seen

__all__ = ["GOOD_ITL_S", "GOOD_TTFT_S", "percentiles", "summary"]

GOOD_TTFT_S, GOOD_ITL_S = 1.0, 0.05  # what a person takes for quick: goodput counts answers within both
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The values at 50, 95 and 99 % (nearest rank); infinite where there are none."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(SHARES, math.inf)
    return {
        name: ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
        for name, share in SHARES.items()
    }


def summary(found: Sequence[Seen]) -> dict[str, Any]:
    """Figures of one run, in seconds. Whoever got no whole answer waited for ever."""
    ok = [seen for seen in found if seen.ok]
    never = [math.inf] * (len(found) - len(ok))
    unheard = [math.inf for seen in found if not seen.ok for _ in range(max(1, seen.asked - 1))]
    gaps = [b - a for seen in ok for a, b in zip(seen.times, seen.times[1:], strict=False)]
    per_token = [
        (seen.times[-1] - seen.times[0]) / (len(seen.times) - 1) for seen in ok if len(seen.times) > 1
    ]
    begin = min((seen.due for seen in found), default=0.0)
    end = max((seen.due + seen.times[-1] for seen in ok), default=math.inf)
    good = sum(
        seen.times[0] <= GOOD_TTFT_S
        and (seen.times[-1] - seen.times[0]) <= GOOD_ITL_S * max(1, len(seen.times) - 1)
        for seen in ok
    )
    seconds = end - begin
    return {
        "requests": len(found), "answered": len(ok), "refused": sum(seen.status == 503 for seen in found),
        "ttft": percentiles([*(seen.times[0] for seen in ok), *never]),
        "tpot": percentiles([*per_token, *never]),
        "itl": percentiles([*gaps, *unheard]),
        "e2e": percentiles([*(seen.times[-1] for seen in ok), *never]),
        "tokens_per_second": sum(len(seen.times) for seen in ok) / seconds,
        "goodput": good / len(found) if found else 0.0,
    }  # fmt: skip
