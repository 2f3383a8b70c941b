/* AVX-512 (F, BW, DQ, VL) with VNNI: 16 rows per group. Meanings: scalar.h. */
#ifndef RASE_SIMD_AVX512_H
#define RASE_SIMD_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

#define RASE_R 16
#define RASE_TILE_ROWS 8
#define RASE_GEMM_ROWS 24
#define RASE_DOT_TILE 2
#define RASE_WIDE_GROUPS 2
#define RASE_WIDE_FOURS 3
#define RASE_WIDE_CHUNK 264
#define RASE_FOUR_ROWS 1
#define RASE_BYTE_SHIFTS 0

static inline float f_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

typedef __m512 v16;

static inline v16 v16_zero(void) { return _mm512_setzero_ps(); }
static inline v16 v16_set1(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
static inline v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
static inline void v16_store_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x); }
static inline v16 v16_add(v16 x, v16 y) { return _mm512_add_ps(x, y); }
static inline v16 v16_sub(v16 x, v16 y) { return _mm512_sub_ps(x, y); }
static inline v16 v16_mul(v16 x, v16 y) { return _mm512_mul_ps(x, y); }
static inline v16 v16_div(v16 x, v16 y) { return _mm512_div_ps(x, y); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return _mm512_fmadd_ps(x, y, z); }
static inline v16 v16_max(v16 x, v16 y) { return _mm512_max_ps(x, y); }
static inline v16 v16_min(v16 x, v16 y) { return _mm512_min_ps(x, y); }
static inline v16 v16_abs(v16 x) { return _mm512_abs_ps(x); }
static inline v16 v16_zero_below(v16 x, float bound, v16 y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_NLT_UQ), y);
}
static inline v16 v16_keep_nan(v16 x, v16 y) { return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }
static inline v16 v16_pow2_magic(v16 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(127)), 23));
}
/* x * 2^n, rounded once; n a whole number. */
static inline v16 v16_ldexp(v16 x, v16 n) { return _mm512_scalef_ps(x, n); }
static inline v16 v16_from_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline v16 v16_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void v16_to_f16(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void v16_to_wide(int16_t *p, v16 x) {
    __m256i words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x));
    _mm256_storeu_si256((__m256i *)p, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
}
static inline void v16_to_i8(int8_t *p, v16 x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
static inline float v16_sum(v16 x) {
    __m256 e = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float v16_maxall(v16 x) { return _mm512_reduce_max_ps(x); }
/* Sixteen sums at once: every fold halves the number of vectors; fold 8 joins i and i + 8, fold 4 i and i + 4, and so on. */
static inline v16 v16_sum16(const v16 *x) {
    __m512 f8[8], f4[4], f2[2];
    for (int i = 0; i < 8; i++) /* 256-bit halves: x[i], x[i + 8] */
        f8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
    for (int i = 0; i < 4; i++) /* 128-bit quarters: i, i + 8, i + 4, i + 12 */
        f4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(f8[i], f8[i + 4], 0x88), _mm512_shuffle_f32x4(f8[i], f8[i + 4], 0xdd));
    for (int i = 0; i < 2; i++) /* in each quarter: two lanes of i, two of i + 2 */
        f2[i] = _mm512_add_ps(_mm512_shuffle_ps(f4[i], f4[i + 2], 0x44), _mm512_shuffle_ps(f4[i], f4[i + 2], 0xee));
    __m512 r = _mm512_add_ps(_mm512_shuffle_ps(f2[0], f2[1], 0x88), _mm512_shuffle_ps(f2[0], f2[1], 0xdd));
    /* quarters of r hold vectors 0-3, 8-11, 4-7, 12-15, each in the order 0 2 1 3 */
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, r);
}

/* 16 vectors of 16 to their columns: neighbours in 128-bit quarters first, then the quarters. */
static inline void v16_transpose(v16 *x) {
    __m512 pairs[16], fours[16];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
        pairs[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) { /* fours[i + c]: column c of each quarter, rows i to i + 3 */
        for (int c = 0; c < 2; c++) {
            __m512d a = _mm512_castps_pd(pairs[i + c]), b = _mm512_castps_pd(pairs[i + c + 2]);
            fours[i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(fours[c], fours[c + 4], 0x88), b = _mm512_shuffle_f32x4(fours[c + 8], fours[c + 12], 0x88);
        __m512 d = _mm512_shuffle_f32x4(fours[c], fours[c + 4], 0xdd), e = _mm512_shuffle_f32x4(fours[c + 8], fours[c + 12], 0xdd);
        x[c] = _mm512_shuffle_f32x4(a, b, 0x88);
        x[c + 4] = _mm512_shuffle_f32x4(d, e, 0x88);
        x[c + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        x[c + 12] = _mm512_shuffle_f32x4(d, e, 0xdd);
    }
}

typedef __m512 rf;
typedef __m512i ri;
typedef __m512i rb;

static inline rf rf_zero(void) { return _mm512_setzero_ps(); }
static inline rf rf_set1(float x) { return _mm512_set1_ps(x); }
static inline rf rf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void rf_store(float *p, rf x) { _mm512_storeu_ps(p, x); }
/* Past the caches, whole lines; others see them after the end. */
#define RASE_STORE_PAST 1
static inline void rf_store_past(float *p, rf x) { _mm512_stream_ps(p, x); }
static inline void rf_stored_past(void) { _mm_sfence(); }
static inline rf rf_mul(rf x, rf y) { return _mm512_mul_ps(x, y); }
static inline rf rf_add(rf x, rf y) { return _mm512_add_ps(x, y); }
static inline rf rf_sub(rf x, rf y) { return _mm512_sub_ps(x, y); }
static inline rf rf_fma(rf x, rf y, rf z) { return _mm512_fmadd_ps(x, y, z); }
static inline rf rf_fnma(rf x, rf y, rf z) { return _mm512_fnmadd_ps(x, y, z); }
static inline rf rf_from_f16(const uint16_t *p) { return v16_from_f16(p); }
static inline rf rf_from_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline rf rf_from_ri(ri x) { return _mm512_cvtepi32_ps(x); }

static inline ri ri_zero(void) { return _mm512_setzero_si512(); }
static inline ri ri_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline ri ri_add(ri x, ri y) { return _mm512_add_epi32(x, y); }
static inline ri ri_sub(ri x, ri y) { return _mm512_sub_epi32(x, y); }
static inline ri ri_mul(ri x, ri y) { return _mm512_mullo_epi32(x, y); }
static inline ri ri_shl(ri x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
static inline ri ri_join(ri a, ri b) {
    ri half = _mm512_set1_epi32(254);
    __asm__("" : "+v"(half)); /* the compiler would multiply by shifts, for which there is one port instead of two */
    return _mm512_add_epi32(_mm512_mullo_epi32(a, half), b);
}
static inline ri ri_from_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline ri ri_from_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }

static inline rb rb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline void rb_store(uint8_t *p, rb x) { _mm512_storeu_si512(p, x); }
static inline rb rb_set1(uint8_t x) { return _mm512_set1_epi8((char)x); }
static inline rb rb_and(rb x, rb y) { return _mm512_and_si512(x, y); }
static inline rb rb_or(rb x, rb y) { return _mm512_or_si512(x, y); }
static inline rb rb_sub(rb x, rb y) { return _mm512_sub_epi8(x, y); }
static inline rb rb_shr(rb x, int n) { return _mm512_srli_epi16(x, (unsigned)n); }
static inline rb rb_shl(rb x, int n) { return _mm512_slli_epi16(x, (unsigned)n); }

static inline __m512i avx512_four(const int8_t *a) { /* becomes the instruction's own broadcast operand */
    int32_t four;
    memcpy(&four, a, 4);
    return _mm512_set1_epi32(four);
}
/* vpdpbusd wants unsigned weights: (w + 128) . a, and the accumulator starts at -128 * sum(a). */
typedef ri rq;
static inline rq rq_begin(int32_t sum) { return _mm512_set1_epi32(-128 * sum); }
static inline rq rq_dot_s8(rq acc, rb w, const int8_t *a) {
    return _mm512_dpbusd_epi32(acc, _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80)), avx512_four(a));
}
static inline ri rq_end(rq acc) { return acc; }

static inline ri ri_byte_u8(rb x, int i) { /* one instruction each; i is a constant */
    if (i == 0) return _mm512_and_si512(x, _mm512_set1_epi32(255));
    if (i == 3) return _mm512_srli_epi32(x, 24);
    const __m128i order = _mm_setr_epi32((int)0x80808000, (int)0x80808004, (int)0x80808008, (int)0x8080800c);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_add_epi32(order, _mm_set1_epi32(i))));
}
static inline ri ri_byte_i8(rb x, int i) { return _mm512_srai_epi32(_mm512_slli_epi32(x, (unsigned)(24 - 8 * i)), 24); }

/* x[e] = byte e of every lane, 0..max, less offset: looked up by the low bits of a lane, or the number in the mantissa of 2^23. */
#define RASE_CODES 1
static inline __attribute__((always_inline)) void rf_codes(rb w, const int max, const int offset, rf *x) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 low = _mm512_sub_ps(numbers, _mm512_set1_ps((float)offset));
    const __m512 high = _mm512_sub_ps(numbers, _mm512_set1_ps((float)offset - 16.0f));
    _Pragma("GCC unroll 4") for (int e = 0; e < 4; e++) {
        __m512i byte = _mm512_srli_epi32(w, (unsigned)(8 * e));
        if (max < 16) x[e] = _mm512_permutexvar_ps(byte, low);
        else if (max < 32) x[e] = _mm512_permutex2var_ps(low, byte, high);
        else {
            byte = _mm512_ternarylogic_epi32(byte, _mm512_set1_epi32(255), _mm512_set1_epi32(0x4b000000), 0xea); /* (x & y) | z */
            x[e] = _mm512_sub_ps(_mm512_castsi512_ps(byte), _mm512_set1_ps(8388608.0f + (float)offset));
        }
    }
}

#define RP_CALLS(max) 64
typedef __m512i rp;
typedef __m512i rs;
static inline rp rp_begin(ri start) { return start; }
static inline rp rp_dot_u8(rp acc, rb w, const int8_t *a) {
    /* The compiler would load and broadcast apart, another instruction for each dot, and move what stands between them to the front. */
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int8_t(*)[4])a));
    return acc;
}
static inline ri rp_end(rp acc, ri start) { (void)start; return acc; }
static inline rs rs_byte_u8(rb x, int i) { return ri_byte_u8(x, i); }
static inline rs rs_byte_i8(rb x, int i) { return ri_byte_i8(x, i); }
static inline ri ri_mad_rp(ri acc, rp sum, rs scale) { return _mm512_add_epi32(acc, _mm512_mullo_epi32(sum, scale)); }

typedef __m512i rh;
/* Bytes 2p and 2p + 1 of every lane to bytes 1 and 3, zeros between; the 16-bit shift then fills with zeros or the sign. */
static inline __m512i avx512_pair(rb x, int p) {
    const int zero = 0x80;
    __m128i lane = _mm_set1_epi32(zero | (2 * p) << 8 | zero << 16 | (2 * p + 1) << 24);
    __m128i order = _mm_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_add_epi32(lane, order)));
}
static inline rh rh_pair_u8(rb x, int p) { return _mm512_srli_epi16(avx512_pair(x, p), 8); }
static inline rh rh_pair_i8(rb x, int p) { return _mm512_srai_epi16(avx512_pair(x, p), 8); }
static inline rh rh_side(rb x, int i) {
    __m512i byte = ri_byte_u8(x, i);
    return _mm512_or_si512(byte, _mm512_slli_epi32(byte, 23));
}
/* Codes times a scale at once: bytes (s, 0, s, 0) of every lane for the even codes, moved up for the odd ones. |code * s| < 2^15. */
#define RASE_SCALE_PAIRS 1
static inline rb rb_scale_pairs(rb x, int i) {
    const __m128i order = _mm_setr_epi32((int)0x80008000, (int)0x80048004, (int)0x80088008, (int)0x800c800c);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_add_epi32(order, _mm_set1_epi32(0x00010001 * i))));
}
static inline rh rh_scaled(rb codes, rb pairs) { return _mm512_maddubs_epi16(codes, pairs); }
static inline ri ri_dot_rh(ri acc, rh w, const int16_t *a) {
    /* The compiler would load and broadcast apart. */
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int16_t(*)[2])a));
    return acc;
}
/* Rows of int16 pairs in a panel (quants/wide.h). */
static inline rh rh_load(const int16_t *p) { return _mm512_load_si512(p); }
static inline void rh_store(int16_t *p, rh x) { _mm512_store_si512(p, x); }
/* Bytes 0 and 2, and 1 and 3, of every lane: the order of rase_act's `wide`. */
static inline rh rh_even_u8(rb x) { return _mm512_and_si512(x, _mm512_set1_epi16(255)); }
static inline rh rh_odd_u8(rb x) { return _mm512_srli_epi16(x, 8); }
static inline rh rh_even_i8(rb x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
static inline rh rh_odd_i8(rb x) { return _mm512_srai_epi16(x, 8); }
static inline rh rh_mul(rh x, rh y) { return _mm512_mullo_epi16(x, y); }
static inline rh rh_sub(rh x, rh y) { return _mm512_sub_epi16(x, y); }
static inline rh rh_set1(int16_t x) { return _mm512_set1_epi16(x); }
static inline rh rh_set2(int16_t x, int16_t y) { return _mm512_set1_epi32((int32_t)((uint16_t)x | (uint32_t)(uint16_t)y << 16)); }
static inline rh rh_twice_u8(rb x, int i) { return _mm512_mullo_epi32(ri_byte_u8(x, i), _mm512_set1_epi32(0x10001)); }
static inline rh rh_twice_i8(rb x, int i) {
    __m512i low = _mm512_and_si512(ri_byte_i8(x, i), _mm512_set1_epi32(0xffff));
    return _mm512_or_si512(low, _mm512_slli_epi32(low, 16));
}

/* wide.h's register tile, whose sums the compiler would move about: 8 pairs of depths of f * 4 rows and g groups at a time, sums in
 * zmm0-23, four after four, weights in zmm24 and 25, an activation in zmm26. `step` is what lies between these depths and the next.
 * Beside them the activations of the next tile come to the first-level cache, 2 lines of four rows for 16 depths. */
#define WIDE_ROW_1(T, S0, S1) "vpbroadcastd 4*\\p+64*" T ", %%zmm26\n\tvpdpwssd %%zmm26, %%zmm24, %%zmm" #S0 "\n\t"
#define WIDE_ROW_2(T, S0, S1) WIDE_ROW_1(T, S0, S1) "vpdpwssd %%zmm26, %%zmm25, %%zmm" #S1 "\n\t"
#define WIDE_FOUR(ROW, AT, S0, S1, S2, S3, S4, S5, S6, S7) ROW("0" AT, S0, S4) ROW("1" AT, S1, S5) ROW("2" AT, S2, S6) ROW("3" AT, S3, S7)
#define WIDE_FOURS_1(ROW) WIDE_FOUR(ROW, "(%[a])", 0, 1, 2, 3, 4, 5, 6, 7)
#define WIDE_FOURS_2(ROW) WIDE_FOURS_1(ROW) WIDE_FOUR(ROW, "(%[a],%[next])", 8, 9, 10, 11, 12, 13, 14, 15)
#define WIDE_FOURS_3(ROW) WIDE_FOURS_2(ROW) WIDE_FOUR(ROW, "(%[a],%[next],2)", 16, 17, 18, 19, 20, 21, 22, 23)
#define WIDE_WEIGHTS_1 "vmovdqa64 64*\\p(%[w]), %%zmm24\n\t"
#define WIDE_WEIGHTS_2 WIDE_WEIGHTS_1 "vmovdqa64 64*\\p(%[w],%[apart]), %%zmm25\n\t"
#define WIDE_SUMS_1_1 "0,1,2,3"
#define WIDE_SUMS_1_2 "0,1,2,3,4,5,6,7"
#define WIDE_SUMS_2_1 WIDE_SUMS_1_1 ",8,9,10,11"
#define WIDE_SUMS_2_2 WIDE_SUMS_1_2 ",8,9,10,11,12,13,14,15"
#define WIDE_SUMS_3_1 WIDE_SUMS_2_1 ",16,17,18,19"
#define WIDE_SUMS_3_2 WIDE_SUMS_2_2 ",16,17,18,19,20,21,22,23"
#define WIDE_AHEAD                                                                                                       \
    ".if \\p < 2\n\tprefetcht0 64*\\p(%[ahead])\n\t.elseif \\p < 4\n\tprefetcht0 64*\\p-128(%[ahead],%[next])\n\t"     \
    ".elseif \\p < 6\n\tprefetcht0 64*\\p-256(%[ahead],%[next],2)\n\t.endif\n\t"
#define WIDE_RUN_OF(F, G)                                                                                                   \
    __asm__ volatile(                                                                                                       \
        ".irp s," WIDE_SUMS_##F##_##G "\n\tvpxord %%zmm\\s, %%zmm\\s, %%zmm\\s\n\t.endr\n\t"                                \
        ".balign 64\n1:\n\t.irp p,0,1,2,3,4,5,6,7\n\t" WIDE_WEIGHTS_##G WIDE_FOURS_##F(WIDE_ROW_##G) WIDE_AHEAD ".endr\n\t"  \
        "addq $512, %[w]\n\taddq %[step], %[a]\n\taddq $128, %[ahead]\n\txorq $192, %[step]\n\tdecq %[n]\n\tjnz 1b\n\t"  \
        ".irp s," WIDE_SUMS_##F##_##G "\n\tvcvtdq2ps %%zmm\\s, %%zmm\\s\n\tvmovaps 64*\\s(%[acc]), %%zmm27\n\t"             \
        "vfmadd231ps 64*\\s(%[d]), %%zmm\\s, %%zmm27\n\tvmovaps %%zmm27, 64*\\s(%[acc])\n\t.endr"                           \
        : [w] "+r"(weights), [a] "+r"(a), [ahead] "+r"(then), [step] "+r"(step), [n] "+r"(n)                               \
        : [apart] "r"(apart), [next] "r"(2 * next), [acc] "r"(acc), [d] "r"(d)                                              \
        : WIDE_CLOBBERS)
#define WIDE_CLOBBERS                                                                                                            \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", \
        "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",     \
        "memory", "cc"
#define RASE_WIDE_RUN 1
static inline __attribute__((always_inline)) void wide_run(float *acc, const float *d, const int16_t *weights, int64_t apart, const int16_t *a,
                                                           int64_t next, int64_t ahead, int at, int depth, const int f, const int g) {
    const int16_t *then = a + ahead + (at ? 3 * 16 : 0);
    int64_t step = at ? 224 : 32, n = depth / 16; /* bytes */
    if (f == 3 && g == 2) WIDE_RUN_OF(3, 2);
    else if (f == 3) WIDE_RUN_OF(3, 1);
    else if (f == 2 && g == 2) WIDE_RUN_OF(2, 2);
    else if (f == 2) WIDE_RUN_OF(2, 1);
    else if (g == 2) WIDE_RUN_OF(1, 2);
    else WIDE_RUN_OF(1, 1);
}

#endif
