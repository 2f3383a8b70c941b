"""Lowers a graph to the walker's steps: buffers by liveness, shared quantization, fused SiLU product.

Nothing here changes what is computed: a fusion has the bits of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rase.backends._memory import Arena
from rase.errors import UnsupportedArchitecture
from rase.graph import ops
from rase.graph.ops import Graph, Rope, Value

__all__ = ["Lowering", "refuse_unknown"]

KINDS = {"f32": 0, "q16_32": 1, "q16_256": 2, "bf16": 3}
FLOAT32 = 0  # format number
TILE_BYTES = 1024
_SPLIT = {
    "linear": "outputs", "logits": "outputs", "attend": "heads", "linear_routed": "experts",
    "dispatch": "one", "causal_conv": "states", "delta_rule": "states",
}  # every other step is split by rows  # fmt: skip


def refuse_unknown(graph: Graph) -> None:
    """Raise ``UnsupportedArchitecture`` for an op, or a variety of one, that has no kernel."""
    known = (
        ops.Embed, ops.RmsNorm, ops.Linear, ops.Rotate, ops.Activate, ops.Mul, ops.Add, ops.Attention,
        ops.Logits, ops.Scale, ops.Slice, ops.Route, ops.LinearRouted, ops.Mix, ops.LayerNorm, ops.Hidden,
        ops.L2Norm, ops.CausalConv, ops.Decay, ops.DeltaRule,
    )  # fmt: skip
    for op in graph.ops:
        missing = None
        if not isinstance(op, known):
            missing = type(op).__name__
        elif isinstance(op, ops.Attention) and op.sinks is not None:
            missing = "attention with sinks"
        if missing:
            raise UnsupportedArchitecture(f"cpu has no kernel for {missing} of '{graph.architecture}'")


class Buffers:
    """Places for rows in one piece of memory, by liveness: a slot holds ``max_rows`` rows of a value; what
    it leaves is handed out again once every worker passed the next meeting.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.sizes: list[int] = []  # floats per row of each slot
        self.places: list[range] = []  # bytes of each slot
        self.nbytes = 0  # of all together
        self._free: list[range] = []  # ascending, with something in use between any two
        self._leaving: list[range] = []

    def take(self, dim: int, repeats: int = 1) -> int:
        """A slot for ``repeats`` rows a token of ``dim`` floats: the smallest gap that has room."""
        stride = -(-dim // 16) * 16
        if stride % 256 == 0:  # else the rows of a multiply share a few sets of the first-level cache
            stride += 16
        nbytes = Arena.room(4 * stride * repeats * self.max_rows)
        gap = min((gap for gap in self._free if len(gap) >= nbytes), key=len, default=None)
        if gap is None:  # at the end, which may be free in part
            start = self.nbytes
            if self._free and self._free[-1].stop == self.nbytes:
                start = self._free.pop().start
            self.nbytes = start + nbytes
        else:
            start, at = gap.start, self._free.index(gap)
            self._free[at : at + 1] = [range(start + nbytes, gap.stop)] if len(gap) > nbytes else []
        self.sizes.append(stride)
        self.places.append(range(start, start + nbytes))
        return len(self.sizes) - 1

    def leave(self, slot: int) -> None:
        self._leaving.append(self.places[slot])

    def meet(self) -> None:
        gaps: list[range] = []
        for gap in sorted(self._free + self._leaving, key=lambda gap: gap.start):
            if gaps and gaps[-1].stop == gap.start:
                gap = range(gaps.pop().start, gap.stop)
            gaps.append(gap)
        self._free, self._leaving = gaps, []


class Lowering:
    """The steps of ``graph`` as ``(kind, fields)``; buffers are slots until ``emit`` gives them addresses.

    ``formats`` maps a matrix's name to its format number, ``act_kind`` a format number to 'f32', 'q16_32' or
    'q16_256'; ``prompt`` is the arithmetic of prompt tokens (rule R3): 'int8', 'f32' or 'bf16'; ``kv_bytes``
    maps a head_dim to the bytes of the K, or the V, of one head in one page.
    """

    def __init__(
        self, graph: Graph, formats: Mapping[str, int], act_kind: Any, kv_bytes: Callable[[int], int],
        max_rows: int, prompt: str, elsewhere: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.elsewhere = frozenset(elsewhere)
        self.graph, self.formats, self.act_kind, self.prompt = graph, formats, act_kind, prompt
        self._kv_bytes = kv_bytes
        self.buffers = Buffers(max_rows)
        self.acts: list[tuple[str, int, bool]] = []  # (kind, cols, whether its rows are routed)
        self.ropes: list[Rope] = []
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.places: list[Any] = []  # the memory of each slot, once emitted
        # One page of a cache group: its layers one after the other, each K of all heads, then V, or its state
        self.page_bytes = tuple(group.n_layers * self._layer_bytes(group) for group in graph.caches)
        self._slots: dict[int, int] = {}
        # act buffer -> the value in it, and whether prompt tokens are there, too
        self._quantized: dict[tuple[str, int, bool], tuple[int, bool]] = {}
        self._spread: dict[int, int] = {}  # value -> the slot of its copy, one row per token and expert
        self._top_k = next((op.k for op in graph.ops if isinstance(op, ops.Route)), 1)
        self._last_use = {value.id: index for index, op in enumerate(graph.ops) for value in op.inputs}
        self._readers: dict[int, list[tuple[int, ops.Op]]] = {}  # of each value: a search per op is quadratic
        for index, op in enumerate(graph.ops):
            for value in op.inputs:
                self._readers.setdefault(value.id, []).append((index, op))
        self._phase: tuple[str, str] | None = None
        self._written: set[int | None] = set()  # slots that the steps since the last meeting write
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

    def _layer_bytes(self, group: ops.CacheGroup) -> int:
        """Bytes of one layer's K and V, or of its state, in one page."""
        if group.kind == "state":
            return -(-4 * group.n_kv_heads * group.head_dim // 64) * 64
        return 2 * group.n_kv_heads * self._kv_bytes(group.head_dim)

    def _step(self, kind: str, space: str = "tokens", integer: bool = True, **fields: Any) -> None:
        """Append a step over rows of ``space``; operands are values (their slots), slots, or tensor names."""
        for operand in ("x", "y", "z", "decay", "beta"):
            if isinstance(fields.get(operand), Value):
                fields[operand] = self._slots[fields[operand].id]
        phase = (_SPLIT.get(kind, "rows"), space)
        reads = phase[0] in ("outputs", "experts") and fields.get("x") in self._written
        if self._phase is not None and (self._phase != phase or phase[0] == "states" or reads):
            self.buffers.meet()
            self._written.clear()
        self._phase = phase
        self._written.add(fields.get("out"))
        self.steps.append((kind, {"space": space, "integer": integer, **fields}))

    def _new(self, value: Value) -> int:
        self._slots[value.id] = self.buffers.take(value.dim, self._repeats(value.rows))
        return self._slots[value.id]

    def _repeats(self, space: str) -> int:
        return self._top_k if space == "routed" else 1

    def _quantize(self, x: Value, kinds: list[str], slot: int, space: str, integer: bool) -> None:
        for kind in dict.fromkeys(kinds):
            key = (kind, x.dim, space == "routed")
            held, whole = self._quantized.get(key, (-1, False))
            if kind == "f32" or (held == x.id and (whole or not integer)):
                continue
            if key not in self.acts:
                self.acts.append(key)
            self._quantized[key] = (x.id, integer)
            self._step("quantize", space, integer, x=slot, act=self.acts.index(key), cols=x.dim)

    def _in_tiles(self, format_id: int) -> bool:
        """Whether prompt tokens meet weights of this format in bf16 tiles; float32 never (rule R3)."""
        return self.prompt == "bf16" and format_id != FLOAT32

    def _act(self, kind: str, dim: int, space: str = "tokens") -> int:
        return -1 if kind == "f32" else self.acts.index((kind, dim, space == "routed"))

    # One method per op

    def _embed(self, op: ops.Embed) -> None:
        self._step("embed", out=self._new(op.out), format=self.formats[op.weight.name], packed=op.weight.name,
                   cols=op.out.dim, rows=op.weight.shape[0], scale=op.scale, index=op.index)  # fmt: skip

    def _rmsnorm(self, op: ops.RmsNorm) -> None:
        self._step("norm", x=op.x, y=op.weight.name, out=self._new(op.out), cols=op.x.dim, group=op.group,
                   scale=op.eps)  # fmt: skip

    def _layernorm(self, op: ops.LayerNorm) -> None:
        out = self._new(op.out)
        self._step("layer_norm", x=op.x, y=op.weight.name, out=out, cols=op.x.dim, scale=op.eps)
        self._step("bias", x=out, y=op.bias.name, out=out, cols=op.x.dim)

    def _linear(self, op: ops.Linear) -> None:
        kind, elsewhere = self.act_kind(self.formats[op.weight.name]), op.weight.name in self.elsewhere
        readers = [other for _, other in self._readers[op.x.id] if isinstance(other, ops.Linear)]
        formats = [self.formats[reader.weight.name] for reader in readers]
        here = [format_id for format_id, reader in zip(formats, readers, strict=True)
                if reader.weight.name not in self.elsewhere]  # fmt: skip
        kinds = [self.act_kind(format_id) for format_id in formats]
        if any(self._in_tiles(format_id) for format_id in here):
            kinds.append("bf16")
        integer = self.prompt == "int8"
        self._quantize(op.x, kinds, self._slots[op.x.id], "tokens", integer and bool(here))
        tiled = self._in_tiles(self.formats[op.weight.name]) and not elsewhere
        left = self._act("bf16", op.x.dim) if tiled else -1
        out = self._new(op.out)
        self._step("linear", integer=integer and not elsewhere, x=op.x, act=self._act(kind, op.x.dim),
                   left=left, out=out, elsewhere=elsewhere, cols=op.x.dim, rows=op.out.dim,
                   format=self.formats[op.weight.name], packed=op.weight.name)  # fmt: skip
        if op.bias is not None:
            self._step("bias", x=out, y=op.bias.name, out=out, cols=op.out.dim)

    def _route(self, op: ops.Route) -> None:
        """The router takes the generated-token path for every token (R3); then its choices are sorted."""
        kind, n_experts = self.act_kind(self.formats[op.weight.name]), op.weight.shape[0]
        self._quantize(op.x, [kind], self._slots[op.x.id], "tokens", True)
        logits = self.buffers.take(n_experts)
        self._step("linear", x=op.x, act=self._act(kind, op.x.dim), out=logits, cols=op.x.dim, rows=n_experts,
                   format=self.formats[op.weight.name], packed=op.weight.name)  # fmt: skip
        shape: dict[str, Any] = {"experts": n_experts, "top_k": op.k}
        self._step("route", x=logits, out=self._new(op.out), scale=op.scale, renormalize=op.renormalize,
                   **shape)  # fmt: skip
        self.buffers.leave(logits)
        self._step("dispatch", x=op.out, **shape)

    def _linearrouted(self, op: ops.LinearRouted) -> None:
        """Experts take the generated-token path for prompt tokens, too, unless those take float32.

        So their bits are the same in both roles in the bf16 class as well: what rule R3 says of the router. A
        chunk of a prompt seldom gives one expert the rows that would pay for tiles.
        """
        readers = [other for _, other in self._readers[op.x.id] if isinstance(other, ops.LinearRouted)]
        kinds = [self.act_kind(self.formats[reader.weight.name]) for reader in readers]
        integer = self.prompt != "f32"
        slot = self._slots[op.x.id]
        if (
            op.x.rows == "tokens"
        ):  # one copy of a token's row beside each of its experts, for all that read it
            if op.x.id not in self._spread:
                self._spread[op.x.id] = self.buffers.take(op.x.dim, self._top_k)
                self._step(
                    "spread", "routed", x=slot, out=self._spread[op.x.id], cols=op.x.dim, top_k=self._top_k
                )
            slot = self._spread[op.x.id]
        self._quantize(op.x, kinds, slot, "routed", integer)
        kind = self.act_kind(self.formats[op.weight.name])
        n_experts, rows, cols = op.weight.shape
        self._step("linear_routed", "routed", integer, x=slot, act=self._act(kind, cols, "routed"),
                   out=self._new(op.out), cols=cols, rows=rows, experts=n_experts, top_k=self._top_k,
                   format=self.formats[op.weight.name], packed=op.weight.name)  # fmt: skip
        if op is readers[-1] and op.x.id in self._spread:
            self.buffers.leave(self._spread.pop(op.x.id))

    def _mix(self, op: ops.Mix) -> None:
        self._step("mix", x=op.x, y=op.route, out=self._new(op.out), cols=op.out.dim, top_k=self._top_k)

    def _rotate(self, op: ops.Rotate) -> None:
        if op.rope not in self.ropes:
            self.ropes.append(op.rope)
        self._step("rotate", x=op.x, out=self._new(op.out), cols=op.x.dim, head_dim=op.head_dim,
                   n_dims=op.rope.n_dims, neighbour=op.rope.pairing == "neighbour",
                   rope=self.ropes.index(op.rope))  # fmt: skip

    def _activate(self, op: ops.Activate) -> None:
        self._step(op.kind, op.x.rows, x=op.x, out=self._new(op.out), cols=op.out.dim)

    def _scale(self, op: ops.Scale) -> None:
        self._step("scale", op.x.rows, x=op.x, out=self._new(op.out), cols=op.out.dim, scale=op.factor)

    def _slice(self, op: ops.Slice) -> None:
        self._step("slice", x=op.x, out=self._new(op.out), cols=op.x.dim, start=op.start, size=op.size,
                   period=op.period)  # fmt: skip

    def _mul(self, op: ops.Mul) -> None:
        gate = self._gates.get(op.a.id)
        kind, a = ("mul", op.a) if gate is None else ("silu_mul", gate)
        self._step(kind, a.rows, x=a, y=op.b, out=self._new(op.out), cols=op.out.dim)
        if gate is not None:
            self.buffers.leave(self._slots[gate.id])

    def _add(self, op: ops.Add) -> None:
        self._step("add", op.a.rows, x=op.a, y=op.b, out=self._new(op.out), cols=op.out.dim)

    def _attention(self, op: ops.Attention) -> None:
        group = self.graph.caches[op.cache]
        k_offset = op.layer * self._layer_bytes(group)
        shape: dict[str, Any] = {"cache": op.cache, "head_dim": op.head_dim, "kv_heads": op.n_kv_heads,
                                 "k_offset": k_offset,
                                 "v_offset": k_offset + self._layer_bytes(group) // 2}  # fmt: skip
        self._step("store", x=op.k, y=op.v, **shape)
        self._step("attend", x=op.q, out=self._new(op.out), group=op.n_heads // op.n_kv_heads,
                   window=op.mask.width if isinstance(op.mask, ops.Window) else 0, scale=op.scale,
                   soft_cap=op.soft_cap or 0.0, tiled=self.prompt == "bf16",
                   bidirectional=isinstance(op.mask, ops.Bidirectional), **shape)  # fmt: skip

    def _l2norm(self, op: ops.L2Norm) -> None:
        self._step("l2_norm", x=op.x, out=self._new(op.out), cols=op.x.dim, group=op.group, scale=op.eps)

    def _decay(self, op: ops.Decay) -> None:
        self._step("decay", x=op.x, y=op.rate.name, z=op.bias.name, out=self._new(op.out), cols=op.x.dim)

    def _causalconv(self, op: ops.CausalConv) -> None:
        channels, taps = op.weight.shape
        self._step("causal_conv", x=op.x, out=self._new(op.out), cols=taps, rows=channels, cache=op.cache,
                   k_offset=op.layer * self._layer_bytes(self.graph.caches[op.cache]),
                   format=self.formats[op.weight.name], packed=op.weight.name)  # fmt: skip

    def _deltarule(self, op: ops.DeltaRule) -> None:
        self._step("delta_rule", x=op.q, y=op.k, z=op.v, decay=op.decay, beta=op.beta, out=self._new(op.out),
                   cache=op.cache, k_offset=op.layer * self._layer_bytes(self.graph.caches[op.cache]),
                   parts=op.n_v_heads, kv_heads=op.n_k_heads, head_dim=op.k_dim, size=op.v_dim,
                   scale=op.scale, tiled_heads=op.tiled)  # fmt: skip

    def _logits(self, op: ops.Logits) -> None:
        """Logits always take the generated-token path (rule R3), over the rows that want them."""
        kind, rows = self.act_kind(self.formats[op.weight.name]), self.buffers.take(op.x.dim)
        self._step("gather", "outputs", x=op.x, out=rows, cols=op.x.dim)
        self._quantized.pop((kind, op.x.dim, False), None)  # what is in the buffer are other rows
        self._quantize(op.x, [kind], rows, "outputs", True)
        self._quantized.pop((kind, op.x.dim, False), None)
        self._step("logits", "outputs", x=rows, act=self._act(kind, op.x.dim), cols=op.x.dim, rows=op.out.dim,
                   format=self.formats[op.weight.name], packed=op.weight.name, scale=op.scale,
                   soft_cap=op.soft_cap or 0.0)  # fmt: skip

    def _hidden(self, op: ops.Hidden) -> None:
        self._step("hidden", "outputs", x=op.x, cols=op.x.dim)

    # Memory

    def act_bytes(self, kind: str, cols: int, routed: bool) -> tuple[int, int, int, int, int]:
        """Bytes of q, wide, d, sums or sides, dsums of an activation buffer, as kernels.h lays them out."""
        rows = self.buffers.max_rows * (self._top_k if routed else 1)
        rows += 4 + -rows % 4  # up to seven rows beyond the last may be read
        if kind == "bf16":  # whole tiles of 16 rows x 32 depths; the other arrays are not used
            return -(-rows // 16) * -(-cols // 32) * TILE_BYTES, 0, 0, 0, 0
        block, of_block = (32, 8) if kind == "q16_32" else (256, 96)  # bytes of a block's sums or sides
        blocks = rows * (cols // block)
        return 2 * rows * cols, 2 * rows * cols, 4 * blocks, of_block * blocks, 4 * blocks

    @property
    def scratch_bytes(self) -> int:
        acts = sum(Arena.room(part) for act in self.acts for part in self.act_bytes(*act))
        return self.buffers.nbytes + acts

    def emit(self, walker: Any, scratch: Arena, weights: Mapping[str, Any]) -> None:
        """Give every slot and weight its address and hand the steps to the walker."""
        memory = scratch.take(self.buffers.nbytes)
        self.places = [memory[place.start : place.stop] for place in self.buffers.places]
        slots = [place.ctypes.data for place in self.places]
        for act in self.acts:
            places = [scratch.take(part).ctypes.data for part in self.act_bytes(*act)]
            walker.add_act(KINDS[act[0]], act[1], *places)
        for kind, fields in self.steps:
            placed = dict(fields)
            for operand in ("x", "y", "z", "decay", "beta", "out", "packed"):
                place = fields.get(operand)
                if isinstance(place, str):
                    placed[operand] = weights[place].ctypes.data
                elif place is not None:
                    placed[operand] = slots[place]
                    placed[f"{operand}_stride"] = self.buffers.sizes[place]
            walker.add_step(kind, **placed)
