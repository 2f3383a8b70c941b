"""Speed of the packed formats on one core: decode from memory and from L2, prefill, packing.

    python bench/kernels.py [--isa avx512] [--formats Q4_K,Q6_K]
    python -m bench.kernels --nearest [--formats IQ4_XS,MXFP4]

With --nearest: each codebook, ternary and AWQ format beside the older one of the nearest width, in turn.

Decode: GB/s of weights as the file holds them, one activation row. Batches and prefill: billions of
multiply-adds a second.
The last columns: what a token costs in decode from memory, and from L2, over what it costs in prefill.
Best of several runs; the quantization of the activations is subtracted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rase._kernels import kernels
from rase.gguf.formats import FORMATS, W4A16, Format, format_named

COLS = 2048
LARGE = 192 << 20  # bytes of a matrix that no cache holds
SMALL = 512 << 10  # half of a usual L2
ALL = [*FORMATS.values(), W4A16]
# The format of about as many bits a weight that was there before
NEAREST = {
    "IQ4_NL": "Q4_0", "IQ4_XS": "Q4_K", "MXFP4": "Q4_0", "W4A16": "Q4_K", "IQ3_S": "Q3_K", "IQ3_XXS": "Q3_K",
    "IQ2_S": "Q2_K", "IQ2_XS": "Q2_K", "IQ2_XXS": "Q2_K", "TQ2_0": "Q2_K", "TQ1_0": "Q2_K", "IQ1_M": "Q2_K",
    "IQ1_S": "Q2_K",
}  # fmt: skip


def aligned(count: int) -> np.ndarray:
    raw = np.zeros(count + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count]


def best(run: Callable[[], object], seconds: float = 0.25) -> float:
    """Processor seconds (a busy machine matters less) of the fastest call among those of ``seconds``."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


class Matrix:
    """Random weights of about ``nbytes`` in one format, packed."""

    def __init__(self, variant: kernels.Variant, form: Format, nbytes: int) -> None:
        r = variant.rows_per_group
        self.variant, self.id = variant, form.ggml_id
        self.rows = max(1, nbytes // variant.packed_bytes(form.ggml_id, r, COLS)) * r
        shape = (min(self.rows, 64 * r), form.row_bytes(COLS))
        part = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        part &= 0x3F  # no infinite or NaN scale
        if form.name == "MXFP4":  # else its weights are subnormal, which is another measurement
            part.reshape(-1, form.block_bytes)[:, 0] = 120
        self.raw = np.resize(part, (self.rows, shape[1])).reshape(-1)
        self.packed = aligned(variant.packed_bytes(form.ggml_id, self.rows, COLS))
        self.bytes_per_mac = self.raw.nbytes / (self.rows * COLS)
        self.pack()

    def pack(self) -> None:
        self.variant.pack(self.id, self.raw, self.rows, COLS, self.packed)

    def seconds(self, m: int) -> float:
        x = np.random.default_rng(1).normal(0, 1, (m, COLS)).astype(np.float32)
        out = np.zeros((m, self.rows), dtype=np.float32)
        overhead = best(lambda: self.variant.linear(self.id, self.packed, self.rows, x, out, 0, 0), 0.05)
        return best(lambda: self.variant.linear(self.id, self.packed, self.rows, x, out)) - overhead

    def prefill(self, m: int) -> float:
        """Seconds of ``m`` prompt tokens: in bf16 tiles, unpacking included, where the processor has them."""
        x = np.random.default_rng(1).normal(0, 1, (m, COLS)).astype(np.float32)
        if not self.variant.has_tiles:
            return self.seconds(m)
        out = np.zeros((m, -(-self.rows // 16) * 16), dtype=np.float32)
        return best(lambda: self.variant.tiles_linear(self.id, self.packed, self.rows, x, out, 64, 8))


@dataclass(frozen=True)
class Pair:
    """A format beside its nearest: GB/s of the file's weights in decode, billions of multiply-adds in
    prefill."""

    name: str
    nearest: str
    decode: tuple[float, float]
    prefill: tuple[float, float]

    @property
    def ratios(self) -> tuple[float, float]:
        return self.decode[0] / self.decode[1], self.prefill[0] / self.prefill[1]


def compare(variant: kernels.Variant, name: str) -> Pair:
    """Measure a format and its nearest one in turn, on one thread, decode from memory."""
    decode: list[float] = []
    prefill: list[float] = []
    for one in (name, NEAREST[name]):
        large, small = (Matrix(variant, format_named(one), size) for size in (LARGE // 2, SMALL))
        decode.append(large.raw.nbytes / large.seconds(1) / 1e9)
        prefill.append(small.rows * COLS * 256 / small.prefill(256) / 1e9)
    return Pair(name, NEAREST[name], (decode[0], decode[1]), (prefill[0], prefill[1]))


def bandwidth() -> float:
    """GB/s that one thread reads from memory with NumPy's own sum of float64 (a floor, not a limit)."""
    data = np.ones(LARGE // 8)
    return LARGE / best(lambda: data.sum(), 0.5) / 1e9


def main() -> None:
    usable = [name for name, missing in kernels.variants() if missing is None]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=usable[-1], choices=usable)
    parser.add_argument("--formats", default=",".join(form.name for form in ALL))
    parser.add_argument("--nearest", action="store_true")
    options = parser.parse_args()
    variant = kernels.Variant(options.isa)
    if options.nearest:
        print(f"{options.isa}: GB/s in decode from memory, GMAC/s in prefill of 256 tokens; one thread")
        for name in (name for name in NEAREST if name in options.formats.split(",")):
            pair = compare(variant, name)
            print(
                f"{name:8} beside {pair.nearest}: decode {pair.decode[0]:5.1f} : {pair.decode[1]:5.1f}"
                f" = {pair.ratios[0]:.2f}, prefill {pair.prefill[0]:6.0f} : {pair.prefill[1]:6.0f}"
                f" = {pair.ratios[1]:.2f}"
            )
        return
    print(f"{options.isa}, depth {COLS}, one thread; numpy.sum reads {bandwidth():.1f} GB/s")
    print("         pack   memory       L2      m=4      m=8     m=64   decode : prefill,")
    print("         GB/s     GB/s     GB/s   GMAC/s   GMAC/s   GMAC/s   memory     L2")
    for form in ALL:
        if form.name not in options.formats.split(","):
            continue
        large, small = Matrix(variant, form, LARGE), Matrix(variant, form, SMALL)
        pack = large.raw.nbytes / best(large.pack) / 1e9
        memory = large.raw.nbytes / large.seconds(1) / 1e9
        one = small.seconds(1)
        macs = small.rows * COLS / 1e9
        batch = {m: small.seconds(m) for m in (4, 8, 64)}
        print(
            f"{form.name:6} {pack:6.1f} {memory:8.1f} {small.raw.nbytes / one / 1e9:8.1f}"
            + "".join(f" {macs * m / batch[m]:8.1f}" for m in (4, 8, 64))
            + f"   {large.bytes_per_mac / memory * macs * 64 / batch[64]:6.1f} {one / (batch[64] / 64):6.2f}"
        )


if __name__ == "__main__":
    main()
