"""The recurrent ops of the reference backend: float64, one token after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rase.graph import ops

if TYPE_CHECKING:
    from rase.backends.base import Batch
    from rase.backends.reference import ReferenceProgram

__all__ = ["OPS"]

Array = Any  # np.ndarray of float64


def _l2_norm(op: ops.L2Norm, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    groups = x[0].reshape(len(x[0]), -1, op.group)
    return (groups / np.sqrt((groups**2).sum(-1, keepdims=True) + op.eps)).reshape(x[0].shape)


def _decay(op: ops.Decay, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    step = np.logaddexp(0, x[0] + program.weight(op.bias.name))
    return np.exp(program.weight(op.rate.name) * step)


def _causal_conv(op: ops.CausalConv, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    weight = program.weight(op.weight.name)  # (channels, taps)

    def step(t: int, before: Array) -> tuple[Array, Array]:
        rows = np.concatenate([before, x[0][t : t + 1]])  # (taps, channels)
        return (weight.T * rows).sum(0), rows[1:]

    return _each_token(op, program, batch, step)


def _delta_rule(op: ops.DeltaRule, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    q, k = (a.reshape(-1, op.n_k_heads, op.k_dim) for a in x[:2])
    v, decay, beta = x[2].reshape(-1, op.n_v_heads, op.v_dim), x[3], x[4]
    head = np.arange(op.n_v_heads)
    shared = head % op.n_k_heads if op.tiled else head // (op.n_v_heads // op.n_k_heads)

    def step(t: int, before: Array) -> tuple[Array, Array]:
        state = before.reshape(op.n_v_heads, op.k_dim, op.v_dim) * decay[t][:, None, None]
        key, query = k[t][shared][..., None], q[t][shared][..., None]  # (heads, k_dim, 1)
        missing = beta[t][:, None] * (v[t] - (key * state).sum(1))  # (heads, v_dim)
        state = state + key * missing[:, None]
        return op.scale * (query * state).sum(1).reshape(-1), state.reshape(before.shape)

    return _each_token(op, program, batch, step)


def _each_token(
    op: Any, program: ReferenceProgram, batch: Batch, step: Callable[[int, Array], tuple[Array, Array]]
) -> Array:
    """``step`` for every token of the batch in order, with the state that the token before it left."""
    states: dict[int, Array] = {}
    out = []
    for t, (position, sequence) in enumerate(zip(batch.positions[0], batch.sequences, strict=True)):
        table = batch.page_tables[op.cache, sequence]
        if sequence not in states:
            states[sequence] = program.state(op, table, position - 1)
        row, states[sequence] = step(t, states[sequence])
        out.append(row)
        program.keep_state(op, table, position, states[sequence])
    return np.array(out)


OPS: dict[type[ops.Op], Any] = {
    ops.L2Norm: _l2_norm, ops.Decay: _decay, ops.CausalConv: _causal_conv, ops.DeltaRule: _delta_rule,
}  # fmt: skip
