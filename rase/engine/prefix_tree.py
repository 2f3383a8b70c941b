"""``PrefixTree``: full pages of finished and running sequences, found again by the tokens that made them.

One node is one page of ``page_tokens`` tokens, in every cache group; a path from the root is a prefix. The
tree holds one reference to each of its pages, a sequence that uses them holds its own. A page is known by its
ids and, where prompt and generated tokens are computed differently (rule R4), by the role of each token: the
KV of a generated token is then no prompt's.

Eviction takes leaves, so that what is left is always a set of whole prefixes. Short branches that nobody came
back to go first, the least recently used of them first; a prefix that was found again, or that is long, goes
only when no other is left: one-shot requests push out one another.

With a ``DiskTier`` behind it, what the tree does not know may come from there.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from rase.engine.kv_cache import ABSENT, OutOfPages, PagePool

if TYPE_CHECKING:
    from rase.engine.disk_tier import DiskTier

__all__ = ["Node", "PrefixTree"]

LONG_BRANCH = 8  # pages: what took this much compute is worth as much as what was found again
_SHED = 16  # window pages that are given back at one look through the tree
_THIN = 4  # snapshots of states

log = logging.getLogger("rase.engine")


class Node:
    """One page. ``pages[g]`` is its id in cache group g, ``ABSENT`` where a window has given it back."""

    __slots__ = ("children", "depth", "digest", "hits", "key", "pages", "parent", "used")

    def __init__(self, parent: Node | None, key: object, pages: tuple[int, ...], used: int) -> None:
        self.parent, self.key, self.pages, self.used = parent, key, pages, used
        self.children: dict[object, Node] = {}
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.hits = 0
        self.digest = ""  # what the disk tier knows it by

    @property
    def rank(self) -> tuple[bool, int]:
        """What is evicted first is lowest."""
        return (self.hits > 0 or self.depth > LONG_BRANCH, self.used)


class PrefixTree:
    """The pages of ``pool`` that are kept for reuse. Belongs to the driver, like the pool."""

    def __init__(self, pool: PagePool, one_arithmetic: bool) -> None:
        self._pool, self._one_arithmetic = pool, one_arithmetic
        self.root = Node(None, None, (), 0)
        self.size = 0  # nodes, without the root
        self.disk: DiskTier | None = None
        self._clock, self._order = count(1), count()
        self._leaves: list[tuple[tuple[bool, int], int, Node]] = []  # a heap; entries may be out of date

    def key(self, ids: Sequence[int], prompt_tokens: int) -> object:
        """What a page is known by: its ``ids``, of which the first ``prompt_tokens`` are a prompt's."""
        return tuple(ids) if self._one_arithmetic else (prompt_tokens, *ids)

    def match(self, tokens: Sequence[int], n_prompt: int) -> list[Node]:
        """The longest known prefix of ``tokens`` that is valid in all cache groups and leaves one token over.

        The first ``n_prompt`` tokens are a prompt's, the others were generated.
        """
        size, node = self._pool.page_tokens, self.root
        path: list[Node] = []
        limit = (len(tokens) - 1) // size
        known = self.size
        while len(path) < limit:
            start = len(path) * size
            prompt = min(max(n_prompt - start, 0), size)
            key = self.key(tokens[start : start + size], prompt)
            child = node.children.get(key) or self._restore(node, key)
            if child is None:
                break
            node = child
            path.append(node)
        found = len(path)
        path = path[: self._valid(path)]
        if log.isEnabledFor(logging.DEBUG):
            self._explain(len(tokens), limit, found, len(path), self.size - known)
        return path

    def touch(self, path: list[Node]) -> None:
        """A sequence uses this path: it was worth keeping."""
        used = next(self._clock)
        for node in path:
            node.used = used
            node.hits += 1
            self._keep(node)  # the disk may have been too slow for it the first time

    def _valid(self, path: list[Node]) -> int:
        """The most pages of ``path`` after which every window still has all that it sees."""
        size, windows = self._pool.page_tokens, self._pool.windows
        present = [0] * len(windows)  # how many pages up to this one each group has without a gap
        best = 0
        for length, node in enumerate(path, 1):
            good = True
            for group, window in enumerate(windows):
                present[group] = present[group] + 1 if node.pages[group] != ABSENT else 0
                first = max(0, length * size - window + 1) // size if window else 0
                good = good and present[group] >= length - first
            if good:
                best = length
        return best

    def _explain(self, tokens: int, limit: int, found: int, valid: int, restored: int) -> None:
        if valid == limit:
            reason = "all that may be reused" if limit else "shorter than a page and one token"
        elif valid < found:
            reason = f"{found} pages are known, but a window has given some of them back"
        elif not self.size:
            reason = "the cache is empty"
        else:
            reason = f"page {found} holds other tokens, or the same in another role, or was evicted"
        log.debug(
            "prefix: %d of %d tokens cached (%d pages from the disk): %s",
            valid * self._pool.page_tokens, tokens, max(0, restored), reason,
        )  # fmt: skip

    def insert(self, parent: Node, key: object, pages: tuple[int, ...]) -> Node:
        """The child of ``parent`` that ``key`` names, made of ``pages`` if there is none yet.

        The tree takes its own references. Pages that a known node lacks are added to it.
        """
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(parent, key, (ABSENT,) * len(pages), next(self._clock))
            self.size += 1
            self._push(node)
        missing = [
            group for group, page in enumerate(node.pages) if page == ABSENT and pages[group] != ABSENT
        ]
        for group in missing:
            self._pool.retain(group, pages[group])
        if missing:
            node.pages = tuple(
                new if old == ABSENT else old for old, new in zip(node.pages, pages, strict=True)
            )
            self._keep(node)
        return node

    def _digest(self, node: Node) -> str:
        """What the disk tier knows ``node`` by, made once."""
        assert self.disk is not None
        missing = []
        while not node.digest and node.parent is not None:
            missing.append(node)
            node = node.parent
        digest = node.digest or self.disk.root
        for node in reversed(missing):
            digest = node.digest = self.disk.key(digest, node.key)
        return digest

    def _keep(self, node: Node) -> None:
        if self.disk is not None and node.parent is not None:
            self.disk.keep(self._digest(node), self._digest(node.parent), node.pages)

    def _restore(self, parent: Node, key: object) -> Node | None:
        """The child of ``parent`` that ``key`` names, from the disk; None where it or a free page is not."""
        if self.disk is None:
            return None
        above = self._digest(parent)
        if (found := self.disk.find(self.disk.key(above, key), above)) is None:
            return None
        pages = [ABSENT] * len(found)
        tokens = (parent.depth + 1) * self._pool.page_tokens
        try:
            for group, data in enumerate(found):
                if data is not None:
                    pages[group] = self._allocate(group, parent)
                    self._pool.program.restore_page(group, pages[group], data, tokens)
            return self.insert(parent, key, tuple(pages))
        except OutOfPages:
            return None
        finally:  # the tree has references of its own
            self._give_back(pages)

    def _allocate(self, group: int, spare: Node) -> int:
        """A free page, for which anything but ``spare`` may be evicted. Raises ``OutOfPages``."""
        try:
            return self._pool.allocate(group)
        except OutOfPages:
            if not self.evict(group, spare):
                raise
            return self._pool.allocate(group)

    def evict(self, group: int, spare: Node | None = None) -> int:
        """Give back pages until one of ``group`` is free; returns how many, 0 when none can be.

        ``spare``, a leaf, stays whatever happens.
        """
        if self._pool.states[group] and (thinned := self._thin_out(group)):
            return thinned
        pages, busy = 0, []
        freed = False
        while self._leaves and not freed:
            entry = heapq.heappop(self._leaves)
            node = entry[2]
            if node.parent is None or node.children:
                continue  # gone, or no leaf any more
            if entry[0] != node.rank:
                self._push(node)
                continue
            if node is spare or not self._idle(node):
                busy.append(entry)
                continue
            freed = node.pages[group] != ABSENT
            pages += self._remove(node)
        for entry in busy:
            heapq.heappush(self._leaves, entry)
        return pages if freed else pages + self._shed(group)

    def clear(self) -> None:
        """Give everything back."""
        nodes = self._all()
        for node in nodes:
            self._give_back(node.pages)
            node.parent, node.children = None, {}
        self.root.children, self.size, self._leaves = {}, 0, []

    def reclaimable(self) -> tuple[int, ...]:
        """Pages of each group that nobody but the tree holds."""
        counts = [0] * len(self._pool.windows)
        for node in self._all():
            for group, page in enumerate(node.pages):
                counts[group] += page != ABSENT and self._pool.references(group, page) == 1
        return tuple(counts)

    def _idle(self, node: Node) -> bool:
        """Whether no sequence uses any page of the node."""
        pairs = enumerate(node.pages)
        return all(page == ABSENT or self._pool.references(group, page) == 1 for group, page in pairs)

    def _push(self, node: Node) -> None:
        heapq.heappush(self._leaves, (node.rank, next(self._order), node))

    def _give_back(self, pages: Sequence[int]) -> int:
        held = [(group, page) for group, page in enumerate(pages) if page != ABSENT]
        for group, page in held:
            self._pool.release(group, page)
        return len(held)

    def _remove(self, node: Node) -> int:
        parent = node.parent
        if parent is None:
            raise ValueError("the root cannot be evicted")
        pages = self._give_back(node.pages)
        del parent.children[node.key]
        node.parent = None
        self.size -= 1
        if not parent.children and parent is not self.root:
            self._push(parent)
        return pages

    def _shed(self, group: int) -> int:
        """Give back pages of a window ``group`` that only the tree holds, of nodes that others still need."""
        if not self._pool.windows[group]:
            return 0
        held = [
            node for node in self._all()
            if node.pages[group] != ABSENT and self._pool.references(group, node.pages[group]) == 1
        ]  # fmt: skip
        held.sort(key=lambda node: (node.rank, node.depth))
        return self._give_up(group, held[:_SHED])

    def _thin_out(self, group: int) -> int:
        """Give back snapshots of a state ``group`` along the way of branches that go on beyond them.

        A snapshot is good for one length of prefix only, and a long answer makes one a page. Those of
        generated tokens that no prompt can reuse go first, then every second one, then every second of the
        others. Where somebody came back to one it stays.
        """
        found = [
            node for node in self._all()
            if node.children and not node.hits and node.pages[group] != ABSENT
            and self._pool.references(group, node.pages[group]) == 1
        ]  # fmt: skip
        found.sort(key=lambda node: (not self._generated(node), node.depth & -node.depth, node.used))
        return self._give_up(group, found[:_THIN])

    def _generated(self, node: Node) -> bool:
        """Whether the page ends with a generated token and such a one is not a prompt's."""
        return not self._one_arithmetic and node.key[0] < self._pool.page_tokens  # type: ignore[index]

    def _give_up(self, group: int, nodes: list[Node]) -> int:
        """Give back the page of ``group`` of each of ``nodes``, which stay in the tree."""
        for node in nodes:
            self._pool.release(group, node.pages[group])
            node.pages = (*node.pages[:group], ABSENT, *node.pages[group + 1 :])
        return len(nodes)

    def _all(self) -> list[Node]:
        nodes = list(self.root.children.values())
        for node in nodes:  # grows while it is read
            nodes.extend(node.children.values())
        return nodes
