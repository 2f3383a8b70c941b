/* Primitives of the codebook and ternary formats: table lookups, shifts of whole lanes, scales that are bytes.
 *
 * A lane is the four bytes of one row as a little-endian 32-bit word. The plain form goes through memory and serves every
 * instruction set; AVX2, AVX-512 and NEON have their own. */
#ifndef RASE_SIMD_LOOKUP_H
#define RASE_SIMD_LOOKUP_H

/* Whether rp_dot_u8 takes codes up to 255: elsewhere at most 127, beyond which a format takes the signed dot product. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !(defined(__AVX2__) || defined(__ARM_NEON))
#define RP_WIDE 1
#else
#define RP_WIDE 0
#endif

/* Whether rp is int32 from the start, not int16 that ri_mad_rp widens. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define RP_INT32 1
#else
#define RP_INT32 0
#endif

/* Permutations of bytes between registers (AVX-512 VBMI, GFNI), for codebooks that fit them. */
#if defined(__AVX512VBMI__) && defined(__GFNI__)
#define RB_PERMUTE 1
/* table[byte & 63] for every byte. */
static inline rb rb_lookup_64(const uint8_t *table, rb index) { return _mm512_permutexvar_epi8(index, rb_load(table)); }
/* table[byte & 15] for every byte, whatever its upper bits. */
static inline rb rb_lookup_16(const uint8_t *table, rb index) {
    return _mm512_permutexvar_epi8(index, _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)));
}
/* Pair lane & 15 of a table for every lane. */
static inline rh rb_lookup_lanes(const int16_t *pairs, rb index) { return _mm512_permutexvar_epi32(index, rh_load(pairs)); }
/* table[byte & 127]. */
static inline rb rb_lookup_128(const uint8_t *table, rb index) { return _mm512_permutex2var_epi8(rb_load(table), index, rb_load(table + 64)); }
/* Byte i of a lane: its bits from a, b, c or d on, constants; beyond its ends others' bits follow. */
static inline rb rb_fields(rb x, int a, int b, int c, int d) {
    const uint64_t low = (uint64_t)(a & 63) | (uint64_t)(b & 63) << 8 | (uint64_t)(c & 63) << 16 | (uint64_t)(d & 63) << 24;
    const uint64_t high = (uint64_t)((a + 32) & 63) | (uint64_t)((b + 32) & 63) << 8 | (uint64_t)((c + 32) & 63) << 16 |
                          (uint64_t)((d + 32) & 63) << 24;
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)(low | high << 32)), x);
}
/* Bit k of every byte becomes the exclusive or of its bits in byte 7 - k of `sums`. */
static inline rb rb_sums(rb x, uint64_t sums) { return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((long long)sums), 0); }
/* Bit 7 of every byte becomes the exclusive or of the seven others. */
static inline rb rb_even(rb x) { return rb_sums(x, 0x010204081020407f); }
/* Two sums that fit int16 side by side; and pairs of int16 multiplied and summed. */
static inline rh rh_pairs(ri x, ri y) { return _mm512_ternarylogic_epi32(x, _mm512_slli_epi32(y, 16), _mm512_set1_epi32(0xffff), 0xe4); }
static inline ri ri_dot_pairs(ri acc, rh x, rh y) { return _mm512_dpwssd_epi32(acc, x, y); }
/* The bytes of every 16 in the order 0 8 4 12, 1 9 5 13, and so on. */
static inline rb rb_turn(rb x) {
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15)));
}
/* The bytes of every 32 in the order 0 8 16 24, 1 9 17 25, and so on. */
static inline rb rb_turn_32(rb x) {
    static const uint8_t order[64] __attribute__((aligned(64))) = {
        0,  8,  16, 24, 1,  9,  17, 25, 2,  10, 18, 26, 3,  11, 19, 27, 4,  12, 20, 28, 5,  13, 21, 29, 6,  14, 22, 30, 7,  15, 23, 31,
        32, 40, 48, 56, 33, 41, 49, 57, 34, 42, 50, 58, 35, 43, 51, 59, 36, 44, 52, 60, 37, 45, 53, 61, 38, 46, 54, 62, 39, 47, 55, 63};
    return _mm512_permutexvar_epi8(rb_load(order), x);
}
/* Words of two vectors to lanes, those of x below: the lower and the upper words of every eight. */
static inline rb rb_join_lower(rb x, rb y) { return _mm512_unpacklo_epi16(x, y); }
static inline rb rb_join_upper(rb x, rb y) { return _mm512_unpackhi_epi16(x, y); }
static inline rb rb_lane_ror(rb x, int n) { return _mm512_ror_epi32(x, (unsigned)n); }
/* Number lane & 15 of a table for every lane. */
static inline rf rf_lookup_lanes(const float *numbers, rb index) { return _mm512_permutexvar_ps(index, rf_load(numbers)); }
/* Four vectors of signed bytes times unsigned ones, x: the sums of their sixteens, in order. */
static inline ri ri_dot_sixteens(rb x, const rb *y) {
    ri four[4], two[2];
    for (int v = 0; v < 4; v++) four[v] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), x, y[v]);
    for (int v = 0; v < 2; v++)
        two[v] = _mm512_add_epi32(_mm512_unpacklo_epi32(four[2 * v], four[2 * v + 1]), _mm512_unpackhi_epi32(four[2 * v], four[2 * v + 1]));
    ri one = _mm512_add_epi32(_mm512_unpacklo_epi64(two[0], two[1]), _mm512_unpackhi_epi64(two[0], two[1]));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), one);
}
/* A vector of signed bytes times x: the sums of its eights, which fit int16. */
static inline void rh_store_eights(int16_t *p, rb x, rb y) {
    ri fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), x, y);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi64_epi16(_mm512_add_epi32(fours, _mm512_srli_epi64(fours, 32))));
}
/* A number for all lanes; and sixteen numbers, or the sums of their neighbours, to memory: how many. */
static inline ri ri_all(const int32_t *p) { return _mm512_set1_epi32(*p); }
static inline int ri_store_all(int32_t *p, ri x) {
    _mm512_storeu_si512(p, x);
    return 16;
}
static inline int ri_store_pairs(int32_t *p, ri x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi64_epi32(_mm512_add_epi32(x, _mm512_srli_epi64(x, 32))));
    return 8;
}
#else
#define RB_PERMUTE 0
#endif

#if defined(__AVX512BW__)
static inline rb rb_xor(rb x, rb y) { return _mm512_xor_si512(x, y); }
static inline rb rb_add(rb x, rb y) { return _mm512_add_epi8(x, y); }
static inline rb rb_lanes(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline rb rb_lane_shr(rb x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
static inline rb rb_lane_shl(rb x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
static inline rb rb_lane_sign(rb x) { return _mm512_srai_epi32(x, 31); }
static inline rb rb_from_u16(const uint8_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
static inline rb rb_lookup(const uint8_t *table, rb index) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), index);
}
static inline rb rb_grid(const uint32_t *grid, rb index) {
    /* Into a fresh register: else the gather would wait for what the register held before. */
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff, index, grid, 4);
}
static inline rb rb_trits(rb x) {
    __m512i one = _mm512_maskz_set1_epi8(_mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86)), 1);
    return _mm512_mask_mov_epi8(one, _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8((char)171)), _mm512_set1_epi8(2));
}
static inline rf rf_from_e8m0(const uint8_t *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(bits, tiny, _mm512_set1_epi32(0x00200000), e));
}
#elif defined(__AVX2__)
static inline rb rb_xor(rb x, rb y) { return _mm256_xor_si256(x, y); }
static inline rb rb_add(rb x, rb y) { return _mm256_add_epi8(x, y); }
static inline rb rb_lanes(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline rb rb_lane_shr(rb x, int n) { return _mm256_srli_epi32(x, n); }
static inline rb rb_lane_shl(rb x, int n) { return _mm256_slli_epi32(x, n); }
static inline rb rb_lane_sign(rb x) { return _mm256_srai_epi32(x, 31); }
static inline rb rb_from_u16(const uint8_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline rb rb_lookup(const uint8_t *table, rb index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}
static inline rb rb_grid(const uint32_t *grid, rb index) { return _mm256_i32gather_epi32((const int *)grid, index, 4); }
static inline rb rb_trits(rb x) { /* unsigned x > 85, and x > 170 */
    __m256i y = _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80)), zero = _mm256_setzero_si256();
    __m256i one = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(85 - 128)), two = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(170 - 128));
    return _mm256_sub_epi8(zero, _mm256_add_epi8(one, two));
}
static inline rf rf_from_e8m0(const uint8_t *p) {
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
#elif defined(RASE_SIMD_NEON_LANES_H)
static inline rb rb_xor(rb x, rb y) { return PAIR_OF2(rb, veorq_u8, x, y); }
static inline rb rb_add(rb x, rb y) { return PAIR_OF2(rb, vaddq_u8, x, y); }
static inline rb neon_rb(uint32x4_t a, uint32x4_t b) { return (rb){vreinterpretq_u8_u32(a), vreinterpretq_u8_u32(b)}; }
static inline uint32x4_t neon_u32(uint8x16_t x) { return vreinterpretq_u32_u8(x); }
static inline rb rb_lanes(uint32_t x) { return neon_rb(vdupq_n_u32(x), vdupq_n_u32(x)); }
static inline rb rb_lane_shr(rb x, int n) {
    return neon_rb(neon_u32(x.a) >> vdupq_n_u32((uint32_t)n), neon_u32(x.b) >> vdupq_n_u32((uint32_t)n));
}
static inline rb rb_lane_shl(rb x, int n) {
    return neon_rb(neon_u32(x.a) << vdupq_n_u32((uint32_t)n), neon_u32(x.b) << vdupq_n_u32((uint32_t)n));
}
static inline rb rb_lane_sign(rb x) {
    return (rb){vreinterpretq_u8_s32(vshrq_n_s32(vreinterpretq_s32_u8(x.a), 31)),
                vreinterpretq_u8_s32(vshrq_n_s32(vreinterpretq_s32_u8(x.b), 31))};
}
static inline rb rb_from_u16(const uint8_t *p) {
    uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(p));
    return neon_rb(vmovl_u16(vget_low_u16(x)), vmovl_high_u16(x));
}
static inline rb rb_lookup(const uint8_t *table, rb index) {
    uint8x16_t entries = vld1q_u8(table);
    return (rb){vqtbl1q_u8(entries, index.a), vqtbl1q_u8(entries, index.b)};
}
static inline rb rb_grid(const uint32_t *grid, rb index) {
    uint32_t lanes[RASE_R];
    rb_store((uint8_t *)lanes, index);
    for (int l = 0; l < RASE_R; l++) lanes[l] = grid[lanes[l]];
    return rb_load((uint8_t *)lanes);
}
static inline uint8x16_t neon_trits(uint8x16_t x) {
    uint8x16_t one = vcgtq_u8(x, vdupq_n_u8(85)), two = vcgtq_u8(x, vdupq_n_u8(170));
    return vsubq_u8(vdupq_n_u8(0), vaddq_u8(one, two));
}
static inline rb rb_trits(rb x) { return (rb){neon_trits(x.a), neon_trits(x.b)}; }
static inline rf rf_from_e8m0(const uint8_t *p) {
    ri e = ri_from_u8(p), bits = ri_shl(ri_sub(e, ri_set1(1)), 23);
    int32x4_t two = vdupq_n_s32(2), tiny = vdupq_n_s32(0x00200000);
    return (rf){vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e.a, two), tiny << e.a, bits.a)),
                vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e.b, two), tiny << e.b, bits.b))};
}
#else
#define EACH(TYPE, COUNT, x, EXPRESSION)                                     \
    TYPE all_[COUNT];                                                        \
    rb_store((uint8_t *)all_, x);                                            \
    for (int l = 0; l < (COUNT); l++) {                                      \
        TYPE x = all_[l];                                                    \
        all_[l] = (TYPE)(EXPRESSION);                                        \
    }                                                                        \
    return rb_load((uint8_t *)all_)
#define EACH_LANE(x, EXPRESSION) EACH(uint32_t, RASE_R, x, EXPRESSION)
#define EACH_BYTE(x, EXPRESSION) EACH(uint8_t, 4 * RASE_R, x, EXPRESSION)
static inline rb rb_xor(rb x, rb y) {
    uint8_t other[4 * RASE_R];
    rb_store(other, y);
    EACH_BYTE(x, x ^ other[l]);
}
static inline rb rb_add(rb x, rb y) { /* modulo 256 */
    uint8_t other[4 * RASE_R];
    rb_store(other, y);
    EACH_BYTE(x, x + other[l]);
}
static inline rb rb_lanes(uint32_t value) {
    uint32_t lanes[RASE_R];
    for (int l = 0; l < RASE_R; l++) lanes[l] = value;
    return rb_load((uint8_t *)lanes);
}
static inline rb rb_lane_shr(rb x, int n) { EACH_LANE(x, x >> n); }
static inline rb rb_lane_shl(rb x, int n) { EACH_LANE(x, x << n); }
/* All bits of a lane its uppermost one. */
static inline rb rb_lane_sign(rb x) { EACH_LANE(x, 0u - (x >> 31)); }
/* R little-endian 16-bit words, a lane each. */
static inline rb rb_from_u16(const uint8_t *p) {
    uint32_t lanes[RASE_R];
    for (int l = 0; l < RASE_R; l++) lanes[l] = (uint32_t)p[2 * l] | (uint32_t)p[2 * l + 1] << 8;
    return rb_load((uint8_t *)lanes);
}
/* table[byte & 15] for every byte; bit 7 of an index must be zero. */
static inline rb rb_lookup(const uint8_t *table, rb index) { EACH_BYTE(index, table[index & 15]); }
/* grid[lane] for every lane. */
static inline rb rb_grid(const uint32_t *grid, rb index) { EACH_LANE(index, grid[index]); }
/* 3 * byte / 256, a number 0..2: the first digit of a byte that stands for the fraction byte / 256 in base 3. */
static inline rb rb_trits(rb x) { EACH_BYTE(x, 3 * x >> 8); }
/* 2^(e - 128) of R bytes: half of what an E8M0 exponent stands for (OCP Microscaling Formats 1.0), subnormal for 0 and 1. */
static inline rf rf_from_e8m0(const uint8_t *p) {
    float lanes[RASE_R];
    for (int l = 0; l < RASE_R; l++) {
        uint32_t bits = p[l] < 2 ? 0x00200000u << p[l] : (uint32_t)(p[l] - 1) << 23;
        memcpy(lanes + l, &bits, 4);
    }
    return rf_load(lanes);
}
#undef EACH
#undef EACH_LANE
#undef EACH_BYTE
#endif

/* x, but y where `lanes`, the same for all, has a bit. */
static inline rb rb_mix(rb x, rb y, uint32_t lanes) {
#if defined(__AVX512BW__)
    return _mm512_ternarylogic_epi32(x, y, rb_lanes(lanes), 0xd8);
#else
    return rb_or(rb_and(x, rb_lanes(~lanes)), rb_and(y, rb_lanes(lanes)));
#endif
}
/* Byte i, a constant, of every lane as a number. */
static inline rb rb_byte(rb x, int i) {
#if defined(__AVX512BW__)
    return ri_byte_u8(x, i);
#else
    return i == 3 ? rb_lane_shr(x, 24) : rb_and(i ? rb_lane_shr(x, 8 * i) : x, rb_lanes(255));
#endif
}

#endif
