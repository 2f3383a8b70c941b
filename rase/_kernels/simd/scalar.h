/* Plain C lanes: the baseline variant (x86-64-v1, any processor) and the meaning of every primitive.
 *
 * v16 is the 16-lane float vector of rule R1. rf, ri and rb are R lanes of float32, int32 and 4 bytes (one row's four
 * consecutive depths). The other simd headers define the same names with the same bits. */
#ifndef RASE_SIMD_SCALAR_H
#define RASE_SIMD_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

#define RASE_R 16
#define RASE_TILE_ROWS 1 /* activation rows per pass over float weights, a power of two; 1 means: no register tiles */
#define RASE_GEMM_ROWS 4 /* activation rows per pass of gemm_f32: 4, 12 or 24 */
#define RASE_DOT_TILE 1  /* activation rows per pass over quantized weights: 1, 2 or 4 */
#define RASE_BYTE_SHIFTS 1 /* rb_shr and rb_shl shift in zeros */

/* a * b + c rounded once, without an FMA instruction: the product is exact in double, the sum is rounded to odd, so that
 * the final rounding to float32 is the only one that matters. Boldo and Melquiond, "Emulation of FMA and correctly
 * rounded sums: proved algorithms using rounding to odd", 2008. */
static inline float f_fma(float a, float b, float c) {
    double p = (double)a * (double)b, s = p + (double)c;
    uint64_t bits;
    memcpy(&bits, &s, 8);
    if ((bits & 1) == 0 && (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u) {
        double t = s - p, error = (p - (s - t)) + ((double)c - t);
        if (error != 0.0) {
            bits += ((error > 0.0) == (s > 0.0)) ? 1 : (uint64_t)-1;
            memcpy(&s, &bits, 8);
        }
    }
    return (float)s;
}

#define LANES16 for (int l = 0; l < 16; l++)
typedef struct { float v[16]; } v16;

static inline v16 v16_zero(void) { v16 r; LANES16 r.v[l] = 0.0f; return r; }
static inline v16 v16_set1(float x) { v16 r; LANES16 r.v[l] = x; return r; }
static inline v16 v16_load(const float *p) { v16 r; memcpy(&r, p, 64); return r; }
static inline void v16_store(float *p, v16 a) { memcpy(p, &a, 64); }
static inline v16 v16_load_n(const float *p, int n) { v16 r; LANES16 r.v[l] = l < n ? p[l] : 0.0f; return r; }
static inline void v16_store_n(float *p, v16 a, int n) { memcpy(p, &a, 4 * (size_t)n); }
static inline v16 v16_add(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] + b.v[l]; return r; }
static inline v16 v16_sub(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] - b.v[l]; return r; }
static inline v16 v16_mul(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] * b.v[l]; return r; }
static inline v16 v16_div(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] / b.v[l]; return r; }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { v16 r; LANES16 r.v[l] = f_fma(a.v[l], b.v[l], c.v[l]); return r; }
/* a > b ? a : b, so b where either is NaN (MAXPS). */
static inline v16 v16_max(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l]; return r; }
static inline v16 v16_min(v16 a, v16 b) { v16 r; LANES16 r.v[l] = a.v[l] < b.v[l] ? a.v[l] : b.v[l]; return r; }
static inline v16 v16_abs(v16 a) { v16 r; LANES16 r.v[l] = fabsf(a.v[l]); return r; }
/* Where x is NaN: x, else y. */
/* 0 where x < bound, else y. */
static inline v16 v16_zero_below(v16 x, float bound, v16 y) { v16 r; LANES16 r.v[l] = x.v[l] < bound ? 0.0f : y.v[l]; return r; }
static inline v16 v16_keep_nan(v16 x, v16 y) { v16 r; LANES16 r.v[l] = x.v[l] != x.v[l] ? x.v[l] : y.v[l]; return r; }
/* 2^n from the float `magic + n` with magic = 1.5 * 2^23 and -126 <= n <= 127. */
static inline v16 v16_pow2_magic(v16 a) {
    v16 r;
    LANES16 {
        uint32_t bits;
        memcpy(&bits, &a.v[l], 4);
        bits = (bits + 127) << 23;
        memcpy(&r.v[l], &bits, 4);
    }
    return r;
}
static inline v16 v16_from_i8(const int8_t *p) { v16 r; LANES16 r.v[l] = p[l]; return r; }
static inline v16 v16_from_f16(const uint16_t *p) { v16 r; LANES16 r.v[l] = half_to_float(p[l]); return r; }
static inline void v16_to_f16(uint16_t *p, v16 a) { LANES16 p[l] = float_to_half(a.v[l]); }
/* Round to the nearest integer (ties to even) and to int8; |a| <= 127. */
/* Whole numbers to int16 in the order of rase_act's `wide`: of each four 0, 2, 1, 3. */
static inline void v16_to_wide(int16_t *p, v16 a) {
    for (int l = 0; l < 16; l++) p[(l & 12) | (l & 1) << 1 | (l >> 1 & 1)] = (int16_t)(int32_t)a.v[l];
}
static inline void v16_to_i8(int8_t *p, v16 a) { LANES16 p[l] = (int8_t)(int32_t)((a.v[l] + 12582912.0f) - 12582912.0f); }
/* Fold 16 lanes by 8, 4, 2, 1: the order of rule R1. */
static inline float v16_sum(v16 a) {
    for (int half = 8; half; half >>= 1)
        for (int l = 0; l < half; l++) a.v[l] = a.v[l] + a.v[l + half];
    return a.v[0];
}
static inline float v16_maxall(v16 a) {
    for (int half = 8; half; half >>= 1)
        for (int l = 0; l < half; l++) a.v[l] = a.v[l] > a.v[l + half] ? a.v[l] : a.v[l + half];
    return a.v[0];
}
/* Lane i of the result is v16_sum(a[i]). */
static inline v16 v16_sum16(const v16 *a) { v16 r; LANES16 r.v[l] = v16_sum(a[l]); return r; }

/* 16 vectors of 16 to their columns. */
static inline void v16_transpose(v16 *x) {
    v16 y[16];
    for (int i = 0; i < 16; i++) LANES16 y[l].v[i] = x[i].v[l];
    memcpy(x, y, sizeof y);
}

#define LANES_R for (int l = 0; l < RASE_R; l++)
#define BYTES_R for (int i = 0; i < RASE_R * 4; i++)
typedef struct { float v[RASE_R]; } rf;
typedef struct { int32_t v[RASE_R]; } ri;
typedef struct { uint8_t v[RASE_R * 4]; } rb;

static inline rf rf_zero(void) { rf r; LANES_R r.v[l] = 0.0f; return r; }
static inline rf rf_set1(float x) { rf r; LANES_R r.v[l] = x; return r; }
static inline rf rf_load(const float *p) { rf r; memcpy(&r, p, sizeof r); return r; }
static inline void rf_store(float *p, rf a) { memcpy(p, &a, sizeof a); }
static inline rf rf_mul(rf a, rf b) { rf r; LANES_R r.v[l] = a.v[l] * b.v[l]; return r; }
static inline rf rf_add(rf a, rf b) { rf r; LANES_R r.v[l] = a.v[l] + b.v[l]; return r; }
static inline rf rf_sub(rf a, rf b) { rf r; LANES_R r.v[l] = a.v[l] - b.v[l]; return r; }
static inline rf rf_fma(rf a, rf b, rf c) { rf r; LANES_R r.v[l] = f_fma(a.v[l], b.v[l], c.v[l]); return r; }
/* c - a * b rounded once. */
static inline rf rf_fnma(rf a, rf b, rf c) { rf r; LANES_R r.v[l] = f_fma(-a.v[l], b.v[l], c.v[l]); return r; }
static inline rf rf_from_f16(const uint16_t *p) { rf r; LANES_R r.v[l] = half_to_float(p[l]); return r; }
static inline rf rf_from_bf16(const uint16_t *p) {
    rf r;
    LANES_R { uint32_t bits = (uint32_t)p[l] << 16; memcpy(&r.v[l], &bits, 4); }
    return r;
}
static inline rf rf_from_ri(ri a) { rf r; LANES_R r.v[l] = (float)a.v[l]; return r; }

static inline ri ri_zero(void) { ri r; LANES_R r.v[l] = 0; return r; }
static inline ri ri_set1(int32_t x) { ri r; LANES_R r.v[l] = x; return r; }
/* Modulo 2^32: a partial sum may leave int32 where the whole does not. */
#define WRAP(x, OP, y) (int32_t)((uint32_t)(x) OP (uint32_t)(y))
static inline ri ri_add(ri a, ri b) { ri r; LANES_R r.v[l] = WRAP(a.v[l], +, b.v[l]); return r; }
static inline ri ri_sub(ri a, ri b) { ri r; LANES_R r.v[l] = WRAP(a.v[l], -, b.v[l]); return r; }
static inline ri ri_mul(ri a, ri b) { ri r; LANES_R r.v[l] = WRAP(a.v[l], *, b.v[l]); return r; }
static inline ri ri_shl(ri a, int n) { ri r; LANES_R r.v[l] = (int32_t)((uint32_t)a.v[l] << n); return r; }
/* RASE_HALF * a + b, modulo 2^32. */
static inline ri ri_join(ri a, ri b) { return ri_add(ri_sub(ri_shl(a, 8), ri_shl(a, 1)), b); }
static inline ri ri_from_i8(const int8_t *p) { ri r; LANES_R r.v[l] = p[l]; return r; }
static inline ri ri_from_u8(const uint8_t *p) { ri r; LANES_R r.v[l] = p[l]; return r; }

static inline rb rb_load(const uint8_t *p) { rb r; memcpy(&r, p, sizeof r); return r; }
static inline void rb_store(uint8_t *p, rb a) { memcpy(p, &a, sizeof a); }
static inline rb rb_set1(uint8_t x) { rb r; BYTES_R r.v[i] = x; return r; }
static inline rb rb_and(rb a, rb b) { rb r; BYTES_R r.v[i] = a.v[i] & b.v[i]; return r; }
static inline rb rb_or(rb a, rb b) { rb r; BYTES_R r.v[i] = a.v[i] | b.v[i]; return r; }
static inline rb rb_sub(rb a, rb b) { rb r; BYTES_R r.v[i] = (uint8_t)(a.v[i] - b.v[i]); return r; } /* modulo 256 */
/* Bits that a neighbour byte shifts in are undefined in the other variants: always mask after a shift. n is a constant. */
static inline rb rb_shr(rb a, int n) { rb r; BYTES_R r.v[i] = (uint8_t)(a.v[i] >> n); return r; }
static inline rb rb_shl(rb a, int n) { rb r; BYTES_R r.v[i] = (uint8_t)(a.v[i] << n); return r; }

/* rq: a sum of products of signed weights in [-128, 127] on its way: per lane, sum of w[lane][0..3] * a[0..3] over the calls,
 * a in [-127, 127]. A variant may compute (w + 128) . a instead, so rq_begin wants the sum of all a that will follow. */
typedef ri rq;
static inline rq rq_begin(int32_t sum) { (void)sum; return ri_zero(); }
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) {
    LANES_R for (int i = 0; i < 4; i++) acc.v[l] += (int32_t)(int8_t)w.v[4 * l + i] * (int32_t)a[i];
    return acc;
}
static inline ri rq_end(rq acc) { return acc; }

/* Byte i (a constant) of every lane, without and with sign. */
static inline ri ri_byte_u8(rb a, int i) { ri r; LANES_R r.v[l] = a.v[4 * l + i]; return r; }
static inline ri ri_byte_i8(rb a, int i) { ri r; LANES_R r.v[l] = (int8_t)a.v[4 * l + i]; return r; }

/* rp: the same for unsigned weights, 0..max with max at most 63. A variant may hold it in int16, so at most RP_CALLS(max) calls
 * of rp_dot_u8 lie between rp_begin and rp_end or ri_mad_rp. rp_end(rp_begin(start), start) is start; both get the same start,
 * a variant uses one of them. */
#define RP_CALLS(max) 64
typedef ri rp;
static inline rp rp_begin(ri start) { return start; }
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) {
    LANES_R for (int i = 0; i < 4; i++) acc.v[l] += (int32_t)w.v[4 * l + i] * (int32_t)a[i];
    return acc;
}
static inline ri rp_end(rp acc, ri start) { (void)start; return acc; }
/* rs: one integer scale per lane, as ri_mad_rp wants it: acc + scale * (sum begun at zero). */
typedef ri rs;
static inline rs rs_byte_u8(rb a, int i) { return ri_byte_u8(a, i); }
static inline rs rs_byte_i8(rb a, int i) { return ri_byte_i8(a, i); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) { return ri_add(acc, ri_mul(sum, scale)); }

/* Bytes 2p and 2p + 1 (p = 0 or 1, a constant) of every lane as two int16, and their dot product with a[0..1]. */
typedef struct { int16_t v[2 * RASE_R]; } rh;
static inline rh rh_pair_u8(rb a, int p) {
    rh r;
    LANES_R for (int i = 0; i < 2; i++) r.v[2 * l + i] = a.v[4 * l + 2 * p + i];
    return r;
}
static inline rh rh_pair_i8(rb a, int p) {
    rh r;
    LANES_R for (int i = 0; i < 2; i++) r.v[2 * l + i] = (int8_t)a.v[4 * l + 2 * p + i];
    return r;
}
/* Byte i of every lane times 1 and 128, at most 255: what a pair of rase_act's sides is multiplied by. */
static inline rh rh_side(rb a, int i) {
    rh r;
    LANES_R r.v[2 * l] = a.v[4 * l + i], r.v[2 * l + 1] = (int16_t)(128 * a.v[4 * l + i]);
    return r;
}
/* The same pair in every lane. */
static inline rh rh_set2(int16_t x, int16_t y) {
    rh r;
    LANES_R r.v[2 * l] = x, r.v[2 * l + 1] = y;
    return r;
}
static inline ri ri_dot_rh(ri acc, rh w, const int16_t *a) {
    LANES_R acc.v[l] += (int32_t)w.v[2 * l] * a[0] + (int32_t)w.v[2 * l + 1] * a[1];
    return acc;
}
#endif
