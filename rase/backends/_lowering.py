"""Lowers a graph to the walker's steps: buffers by liveness, shared quantization, fused SiLU product.

Nothing here changes what is computed: a fusion has the bits of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rase.backends._memory import Arena
from rase.backends.base import PAGE_TOKENS
from rase.errors import UnsupportedArchitecture
from rase.graph import ops
from rase.graph.ops import Graph, Rope, Value

__all__ = ["Lowering", "refuse_unknown"]

KINDS = {"f32": 0, "q16_32": 1, "q16_256": 2, "bf16": 3}
FLOAT32 = 0  # format number
TILE_BYTES = 1024
_SPLIT = {"linear": "outputs", "logits": "outputs", "attend": "heads"}  # every other step is split by rows


def head_stride(head_dim: int) -> int:
    """Elements of one stored K or V row: head_dim padded to whole 16-lane vectors."""
    return -(-head_dim // 16) * 16


def page_bytes(group: ops.CacheGroup) -> int:
    """Bytes of one page of a cache group: its layers one after the other, each K of all heads, then V."""
    return group.n_layers * layer_bytes(group)


def layer_bytes(group: ops.CacheGroup) -> int:
    """Bytes of one layer's K and V in one page."""
    return 2 * 2 * PAGE_TOKENS * group.n_kv_heads * head_stride(group.head_dim)


def refuse_unknown(graph: Graph) -> None:
    """Raise ``UnsupportedArchitecture`` for an op, or a variety of one, that has no kernel."""
    known = (
        ops.Embed, ops.RmsNorm, ops.Linear, ops.Rotate, ops.Activate, ops.Mul, ops.Add, ops.Attention,
        ops.Logits,
    )  # fmt: skip
    for op in graph.ops:
        missing = None
        if not isinstance(op, known):
            missing = type(op).__name__
        elif isinstance(op, ops.Activate) and op.kind != "silu":
            missing = f"activation {op.kind}"
        elif isinstance(op, ops.Attention):
            if isinstance(op.mask, ops.Bidirectional):
                missing = "bidirectional attention"
            elif op.soft_cap is not None or op.sinks is not None:
                missing = "attention with a soft cap or sinks"
        if missing:
            raise UnsupportedArchitecture(f"cpu has no kernel for {missing} of '{graph.architecture}'")


class Buffers:
    """Row buffers by liveness: a freed one is handed out again once every worker passed the next meeting."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.sizes: list[int] = []  # floats per row of each slot
        self._free: list[int] = []
        self._leaving: list[int] = []

    def take(self, dim: int) -> int:
        stride = -(-dim // 16) * 16
        fitting = [slot for slot in self._free if self.sizes[slot] == stride]
        if fitting:
            self._free.remove(fitting[0])
            return fitting[0]
        self.sizes.append(stride)
        return len(self.sizes) - 1

    def leave(self, slot: int) -> None:
        self._leaving.append(slot)

    def meet(self) -> None:
        self._free += self._leaving
        self._leaving = []

    @property
    def nbytes(self) -> int:
        return sum(Arena.room(4 * size * self.max_rows) for size in self.sizes)


class Lowering:
    """The steps of ``graph`` as ``(kind, fields)``; buffers are slots until ``emit`` gives them addresses.

    ``formats`` maps a matrix's name to its format number, ``act_kind`` a format number to 'f32', 'q16_32' or
    'q16_256'; ``prompt`` is the arithmetic of prompt tokens (rule R3): 'int8', 'f32' or 'bf16'.
    """

    def __init__(
        self, graph: Graph, formats: Mapping[str, int], act_kind: Any, max_rows: int, prompt: str
    ) -> None:
        self.graph, self.formats, self.act_kind, self.prompt = graph, formats, act_kind, prompt
        self.buffers = Buffers(max_rows)
        self.acts: list[tuple[str, int]] = []  # (kind, cols)
        self.ropes: list[Rope] = []
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.page_bytes = tuple(page_bytes(group) for group in graph.caches)
        self._slots: dict[int, int] = {}
        self._quantized: dict[tuple[str, int], int] = {}  # act buffer -> the value in it
        self._last_use = {value.id: index for index, op in enumerate(graph.ops) for value in op.inputs}
        self._readers: dict[int, list[tuple[int, ops.Op]]] = {}  # of each value: a search per op is quadratic
        for index, op in enumerate(graph.ops):
            for value in op.inputs:
                self._readers.setdefault(value.id, []).append((index, op))
        self._phase: tuple[str, bool] | None = None
        self._gates: dict[int, Value] = {}  # a SiLU's value that a product absorbs -> the SiLU's operand
        self._fused = self._fused_silu()
        self._lower()

    def _lower(self) -> None:
        for index, op in enumerate(self.graph.ops):
            if index not in self._fused:
                getattr(self, "_" + type(op).__name__.lower())(op)
            for value in {value.id: value for value in op.inputs}.values():
                if self._last_use[value.id] == index and value.id in self._slots:
                    self.buffers.leave(self._slots[value.id])

    def _fused_silu(self) -> dict[int, Value]:
        """Indices of SiLU ops that their only reader, a product, absorbs -> the SiLU's operand."""
        fused = {}
        for index, op in enumerate(self.graph.ops):
            if isinstance(op, ops.Activate) and op.kind == "silu":
                match self._readers.get(op.out.id, []):
                    case [(at, ops.Mul() as product)] if product.a == op.out != product.b:
                        fused[index] = op.x
                        self._gates[product.a.id] = op.x
                        self._last_use[op.x.id] = max(self._last_use[op.x.id], at)
        return fused

    # Bookkeeping

    def _step(self, kind: str, outputs: bool = False, integer: bool = True, **fields: Any) -> None:
        """Append a step; operands are values (their slots), slots, or names of weights."""
        phase = (_SPLIT.get(kind, "rows"), outputs)
        if self._phase is not None and self._phase != phase:
            self.buffers.meet()
        self._phase = phase
        for operand in ("x", "y"):
            if isinstance(fields.get(operand), Value):
                fields[operand] = self._slots[fields[operand].id]
        self.steps.append((kind, {"outputs": outputs, "integer": integer, **fields}))

    def _new(self, value: Value) -> int:
        self._slots[value.id] = self.buffers.take(value.dim)
        return self._slots[value.id]

    def _quantize(self, x: Value, kinds: list[str], slot: int, outputs: bool, integer: bool) -> None:
        for kind in dict.fromkeys(kinds):
            key = (kind, x.dim)
            if kind == "f32" or self._quantized.get(key) == x.id:
                continue
            if key not in self.acts:
                self.acts.append(key)
            self._quantized[key] = x.id
            self._step("quantize", outputs, integer, x=slot, act=self.acts.index(key), cols=x.dim)

    def _in_tiles(self, format_id: int) -> bool:
        """Whether prompt tokens meet weights of this format in bf16 tiles; float32 never (rule R3)."""
        return self.prompt == "bf16" and format_id != FLOAT32

    def _act(self, kind: str, dim: int) -> int:
        return -1 if kind == "f32" else self.acts.index((kind, dim))

    # One method per op

    def _embed(self, op: ops.Embed) -> None:
        self._step("embed", out=self._new(op.out), format=self.formats[op.weight.name], packed=op.weight.name,
                   cols=op.out.dim, rows=op.weight.shape[0], scale=op.scale)  # fmt: skip

    def _rmsnorm(self, op: ops.RmsNorm) -> None:
        self._step("norm", x=op.x, y=op.weight.name, out=self._new(op.out), cols=op.x.dim, group=op.group,
                   scale=op.eps)  # fmt: skip

    def _linear(self, op: ops.Linear) -> None:
        kind = self.act_kind(self.formats[op.weight.name])
        readers = [other for _, other in self._readers[op.x.id] if isinstance(other, ops.Linear)]
        formats = [self.formats[reader.weight.name] for reader in readers]
        kinds = [self.act_kind(format_id) for format_id in formats]
        if any(self._in_tiles(format_id) for format_id in formats):
            kinds.append("bf16")
        integer = self.prompt == "int8"
        self._quantize(op.x, kinds, self._slots[op.x.id], False, integer)
        left = self._act("bf16", op.x.dim) if self._in_tiles(self.formats[op.weight.name]) else -1
        out = self._new(op.out)
        self._step("linear", integer=integer, x=op.x, act=self._act(kind, op.x.dim), left=left, out=out,
                   cols=op.x.dim, rows=op.out.dim, format=self.formats[op.weight.name],
                   packed=op.weight.name)  # fmt: skip
        if op.bias is not None:
            self._step("bias", x=out, y=op.bias.name, out=out, cols=op.out.dim)

    def _rotate(self, op: ops.Rotate) -> None:
        if op.rope not in self.ropes:
            self.ropes.append(op.rope)
        self._step("rotate", x=op.x, out=self._new(op.out), cols=op.x.dim, head_dim=op.head_dim,
                   n_dims=op.rope.n_dims, neighbour=op.rope.pairing == "neighbour",
                   rope=self.ropes.index(op.rope))  # fmt: skip

    def _activate(self, op: ops.Activate) -> None:
        self._step("silu", x=op.x, out=self._new(op.out), cols=op.out.dim)

    def _mul(self, op: ops.Mul) -> None:
        gate = self._gates.get(op.a.id)
        kind, a = ("mul", op.a) if gate is None else ("silu_mul", gate)
        self._step(kind, x=a, y=op.b, out=self._new(op.out), cols=op.out.dim)
        if gate is not None:
            self.buffers.leave(self._slots[gate.id])

    def _add(self, op: ops.Add) -> None:
        self._step("add", x=op.a, y=op.b, out=self._new(op.out), cols=op.out.dim)

    def _attention(self, op: ops.Attention) -> None:
        group = self.graph.caches[op.cache]
        k_offset = op.layer * layer_bytes(group)
        shape: dict[str, Any] = {"cache": op.cache, "head_dim": op.head_dim, "kv_heads": op.n_kv_heads,
                                 "k_offset": k_offset,
                                 "v_offset": k_offset + layer_bytes(group) // 2}  # fmt: skip
        self._step("store", x=op.k, y=op.v, **shape)
        self._step("attend", x=op.q, out=self._new(op.out), group=op.n_heads // op.n_kv_heads,
                   window=op.mask.width if isinstance(op.mask, ops.Window) else 0, scale=op.scale,
                   tiled=self.prompt == "bf16", **shape)  # fmt: skip

    def _logits(self, op: ops.Logits) -> None:
        """Logits always take the generated-token path (rule R3), over the rows that want them."""
        kind, rows = self.act_kind(self.formats[op.weight.name]), self.buffers.take(op.x.dim)
        self._step("gather", True, x=op.x, out=rows, cols=op.x.dim)
        self._quantized.pop((kind, op.x.dim), None)  # what is in the buffer are other rows
        self._quantize(op.x, [kind], rows, True, True)
        self._quantized.pop((kind, op.x.dim), None)
        self._step("logits", True, x=rows, act=self._act(kind, op.x.dim), cols=op.x.dim, rows=op.out.dim,
                   format=self.formats[op.weight.name], packed=op.weight.name)  # fmt: skip

    # Memory

    def act_bytes(self, kind: str, cols: int) -> tuple[int, int, int, int]:
        """Bytes of q, d, sums and dsums of one activation buffer, as kernels.h lays them out."""
        rows = self.buffers.max_rows
        if kind == "bf16":  # whole tiles of 16 rows x 32 depths; the other arrays are not used
            return -(-rows // 16) * -(-cols // 32) * TILE_BYTES, 0, 0, 0
        block, per_sum = (32, 32) if kind == "q16_32" else (256, 16)
        scales = 4 * rows * (cols // block)
        return 2 * rows * cols, scales, 8 * rows * (cols // per_sum), scales

    @property
    def scratch_bytes(self) -> int:
        acts = sum(Arena.room(part) for kind, cols in self.acts for part in self.act_bytes(kind, cols))
        return self.buffers.nbytes + acts

    def emit(self, walker: Any, scratch: Arena, weights: Mapping[str, Any]) -> None:
        """Give every slot and weight its address and hand the steps to the walker."""
        slots = [scratch.take(4 * size * self.buffers.max_rows).ctypes.data for size in self.buffers.sizes]
        for kind, cols in self.acts:
            places = [scratch.take(part).ctypes.data for part in self.act_bytes(kind, cols)]
            walker.add_act(KINDS[kind], cols, *places)
        for kind, fields in self.steps:
            placed = dict(fields)
            for operand in ("x", "y", "out", "packed"):
                place = fields.get(operand)
                if isinstance(place, str):
                    placed[operand] = weights[place].ctypes.data
                elif place is not None:
                    placed[operand] = slots[place]
                    placed[f"{operand}_stride"] = self.buffers.sizes[place]
            walker.add_step(kind, **placed)
