/* AVX2 + FMA + F16C: dot products by maddubs. Meanings: scalar.h. */
#ifndef RASE_SIMD_AVX2_H
#define RASE_SIMD_AVX2_H

#include "avx2_lanes.h"

/* |w| * (a with the sign of w): 128 * 127 * 2 = 32512 fits int16. */
typedef ri rq;
static inline rq rq_begin(int32_t sum) { (void)sum; return ri_zero(); }
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(avx2_four(a), w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline ri rq_end(rq acc) { return acc; }

/* rp holds the maddubs pairs in int16 (63 * 127 * 2 = 16002 fits); the madd that adds the pair also multiplies with the scale. */
#define RP_CALLS(max) (32767 / (2 * 127 * (max)))
typedef __m256i rp;
typedef __m256i rs; /* the scale twice, as int16 */
static inline rp rp_begin(ri start) { (void)start; return _mm256_setzero_si256(); }
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) { return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, avx2_four(a))); }
static inline ri rp_end(rp acc, ri start) { return _mm256_add_epi32(start, _mm256_madd_epi16(acc, _mm256_set1_epi16(1))); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) { return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, scale)); }
static inline rs rs_byte_u8(rb x, int i) { return avx2_spread(x, i, i); }
static inline rs rs_byte_i8(rb x, int i) { return avx2_spread_signed(x, i, i); }

static inline ri ri_dot_rh(ri acc, rh w, const int16_t *a) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w, avx2_two(a)));
}

#endif
