"""``Batching``: who is in the next step, who waits, who gives way. One thread's business: the driver calls
it.

``step`` is the whole of it: drop what was cancelled, admit from the queue, choose rows, find pages for them,
run the program, hand out the logits. Pages that run out come from the prefix cache first, then from the
youngest sequence; the oldest one always gets what it needs, since a request that does not fit alone was
refused.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from rase.backends.base import GENERATED
from rase.engine.drafts import drafts_each, keep_states, verify
from rase.engine.generation import GenerationStopReason
from rase.engine.heartbeat import Heartbeat
from rase.engine.kv_cache import OutOfPages
from rase.engine.prefix_tree import PrefixTree
from rase.engine.restart import start_again
from rase.engine.sequence import Sequence, State
from rase.engine.stepping import Batches, Limits, Pace, Rows, prompt_rows, tokens_of
from rase.engine.turns import TURNS
from rase.errors import DeadlineExceeded, DeviceLost

if TYPE_CHECKING:
    from rase.backends.base import Program
    from rase.engine.kv_cache import PagePool
    from rase.engine.observer import Observer
    from rase.engine.request import Request
    from rase.engine.sampler import Row

__all__ = ["Batching"]

log = logging.getLogger("rase.engine")
_rank = attrgetter("rank")


class Batching:
    """The requests of one program. ``vocab_size`` is the number of ids that may be chosen."""

    def __init__(
        self, program: Program, pool: PagePool, vocab_size: int, limits: Limits, observer: Observer
    ) -> None:
        self.program, self.pool, self.limits, self.observer = program, pool, limits, observer
        caching = limits.enable_prefix_caching and any(program.page_bytes)  # else there is nothing to keep
        self.tree = PrefixTree(pool, program.one_arithmetic) if caching else None
        self.waiting: list[Sequence] = []  # both in order of service
        self.active: list[Sequence] = []
        self.behind: list[Sequence] = []  # held until their readers have caught up
        self.live: dict[Request, list[Sequence]] = {}  # choices of each request that has not ended
        self.pace = Pace()
        self.heartbeat = Heartbeat(self.pace)
        self._batches = Batches()
        self._vocab_size = vocab_size
        self._most_rows = min(limits.max_batch_tokens or program.max_batch_tokens, program.max_batch_tokens)
        self._arrivals = count()
        self._gave_way = False  # in this step
        self._blocked: tuple[Sequence, int] | None = None  # who did not fit, beside how many

    def add(self, request: Request) -> None:
        """Take a checked request. What the making of its sequence raises becomes its error."""
        self.live[request] = []
        self.observer.queued(request)
        try:
            first = self._sequence(request, 0, next(self._arrivals))
        except Exception as error:
            self.fail(request, error)
            return
        insort(self.waiting, first, key=_rank)

    def step(self) -> bool:
        """One pass over the model; False when there is nothing to compute."""
        self._gave_way = False
        self._drop()
        if self.behind:
            self._catch_up()
        if self.waiting:
            self._admit()
        parts = self._choose()
        if not parts:  # whoever was to go on gave way, or ended: others can
            return self._gave_way or (bool(self.waiting) and not self._computing())
        decode_tokens, prompt_tokens = tokens_of(parts)
        try:
            self.heartbeat.waits()
            with TURNS:
                self.heartbeat.begins(decode_tokens, prompt_tokens)
                start = time.perf_counter()
                logits = self.program.run(self._batches.make(parts))
                seconds = time.perf_counter() - start
            self.heartbeat.ended()
        except DeviceLost:
            start_again(self)
            return True
        except BaseException as error:
            for part in parts:
                self.fail(part.sequence.request, error)
            return True
        self.pace.note(prompt_tokens, seconds)
        self.observer.step(decode_tokens, prompt_tokens, len(parts), seconds)
        self._hand_out(parts, self.program.each_of(logits))
        return True

    def asks(self) -> bool:
        """Whether some request has a hook or a deadline that must be looked at although nothing computes."""
        return any(
            request.cancelled is not None or request.deadline is not None
            for request in self.live
            if request.choose is None
        )

    def give(self, request: Request, id: int) -> None:
        """The token that the outside chooser of ``request`` decided on."""
        for sequence in self.live.get(request, ()):
            sequence.tokens.append(id)
            self._resume(sequence)

    def fail(self, request: Request, error: BaseException) -> None:
        """End ``request`` with ``error``."""
        self.close(request, GenerationStopReason.Cancelled, error)

    def close(
        self, request: Request, reason: GenerationStopReason, error: BaseException | None = None
    ) -> None:
        """End every choice of ``request`` that has not ended."""
        sequences = self.live.pop(request, None)
        if sequences is None:
            return
        for sequence in sequences:
            if sequence.state is not State.ENDED:
                self._leave(sequence)
                sequence.release(State.ENDED)
        if error is None and request.on_choice is not None:
            ended = {sequence.choice for sequence in sequences if sequence.reason is not None}
            try:
                for choice in range(request.n):
                    if choice not in ended:
                        request.on_choice(choice, reason)
            except BaseException as raised:
                error = raised
        self._finish(request, reason, error)

    # The parts of a step

    def _drop(self) -> None:
        """End what was cancelled or is too late. Whoever waits, computes or is held leaves alike."""
        now = time.monotonic()
        for request in list(self.live):
            try:
                if request.stopped or (request.cancelled is not None and request.cancelled()):
                    self.close(request, GenerationStopReason.Cancelled)
                elif request.deadline is not None and now >= request.deadline:
                    late = now - request.deadline
                    self.fail(request, DeadlineExceeded("the request did not end in time", late_s=late))
            except BaseException as error:  # of the hook
                self.fail(request, error)

    def _admit(self) -> None:
        """Give places to those who wait, in order, while there are places and pages."""
        while self.waiting and self._places():
            sequence = self.waiting[0]
            if self._blocked == (sequence, len(self.active)):
                return
            tree = self.tree if sequence.request.reuse else None
            path = [] if tree is None else tree.match(sequence.tokens, sequence.n_prompt)
            sequence.begin(self.pool, path, None if tree is None else tree.root)
            if self._computing() and not self._room(sequence):
                sequence.release(State.WAITING)
                self._blocked = (sequence, len(self.active))
                return
            self._blocked = None
            self.waiting.pop(0)
            insort(self.active, sequence, key=_rank)
            if tree is not None:
                tree.touch(path)
            if not sequence.request.admitted:
                sequence.request.admitted = time.perf_counter()
                sequence.request.cached_tokens = min(sequence.computed, sequence.n_prompt)
                request = sequence.request
                self.observer.admitted(request, request.queue_s, request.cached_tokens)

    def _computing(self) -> int:
        """How many sequences have a place in the batch and are not held."""
        return sum(sequence.state is State.ACTIVE for sequence in self.active)

    def _places(self) -> int:
        """How many more sequences may compute. What is held takes no place: nobody knows for how long."""
        return max(0, self.limits.max_batch_seqs - self._computing())

    def _room(self, sequence: Sequence) -> bool:
        """Whether all that ``sequence`` must compute fits beside the active ones and a next page for each."""
        assert sequence.pages is not None
        needed = [pages + len(self.active) for pages in self.pool.most_pages(len(sequence.tokens) + 1)]
        have = [sum(page >= 0 for page in table) for table in sequence.pages.tables]
        pairs = list(zip(self.pool.capacity, self.pool.in_use, needed, have, strict=True))
        if all(capacity - used >= need - own for capacity, used, need, own in pairs):
            return True
        spare = (0,) * len(pairs) if self.tree is None else self.tree.reclaimable()
        return all(
            capacity - used + more >= need - own
            for (capacity, used, need, own), more in zip(pairs, spare, strict=True)
        )

    def _choose(self) -> list[Rows]:
        """The rows of the next step, with pages to write to: generated tokens first."""
        most, rows = self._most_rows, 0
        parts: list[Rows] = []
        guessing: list[Rows] = []
        prompts: list[Sequence] = []
        for sequence in tuple(self.active):  # a hook that raises ends its request
            if sequence.state is State.ACTIVE:
                due = sequence.due
                if not due:
                    prompts.append(sequence)
                elif sequence.request.ahead is not None and self._ahead(sequence):
                    self._hold(sequence)
                elif rows + due <= most:
                    part = Rows(sequence, sequence.computed, due, GENERATED, [], True, True)
                    parts.append(part)
                    rows += due
                    if sequence.drafts is not None and due == 1:
                        guessing.append(part)
        if prompts:
            budget = min(most - rows, self.limits.chunked_prefill_size or most)
            if budget and (parts or TURNS.contended):
                budget = self.pace.prompt_tokens(budget)
            parts += prompt_rows(prompts, budget)
            parts.sort(key=lambda part: part.sequence.rank)
        elif guessing and (spare := drafts_each(len(parts), rows, most)):  # prompts leave no rows
            for part in guessing:
                part.drafts = self._propose(part.sequence, spare)
        for part in parts:
            if not part.has_pages:
                held = [part for part in parts if self._reserve(part)]  # some of which an older one preempts
                parts = [part for part in held if part.sequence.state is State.ACTIVE]
                break
        if guessing:
            keep_states(guessing)
        return sorted(parts, key=lambda part: part.role) if prompts else parts

    def _ahead(self, sequence: Sequence) -> bool:
        """Whether the reader of this sequence is too far behind to want another token now."""
        try:
            return bool(sequence.request.ahead())  # type: ignore[misc]
        except BaseException as error:
            self.fail(sequence.request, error)
            return False

    def _hold(self, sequence: Sequence) -> None:
        """Go on without ``sequence`` until its reader has caught up; meanwhile its place is another's."""
        sequence.state = State.HELD
        self.behind.append(sequence)

    def _catch_up(self) -> None:
        behind, self.behind = self.behind, []
        for sequence in behind:
            if sequence.state is State.HELD:
                if self._ahead(sequence):
                    self.behind.append(sequence)
                else:
                    self._resume(sequence)

    def _propose(self, sequence: Sequence, spare: int) -> list[int]:
        assert sequence.drafts is not None
        limit = min(spare, sequence.room - 1)
        try:
            return [] if limit < 1 else list(sequence.drafts.propose(sequence.tokens, limit))[:limit]
        except BaseException as error:
            self.fail(sequence.request, error)
            return []

    def _reserve(self, part: Rows) -> bool:
        """Find pages for the rows of ``part``; False when its sequence had to give way or was ended."""
        sequence = part.sequence
        while sequence.state is State.ACTIVE and sequence.pages is not None:
            if part.has_pages:
                return True
            try:
                sequence.pages.reserve(part.start + part.total)
            except OutOfPages as error:
                if part.drafts:
                    part.drafts = []
                    continue
                freed = 0 if self.tree is None else self.tree.evict(error.group)
                if freed:
                    self.observer.evicted(freed)
                    continue
                victims = [other for other in self.active if other.pages is not None]
                if victims == [sequence]:
                    self.fail(sequence.request, error)  # the machine has less than was planned
                else:
                    held = [other for other in victims if other.state is State.HELD]
                    self.preempt((held or victims)[-1])
        return False

    def preempt(self, sequence: Sequence) -> None:
        log.debug("preempted: a sequence of %d tokens gives way", len(sequence.tokens))
        held = sequence.state is State.HELD
        self._gave_way = True
        self.active.remove(sequence)
        sequence.release(State.HELD if held else State.WAITING)
        if not held:
            insort(self.waiting, sequence, key=_rank)
        self.observer.preempted(sequence.request)

    def _hand_out(self, parts: list[Rows], rows: list[Row]) -> None:
        row = 0
        for part in parts:
            sequence, first = part.sequence, row
            row += 1 + len(part.drafts) if part.wants_logits else 0
            if sequence.state is not State.ACTIVE:
                continue  # another choice's callback ended the request
            try:
                if part.drafts:
                    goes_on = verify(sequence, rows[first:row], part.drafts, self.tree, self.observer)
                else:
                    sequence.advance(part.count, self.tree)
                    if not part.wants_logits:
                        continue
                    if not sequence.request.prompted:
                        self._fork(sequence, rows[first])
                    goes_on = sequence.take(rows[first], self.observer)
                if not goes_on:
                    self._leave(sequence)
                    self._finish_if_over(sequence.request)
            except BaseException as error:
                self.fail(sequence.request, error)

    def _fork(self, first: Sequence, row: Row) -> None:
        """The prompt of ``first`` is computed: the other choices of its request begin as well."""
        request = first.request
        request.prompted = time.perf_counter()
        for follower in [self._follow(first, choice) for choice in range(1, request.n)]:
            follower.take(row, self.observer)
            if follower.state is State.ENDED:
                self._leave(follower)

    def _finish_if_over(self, request: Request) -> None:
        """The request has ended when each of its choices has."""
        sequences = self.live.get(request)
        if sequences and all(sequence.state is State.ENDED for sequence in sequences):
            del self.live[request]
            self._finish(request, sequences[-1].reason or GenerationStopReason.MaxTokens, None)

    def _follow(self, first: Sequence, choice: int) -> Sequence:
        """Another choice of the same prompt: it shares the pages, or waits for its own."""
        sequence = self._sequence(first.request, choice, first.arrival)
        if self._places():
            try:
                first.fork(sequence)
                insort(self.active, sequence, key=_rank)
                return sequence
            except OutOfPages:
                pass
        insort(self.waiting, sequence, key=_rank)
        return sequence

    # Small things

    def _sequence(self, request: Request, choice: int, arrival: int) -> Sequence:
        sequence = Sequence(request, choice, arrival, self._vocab_size, self.pool.most_tokens)
        self.live[request].append(sequence)
        return sequence

    def _resume(self, sequence: Sequence) -> None:
        """A held sequence has a token to compute."""
        if sequence.state is State.HELD:
            sequence.state = State.ACTIVE if sequence.pages is not None else State.WAITING
            if sequence.state is State.WAITING:
                insort(self.waiting, sequence, key=_rank)

    def _leave(self, sequence: Sequence) -> None:
        for queue in (self.active, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        if self._blocked is not None and self._blocked[0] is sequence:
            self._blocked = None

    def _finish(self, request: Request, reason: GenerationStopReason, error: BaseException | None) -> None:
        try:
            request.finish(error)
        except BaseException as raised:
            log.error("the end of a request was not heard: %s", type(raised).__name__)
        self.observer.finished(request, _WORDS[reason] if error is None else _word(error))


_WORDS = {
    GenerationStopReason.StopToken: "stop",
    GenerationStopReason.MaxTokens: "length",
    GenerationStopReason.Cancelled: "cancelled",
}


def _word(error: BaseException) -> str:
    return "deadline" if isinstance(error, DeadlineExceeded) else "error"
