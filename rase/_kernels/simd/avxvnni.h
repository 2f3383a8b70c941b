/* AVX2 with AVX-VNNI (256-bit vpdpbusd): dot products in one instruction. Meanings: scalar.h. */
#ifndef RASE_SIMD_AVXVNNI_H
#define RASE_SIMD_AVXVNNI_H

#include "avx2_lanes.h"

/* vpdpbusd wants unsigned weights: (w + 128) . a, and the accumulator starts at -128 * sum(a). */
typedef ri rq;
static inline rq rq_begin(int32_t sum) { return _mm256_set1_epi32(-128 * sum); }
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) {
    return _mm256_dpbusd_avx_epi32(acc, _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)), avx2_four(a));
}
static inline ri rq_end(rq acc) { return acc; }

#define RP_CALLS(max) 64
typedef __m256i rp;
typedef __m256i rs;
static inline rp rp_begin(ri start) { return start; }
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) { return _mm256_dpbusd_avx_epi32(acc, w, avx2_four(a)); }
static inline ri rp_end(rp acc, ri start) { (void)start; return acc; }
static inline rs rs_byte_u8(rb x, int i) { return ri_byte_u8(x, i); }
static inline rs rs_byte_i8(rb x, int i) { return ri_byte_i8(x, i); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) { return ri_add(acc, ri_mul(sum, scale)); }

static inline ri ri_dot_rh(ri acc, rh w, const int16_t *a) { return _mm256_dpwssd_avx_epi32(acc, w, avx2_two(a)); }

#endif
