"""exp, log, log1p, pow, sin, cos, tanh, erf over float64 arrays, and the rotary tables made with them.

The same bits on every machine, below 1 ulp from the exact value (below 0.8 in the tests; erf is the least
exact with 0.77). All arrays are contiguous; ``out`` has the shape of the arguments and may be one of them.
ValueError for lengths that differ.
"""

import numpy as np
from numpy.typing import NDArray

_F64 = NDArray[np.float64]
_F32 = NDArray[np.float32]

def exp(x: _F64, out: _F64) -> None: ...
def log(x: _F64, out: _F64) -> None: ...
def log1p(x: _F64, out: _F64) -> None: ...
def sin(x: _F64, out: _F64) -> None: ...
def cos(x: _F64, out: _F64) -> None: ...
def tanh(x: _F64, out: _F64) -> None: ...
def erf(x: _F64, out: _F64) -> None: ...
def pow(x: _F64, y: _F64, out: _F64) -> None: ...
def inv_freq(theta: float, n_dims: int, out: _F64, factors: _F32 | None = None) -> None:
    """Write ``theta ** (-2i / n_dims) / factors[i]`` for each of the ``n_dims / 2`` pairs: radians per
    position.

    RoPE: Su et al., "RoFormer", 2021. ``factors`` is the tensor ``rope_freqs.weight`` of Llama 3.1 and later.
    """

def yarn(
    frequencies: _F64,
    theta: float,
    factor: float,
    original_context: float,
    beta_fast: float,
    beta_slow: float,
) -> float: ...
def rope_table(
    start: int,
    stop: int,
    inv_freq: _F64,
    cos_out: _F32,
    sin_out: _F32,
    scale: float = 1.0,
    attn_factor: float = 1.0,
) -> None:
    """Write cosine and sine of ``(position / scale) * inv_freq[i]``, times ``attn_factor``, each rounded
    once.

    Rows are the positions start..stop-1, columns the pairs: ``(stop - start, n_dims / 2)``. Does not hold the
    GIL.
    """
