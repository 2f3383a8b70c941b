/* AVX2 + FMA + F16C: 8 rows per group; v16 is two registers. Everything but the integer dot products, which avx2.h and
 * avxvnni.h add. Meanings: scalar.h. */
#ifndef RASE_SIMD_AVX2_LANES_H
#define RASE_SIMD_AVX2_LANES_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

#define RASE_R 8
#define RASE_TILE_ROWS 4
#define RASE_GEMM_ROWS 12
#define RASE_DOT_TILE 2
#define RASE_WIDE_GROUPS 2
#define RASE_WIDE_FOURS 1
#define RASE_WIDE_CHUNK 64
#define RASE_BYTE_SHIFTS 0

static inline float f_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

typedef struct { __m256 a, b; } v16; /* lanes 0-7, lanes 8-15 */
#define V16(x, y) ((v16){(x), (y)})

static inline v16 v16_zero(void) { return V16(_mm256_setzero_ps(), _mm256_setzero_ps()); }
static inline v16 v16_set1(float x) { return V16(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline v16 v16_load(const float *p) { return V16(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline v16 v16_load_n(const float *p, int n) {
    float lanes[16] = {0};
    memcpy(lanes, p, 4 * (size_t)n);
    return v16_load(lanes);
}
static inline void v16_store_n(float *p, v16 x, int n) {
    float lanes[16];
    v16_store(lanes, x);
    memcpy(p, lanes, 4 * (size_t)n);
}
static inline v16 v16_add(v16 x, v16 y) { return V16(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
static inline v16 v16_sub(v16 x, v16 y) { return V16(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
static inline v16 v16_mul(v16 x, v16 y) { return V16(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
static inline v16 v16_div(v16 x, v16 y) { return V16(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return V16(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
static inline v16 v16_max(v16 x, v16 y) { return V16(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
static inline v16 v16_min(v16 x, v16 y) { return V16(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
static inline v16 v16_abs(v16 x) {
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return V16(_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask));
}
static inline v16 v16_zero_below(v16 x, float bound, v16 y) {
    __m256 least = _mm256_set1_ps(bound);
    return V16(_mm256_andnot_ps(_mm256_cmp_ps(x.a, least, _CMP_LT_OQ), y.a),
               _mm256_andnot_ps(_mm256_cmp_ps(x.b, least, _CMP_LT_OQ), y.b));
}
static inline v16 v16_keep_nan(v16 x, v16 y) {
    return V16(_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
               _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)));
}
static inline __m256 avx2_pow2_magic(__m256 x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127)), 23));
}
static inline v16 v16_pow2_magic(v16 x) { return V16(avx2_pow2_magic(x.a), avx2_pow2_magic(x.b)); }
static inline v16 v16_from_i8(const int8_t *p) {
    return V16(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
               _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}
static inline v16 v16_from_f16(const uint16_t *p) {
    return V16(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void v16_to_f16(uint16_t *p, v16 x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v16_to_wide(int16_t *p, v16 x) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm256_storeu_si256((__m256i *)p, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
}
static inline void v16_to_i8(int8_t *p, v16 x) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}
static inline float avx2_sum8(__m256 x) { /* folds 4, 2, 1 */
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float v16_sum(v16 x) { return avx2_sum8(_mm256_add_ps(x.a, x.b)); }
static inline float v16_maxall(v16 x) {
    __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
/* Eight sums at once: fold 4 joins vectors i and i + 4, fold 2 i and i + 2, fold 1 neighbours. */
static inline __m256 avx2_sum8x8(const __m256 *s) {
    __m256 f4[4], f2[2];
    for (int i = 0; i < 4; i++) /* lanes 0-3: s[i], lanes 4-7: s[i + 4] */
        f4[i] = _mm256_add_ps(_mm256_permute2f128_ps(s[i], s[i + 4], 0x20), _mm256_permute2f128_ps(s[i], s[i + 4], 0x31));
    for (int i = 0; i < 2; i++) /* in each half: two lanes of i, two lanes of i + 2 */
        f2[i] = _mm256_add_ps(_mm256_shuffle_ps(f4[i], f4[i + 2], 0x44), _mm256_shuffle_ps(f4[i], f4[i + 2], 0xee));
    __m256 r = _mm256_add_ps(_mm256_shuffle_ps(f2[0], f2[1], 0x88), _mm256_shuffle_ps(f2[0], f2[1], 0xdd));
    return _mm256_shuffle_ps(r, r, 0xd8); /* 0 2 1 3 -> 0 1 2 3 */
}
static inline v16 v16_sum16(const v16 *x) {
    __m256 s[16];
    for (int i = 0; i < 16; i++) s[i] = _mm256_add_ps(x[i].a, x[i].b);
    return V16(avx2_sum8x8(s), avx2_sum8x8(s + 8));
}

static inline void avx2_transpose(const float *in, float *out) { /* 8 x 8 of rows of 16 */
    __m256 x[8], pairs[8], fours[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_ps(in + 16 * i);
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        pairs[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4) {
        for (int c = 0; c < 2; c++) {
            fours[i + 2 * c] = _mm256_shuffle_ps(pairs[i + c], pairs[i + c + 2], 0x44);
            fours[i + 2 * c + 1] = _mm256_shuffle_ps(pairs[i + c], pairs[i + c + 2], 0xee);
        }
    }
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {
        _mm256_storeu_ps(out + 16 * c, _mm256_permute2f128_ps(fours[c], fours[c + 4], 0x20));
        _mm256_storeu_ps(out + 16 * (c + 4), _mm256_permute2f128_ps(fours[c], fours[c + 4], 0x31));
    }
}
static inline void v16_transpose(v16 *x) {
    float in[256], out[256];
    for (int i = 0; i < 16; i++) v16_store(in + 16 * i, x[i]);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) avx2_transpose(in + 128 * i + 8 * j, out + 128 * j + 8 * i);
    for (int i = 0; i < 16; i++) x[i] = v16_load(out + 16 * i);
}

typedef __m256 rf;
typedef __m256i ri;
typedef __m256i rb;

static inline rf rf_zero(void) { return _mm256_setzero_ps(); }
static inline rf rf_set1(float x) { return _mm256_set1_ps(x); }
static inline rf rf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void rf_store(float *p, rf x) { _mm256_storeu_ps(p, x); }
static inline rf rf_mul(rf x, rf y) { return _mm256_mul_ps(x, y); }
static inline rf rf_add(rf x, rf y) { return _mm256_add_ps(x, y); }
static inline rf rf_sub(rf x, rf y) { return _mm256_sub_ps(x, y); }
static inline rf rf_fma(rf x, rf y, rf z) { return _mm256_fmadd_ps(x, y, z); }
static inline rf rf_fnma(rf x, rf y, rf z) { return _mm256_fnmadd_ps(x, y, z); }
static inline rf rf_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline rf rf_from_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline rf rf_from_ri(ri x) { return _mm256_cvtepi32_ps(x); }

static inline ri ri_zero(void) { return _mm256_setzero_si256(); }
static inline ri ri_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline ri ri_add(ri x, ri y) { return _mm256_add_epi32(x, y); }
static inline ri ri_sub(ri x, ri y) { return _mm256_sub_epi32(x, y); }
static inline ri ri_mul(ri x, ri y) { return _mm256_mullo_epi32(x, y); }
static inline ri ri_shl(ri x, int n) { return _mm256_slli_epi32(x, n); }
static inline ri ri_join(ri a, ri b) { return ri_add(ri_sub(ri_shl(a, 8), ri_shl(a, 1)), b); }
static inline ri ri_from_i8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
static inline ri ri_from_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

static inline rb rb_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void rb_store(uint8_t *p, rb x) { _mm256_storeu_si256((__m256i *)p, x); }
static inline rb rb_set1(uint8_t x) { return _mm256_set1_epi8((char)x); }
static inline rb rb_and(rb x, rb y) { return _mm256_and_si256(x, y); }
static inline rb rb_or(rb x, rb y) { return _mm256_or_si256(x, y); }
static inline rb rb_sub(rb x, rb y) { return _mm256_sub_epi8(x, y); }
static inline rb rb_shr(rb x, int n) { return _mm256_srli_epi16(x, n); }
static inline rb rb_shl(rb x, int n) { return _mm256_slli_epi16(x, n); }

static inline __m256i avx2_four(const int8_t *a) {
    int32_t four;
    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}

static inline ri ri_byte_u8(rb x, int i) { return _mm256_and_si256(_mm256_srli_epi32(x, 8 * i), _mm256_set1_epi32(255)); }
static inline ri ri_byte_i8(rb x, int i) { return _mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * i), 24); }

/* Byte b0 of every lane to byte 0, b1 to byte 2; the others are zero. */
static inline __m256i avx2_spread(__m256i x, int b0, int b1) {
    const int zero = 0x80;
    int lane = b0 | zero << 8 | b1 << 16 | zero << 24;
    __m256i order = _mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c, 0, 0x00040004, 0x00080008, 0x000c000c);
    return _mm256_shuffle_epi8(x, _mm256_add_epi32(_mm256_set1_epi32(lane), order));
}
static inline __m256i avx2_spread_signed(__m256i x, int b0, int b1) {
    return _mm256_srai_epi16(_mm256_slli_epi16(avx2_spread(x, b0, b1), 8), 8);
}

typedef __m256i rh;
static inline rh rh_pair_u8(rb x, int p) { return avx2_spread(x, 2 * p, 2 * p + 1); }
static inline rh rh_pair_i8(rb x, int p) { return avx2_spread_signed(x, 2 * p, 2 * p + 1); }
static inline rh rh_side(rb x, int i) {
    __m256i byte = ri_byte_u8(x, i);
    return _mm256_or_si256(byte, _mm256_slli_epi32(byte, 23));
}
static inline __m256i avx2_two(const int16_t *a) {
    int32_t two;
    memcpy(&two, a, 4);
    return _mm256_set1_epi32(two);
}
/* Rows of int16 pairs in a panel (quants/wide.h). */
static inline rh rh_load(const int16_t *p) { return _mm256_load_si256((const __m256i *)p); }
static inline void rh_store(int16_t *p, rh x) { _mm256_store_si256((__m256i *)p, x); }
/* Bytes 0 and 2, and 1 and 3, of every lane: the order of rase_act's `wide`. */
/* Codes times a scale at once: bytes (s, 0, s, 0) of every lane for the even codes, moved up for the odd ones. |code * s| < 2^15. */
#define RASE_SCALE_PAIRS 1
static inline rb rb_scale_pairs(rb x, int i) {
    const __m128i order = _mm_setr_epi32((int)0x80008000, (int)0x80048004, (int)0x80088008, (int)0x800c800c);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(_mm_add_epi32(order, _mm_set1_epi32(0x00010001 * i))));
}
static inline rh rh_scaled(rb codes, rb pairs) { return _mm256_maddubs_epi16(codes, pairs); }
static inline rh rh_even_u8(rb x) { return _mm256_and_si256(x, _mm256_set1_epi16(255)); }
static inline rh rh_odd_u8(rb x) { return _mm256_srli_epi16(x, 8); }
static inline rh rh_even_i8(rb x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static inline rh rh_odd_i8(rb x) { return _mm256_srai_epi16(x, 8); }
static inline rh rh_mul(rh x, rh y) { return _mm256_mullo_epi16(x, y); }
static inline rh rh_sub(rh x, rh y) { return _mm256_sub_epi16(x, y); }
static inline rh rh_set1(int16_t x) { return _mm256_set1_epi16(x); }
static inline rh rh_set2(int16_t x, int16_t y) { return _mm256_set1_epi32((int32_t)((uint16_t)x | (uint32_t)(uint16_t)y << 16)); }
static inline rh rh_twice_u8(rb x, int i) { return avx2_spread(x, i, i); }
static inline rh rh_twice_i8(rb x, int i) { return avx2_spread_signed(x, i, i); }

#endif
