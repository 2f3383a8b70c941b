"""The functions of mathfn.h over float64 arrays, and the rotary tables made with them."""

from rase._kernels.mathfn cimport (
    rase_cos, rase_erf, rase_exp, rase_fp_enter, rase_fp_leave, rase_log, rase_log1p, rase_pow, rase_sin,
    rase_sincos, rase_tanh,
)

ctypedef double (*function)(double) noexcept nogil


cdef int _map(function f, const double[::1] x, double[::1] out) except -1:
    if x.shape[0] != out.shape[0]:
        raise ValueError(f"expected {x.shape[0]} elements in out, found {out.shape[0]}")
    cdef Py_ssize_t i
    cdef unsigned long long mode
    with nogil:
        mode = rase_fp_enter()
        for i in range(x.shape[0]):
            out[i] = f(x[i])
        rase_fp_leave(mode)
    return 0


def exp(const double[::1] x, double[::1] out):
    _map(rase_exp, x, out)


def log(const double[::1] x, double[::1] out):
    _map(rase_log, x, out)


def log1p(const double[::1] x, double[::1] out):
    _map(rase_log1p, x, out)


def sin(const double[::1] x, double[::1] out):
    _map(rase_sin, x, out)


def cos(const double[::1] x, double[::1] out):
    _map(rase_cos, x, out)


def tanh(const double[::1] x, double[::1] out):
    _map(rase_tanh, x, out)


def erf(const double[::1] x, double[::1] out):
    _map(rase_erf, x, out)


def pow(const double[::1] x, const double[::1] y, double[::1] out):
    if not x.shape[0] == y.shape[0] == out.shape[0]:
        raise ValueError("x, y and out must have one length")
    cdef Py_ssize_t i
    cdef unsigned long long mode
    with nogil:
        mode = rase_fp_enter()
        for i in range(x.shape[0]):
            out[i] = rase_pow(x[i], y[i])
        rase_fp_leave(mode)


def inv_freq(double theta, Py_ssize_t n_dims, double[::1] out, const float[::1] factors=None):
    cdef Py_ssize_t i, pairs = n_dims // 2
    if n_dims < 2 or n_dims % 2:
        raise ValueError(f"n_dims must be even and at least 2, found {n_dims}")
    if out.shape[0] != pairs or (factors is not None and factors.shape[0] != pairs):
        raise ValueError(f"expected {pairs} elements, one for each pair")
    cdef unsigned long long mode = rase_fp_enter()
    for i in range(pairs):
        out[i] = rase_pow(theta, -2.0 * <double>i / <double>n_dims)
        if factors is not None:
            out[i] /= <double>factors[i]
    rase_fp_leave(mode)


def yarn(double[::1] frequencies, double theta, double factor, double original_context, double beta_fast,
         double beta_slow):
    """Change rotary frequencies by YaRN (arXiv 2309.00071, 3.2); returns its attention factor, 1 + 0.1 ln(factor).

    A pair keeps its frequency below the one that turns ``beta_fast`` times within the original context, has it divided
    by ``factor`` above the one that turns ``beta_slow`` times, and a linear mix of both in between.
    """
    cdef Py_ssize_t i, pairs = frequencies.shape[0]
    cdef double low, high, slow, pi = 3.14159265358979323846
    cdef unsigned long long mode = rase_fp_enter()
    low = pairs * rase_log(original_context / (2.0 * pi * beta_fast)) / rase_log(theta)
    high = pairs * rase_log(original_context / (2.0 * pi * beta_slow)) / rase_log(theta)
    low = <double><long long>max(low, 0.0)  # floor
    slow = <double><long long>high
    high = min(slow if slow >= high else slow + 1.0, 2.0 * pairs - 1.0)  # ceiling
    for i in range(pairs):
        slow = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        frequencies[i] *= slow / factor + (1.0 - slow)
    low = 1.0 + 0.1 * rase_log(factor)
    rase_fp_leave(mode)
    return low


def rope_table(Py_ssize_t start, Py_ssize_t stop, const double[::1] inv_freq, float[:, ::1] cos_out,
               float[:, ::1] sin_out, double scale=1.0, double attn_factor=1.0):
    cdef Py_ssize_t p, i, pairs = inv_freq.shape[0], rows = stop - start
    if start < 0 or rows < 0:
        raise ValueError(f"expected 0 <= start <= stop, found {start} and {stop}")
    if (cos_out.shape[0] != rows or sin_out.shape[0] != rows or cos_out.shape[1] != pairs
            or sin_out.shape[1] != pairs):
        raise ValueError(f"expected tables of {rows} x {pairs}")
    cdef double s = 0.0, c = 0.0, place
    cdef unsigned long long mode
    with nogil:
        mode = rase_fp_enter()
        for p in range(rows):
            place = <double>(start + p) / scale
            for i in range(pairs):
                rase_sincos(place * inv_freq[i], &s, &c)
                cos_out[p, i] = <float>(c * attn_factor)
                sin_out[p, i] = <float>(s * attn_factor)
        rase_fp_leave(mode)
