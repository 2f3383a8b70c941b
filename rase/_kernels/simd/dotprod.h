/* NEON with the dot-product instructions (SDOT): four products and their sum per lane. Meanings: scalar.h. */
#ifndef RASE_SIMD_DOTPROD_H
#define RASE_SIMD_DOTPROD_H

#include "neon_lanes.h"

#define RASE_DOT_TILE 4

static inline ri neon_dot(ri acc, rb w, const int8_t *a) { /* weights as signed: unsigned ones are at most 63 */
    int8x8_t x = neon_four(a);
    return (ri){vdotq_lane_s32(acc.a, vreinterpretq_s8_u8(w.a), x, 0), vdotq_lane_s32(acc.b, vreinterpretq_s8_u8(w.b), x, 0)};
}
typedef ri rq;
static inline rq rq_begin(int32_t sum) { (void)sum; return ri_zero(); }
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) { return neon_dot(acc, w, a); }
static inline ri rq_end(rq acc) { return acc; }

#define RP_CALLS(max) 64
typedef ri rp;
typedef ri rs;
static inline rp rp_begin(ri start) { return start; }
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) { return neon_dot(acc, w, a); }
static inline ri rp_end(rp acc, ri start) { (void)start; return acc; }
static inline rs rs_byte_u8(rb x, int i) { return ri_byte_u8(x, i); }
static inline rs rs_byte_i8(rb x, int i) { return ri_byte_i8(x, i); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) {
    return (ri){vmlaq_s32(acc.a, sum.a, scale.a), vmlaq_s32(acc.b, sum.b, scale.b)};
}

#endif
