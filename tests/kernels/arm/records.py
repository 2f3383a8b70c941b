"""Inputs for driver.c and what this machine's scalar variant makes of them: ARM must repeat it bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rase.gguf.formats import format_named
from tests.kernels.support import F32, NAMES, VARIANTS, empty, linear, pack, quantize, raw_blocks

SCALAR = VARIANTS[NAMES.index("scalar")]
OPERATIONS = ("linear", "quantize", "gemm", "norm", "elementwise", "rotate", "store", "attention")


class Records:
    """A file of records in the making, and the results that a driver must write for it."""

    def __init__(self) -> None:
        self._input: list[bytes] = []
        self._expected: list[tuple[str, NDArray]] = []

    def add(
        self, what: str, parameters: tuple[int, ...], inputs: list[NDArray], expected: list[NDArray]
    ) -> None:
        """One record: its operation is the first word of ``what``."""
        head = np.zeros(10, np.int64)
        head[0] = OPERATIONS.index(what.split()[0])
        head[1 : 1 + len(parameters)] = parameters
        self._input += [head.tobytes(), *(np.ascontiguousarray(array).tobytes() for array in inputs)]
        self._expected += [(what, np.ascontiguousarray(array).reshape(-1)) for array in expected]

    def write(self, path: Path) -> None:
        path.write_bytes(b"".join(self._input))

    def differences(self, found: bytes) -> list[str]:
        """Where a driver's output differs, in words; any NaN equals any NaN: on ARM their sign is another."""
        different, start = [], 0
        for what, expected in self._expected:
            part = np.frombuffer(found[start : start + expected.nbytes], expected.dtype)
            start += expected.nbytes
            if len(part) != len(expected):
                return [*different, f"{what}: the output ends early"]
            same = part == expected
            if expected.dtype == F32:
                same = part.view(np.int32) == expected.view(np.int32)
                same |= np.isnan(part) & np.isnan(expected)
            if not same.all():
                at = int(np.argmin(same))
                different.append(
                    f"{what}: {np.sum(~same)} of {len(same)} differ, "
                    f"first {at}: {part[at]!r}, not {expected[at]!r}"
                )
        return different if start == len(found) else [*different, "the output is too long"]


def linear_records(
    records: Records, fmt: str, rows: int, cols: int, m: int, rng: np.random.Generator
) -> None:
    """Packing, rows, panels and products with 1 to m activation rows, one of which holds an infinity."""
    form = format_named(fmt)
    raw, x = raw_blocks(fmt, rows, cols, rng), rng.normal(0, 1, (m, cols)).astype(F32)
    x[:, :: max(1, cols // 5)] *= F32(30)
    x[m // 2, 3] = np.inf  # the whole row becomes NaN
    packed, weights = pack(SCALAR, form, raw, rows, cols), empty((rows, cols), F32)
    SCALAR.rows(form.ggml_id, packed, cols, np.arange(rows), weights)
    everything = linear(SCALAR, form, packed, rows, x)
    records.add(
        f"linear {fmt} {rows} x {cols}",
        (form.ggml_id, rows, cols, form.row_bytes(cols), m),
        [raw, x],
        [weights, weights, *(everything[:n] for n in range(1, m + 1))],
    )


def row_records(records: Records, n: int, rng: np.random.Generator) -> None:
    """Norm, elementwise operations and the stores of n values."""
    a, b = rng.normal(0, 3, n).astype(F32), rng.normal(0, 3, n).astype(F32)
    a[: min(n, 8)] = np.array([0.0, -0.0, 89, -105, np.inf, -np.inf, np.nan, 1e-41], F32)[: min(n, 8)]
    results = []
    for name in (
        *("add", "mul", "scale", "silu", "silu_mul", "exp"),
        *("tanh", "gelu", "gelu_tanh", "soft_cap", "add_scaled"),
    ):
        out = empty(n, F32)
        with np.errstate(all="ignore"):
            if name == "scale":
                out[:] = a * F32(0.3)
            elif name == "add_scaled":
                out[:] = b
                SCALAR.add_scaled(a, 0.3, out)
            elif name == "soft_cap":
                SCALAR.soft_cap(a, 5.0, out)
            elif name in ("add", "mul", "silu_mul"):
                SCALAR.binary(name, a, b, out)
            else:
                SCALAR.unary(name, a, out)
        results.append(out)
    records.add(f"elementwise {n}", (n,), [a, b], results)
    out = empty(3 * n, F32)
    x = rng.normal(0, 2, 3 * n).astype(F32)
    SCALAR.rms_norm(x, b, 1e-5, out)
    records.add(f"norm {n}", (3 * n, n), [x, b], [out])
    for kv in range(2):
        records.add(f"store {n}, format {kv}", (n, kv), [b], [stored(b, kv)])


def stored(x: NDArray, kv: int) -> NDArray:
    """A run of a page with one row in it."""
    run = empty(SCALAR.kv_bytes(kv, len(x)), np.uint8)
    SCALAR.kv_store(kv, x, run, 3)
    return run


def float16_records(records: Records, count: int, rng: np.random.Generator) -> None:
    """The store of any float32: ties, subnormal results, overflow; NaN keeps its upper bits."""
    x = rng.integers(0, 2**32, count // 16 * 16, dtype=np.uint32).view(F32)
    half = rng.integers(0, 2**16, count, dtype=np.uint16).view(np.float16).astype(F32)
    x[::3] = half[: len(x[::3])]
    x[1::3] = (half[: len(x[1::3])].view(np.uint32) | 0x1000).view(F32)  # halfway between two of them
    records.add("store anything", (len(x), 0), [x], [stored(x, 0)])


def quantize_records(records: Records, block: int, rng: np.random.Generator) -> None:
    n = 6 * block
    x = (rng.normal(0, 1, (6, block)) * 10.0 ** rng.integers(-30, 30, (6, 1))).astype(F32)
    x[4], x[5] = 0, np.where(np.arange(block) % 2, 32384, -32384)
    row = x.reshape(-1)
    act = quantize(SCALAR, row, block)
    rest = [act.sums, act.dsums] if block == 32 else [act.sides]
    wide = np.ascontiguousarray(act.wide.reshape(-1, 4)[:, [0, 2, 1, 3]])  # as it lies in memory
    records.add(f"quantize {block}", (block, n), [row], [act.q, wide, act.d, *rest])


def gemm_records(records: Records, depth: int, m: int, rng: np.random.Generator) -> None:
    panel, a = rng.normal(0, 1, (depth, 16)).astype(F32), rng.normal(0, 1, (m, depth)).astype(F32)
    out = empty((m, 16), F32)
    SCALAR.gemm_f32(panel, a, out)
    records.add(f"gemm {depth} x {m}", (depth, m), [panel, a], [out])


def rotate_records(records: Records, n_dims: int, neighbour: bool, rng: np.random.Generator) -> None:
    heads, angle = rng.normal(0, 1, (3, 64)).astype(F32), rng.uniform(-3, 3, n_dims // 2)
    cos, sin = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    turned = heads.copy()
    SCALAR.rotate(turned, cos, sin, neighbour)
    records.add(f"rotate {n_dims}", (3, 64, n_dims, int(neighbour)), [heads, cos, sin], [turned])


def attention_records(
    records: Records,
    tokens: int,
    first: int,
    head_dim: int,
    window: int,
    rng: np.random.Generator,
    soft_cap: int = 0,
    kv: int = 0,
) -> None:
    """Two query heads per KV head; pages behind the last token hold NaN."""
    stride, pages = -(-head_dim // 16) * 16, -(-(first + tokens) // 32)
    q = rng.normal(0, 1, (tokens, 2, head_dim)).astype(F32)
    rows = rng.normal(0, 1, (2, 32 * pages, head_dim)).astype(F32)
    rows[:, first + tokens :] = np.nan
    data = empty((2, pages, SCALAR.kv_bytes(kv, head_dim)), np.uint8)
    for i in range(2):
        for position, row in enumerate(rows[i]):
            SCALAR.kv_store(kv, row, data[i, position // 32], position % 32)
    out = empty(q.shape, F32)
    SCALAR.attention(kv, q, data[0], data[1], first, 0.125, window, out, soft_cap=float(soft_cap))
    records.add(
        f"attention {tokens} tokens from {first}, head_dim {head_dim}, window {window}, cap {soft_cap}, "
        f"format {kv}",
        (tokens, 2, head_dim, stride, first, window, pages, soft_cap, kv),
        [q, np.stack([data[0], data[1]], axis=1)],
        [out],
    )
