"""What this machine can do at most, by the engine's own vectors and threads: bandwidth, FMA peak, tiles.

Each is the best of ``passes``, so that company on the machine lowers it as little as possible. Neither holds
the GIL while it measures. Pass a ``Variant`` of ``rase._kernels.kernels`` and the thread count of the engine.
"""

from rase._kernels.kernels import Variant

def read_bandwidth(variant: Variant, threads: int, nbytes: int = 2 << 30, passes: int = 5) -> float:
    """GB/s (1e9 bytes) of ``threads`` threads that read a buffer of about ``nbytes``, prefetching ahead.

    The buffer is anonymous memory on huge pages where the system has them, written before by the threads that
    read it. Raises ``OSError`` when it cannot be had, ``ValueError`` for counts below one.
    """

def fma_peak(variant: Variant, threads: int, nanoseconds: int = 20_000_000, passes: int = 5) -> float:
    """Return GFLOP/s (1e9 float32 operations; an FMA is two) of ``threads`` threads in registers alone.

    One pass takes about ``nanoseconds``. The variant 'scalar' emulates FMA, so its peak is that of the
    emulation. Raises ``ValueError`` for counts below one.
    """

def tile_times(variant: Variant, threads: int, passes: int = 5) -> tuple[float, float] | None:
    """Nanoseconds of a product of bf16 tiles (16 x 32 times 32 x 16) and of loading a tile from the nearest
    cache, on each of ``threads`` threads at once; None for a variant without tiles.

    Raises ``ValueError`` for counts below one.
    """
