/* sin and cos for every double: exact reduction by Payne and Hanek ("Radian reduction for trigonometric functions",
 * 1983), then Taylor series on [-pi/4, pi/4]. Part of mathfn.h, which see for the rules.
 */
#ifndef RASE_MATHFN_TRIG_H
#define RASE_MATHFN_TRIG_H

#include "mathfn.h"

/* 2/pi = 0.A2F98... in words of 64 bits, after one word of zeros for arguments below 2^53. */
static const uint64_t RASE_TWO_OVER_PI[21] = {
    0x0000000000000000u,
    0xA2F9836E4E441529u, 0xFC2757D1F534DDC0u, 0xDB6295993C439041u, 0xFE5163ABDEBBC561u,
    0xB7246E3A424DD2E0u, 0x06492EEA09D1921Cu, 0xFE1DEB1CB129A73Eu, 0xE88235F52EBB4484u,
    0xE99C7026B45F7E41u, 0x3991D639835339F4u, 0x9C845F8BBDF9283Bu, 0x1FF897FFDE05980Fu,
    0xEF2F118B5A0A6D1Fu, 0x6D367ECF27CB09B7u, 0x4F463F669E5FEA2Du, 0x7527BAC7EBE5F17Bu,
    0x3D0739F78A5292EAu, 0x6BFB5FB11F8D5D08u, 0x56033046FC7B6BABu, 0xF0CFBC209AF4361Du,
};

/* x = n * pi/2 + r with r in [-pi/4, pi/4] to about 2^-100; returns n mod 4. x finite, |x| > 2^-10. */
static inline int rase_reduce(double x, rase_dd *r) {
    uint64_t bits = rase_bits(x), mantissa = (bits & 0xFFFFFFFFFFFFFu) | 0x10000000000000u;
    int exponent = (int)((bits >> 52) & 2047) - 1075; /* |x| = mantissa * 2^exponent */
    /* 192 bits of 2/pi from the one whose product with mantissa weighs 2: whole turns fall out of the window. */
    int start = exponent - 2 + 64, word = start >> 6, shift = start & 63;
    uint64_t window[3];
    for (int i = 0; i < 3; i++) {
        window[i] = RASE_TWO_OVER_PI[word + i] << shift;
        if (shift) window[i] |= RASE_TWO_OVER_PI[word + i + 1] >> (64 - shift);
    }
    /* product mod 2^192: |x| * 2/pi mod 4 in units of 2^-190; the bits below the window are worth 2^53 units */
    unsigned __int128 low = (unsigned __int128)mantissa * window[2];
    unsigned __int128 middle = (unsigned __int128)mantissa * window[1] + (uint64_t)(low >> 64);
    uint64_t p2 = (uint64_t)low, p1 = (uint64_t)middle;
    uint64_t p0 = mantissa * window[0] + (uint64_t)(middle >> 64);
    int quadrant = (int)(p0 >> 62);
    p0 = p0 << 2 | p1 >> 62, p1 = p1 << 2 | p2 >> 62, p2 <<= 2; /* the fraction of the quadrant, 192 bits */
    int negative = (int)(p0 >> 63);
    if (negative) { /* the nearest quadrant is the next one: fraction - 1, as a size */
        quadrant++;
        p2 = ~p2 + 1, p1 = ~p1 + (p2 == 0), p0 = ~p0 + (p2 == 0 && p1 == 0);
    }
    double scale = 0x1p-64;
    if (p0 == 0) p0 = p1, p1 = p2, p2 = 0, scale *= 0x1p-64;
    int zeros = p0 ? __builtin_clzll(p0) : 0; /* x near a multiple of pi/2 */
    if (zeros) {
        p0 = p0 << zeros | p1 >> (64 - zeros), p1 = p1 << zeros | p2 >> (64 - zeros);
        scale *= rase_exp2_whole(-zeros);
    }
    rase_dd f = {(double)(int64_t)(p0 >> 11) * 2048.0, (double)(int64_t)((p0 & 2047) << 52 | p1 >> 12) * 0x1p-52};
    f = rase_fast_sum(f.hi * scale, f.lo * scale);
    *r = rase_dd_mul(f, (rase_dd){0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54});
    if (negative != (int)(bits >> 63)) r->hi = -r->hi, r->lo = -r->lo;
    return (bits >> 63 ? -quadrant : quadrant) & 3;
}

/* sin(r.hi + r.lo), |r| <= 0.786 */
static inline double rase_sin_series(rase_dd r) {
    rase_dd square = rase_product(r.hi, r.hi), sixth = {0x1.5555555555555p-3, 0x1.5555555555555p-57};
    double z = square.hi, q = 1.0 / 355687428096000.0;
    q = -1.0 / 1307674368000.0 + z * q;
    q = 1.0 / 6227020800.0 + z * q;
    q = -1.0 / 39916800.0 + z * q;
    q = 1.0 / 362880.0 + z * q;
    q = -1.0 / 5040.0 + z * q;
    q = 1.0 / 120.0 + z * q;
    rase_dd cubic = rase_dd_mul(sixth, rase_dd_mul((rase_dd){r.hi, 0.0}, square)); /* too large for one rounding each */
    rase_dd sum = rase_fast_sum(r.hi, -cubic.hi);
    return sum.hi + (sum.lo + (r.lo * (1.0 - 0.5 * z) - cubic.lo + r.hi * (z * z * q)));
}

/* cos(r.hi + r.lo), |r| <= 0.786 */
static inline double rase_cos_series(rase_dd r) {
    rase_dd square = rase_product(r.hi, r.hi);
    double z = square.hi, q = 1.0 / 20922789888000.0;
    q = -1.0 / 87178291200.0 + z * q;
    q = 1.0 / 479001600.0 + z * q;
    q = -1.0 / 3628800.0 + z * q;
    q = 1.0 / 40320.0 + z * q;
    q = -1.0 / 720.0 + z * q;
    q = 1.0 / 24.0 + z * q;
    double half = 0.5 * z, head = 1.0 - half;
    return head + (((1.0 - head) - half) + (z * z * q - (0.5 * square.lo + r.hi * r.lo)));
}

/* Both at once; NaN for infinity and NaN. */
static inline void rase_sincos(double x, double *sin, double *cos) {
    if (!(x - x == 0.0)) {
        *sin = *cos = x - x;
        return;
    }
    rase_dd r = {x, 0.0};
    int quadrant = 0;
    if (x > 0.785398 || x < -0.785398) quadrant = rase_reduce(x, &r);
    double s = r.hi == 0.0 ? x : rase_sin_series(r), c = rase_cos_series(r); /* sin keeps the sign of zero */
    *sin = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    *cos = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}

static inline double rase_sin(double x) {
    double s, c;
    rase_sincos(x, &s, &c);
    return s;
}

static inline double rase_cos(double x) {
    double s, c;
    rase_sincos(x, &s, &c);
    return c;
}

#endif
