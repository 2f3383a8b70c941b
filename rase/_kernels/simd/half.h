/* float16 <-> float32 in integer arithmetic: the bits of F16C, for machines without it. IEEE 754-2008 binary16. */
#ifndef RASE_SIMD_HALF_H
#define RASE_SIMD_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0); /* a signalling NaN becomes quiet */
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    } else if (fraction) { /* subnormal: normalise */
        int shift = 0;
        while (!(fraction & 0x400u)) { fraction <<= 1; shift++; }
        bits = sign | ((uint32_t)(113 - shift) << 23) | ((fraction & 0x3ffu) << 13);
    } else {
        bits = sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: subnormal or zero */
        uint32_t shift = 126u - (magnitude >> 23);
        if (shift > 24) return (uint16_t)sign;
        uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
        uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), tie = 1u << (shift - 1);
        kept += rest > tie || (rest == tie && (kept & 1));
        return (uint16_t)(sign | kept);
    }
    uint32_t kept = (magnitude - 0x38000000u) >> 13, rest = magnitude & 0x1fffu;
    kept += rest > 0x1000u || (rest == 0x1000u && (kept & 1));
    return (uint16_t)(sign | kept); /* a carry into the exponent gives the right value, infinity included */
}

#endif
