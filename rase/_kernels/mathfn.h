/* exp, log and friends in plain C double: no libm, no FMA, no tables, so the same bits on every IEEE machine.
 *
 * Compile with -ffp-contract=off, round to nearest. Accuracy: below 1 ulp everywhere, tested against mpmath.
 * rase_exp is free of branches, so loops over it vectorise.
 */
#ifndef RASE_MATHFN_H
#define RASE_MATHFN_H

#include <stdint.h>
#include <string.h>

#define RASE_LN2_HI 0x1.62e42fee00000p-1   /* 33 bits: n * RASE_LN2_HI is exact for |n| < 2^20 */
#define RASE_LN2_LO 0x1.a39ef35793c76p-33
#define RASE_LOG2E 0x1.71547652b82fep+0
#define RASE_ROUND 0x1.8p52                /* (x + RASE_ROUND) - RASE_ROUND rounds to a whole number */

static inline uint64_t rase_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double rase_double(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* 2^n for a whole number n in -1022..1023. */
static inline double rase_exp2_whole(double n) { return rase_double((rase_bits(n + RASE_ROUND) + 1023) << 52); }

/* exp(x + xlo) = (hi + lo) * 2^n with |x| < 1100; hi + lo is good to about 2^-57. Returns n. */
static inline double rase_exp_parts(double x, double xlo, double *hi, double *lo) {
    double n = (x * RASE_LOG2E + RASE_ROUND) - RASE_ROUND;
    double a = x - n * RASE_LN2_HI, b = n * RASE_LN2_LO - xlo;
    double r = a - b, rlo = (a - r) - b;
    double q = 1.0 / 6227020800.0;
    q = 1.0 / 479001600.0 + r * q;
    q = 1.0 / 39916800.0 + r * q;
    q = 1.0 / 3628800.0 + r * q;
    q = 1.0 / 362880.0 + r * q;
    q = 1.0 / 40320.0 + r * q;
    q = 1.0 / 5040.0 + r * q;
    q = 1.0 / 720.0 + r * q;
    q = 1.0 / 120.0 + r * q;
    q = 1.0 / 24.0 + r * q;
    q = 1.0 / 6.0 + r * q;
    q = 0.5 + r * q;
    double s = 1.0 + r;
    *hi = s;
    *lo = (r - (s - 1.0)) + (rlo + rlo * r + r * r * q);
    return n;
}

/* value * 2^n, rounded once where the result is subnormal; n in -1080..1030. */
static inline double rase_scale(double value, double n) {
    double half = (n * 0.5 + RASE_ROUND) - RASE_ROUND;
    return value * rase_exp2_whole(half) * rase_exp2_whole(n - half);
}

static inline double rase_exp(double x) {
    double hi, lo, n;
    x = x < -746.0 ? -746.0 : x; /* exp(-746) rounds to 0, exp(710) to infinity; NaN passes */
    x = x > 710.0 ? 710.0 : x;
    n = rase_exp_parts(x, 0.0, &hi, &lo);
    return rase_scale(hi + lo, n);
}

/* ---- double-double: an unevaluated sum hi + lo with |lo| <= ulp(hi)/2, about 106 bits ---- */

typedef struct { double hi, lo; } rase_dd;

static inline rase_dd rase_fast_sum(double a, double b) { /* exact a + b for |a| >= |b| */
    double s = a + b;
    return (rase_dd){s, b - (s - a)};
}

static inline rase_dd rase_sum(double a, double b) { /* exact a + b (Knuth) */
    double s = a + b, t = s - a;
    return (rase_dd){s, (a - (s - t)) + (b - t)};
}

static inline rase_dd rase_product(double a, double b) { /* exact a * b (Dekker); |a|, |b| < 2^990 */
    double p = a * b, t = 134217729.0 * a, ah = t - (t - a), al = a - ah;
    t = 134217729.0 * b;
    double bh = t - (t - b), bl = b - bh;
    return (rase_dd){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

static inline rase_dd rase_dd_mul(rase_dd a, rase_dd b) {
    rase_dd p = rase_product(a.hi, b.hi);
    return rase_fast_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

static inline rase_dd rase_dd_div(rase_dd a, rase_dd b) {
    double q = a.hi / b.hi;
    rase_dd p = rase_product(q, b.hi);
    return rase_fast_sum(q, ((a.hi - p.hi) - p.lo + (a.lo - q * b.lo)) / b.hi);
}

/* ---- logarithms ---- */

/* log(2^k * (1 + f)) to about 2^-65, for 1 + f in [0.7, 1.42]: 2 atanh(s), s = f / (2 + f). */
static inline rase_dd rase_log_parts(rase_dd f, double k) {
    rase_dd d = rase_sum(2.0, f.hi);
    d.lo += f.lo;
    rase_dd s = rase_dd_div(f, d), z = rase_dd_mul(s, s);
    double q = 1.0 / 31.0;
    for (double odd = 29.0; odd >= 5.0; odd -= 2.0) q = 1.0 / odd + z.hi * q;
    rase_dd p = rase_fast_sum(0x1.5555555555555p-2, z.hi * q); /* 1/3 + z/5 + z^2/7 ... */
    p.lo += 0x1.5555555555555p-56;
    rase_dd t = rase_dd_mul(s, rase_dd_mul(z, p));
    rase_dd half = rase_fast_sum(s.hi, t.hi);
    half.lo += s.lo + t.lo;
    rase_dd log = rase_sum(k * RASE_LN2_HI, 2.0 * half.hi);
    return rase_fast_sum(log.hi, log.lo + (2.0 * half.lo + k * RASE_LN2_LO));
}

/* Split a positive finite x into 2^k * m with m in [sqrt(1/2), sqrt(2)); returns k. */
static inline double rase_split(double x, double *m) {
    double k = 0.0;
    if (x < 0x1p-1022) x *= 0x1p54, k = -54.0;
    uint64_t bits = rase_bits(x), shift = bits - 0x3FE6A09E667F3BCDu; /* sqrt(1/2) */
    int64_t exponent = (int64_t)shift >> 52;
    *m = rase_double(bits - ((uint64_t)exponent << 52));
    return k + (double)exponent;
}

static inline rase_dd rase_log_dd(double x) { /* x positive and finite */
    double m, k = rase_split(x, &m);
    return rase_log_parts((rase_dd){m - 1.0, 0.0}, k);
}

static inline double rase_log(double x) {
    if (!(x > 0.0)) return x == 0.0 ? -1.0 / 0.0 : x < 0.0 ? 0.0 / 0.0 : x;
    if (x > 0x1.fffffffffffffp1023) return x;
    return rase_log_dd(x).hi;
}

static inline double rase_log1p(double x) {
    if (!(x > -1.0)) return x == -1.0 ? -1.0 / 0.0 : x < -1.0 ? 0.0 / 0.0 : x;
    if (x > 0x1.fffffffffffffp1023) return x;
    if (x < 0x1p-53 && x > -0x1p-53) return x; /* log1p(x) = x - x^2/2: x is nearest, and keeps its sign */
    if (x > -0.29 && x < 0.41) return rase_log_parts((rase_dd){x, 0.0}, 0.0).hi;
    double m;
    rase_dd u = rase_sum(1.0, x);
    double k = rase_split(u.hi, &m);
    double lo = k > 1000.0 ? 0.0 : u.lo * rase_exp2_whole(-k);
    rase_dd f = rase_fast_sum(m - 1.0, 0.0);
    f = rase_sum(f.hi, lo);
    return rase_log_parts(f, k).hi;
}

/* ---- pow, with the special cases of C99 annex F ---- */

static inline double rase_pow(double x, double y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (x != x || y != y) return x + y;
    double size = x < 0.0 ? -x : x, whole = y < 0.0 ? -y : y, infinity = 1.0 / 0.0;
    /* parity of y: 0 not whole, 1 odd, 2 even */
    int parity = 2;
    if (whole < 0x1p53) {
        double nearest = (double)(int64_t)whole;
        parity = nearest != whole ? 0 : ((int64_t)whole & 1) ? 1 : 2;
    }
    double sign = parity == 1 && (rase_bits(x) >> 63) ? -1.0 : 1.0;
    if (whole == infinity) {
        if (size == 1.0) return 1.0;
        return (size > 1.0) == (y > 0.0) ? infinity : 0.0;
    }
    if (size == 0.0 || size == infinity) return (size == 0.0) == (y > 0.0) ? sign * 0.0 : sign * infinity;
    if (x < 0.0 && parity == 0) return 0.0 / 0.0;
    rase_dd log = rase_log_dd(size);
    double estimate = y * log.hi;
    if (estimate > 720.0) return sign * infinity;
    if (estimate < -760.0) return sign * 0.0;
    if (estimate < 0x1p-60 && estimate > -0x1p-60) return sign; /* also keeps the product away from underflow */
    rase_dd power = rase_product(y, log.hi);
    power.lo += y * log.lo;
    double hi, lo, n = rase_exp_parts(power.hi, power.lo, &hi, &lo);
    return sign * rase_scale(hi + lo, n);
}

/* ---- tanh ---- */

static inline double rase_tanh(double x) {
    double size = x < 0.0 ? -x : x;
    if (!(size < 20.0)) return x != x ? x : x < 0.0 ? -1.0 : 1.0; /* 1 - 2^-57 rounds to 1 */
    if (size < 0.2) { /* x - x^3/3 + 2 x^5/15 - ...: the Taylor series */
        double z = x * x, q = -443861162.0 / 1856156927625.0;
        q = 6404582.0 / 10854718875.0 + z * q;
        q = -929569.0 / 638512875.0 + z * q;
        q = 21844.0 / 6081075.0 + z * q;
        q = -1382.0 / 155925.0 + z * q;
        q = 62.0 / 2835.0 + z * q;
        q = -17.0 / 315.0 + z * q;
        q = 2.0 / 15.0 + z * q;
        q = -1.0 / 3.0 + z * q;
        return x == 0.0 ? x : x + x * (z * q);
    }
    double hi, lo, scale, n = rase_exp_parts(2.0 * size, 0.0, &hi, &lo);
    scale = rase_exp2_whole(n);
    rase_dd above = rase_sum(hi * scale, 1.0), below = rase_sum(hi * scale, -1.0);
    above.lo += lo * scale;
    below.lo += lo * scale;
    rase_dd ratio = rase_dd_div(rase_fast_sum(below.hi, below.lo), rase_fast_sum(above.hi, above.lo));
    return x < 0.0 ? -ratio.hi : ratio.hi;
}

#include "mathfn_erf.h"
#include "mathfn_trig.h"

#endif
