"""The recurrent ops in torch: the step recurrence, one token after the other in each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rase.graph import ops

if TYPE_CHECKING:
    from rase.backends._torch_program import TorchProgram
    from rase.backends._torch_step import Step

__all__ = ["OPS"]


def _l2_norm(op: ops.L2Norm, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    groups = x[0].reshape(len(x[0]), -1, op.group)
    return (groups * torch.rsqrt(groups.square().sum(-1, keepdim=True) + op.eps)).reshape(x[0].shape)


def _decay(op: ops.Decay, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return torch.exp(p.vectors[op.rate.name] * F.softplus(x[0] + p.vectors[op.bias.name], threshold=1e9))


def _causal_conv(op: ops.CausalConv, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    taps = p.matrices[op.weight.name].rows(slice(None)).T  # (taps, channels)

    def token(t: int, before: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.cat([before, x[0][t : t + 1]])
        return (taps * rows).sum(0), rows[1:]

    return _each_token(op, p, step, token)


def _delta_rule(op: ops.DeltaRule, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    q, k = (a.reshape(-1, op.n_k_heads, op.k_dim) for a in x[:2])
    v, decay, beta = x[2].reshape(-1, op.n_v_heads, op.v_dim), x[3], x[4]
    head = torch.arange(op.n_v_heads, device=v.device)
    shared = head % op.n_k_heads if op.tiled else head // (op.n_v_heads // op.n_k_heads)

    def token(t: int, before: Tensor) -> tuple[Tensor, Tensor]:
        state = before.reshape(op.n_v_heads, op.k_dim, op.v_dim) * decay[t][:, None, None]
        key, query = k[t][shared][..., None], q[t][shared][..., None]
        missing = beta[t][:, None] * (v[t] - (key * state).sum(1))
        state = state + key * missing[:, None]
        return op.scale * (query * state).sum(1).reshape(-1), state.reshape(before.shape)

    return _each_token(op, p, step, token)


def _each_token(
    op: Any, p: TorchProgram, step: Step, token: Callable[[int, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """``token`` for every token of the batch; a page keeps the state after the last one in its positions."""
    states, group = p.stores[op.cache][0, op.layer], p.graph.caches[op.cache]
    out = []
    for run in step.runs:
        table, size = step.tables[op.cache, run.sequence], step.page_tokens
        if run.position == 0:
            state = torch.zeros(group.n_kv_heads, group.head_dim, device=states.device)
        else:
            state = states[int(table[(run.position - 1) // size])].clone()
        for index in range(run.count):
            row, state = token(run.first + index, state)
            out.append(row)
            position = run.position + index
            page = int(table[position // size])
            if page >= 0 and ((position + 1) % size == 0 or index == run.count - 1):
                states[page] = state
    return torch.stack(out)


OPS: dict[type[ops.Op], Any] = {
    ops.L2Norm: _l2_norm, ops.Decay: _decay, ops.CausalConv: _causal_conv, ops.DeltaRule: _delta_rule,
}  # fmt: skip
