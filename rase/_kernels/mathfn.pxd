cdef extern from "mathfn.h" nogil:
    double rase_exp(double x) noexcept
    double rase_log(double x) noexcept
    double rase_log1p(double x) noexcept
    double rase_pow(double x, double y) noexcept
    double rase_sin(double x) noexcept
    double rase_cos(double x) noexcept
    void rase_sincos(double x, double *sin, double *cos) noexcept
    double rase_tanh(double x) noexcept
    double rase_erf(double x) noexcept

cdef extern from "fpenv.h" nogil:
    unsigned long long rase_fp_enter() noexcept
    void rase_fp_leave(unsigned long long before) noexcept
