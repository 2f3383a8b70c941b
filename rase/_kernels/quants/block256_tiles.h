/* The K-quants times many activation rows in int8 tiles (AMX): the sums of block256.h, which are integers, in another order.
 *
 * Scale times code, an integer of at most 14 bits and a sign, is cut once per block into 128 * high + low, low in 0..127, so that
 * the tile unit sums all 256 depths without a scale in between: |high| <= 63, |sum| <= 256 * 127 * 127 < 2^23 for either plane,
 * and 128 * high + low is the sum of block256.h, within its bound. What follows is the same arithmetic in the same order, so
 * the bits are those of block256_tile. To be called between the begin and end of rase_tiles.
 *
 * Left: 8 activation rows, both halves of each: 16 rows x 64 depths. Right: [plane][4 steps][16 quadruples of depths][16 rows][4]. */
#ifndef RASE_QUANTS_BLOCK256_TILES_H
#define RASE_QUANTS_BLOCK256_TILES_H

#include "../ops/tiles.h"

enum {
    MANY_ROWS = 8,    /* from so many rows on tiles are faster: a block is unpacked to memory first (1.3 times at 8, 1.8 at 16) */
    TILE_TOKENS = 8,  /* activation rows of a tile */
    MANY_TOKENS = 64, /* activation rows that share an unpacked block */
    PLANE_BYTES = 4 * TILE_BYTES,
};

#define TILE_DOT_INT8(C, A, B) __asm__ volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)

/* Both planes of a block: high, then low. */
TEMPLATE void block256_planes(const block256 f, const uint8_t *block, const rb *scales, uint8_t *planes) {
    const __m512i seven = _mm512_set1_epi16(0x7f), first = _mm512_set1_epi16(0xff);
    for (int h = 0; h < 64 / f.sub; h++) {
        UNROLL(i, 4) {
            ri byte = ri_byte_u8(scales[h], i); /* the signed products below read it as signed */
            __m512i even = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 16)), odd = _mm512_slli_epi16(even, 8);
            UNROLL(v, f.sub / 4) {
                rb w = f.codes(block, h, i, v);
                __m512i a = _mm512_maddubs_epi16(w, even), b = _mm512_maddubs_epi16(w, odd); /* depths 0, 2 and 1, 3 */
                uint8_t *out = planes + ((4 * h + i) * (f.sub / 4) + v) * VECTOR;
                __m512i high = _mm512_ternarylogic_epi64(first, _mm512_srai_epi16(a, 7), _mm512_slli_epi16(b, 1), 0xca);
                __m512i low = _mm512_ternarylogic_epi64(first, _mm512_and_si512(a, seven),
                                                        _mm512_slli_epi16(_mm512_and_si512(b, seven), 8), 0xca);
                _mm512_store_si512(out, high);
                _mm512_store_si512(out + PLANE_BYTES, low);
            }
        }
    }
}

/* 16 rows of 64 depths, `stride` bytes apart, times both planes: tiles 0 and 1 += high and low. */
static inline void tile_planes(const int8_t *left, int64_t stride, const uint8_t *planes) {
    for (int step = 0; step < 4; step++, left += 64, planes += TILE_BYTES) {
        TILE_LOAD(4, left, stride);
        TILE_LOAD(6, planes, 64);
        TILE_LOAD(7, planes + PLANE_BYTES, 64);
        TILE_DOT_INT8(0, 4, 6);
        TILE_DOT_INT8(1, 4, 7);
    }
}

TEMPLATE void block256_group(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, int64_t n,
                             float *out, int64_t out_stride) {
    const int64_t blocks = cols / 256;
    uint8_t planes[2 * PLANE_BYTES] __attribute__((aligned(64)));
    int8_t rest[2 * TILE_TOKENS * 256] __attribute__((aligned(64))); /* a last tile's rows; those beyond are never looked at */
    int32_t high[256] __attribute__((aligned(64))), low[256] __attribute__((aligned(64)));
    float acc[MANY_TOKENS * RASE_R] __attribute__((aligned(64)));
    memset(acc, 0, sizeof acc);
    memset(rest, 0, sizeof rest);
    for (int64_t b = 0; b < blocks; b++, group += block256_bytes(f)) {
        const uint16_t *halves = (const uint16_t *)group;
        const uint8_t *block = group + block256_halves(f);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        rb scales[4];
        rh pairs[8]; /* what multiplies the activation sums of two sub-blocks */
        read_ahead(group, (int)block256_bytes(f) / 64 + 1);
        f.scales(block, scales);
        block256_planes(f, block, scales, planes);
        if (f.has_minimum) f.minimums(block, scales);
        UNROLL(p, 128 / f.sub) pairs[p] = f.offset ? rh_pair_i8(scales[p / 2], p & 1) : rh_pair_u8(scales[p / 2], p & 1);
        for (int64_t t = 0; t < n; t += TILE_TOKENS) {
            const int8_t *q = act->q + 2 * (row + t) * cols + 256 * b;
            TILE_ZERO(0);
            TILE_ZERO(1);
            if (n - t >= TILE_TOKENS) {
                tile_planes(q, cols, planes);
            } else {
                for (int64_t r = 0; r < 2 * (n - t); r++) memcpy(rest + 256 * r, q + r * cols, 256);
                tile_planes(rest, 256, planes);
            }
            TILE_STORE(0, high, 64);
            TILE_STORE(1, low, 64);
            for (int64_t i = 0; i < TILE_TOKENS && t + i < n; i++) {
                const int32_t *sums = act->sums + (2 * (row + t + i) * blocks + b) * 16;
                const float da = act->d[(row + t + i) * blocks + b];
                ri sum[2], side[2];
                UNROLL(half, 2) {
                    int16_t narrow[16];
                    if (f.sub == 16) narrow_sums_16(sums + half * blocks * 16, narrow);
                    else narrow_sums_32(sums + half * blocks * 16, narrow);
                    side[half] = ri_zero();
                    UNROLL(p, 128 / f.sub) side[half] = ri_dot_rh(side[half], pairs[p], narrow + 2 * p);
                    const int64_t at = 16 * (2 * i + half);
                    sum[half] = ri_add(ri_shl(_mm512_load_si512(high + at), 7), _mm512_load_si512(low + at));
                    if (f.offset) sum[half] = ri_sub(sum[half], ri_mul(side[half], ri_set1(f.offset)));
                }
                float *to = acc + (t + i) * RASE_R;
                rf total = join_halves(rf_load(to), sum[0], sum[1], d, da);
                if (f.has_minimum) {
                    ri both = ri_add(ri_mul(side[0], ri_set1(RASE_HALF)), side[1]);
                    total = rf_fnma(rf_mul(dmin, rf_set1(da)), rf_from_ri(both), total);
                }
                rf_store(to, total);
            }
        }
    }
    for (int64_t t = 0; t < n; t++) rf_store(out + t * out_stride, rf_load(acc + t * RASE_R));
}

TEMPLATE void block256_many(const block256 f, const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act,
                            int64_t m0, int64_t m1, float *out, int64_t out_stride) {
    const size_t bytes = round_64((size_t)(cols / 256) * block256_bytes(f));
    for (int64_t g = 0; g < n_groups; g++, group += bytes, out += RASE_R) {
        for (int64_t i = m0; i < m1; i += MANY_TOKENS) {
            int64_t n = m1 - i < MANY_TOKENS ? m1 - i : MANY_TOKENS;
            block256_group(f, group, cols, act, i, n, out + i * out_stride, out_stride);
        }
    }
}

#endif
