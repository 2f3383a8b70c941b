"""``Sequence``: one choice of a request inside the scheduler: its tokens, how far they are computed, its
pages.

    WAITING ──admit──> ACTIVE ──choose──> ACTIVE ... ──finish──> ENDED
       ^                 │  ^
       └────preempt──────┘  └─ HELD (an outside chooser thinks, or the reader is far behind)

Tokens are the prompt and what was generated; ``computed`` of them have their KV in the pages. A sequence with
one generated token to compute decodes; with more, or with prompt tokens, it prefills, whether it is new or
was preempted: each token always takes the role that it had, so the bits are the same (rule R4). Where drafts
were wrong and recurrent states went back, it decodes with those tokens that are to run ``again``.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from rase.engine.generation import GenerationStopReason
from rase.engine.kv_cache import SequencePages
from rase.engine.sampler import History, Row, Sampler

if TYPE_CHECKING:
    from rase.engine.kv_cache import PagePool
    from rase.engine.observer import Observer
    from rase.engine.prefix_tree import Node, PrefixTree
    from rase.engine.request import Request

__all__ = ["Sequence", "State"]


class State(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # no pages; in the queue
    ACTIVE = "active"  # has a place in the batch
    HELD = "held"  # nothing to compute until its chooser gives a token, or its reader has caught up
    ENDED = "ended"


class Sequence:
    """One choice. Only the driver touches it."""

    def __init__(
        self, request: Request, choice: int, arrival: int, vocab_size: int, context_length: int
    ) -> None:
        config = request.config
        self.request, self.choice, self.arrival = request, choice, arrival
        self.tokens: list[int] = [*request.prompt, *request.answer]
        self.n_prompt = len(request.prompt)
        self.computed = 0
        self.again = 0  # generated tokens that ran already, before those that are new
        self.state = State.WAITING
        self.pages: SequencePages | None = None
        self.node: Node | None = None  # the last page that the prefix tree has; None: nothing more goes in
        self.drafts = None if request.drafts is None else request.drafts()
        self.cached = 0
        self.reason: GenerationStopReason | None = None
        self._stops = frozenset(config.stop_tokens)
        self._limit = min(config.max_tokens, context_length - self.n_prompt)
        self._sampler = None if request.choose else Sampler(config, vocab_size, choice)
        self._history = History(self.tokens, vocab_size) if config.penalised and self._sampler else None
        self._last = 0.0  # time of the last token

    @property
    def remaining(self) -> int:
        """Tokens without KV."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self._limit - self.generated

    @property
    def due(self) -> int:
        """Where the next step is one generated token: that one, and what must run again before it. Else 0."""
        count = len(self.tokens) - self.computed
        return count if count == 1 + self.again and self.computed >= self.n_prompt else 0

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order of service: priority, then arrival, then choice; the last is preempted first."""
        return (-self.request.priority, self.arrival, self.choice)

    def begin(self, pool: PagePool, path: list[Node], root: Node | None) -> None:
        """Become active with the pages of a known prefix."""
        self.pages = SequencePages(pool)
        for node in path:
            self.pages.share(node.pages)
        self.computed = len(path) * pool.page_tokens
        self.pages.leave_behind(self.computed)
        self.node = path[-1] if path else root
        self.state = State.ACTIVE

    def fork(self, other: Sequence) -> None:
        """Make ``other``, a choice that waits, start after this one's prompt."""
        assert self.pages is not None
        other.pages = self.pages.fork(self.computed)
        other.computed, other.node, other.state = self.computed, self.node, State.ACTIVE

    def release(self, state: State) -> None:
        """Give all pages back."""
        if self.pages is not None:
            self.pages.truncate(0)
        self.pages, self.node, self.computed, self.again, self.state = None, None, 0, 0, state

    def truncate(self, length: int) -> None:
        """Forget what comes after the first ``length`` tokens; their last page is computed again if it is
        shared.
        """
        del self.tokens[length:]
        self.n_prompt = min(self.n_prompt, length)
        before, self.computed = self.computed, min(self.computed, length)
        self.node, self.again = None, 0
        if self.pages is not None:
            if self.computed < before:
                self.computed = self.pages.standing(self.computed)
            pool, index = self.pages.pool, self.computed // self.pages.pool.page_tokens
            if any(len(table) > index and pool.references(group, table[index]) > 1
                   for group, table in enumerate(self.pages.tables)):  # fmt: skip
                self.computed = self.pages.standing(index * pool.page_tokens)
            self.pages.truncate(self.computed)

    def advance(self, count: int, tree: PrefixTree | None) -> None:
        """``count`` more tokens have their KV: full pages become known, what windows left is freed."""
        assert self.pages is not None
        pool, before = self.pages.pool, self.computed
        self.computed += count
        self.again = 0
        size = pool.page_tokens
        if tree is not None:
            for index in range(before // size, self.computed // size):
                self._remember(tree, index, size)
        if pool.windowed:
            self.pages.leave_behind(self.computed)

    def settle(self, accepted: int, right: bool, tree: PrefixTree | None) -> None:
        """Of drafts that ran after ``keep_states`` the first ``accepted`` were chosen: all, if ``right``.

        Else the states go back to before the step, and the chosen tokens run again.
        """
        assert self.pages is not None
        if right:
            self.pages.forget_states()
            self.advance(1 + accepted, tree)
        else:
            self.pages.go_back()
            self.again = 1 + accepted

    def _remember(self, tree: PrefixTree, index: int, size: int) -> None:
        assert self.pages is not None
        parent = self.node
        if parent is None or (
            parent.parent is None and parent is not tree.root
        ):  # evicted: nothing to hang it on
            self.node = None
            return
        ids = self.tokens[index * size : (index + 1) * size]
        prompt = min(max(self.n_prompt - index * size, 0), size)
        self.node = tree.insert(parent, tree.key(ids, prompt), self.pages.at(index))
        # Another sequence may have made this page first, with the same bits: one copy is enough, and whoever
        # uses a node then uses all above it, so that what cannot be evicted is always a whole prefix.
        self.pages.replace(index, self.node.pages)

    def take(self, row: Row, observer: Observer) -> bool:
        """Choose the next token from ``row``, the logits after the last token; False ends this choice.

        Raises ``InvalidLogits`` and whatever a callback raises.
        """
        position = len(self.tokens)
        if self._sampler is None:
            assert self.request.choose is not None
            id = self.request.choose(row.logits, position)
            if id is None:
                self.state = State.HELD
                return True
            self.tokens.append(id)
            return True
        sampled = self._sampler.choose(row, position, self._history)
        if sampled.id in self._stops:
            self.end(GenerationStopReason.StopToken)
            return False
        self.tokens.append(sampled.id)
        if self._history is not None:
            self._history.push(sampled.id)
        self._clock(observer)
        goes_on = self.request.on_token is None or self.request.on_token(self.choice, sampled) is not False
        if not goes_on:
            self.end(GenerationStopReason.Cancelled)
        elif self.generated >= self._limit:
            self.end(GenerationStopReason.MaxTokens)
        return self.state is not State.ENDED

    def end(self, reason: GenerationStopReason) -> None:
        """This choice is over."""
        self.release(State.ENDED)
        self.reason = reason
        if self.request.on_choice is not None:
            self.request.on_choice(self.choice, reason)

    def _clock(self, observer: Observer) -> None:
        now = time.perf_counter()
        if self._last:
            observer.token(self.request, now - self._last)
        else:
            observer.first_token(self.request, now - self.request.submitted)
        self._last = now
