"""The ops of the vocabulary in torch, one plain function per op: (op, its inputs, the program, the step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rase.backends._tensor_parallel import AllGather, AllReduce
from rase.backends._torch_states import OPS as STATE_OPS
from rase.graph import ops
from rase.graph.ops import Op

if TYPE_CHECKING:
    from rase.backends._torch_program import TorchProgram
    from rase.backends._torch_step import Run, Step

__all__ = ["OPS"]


def _embed(op: ops.Embed, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    rows = {"ids": step.ids, "positions": step.positions, "first": torch.zeros_like(step.ids)}
    return p.matrices[op.weight.name].rows(rows[op.index]) * op.scale


def _rms_norm(op: ops.RmsNorm, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    groups = x[0].reshape(len(x[0]), -1, op.group)
    scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + op.eps)
    return (groups * scale * p.vectors[op.weight.name]).reshape(x[0].shape)


def _layer_norm(op: ops.LayerNorm, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    weight, bias = p.vectors[op.weight.name], p.vectors[op.bias.name]
    return F.layer_norm(x[0], (x[0].shape[1],), weight, bias, op.eps)


def _linear(op: ops.Linear, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    matrix, rows = p.matrices[op.weight.name], op.weight.shape[0]
    n = len(x[0]) if matrix.in_float32 or p.prompt == "f32" else step.n_generated
    parts = []
    if n:
        parts.append(matrix.times(x[0][:n], 0, rows, torch.float32))
    if n < len(x[0]):
        parts.append(matrix.times(x[0][n:], 0, rows, torch.bfloat16))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out if op.bias is None else out + p.vectors[op.bias.name]


def _route(op: ops.Route, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    logits = p.matrices[op.weight.name].times(x[0], 0, op.weight.shape[0], torch.float32)
    order = torch.argsort(logits, dim=1, descending=True, stable=True)  # stable: ties to the lowest id
    chosen = order[:, : op.k].sort(1).values
    gates = torch.softmax(logits, 1).gather(1, chosen)
    if op.renormalize:
        gates = gates / gates.sum(1, keepdim=True)
    return torch.cat([chosen.float(), gates * op.scale], 1)


def _linear_routed(op: ops.LinearRouted, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    k = x[1].shape[1] // 2
    experts = x[1][:, :k].reshape(-1).long()
    rows = x[0] if op.x.rows == "routed" else x[0].repeat_interleave(k, 0)
    _, size, _ = op.weight.shape
    out = torch.empty(len(rows), size, device=rows.device)
    for expert in torch.unique(experts).tolist():
        mine = experts == expert
        out[mine] = p.matrices[op.weight.name].times(rows[mine], expert * size, size, torch.float32)
    return out


def _mix(op: ops.Mix, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    k = x[1].shape[1] // 2
    return (x[0].reshape(len(x[1]), k, -1) * x[1][:, k:, None]).sum(1)


def _rotate(op: ops.Rotate, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    cos, sin = (table[step.positions][:, None] for table in p.rope(op.rope))
    n, heads = op.rope.n_dims, x[0].reshape(len(x[0]), -1, op.head_dim)
    turned, rest = heads[..., :n], heads[..., n:]
    if op.rope.pairing == "neighbour":
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([turned, rest], -1).reshape(x[0].shape)


def _activate(op: ops.Activate, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    if op.kind == "silu":
        return F.silu(x[0])
    if op.kind == "sigmoid":
        return torch.sigmoid(x[0])
    return F.gelu(x[0], approximate="tanh" if op.kind == "gelu_tanh" else "none")


def _mul(op: ops.Mul, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return x[0] * x[1]


def _add(op: ops.Add, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return x[0] + x[1]


def _scale(op: ops.Scale, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return x[0] * op.factor


def _slice(op: ops.Slice, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    periods = x[0].reshape(len(x[0]), -1, op.period)
    return periods[..., op.start : op.start + op.size].reshape(len(x[0]), -1)


def _attention(op: ops.Attention, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    q = x[0].reshape(-1, op.n_kv_heads, op.n_heads // op.n_kv_heads, op.head_dim)
    stored = p.stores[op.cache][:, op.layer]  # (2, pages, tokens of a page, K/V heads, head_dim)
    k, v = (a.reshape(-1, op.n_kv_heads, op.head_dim).to(stored.dtype) for a in x[1:])
    pages = step.pages[op.cache]
    stored[0, pages, step.slots], stored[1, pages, step.slots] = k, v
    if step.decodes:
        return _attend_each(op, q, stored, p, step)
    parts = [_attend_run(op, q[run.first : run.first + run.count], stored, p, step, run) for run in step.runs]
    return torch.cat(parts)


def _attend_run(
    op: ops.Attention, q: Tensor, stored: Tensor, p: TorchProgram, step: Step, run: Run
) -> Tensor:
    """Tokens of one sequence, over the pages that they see."""
    size, last = step.page_tokens, run.position + run.count
    low = max(0, run.position - op.mask.width + 1) // size if isinstance(op.mask, ops.Window) else 0
    table = step.tables[op.cache, run.sequence, low : -(-last // size)].tolist()
    keys, values = (
        stored[part, table].flatten(0, 1)[: last - low * size].float() for part in (0, 1)
    )  # (positions, K/V heads, head_dim)
    at = torch.arange(low * size, last, device=q.device)
    now = step.positions[run.first : run.first + run.count, None]
    seen = torch.ones(len(now), len(at), dtype=torch.bool, device=q.device)
    if not isinstance(op.mask, ops.Bidirectional):
        seen = at <= now
    if isinstance(op.mask, ops.Window):
        seen = seen & (at > now - op.mask.width)
    out = _weigh(op, q.permute(1, 2, 0, 3), keys.permute(1, 0, 2)[:, None], values.permute(1, 0, 2)[:, None],
                 seen, p)  # fmt: skip
    return out.permute(2, 0, 1, 3).reshape(run.count, -1)


def _attend_each(op: ops.Attention, q: Tensor, stored: Tensor, p: TorchProgram, step: Step) -> Tensor:
    """One token of each sequence, all at once, over tables of one width."""
    tables = step.decode_tables[op.cache]
    at = torch.arange(tables.shape[1] * step.page_tokens, device=q.device)
    now = step.positions[:, None]
    seen = at <= now
    if isinstance(op.mask, ops.Window):
        seen = seen & (at > now - op.mask.width)
    keys, values = (stored[part, tables].flatten(1, 2).float() for part in (0, 1))
    values = values.masked_fill(~seen[:, :, None, None], 0)  # what is not seen may hold anything
    out = _weigh(op, q[:, :, :, None], keys.permute(0, 2, 1, 3)[:, :, None],
                 values.permute(0, 2, 1, 3)[:, :, None], seen[:, None, None, None], p)  # fmt: skip
    return out.reshape(len(q), -1)


def _weigh(op: ops.Attention, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, p: TorchProgram) -> Tensor:
    """softmax(q · k) · v over (..., K/V heads, queries of a group, tokens, head_dim)."""
    scores = op.scale * (q @ k.transpose(-1, -2))
    if op.soft_cap is not None:
        scores = op.soft_cap * torch.tanh(scores / op.soft_cap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if op.sinks is None:
        return torch.softmax(scores, -1) @ v
    sinks = p.vectors[op.sinks.name].reshape(op.n_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v


def _logits(op: ops.Logits, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    matrix = p.matrices[op.weight.name]
    logits = matrix.times(x[0][step.logits_rows], 0, op.weight.shape[0], torch.float32) * op.scale
    return logits if op.soft_cap is None else op.soft_cap * torch.tanh(logits / op.soft_cap)


def _hidden(op: ops.Hidden, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return x[0][step.logits_rows]


def _all_reduce(op: AllReduce, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return p.group.add(x[0])


def _all_gather(op: AllGather, x: list[Tensor], p: TorchProgram, step: Step) -> Tensor:
    return p.group.gather(x[0])


OPS: dict[type[Op], Callable[[Any, list[Tensor], TorchProgram, Step], Tensor]] = {
    ops.Embed: _embed, ops.RmsNorm: _rms_norm, ops.LayerNorm: _layer_norm, ops.Linear: _linear,
    ops.Rotate: _rotate, ops.Activate: _activate, ops.Mul: _mul, ops.Add: _add, ops.Scale: _scale,
    ops.Slice: _slice, ops.Attention: _attention, ops.Logits: _logits, ops.Hidden: _hidden,
    AllReduce: _all_reduce, AllGather: _all_gather,
    ops.Route: _route, ops.LinearRouted: _linear_routed, ops.Mix: _mix, **STATE_OPS,
}  # fmt: skip
