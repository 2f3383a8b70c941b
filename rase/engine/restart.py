"""After a device was lost: nothing computed before counts, and every request goes on from its tokens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rase.engine.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from rase.engine.batching import Batching

__all__ = ["start_again"]

log = logging.getLogger("rase.engine")


def start_again(batching: Batching) -> None:
    """Drop every page, and let those who had some compute all of their tokens again, each in its own role.

    The program has another numerics class now (rule R5): kept prefixes are gone, and what a folder keeps of
    the old class is not asked for any more. Tokens that were chosen stay chosen.
    """
    log.warning("%d requests are computed again from their first token", len(batching.active))
    for sequence in list(batching.active):
        batching.preempt(sequence)
    if batching.tree is not None:
        batching.tree.clear()
        batching.tree = PrefixTree(batching.pool, batching.program.one_arithmetic)
