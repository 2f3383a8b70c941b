"""Builds a graph op by op and checks every tensor against the model's sizes while it does.

An architecture file calls these methods in the order of its paper. A tensor that is absent, or that has
another shape than the metadata promises, raises ``CorruptModelFile`` with its name and both shapes; a tensor
that no op reads means that the file computes something else than this architecture, and is refused as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from rase.errors import CorruptModelFile, UnsupportedArchitecture
from rase.graph import ops
from rase.graph.check import check_graph
from rase.graph.ops import CacheGroup, Causal, Graph, Mask, Op, Rope, Value, Weight, Window

__all__ = ["AXES", "GraphBuilder", "Shaped"]

# The axes (out, in) of the matrices that GGUF files of all architectures share, by tensor name; those of a
# stack of matrices are (experts, out, in).
AXES: dict[str, tuple[str, ...]] = {
    "token_embd": ("vocab", "dim"),
    "output": ("vocab", "dim"),
    "attn_q": ("heads", "dim"),
    "attn_k": ("kv_heads", "dim"),
    "attn_v": ("kv_heads", "dim"),
    "attn_output": ("dim", "heads"),
    "position_embd": ("positions", "dim"),
    "token_types": ("token_types", "dim"),
    "attn_qkv": ("qkv", "dim"),
    "ffn_gate": ("hidden", "dim"),
    "ffn_up": ("hidden", "dim"),
    "ffn_down": ("dim", "hidden"),
    "ffn_gate_inp": ("experts", "dim"),
    "ffn_gate_exps": ("experts", "hidden", "dim"),
    "ffn_up_exps": ("experts", "hidden", "dim"),
    "ffn_down_exps": ("experts", "dim", "hidden"),
}


class Shaped(Protocol):
    """What a graph must know of a tensor: its shape, a matrix as ``(out, in)``."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class GraphBuilder:
    """``tensors`` are the file's, ``sizes`` gives each axis name its length (vocab, dim, heads, ...).
    ``embedding`` asks for the graph of an embedding model, which ends before the logits.

    Tensor names are given without ``.weight``. An axis or a tensor name that only one architecture knows is
    declared by that architecture: ``g.sizes["experts"] = 8`` and ``axes=("experts", "dim")``.
    """

    def __init__(
        self,
        tensors: Mapping[str, Shaped],
        *,
        architecture: str,
        sizes: Mapping[str, int],
        context_length: int,
        embedding: bool = False,
    ) -> None:
        self.tensors = tensors
        self.architecture = architecture
        self.sizes = dict(sizes)
        self.context_length, self.embedding = context_length, embedding
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._caches: list[CacheGroup] = []
        self._weights: dict[str, Weight] = {}
        self._outputs: dict[str, Value] = {}
        self._left: set[str] = set()
        self._stacks: dict[str, tuple[str, ...]] = {}

    # What an architecture file calls

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor ``name``.weight."""
        return f"{name}.weight" in self.tensors

    def leave(self, *names: str) -> None:
        """These tensors are known and not needed: the file may hold them."""
        self._left.update(f"{name}.weight" for name in names)

    def leave_layer(self, layer: int) -> None:
        """All tensors of this layer are known and not needed."""
        self._left.update(name for name in self.tensors if name.startswith(f"blk.{layer}."))

    def stack(self, name: str, parts: Sequence[str]) -> None:
        """Let the tensors ``parts`` be the matrices of the stack ``name``, in a file without that tensor."""
        if not self.has(name):
            self._stacks[f"{name}.weight"] = tuple(f"{part}.weight" for part in parts)

    def embed(
        self,
        name: str,
        *,
        scale: float = 1.0,
        index: Literal["ids", "positions", "first"] = "ids",
        axes: tuple[str, str] | None = None,
    ) -> Value:
        """Rows of an embedding matrix for the batch's ids, or its positions -> (tokens, dim)."""
        weight = self._matrix(name, axes)
        return self._emit(ops.Embed, weight.shape[1], weight=weight, scale=scale, index=index)

    def rms_norm(self, x: Value, name: str, eps: float, group: int | None = None) -> Value:
        """RMS norm over all of x, or over each ``group`` elements of it with one shared weight."""
        group = x.dim if group is None else group
        axis = "dim" if group == self.sizes["dim"] else "heads" if group == x.dim else "head_dim"
        weight = self._weight(f"{name}.weight", (group,), (axis,))
        return self._emit(ops.RmsNorm, x.dim, x=x, weight=weight, eps=eps, group=group)

    def layer_norm(self, x: Value, name: str, eps: float) -> Value:
        """Layer norm over all of x, with its weight and its bias."""
        weight, bias = (self._weight(f"{name}.{part}", (x.dim,), ("dim",)) for part in ("weight", "bias"))
        return self._emit(ops.LayerNorm, x.dim, x=x, weight=weight, bias=bias, eps=eps)

    def linear(self, x: Value, *names: str, axes: tuple[str, str] | None = None) -> Any:
        """x · Wᵀ for each name, with the bias that the file has beside it, if any: one Value, or a tuple."""
        outs = tuple(self._linear(x, name, axes) for name in names)
        return outs[0] if len(outs) == 1 else outs

    def route(self, x: Value, name: str, k: int, *, renormalize: bool = True, scale: float = 1.0) -> Value:
        """The k experts of each token and their gates -> (tokens, 2k)."""
        weight = self._matrix(name, None)
        self._fit(weight, x)
        return self._emit(ops.Route, 2 * k, x=x, weight=weight, k=k, renormalize=renormalize, scale=scale)

    def linear_routed(self, x: Value, route: Value, *names: str) -> Any:
        """x · Wᵀ by each token's experts, for each stack: one Value, or a tuple; rows ``routed``."""
        outs = []
        for name in names:
            weight = self._matrix(name, None)
            self._fit(weight, x)
            outs.append(
                self._emit(ops.LinearRouted, weight.shape[1], "routed", x=x, route=route, weight=weight)
            )
        return outs[0] if len(outs) == 1 else tuple(outs)

    def mix(self, x: Value, route: Value) -> Value:
        """The sum of each token's experts, by their gates."""
        return self._emit(ops.Mix, x.dim, x=x, route=route)

    def rotate(self, x: Value, rope: Rope, head_dim: int) -> Value:
        """Rotary embedding of every head of x; ``rope.factors`` is a tensor name without ``.weight``."""
        if rope.factors is not None and not rope.factors.endswith(".weight"):
            weight = self._weight(f"{rope.factors}.weight", (rope.n_dims // 2,), ("rope",))
            rope = replace(rope, factors=weight.name)
        return self._emit(ops.Rotate, x.dim, x=x, rope=rope, head_dim=head_dim)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        head_dim: int,
        scale: float | None = None,
        mask: Mask | None = None,
        soft_cap: float | None = None,
        sinks: str | None = None,
    ) -> Value:
        """Attention over this layer's cache; ``scale`` defaults to 1/sqrt(head_dim), the mask to causal."""
        mask = Causal() if mask is None else mask
        n_heads, n_kv_heads = q.dim // head_dim, k.dim // head_dim
        cache, layer = self._cache_layer(mask, n_kv_heads, head_dim)
        return self._emit(
            ops.Attention, q.dim, q=q, k=k, v=v, cache=cache, layer=layer,
            n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
            scale=1 / math.sqrt(head_dim) if scale is None else scale, mask=mask, soft_cap=soft_cap,
            sinks=None if sinks is None else self._weight(f"{sinks}.weight", (n_heads,), ("n_heads",)),
        )  # fmt: skip

    def causal_conv(self, x: Value, name: str) -> Value:
        """A causal depthwise convolution of x by the file's (channels, taps)."""
        weight = self._matrix(name, ("channels", "taps"))
        self._expect(weight, (x.dim, weight.shape[1]))
        cache, layer = self._state(weight.shape[1] - 1, x.dim)
        return self._emit(ops.CausalConv, x.dim, x=x, weight=weight, cache=cache, layer=layer)

    def decay(self, x: Value, rate: str, bias: str) -> Value:
        """What a recurrent state keeps over each token; ``rate`` and ``bias`` are full tensor names."""
        axes = ("n_heads",)
        return self._emit(ops.Decay, x.dim, x=x, rate=self._weight(rate, (x.dim,), axes),
                          bias=self._weight(bias, (x.dim,), axes))  # fmt: skip

    def delta_rule(
        self, q: Value, k: Value, v: Value, decay: Value, beta: Value, *, k_dim: int, v_dim: int, tiled: bool
    ) -> Value:
        """The gated delta rule over this layer's state, with q scaled by 1/sqrt(k_dim)."""
        n_v_heads = v.dim // v_dim
        cache, layer = self._state(n_v_heads, k_dim * v_dim)
        return self._emit(
            ops.DeltaRule, v.dim, q=q, k=k, v=v, decay=decay, beta=beta, cache=cache, layer=layer,
            n_k_heads=k.dim // k_dim, n_v_heads=n_v_heads, k_dim=k_dim, v_dim=v_dim,
            scale=1 / math.sqrt(k_dim), tiled=tiled,
        )  # fmt: skip

    def l2_norm(self, x: Value, eps: float, group: int) -> Value:
        """x over its length, each ``group`` elements for themselves."""
        return self._emit(ops.L2Norm, x.dim, x=x, eps=eps, group=group)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x))."""
        return self._emit(ops.Activate, x.dim, x.rows, x=x, kind="sigmoid")

    def silu(self, x: Value) -> Value:
        """x · sigmoid(x)."""
        return self._emit(ops.Activate, x.dim, x.rows, x=x, kind="silu")

    def gelu(self, x: Value, *, tanh: bool = False) -> Value:
        """GELU in its erf form, or in its tanh form."""
        return self._emit(ops.Activate, x.dim, x.rows, x=x, kind="gelu_tanh" if tanh else "gelu")

    def mul(self, a: Value, b: Value) -> Value:
        """a · b elementwise."""
        return self._emit(ops.Mul, a.dim, a.rows, a=a, b=b)

    def add(self, a: Value, b: Value) -> Value:
        """a + b elementwise."""
        return self._emit(ops.Add, a.dim, a.rows, a=a, b=b)

    def scale(self, x: Value, factor: float) -> Value:
        """x · factor; a factor of 1 adds no op."""
        return x if factor == 1.0 else self._emit(ops.Scale, x.dim, x.rows, x=x, factor=factor)

    def split(self, x: Value, *sizes: int, period: int | None = None) -> tuple[Value, ...]:
        """x cut into parts of ``sizes``, whole or within each ``period`` elements."""
        period = x.dim if period is None else period
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        runs = x.dim // period
        return tuple(
            self._emit(ops.Slice, runs * size, x=x, start=start, size=size, period=period)
            for start, size in zip(starts, sizes, strict=True)
        )

    def logits(
        self,
        x: Value,
        name: str,
        *,
        tied: str | None = None,
        axes: tuple[str, str] | None = None,
        scale: float = 1.0,
        soft_cap: float | None = None,
    ) -> Value:
        """Logits of the rows that want them; a file without ``name`` shares the matrix ``tied``.

        A graph of an embedding model ends before them, and gives the rows themselves.
        """
        if self.embedding:
            self.leave(name)
            return self.hidden(x)
        if tied is not None and not self.has(name):
            name = tied
        weight = self._matrix(name, axes)
        self._fit(weight, x)
        out = self._emit(ops.Logits, weight.shape[0], rows="outputs", x=x, weight=weight, scale=scale,
                         soft_cap=soft_cap)  # fmt: skip
        self._outputs["logits"] = out
        return out

    def hidden(self, x: Value) -> Value:
        """The rows of x that are wanted: what an embedding model gives, before they are pooled."""
        out = self._emit(ops.Hidden, x.dim, rows="outputs", x=x)
        self._outputs["hidden"] = out
        return out

    def finish(self) -> Graph:
        """The checked graph. Raises ``UnsupportedArchitecture`` for a tensor that no op reads."""
        known = self._left.union(*(weight.parts or (name,) for name, weight in self._weights.items()))
        unread = [name for name in self.tensors if name not in known]
        if unread:
            raise UnsupportedArchitecture(
                f"tensors that architecture '{self.architecture}' does not have, such as '{unread[0]}'",
                expected=f"{len(self._weights)} tensors",
                found=str(len(self.tensors)),
                hint="The file holds a variant of this architecture that rase does not run.",
                tensors=unread,
            )
        graph = Graph(
            architecture=self.architecture, ops=tuple(self._ops), values=tuple(self._values),
            caches=tuple(self._caches), outputs=dict(self._outputs), weights=dict(self._weights),
            context_length=self.context_length, vocab_size=self.sizes["vocab"], dim=self.sizes["dim"],
        )  # fmt: skip
        check_graph(graph)
        return graph

    # What the methods above share

    def _emit(self, op: type[Op], dim: int, rows: Any = "tokens", **fields: Any) -> Value:
        out = Value(len(self._values), rows, dim)
        self._values.append(out)
        self._ops.append(op(out=out, **fields))
        return out

    def _linear(self, x: Value, name: str, axes: tuple[str, str] | None) -> Value:
        weight = self._matrix(name, axes)
        self._fit(weight, x)
        bias = f"{name}.bias"
        return self._emit(
            ops.Linear, weight.shape[0], x=x, weight=weight,
            bias=self._weight(bias, weight.shape[:1], weight.axes[:1]) if bias in self.tensors else None,
        )  # fmt: skip

    def _matrix(self, name: str, axes: tuple[str, ...] | None) -> Weight:
        axes = AXES[name.rsplit(".", 1)[-1]] if axes is None else axes
        return self._weight(f"{name}.weight", tuple(self.sizes[axis] for axis in axes), axes)

    def _weight(self, name: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> Weight:
        weight = Weight(name, shape, axes, self._stacks.get(name, ()))
        self._expect(weight, shape)
        return self._weights.setdefault(name, weight)

    def _fit(self, weight: Weight, x: Value) -> None:
        """The columns that the file's matrix has are the elements of ``x``."""
        self._expect(weight, (*weight.shape[:-1], x.dim))

    def _expect(self, weight: Weight, shape: tuple[int, ...]) -> None:
        for name in weight.parts or (weight.name,):
            found, wanted = self.tensors.get(name), shape[1:] if weight.parts else shape
            if found is None:
                raise CorruptModelFile(
                    f"tensor '{name}' is missing", expected=f"shape {wanted}", found="no such tensor",
                    hint="The file is incomplete, or its metadata describe another model.", tensor=name,
                )  # fmt: skip
            if tuple(found.shape) != wanted:
                raise CorruptModelFile(
                    f"tensor '{name}' has the wrong shape", expected=str(wanted),
                    found=str(tuple(found.shape)), tensor=name,
                    hint="The file's metadata and its tensors contradict each other.",
                )  # fmt: skip

    def _cache_layer(self, mask: Mask, n_kv_heads: int, head_dim: int) -> tuple[int, int]:
        """Index of the cache group for this mask and shape, and of the new layer in it."""
        window = mask.width if isinstance(mask, Window) else None
        kind: Any = "full" if window is None else "window"
        return self._layer(CacheGroup(kind, 1, n_kv_heads, head_dim, window))

    def _state(self, rows: int, cols: int) -> tuple[int, int]:
        """Index of the group of states of this size, and of the new layer in it."""
        return self._layer(CacheGroup("state", 1, rows, cols, 2))

    def _layer(self, wanted: CacheGroup) -> tuple[int, int]:
        for index, group in enumerate(self._caches):
            if replace(group, n_layers=1) == wanted:
                self._caches[index] = replace(group, n_layers=group.n_layers + 1)
                return index, group.n_layers
        self._caches.append(wanted)
        return len(self._caches) - 1, 0
