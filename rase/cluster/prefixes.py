"""Prompts by their beginnings: requests that share one should meet in one replica, whose cache knows it.

A prompt is cut into blocks of ``BLOCK`` bytes; the key of a block covers everything before it, too. So
prompts with the same beginning have the same first keys, and a router needs to keep no text.
"""

from __future__ import annotations

import array
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence

from rase.completion import TextRequest

__all__ = ["Affinity", "keys_of"]

BLOCK = 128  # bytes: about a page of the KV cache
MOST = 512  # blocks that are looked at
CAPACITY = 1 << 16  # blocks that are remembered
SPILL = 8  # requests by which a replica may be ahead of the others before its prompts go elsewhere


def keys_of(request: TextRequest) -> tuple[bytes, ...]:
    """The keys of the whole blocks of a prompt, 8 bytes each."""
    data, key, keys = bytearray(), b"", []
    for part in _parts(request):
        data += part
        if len(data) >= BLOCK * MOST:
            break
    for start in range(0, min(len(data), BLOCK * MOST) - BLOCK + 1, BLOCK):
        key = hashlib.blake2b(key + data[start : start + BLOCK], digest_size=8).digest()
        keys.append(key)
    return tuple(keys)


def _parts(request: TextRequest) -> Iterator[bytes]:
    if isinstance(request.prompt, str):
        yield request.prompt[: BLOCK * MOST].encode("utf-8", "surrogatepass")
    elif request.prompt is not None:
        yield array.array("q", request.prompt[: BLOCK * MOST // 8]).tobytes()
    for message in request.messages or ():
        content = message.content if isinstance(message.content, str) else repr(message.content)
        yield f"\0{message.role}\0{content[: BLOCK * MOST]}".encode("utf-8", "surrogatepass")


class Affinity:
    """Which replica has seen which blocks, as far as one router knows."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, set[str]] = OrderedDict()  # block: replicas; last used last
        self._sizes: dict[str, int] = {}  # replica: blocks

    def rank(
        self, keys: Sequence[bytes], loads: Mapping[str, int], full: float = float("inf")
    ) -> list[list[str]]:
        """Groups of replicas, the best first; ``loads`` says how many requests each one has, ``full`` how
        many are too many.

        The best are those with the longest known beginning, unless they have ``SPILL`` requests more than
        another one. A new beginning goes where least is waiting, and least is known.
        """
        loads = {name: load for name, load in loads.items() if load < full}
        if not loads:
            return []
        depths = self._depths(keys, loads)
        deepest, least = max(depths.values()), min(loads.values())
        best = [one for one in loads if depths[one] == deepest and loads[one] <= least + SPILL]
        if deepest == 0 or not best:
            best = [min(loads, key=lambda one: (loads[one], self._sizes.get(one, 0), one))]
        others = [one for one in loads if one not in best]
        return [best, others] if others else [best]

    def learn(self, keys: Sequence[bytes], replica: str) -> None:
        """A prompt with these keys goes to ``replica``."""
        for key in keys:
            replicas = self._seen.setdefault(key, set())
            self._seen.move_to_end(key)
            if replica not in replicas:
                replicas.add(replica)
                self._sizes[replica] = self._sizes.get(replica, 0) + 1
        while len(self._seen) > self._capacity:
            for gone in self._seen.popitem(last=False)[1]:
                self._sizes[gone] -= 1

    def keep(self, replicas: Collection[str]) -> None:
        """Forget all replicas but these."""
        gone = self._sizes.keys() - set(replicas)
        if not gone:
            return
        for name in gone:
            del self._sizes[name]
        for key in list(self._seen):
            self._seen[key] -= gone
            if not self._seen[key]:
                del self._seen[key]

    def _depths(self, keys: Sequence[bytes], loads: Mapping[str, int]) -> dict[str, int]:
        """How many leading blocks each replica knows."""
        depths, left = dict.fromkeys(loads, 0), set(loads)
        for number, key in enumerate(keys, 1):
            left &= self._seen.get(key, set())
            if not left:
                break
            depths.update(dict.fromkeys(left, number))
        return depths
