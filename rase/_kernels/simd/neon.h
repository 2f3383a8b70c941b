/* NEON without dot-product instructions (any 64-bit ARM): int16 products per depth, added up in pairs at the end. Meanings:
 * scalar.h. */
#ifndef RASE_SIMD_NEON_H
#define RASE_SIMD_NEON_H

#include "neon_lanes.h"

#define RASE_DOT_TILE 2 /* a sum on its way takes four registers */

static inline int8x16_t neon_all(const int8_t *a) {
    int32_t four;
    memcpy(&four, a, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

/* Rows 0-1, 2-3, 4-5, 6-7: a row is two int32 lanes of two products each; 128 * 127 * 2 = 32512 fits int16. */
typedef struct { int32x4_t v[4]; } rq;
static inline rq rq_begin(int32_t sum) {
    (void)sum;
    int32x4_t zero = vdupq_n_s32(0);
    return (rq){{zero, zero, zero, zero}};
}
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) {
    int8x16_t x = neon_all(a), w0 = vreinterpretq_s8_u8(w.a), w1 = vreinterpretq_s8_u8(w.b);
    acc.v[0] = vpadalq_s16(acc.v[0], vmull_s8(vget_low_s8(w0), vget_low_s8(x)));
    acc.v[1] = vpadalq_s16(acc.v[1], vmull_high_s8(w0, x));
    acc.v[2] = vpadalq_s16(acc.v[2], vmull_s8(vget_low_s8(w1), vget_low_s8(x)));
    acc.v[3] = vpadalq_s16(acc.v[3], vmull_high_s8(w1, x));
    return acc;
}
static inline ri rq_end(rq acc) { return (ri){vpaddq_s32(acc.v[0], acc.v[1]), vpaddq_s32(acc.v[2], acc.v[3])}; }

/* The same rows, a row being four int16 lanes of one product each. */
#define RP_CALLS(max) (32767 / (127 * (max)))
typedef struct { int16x8_t v[4]; } rp;
typedef ri rs;
static inline rp rp_begin(ri start) {
    (void)start;
    int16x8_t zero = vdupq_n_s16(0);
    return (rp){{zero, zero, zero, zero}};
}
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) {
    int8x16_t x = neon_all(a), w0 = vreinterpretq_s8_u8(w.a), w1 = vreinterpretq_s8_u8(w.b); /* at most 63 */
    acc.v[0] = vmlal_s8(acc.v[0], vget_low_s8(w0), vget_low_s8(x));
    acc.v[1] = vmlal_high_s8(acc.v[1], w0, x);
    acc.v[2] = vmlal_s8(acc.v[2], vget_low_s8(w1), vget_low_s8(x));
    acc.v[3] = vmlal_high_s8(acc.v[3], w1, x);
    return acc;
}
static inline ri neon_rp_sum(rp acc) {
    return (ri){vpaddq_s32(vpaddlq_s16(acc.v[0]), vpaddlq_s16(acc.v[1])),
                vpaddq_s32(vpaddlq_s16(acc.v[2]), vpaddlq_s16(acc.v[3]))};
}
static inline ri rp_end(rp acc, ri start) { return ri_add(start, neon_rp_sum(acc)); }
static inline rs rs_byte_u8(rb x, int i) { return ri_byte_u8(x, i); }
static inline rs rs_byte_i8(rb x, int i) { return ri_byte_i8(x, i); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) {
    ri x = neon_rp_sum(sum);
    return (ri){vmlaq_s32(acc.a, x.a, scale.a), vmlaq_s32(acc.b, x.b, scale.b)};
}

#endif
