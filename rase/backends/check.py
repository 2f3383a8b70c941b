"""Validates a batch against a program: every rule that a kernel relies on, before it runs.

It runs once per step, so a step of plain decoding is accepted by one call of compiled code, and only
refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rase.errors import BackendError, ContextLengthExceeded, CorruptModelFile, InvalidRequest

if TYPE_CHECKING:
    from rase._kernels.batch import DecodeRules
    from rase.backends.base import Batch, Program
    from rase.graph.ops import Graph

__all__ = ["check_batch", "check_rope_factors", "decode_rules", "windows"]


def check_batch(batch: Batch, program: Program) -> None:
    """Raise ``InvalidRequest``, ``ContextLengthExceeded`` or ``BackendError`` for a batch that cannot run."""
    if _accepts_decode(batch, program):
        return
    _check_arrays(batch, program)
    graph = program.graph
    vocab = graph.vocab_size
    low, high = _range(batch.ids)
    if low < 0 or high >= vocab:
        raise InvalidRequest(
            "a token id is outside the vocabulary", expected=f"0 to {vocab - 1}",
            found=str(low if low < 0 else high), param="ids",
        )  # fmt: skip
    low, high = _range(batch.positions)
    if high >= graph.context_length:
        raise ContextLengthExceeded(high + 1, graph.context_length)
    _require(low >= 0, "a position is negative")
    _require(high // program.page_tokens < batch.page_tables.shape[2], "a page table is too short")
    low, high = _range(batch.sequences)
    _require(low >= 0 and high < batch.page_tables.shape[1], "a sequence has no page table")
    _require(batch.roles.max() <= 1, "a role is neither prompt nor generated")
    if len(batch.logits_rows):
        low, high = _range(batch.logits_rows)
        _require(low >= 0 and high < len(batch.ids), "a row that wants logits is not a token of the batch")
    for table, reserved in zip(batch.page_tables, program.reserved_pages, strict=True):
        _require(table.max() < reserved, "a page id is beyond the reserved pages")
    _check_order(batch.positions[0], batch.sequences, batch.roles)
    if graph.whole_input:
        _check_whole(batch)
    if program.states is not None:
        program.states.check(batch)
    for table, group in zip(batch.page_tables, graph.caches, strict=True):
        if group.kind != "state":
            _check_pages(table, group.window or 0, batch, program.page_tokens)


def windows(graph: Graph) -> list[int]:
    """Positions that a token sees in each cache group, itself included; 0 where it sees all of them."""
    return [group.window or 0 for group in graph.caches]


def check_rope_factors(name: str, factors: Any) -> None:
    """Raise ``CorruptModelFile`` unless every rope factor of tensor ``name`` is finite and above zero."""
    import numpy as np

    bad = ~(np.isfinite(factors) & (factors > 0))
    if bad.any():
        at = int(np.argmax(bad))
        raise CorruptModelFile(
            f"tensor '{name}'", expected="finite numbers above 0", found=f"{factors[at]} at index {at}",
            hint="The file's rotary frequency factors are damaged.", tensor=name,
        )  # fmt: skip


def decode_rules(program: Program) -> DecodeRules:
    """The rules of steps that only decode, for ``program``: compiled code that says yes or no."""
    from rase._kernels.batch import DecodeRules

    graph, most = program.graph, program.max_batch_tokens
    if graph.whole_input:
        most = 0
    elif program.states is not None:
        most = 1
    return DecodeRules(graph.vocab_size, graph.context_length, program.page_tokens, most, windows(graph))


def _accepts_decode(batch: Batch, program: Program) -> bool:
    """Whether this is a valid step of decoding; what is not is left to the checks that say why."""
    from rase._kernels.batch import BatchView

    if batch.ids.size > batch.page_tables.shape[1]:
        return False  # a prompt, most likely
    try:
        accepted = decode_rules(program).accept(BatchView(batch), program.reserved_pages)
    except ValueError:  # another dtype, dimension or order
        return False
    return accepted and (program.states is None or program.states.accepts_one(batch))


def _require(holds: Any, what: str) -> None:
    if not holds:
        raise BackendError(f"invalid batch: {what}")


def _range(array: Any) -> tuple[int, int]:
    if array.size == 1:
        value = array.item()
        return value, value
    return int(array.min()), int(array.max())


def _check_arrays(batch: Batch, program: Program) -> None:
    n = batch.ids.size
    for name, array, kind, shape in (
        ("ids", batch.ids, "i", (n,)),
        ("positions", batch.positions, "i", (1, n)),
        ("sequences", batch.sequences, "i", (n,)),
        ("roles", batch.roles, "B", (n,)),
        ("logits_rows", batch.logits_rows, "i", (batch.logits_rows.size,)),
        ("page_tables", batch.page_tables, "i", (len(program.graph.caches), *batch.page_tables.shape[-2:])),
    ):
        if array.dtype.char != kind or array.shape != shape or not array.flags.c_contiguous:
            dtype = "int32" if kind == "i" else "uint8"
            found = f"{array.dtype.name} {array.shape}, contiguous: {array.flags.c_contiguous}"
            raise BackendError(f"invalid batch: {name}", expected=f"{dtype} {shape}, contiguous", found=found)
    if not 1 <= n <= program.max_batch_tokens:
        raise BackendError("invalid batch: tokens", expected=f"1 to {program.max_batch_tokens}", found=str(n))
    _require(batch.page_tables.size or not program.graph.caches, "no page tables")


def _check_order(positions: Any, sequences: Any, roles: Any) -> None:
    """Roles never descend; tokens of one (role, sequence) form one run with ascending positions."""
    import numpy as np

    _require((roles[1:] >= roles[:-1]).all(), "a generated token follows a prompt token")
    same = (sequences[1:] == sequences[:-1]) & (roles[1:] == roles[:-1])
    _require((positions[1:] > positions[:-1])[same].all(), "positions of a sequence do not ascend")
    runs = np.flatnonzero(np.concatenate(([True], ~same)))
    keys = sequences[runs].astype(np.int64) * 2 + roles[runs]
    _require(len(np.unique(keys)) == len(runs), "tokens of a sequence and role are not contiguous")
    if len(np.unique(sequences[runs])) != len(runs):  # some sequence has tokens of both roles
        places = sequences.astype(np.int64) << 32 | positions
        _require(len(np.unique(places)) == len(positions), "a sequence holds one position twice")


def _check_whole(batch: Batch) -> None:
    """Tokens that see what follows them come whole: each sequence from position 0 on, without a gap."""
    import numpy as np

    starts = np.flatnonzero(np.diff(batch.sequences, prepend=-1))
    places = np.arange(batch.ids.size) - np.repeat(starts, np.diff(starts, append=batch.ids.size))
    _require((batch.positions[0] == places).all(), "a sequence of a bidirectional graph is not whole")


def _check_pages(tables: Any, window: int, batch: Batch, page_tokens: int) -> None:
    """Pages of one cache group that the tokens write or see exist; none that is written appears twice."""
    import numpy as np

    sequences, positions = batch.sequences, batch.positions[0]
    page = positions // page_tokens
    last = np.full(len(tables), -1)
    np.maximum.at(last, sequences, page)
    first = np.full(len(tables), tables.shape[1] if window else 0)
    if window:
        np.minimum.at(first, sequences, np.maximum(positions - window + 1, 0) // page_tokens)
    places = np.arange(tables.shape[1])
    seen = (places >= first[:, None]) & (places <= last[:, None])
    _require((tables[seen] >= 0).all(), "a page that a token sees is missing")
    written = np.unique(tables[sequences, page])
    counts = np.bincount(tables[tables >= 0])
    _require(counts[written].max() == 1, "a page that is written belongs to two places")
