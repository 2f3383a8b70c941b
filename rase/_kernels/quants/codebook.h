/* What the IQ formats share: indices into a codebook, signs, odd scales. turned.h has another way, for codebooks that fit registers.
 *
 * Indices keep the file's order: four low bytes a vector; entries are gathered from memory. Signs of a block: pairs of vectors Z0,
 * Z1 for each 64 depths, bit b of byte i for depths 8b + i (Z0) and 8b + 4 + i (Z1). Where the file stores seven signs of eight,
 * the last makes the number of minus signs even: byte 3 of Z1 follows from the seven others, and holds something else. */
#ifndef RASE_QUANTS_CODEBOOK_H
#define RASE_QUANTS_CODEBOOK_H

#include "block256.h"

#define WORD(x) x,
#define GRID(NAME, LIST) static const uint32_t NAME##_grid[] = {LIST(WORD)};

TEMPLATE rb move_lane(rb x, int field, int at) {
    return field > at ? rb_lane_shr(x, field - at) : field < at ? rb_lane_shl(x, at - field) : x;
}

/* 32 bytes of signs of one row to its lanes of Z0, Z1 of each 64 depths; with `top` (4 bytes) that becomes byte 3 of Z1. */
static void pack_signs(const uint8_t *signs, const uint8_t *top, uint8_t *lane) {
    for (int q = 0; q < 4; q++, lane += 2 * VECTOR) {
        uint64_t x, y;
        memcpy(&x, signs + 8 * q, 8); /* transpose 8 x 8 bits */
        y = (x ^ x >> 7) & 0x00aa00aa00aa00aaull, x ^= y ^ y << 7;
        y = (x ^ x >> 14) & 0x0000cccc0000ccccull, x ^= y ^ y << 14;
        y = (x ^ x >> 28) & 0x00000000f0f0f0f0ull, x ^= y ^ y << 28;
        if (top) x = (x & 0x00ffffffffffffffull) | (uint64_t)top[q] << 56;
        memcpy(lane, &x, 4);
        memcpy(lane + VECTOR, (uint8_t *)&x + 4, 4);
    }
}
/* Z0 (half 0) or Z1 with eight signs for each entry, where byte 3 of Z1 says something else. */
TEMPLATE rb even_pair(const uint8_t *z, int half) {
    if (!half) return rb_load(z);
    rb seven = rb_and(rb_load(z + VECTOR), rb_lanes(0x00ffffff)), all = rb_xor(seven, rb_load(z));
    all = rb_xor(all, rb_lane_shl(all, 16));
    return rb_mix(seven, rb_xor(all, rb_lane_shl(all, 8)), 0xff000000); /* byte 3: the exclusive or of all four */
}

/* 2s + 1 of four-bit scales: they count in halves. Field h of the bytes of a vector is the nibble. */
TEMPLATE rb odd_scales(rb x, int h) { return rb_or(move_bits(x, 4 * h, 1, 0x1e), rb_set1(1)); }

/* 16 scales of four bits, two to a byte, to two vectors: byte i of vector k holds scale 8k + i low and 8k + 4 + i high. */
static void pack_scales_16(const uint8_t *scales, uint8_t *lane) {
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++) {
            const uint8_t *four = scales + 4 * k + i / 2;
            lane[k * VECTOR + i] = (uint8_t)((four[0] >> 4 * (i & 1) & 15) | (four[2] >> 4 * (i & 1) & 15) << 4);
        }
    }
}
/* 8 scales the same way, to one vector. */
static void pack_scales_8(const uint8_t *scales, uint8_t *lane) {
    for (int i = 0; i < 4; i++)
        lane[i] = (uint8_t)((scales[i / 2] >> 4 * (i & 1) & 15) | (scales[2 + i / 2] >> 4 * (i & 1) & 15) << 4);
}
/* Four-bit scales in byte 3 of the second vector of each pair. */
TEMPLATE void pair_scales(const uint8_t *pairs, rb *out) {
    rb all = rb_lanes(0);
    UNROLL(i, 4) {
        rb top = rb_and(rb_load(pairs + (2 * i + 1) * VECTOR), rb_lanes(0xff000000));
        all = rb_or(all, i < 3 ? rb_lane_shr(top, 24 - 8 * i) : top);
    }
    UNROLL(h, 2) out[h] = odd_scales(all, h);
}
/* The other way: 8 words of four times seven signs and a scale, `stride` bytes apart in the file, to pairs. */
static void pack_sign_pairs(const uint8_t *words, int stride, uint8_t *lane) {
    uint8_t signs[32], top[4] = {0};
    for (int s = 0; s < 8; s++) {
        uint32_t word;
        memcpy(&word, words + stride * s, 4);
        for (int k = 0; k < 4; k++) signs[4 * s + k] = word >> 7 * k & 127;
        top[s & 3] |= (uint8_t)(word >> 28 << 4 * (s / 4));
    }
    pack_signs(signs, top, lane);
}

/* Tables CODE(level, sign) by a byte whose bits from LEVEL on are a level and bit SIGN a sign; CODE ignores other bits of `level`. */
#define CODE_AT(CODE, LEVEL, SIGN, X) CODE((X) >> (LEVEL), (X) >> (SIGN) & 1)
#define CODES_4(CODE, LEVEL, SIGN, X)                                                                                       \
    CODE_AT(CODE, LEVEL, SIGN, X), CODE_AT(CODE, LEVEL, SIGN, (X) + 1), CODE_AT(CODE, LEVEL, SIGN, (X) + 2),                 \
        CODE_AT(CODE, LEVEL, SIGN, (X) + 3)
#define CODES_16(CODE, LEVEL, SIGN, X)                                                                                      \
    CODES_4(CODE, LEVEL, SIGN, X), CODES_4(CODE, LEVEL, SIGN, (X) + 4), CODES_4(CODE, LEVEL, SIGN, (X) + 8),                 \
        CODES_4(CODE, LEVEL, SIGN, (X) + 12)
#define CODES_64(CODE, LEVEL, SIGN)                                                                                         \
    {CODES_16(CODE, LEVEL, SIGN, 0), CODES_16(CODE, LEVEL, SIGN, 16), CODES_16(CODE, LEVEL, SIGN, 32),                       \
     CODES_16(CODE, LEVEL, SIGN, 48)}

/* IQ2: 43 + or - 8, 25, 43. */
#define IQ2_LEVEL(level) (((level) & 3) == 0 ? 8 : ((level) & 3) == 1 ? 25 : 43)
#define IQ2_CODE(level, sign) ((sign) ? 43 - IQ2_LEVEL(level) : 43 + IQ2_LEVEL(level))

#if !RB_PERMUTE
/* Codes of vector v of an entry, whose odd vectors are the high nibbles, with signs at `bit` of z, which is Z0 or Z1 as v is even or odd. */
static const uint8_t iq2_codes[16] = {CODES_16(IQ2_CODE, 0, 2, 0)};
TEMPLATE rb iq2_entry_codes(rb entry, int v, rb z, const int bit) {
    return rb_lookup(iq2_codes, rb_or(nibbles(entry, v & 1), move_bits(z, bit, 2, 4)));
}
#endif

#endif
