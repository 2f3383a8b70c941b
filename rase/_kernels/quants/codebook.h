/* What the IQ1, IQ2 and IQ3 formats share: indices into a codebook, signs, odd scales.
 *
 * Indices keep the file's order: four low bytes a vector. Signs of a block: pairs of vectors Z0, Z1 for each 64 depths, bit b of
 * byte i for depths 8b + i (Z0) and 8b + 4 + i (Z1). Where the file stores seven signs of eight, the last makes the number of
 * minus signs even: byte 3 of Z1 follows from the seven others, and holds something else. */
#ifndef RASE_QUANTS_CODEBOOK_H
#define RASE_QUANTS_CODEBOOK_H

#include "block256.h"

/* Byte i of vector `words` as a number per row. */
TEMPLATE rb index_byte(const uint8_t *words, int i) {
    rb x = rb_load(words);
    return i == 3 ? rb_lane_shr(x, 24) : rb_and(i ? rb_lane_shr(x, 8 * i) : x, rb_lanes(255));
}
/* Bits `field` and up of every lane to bit `at` and up; mask says which to keep. */
TEMPLATE rb move_lane_bits(rb x, int field, int at, uint32_t mask) {
    rb moved = field > at ? rb_lane_shr(x, field - at) : field < at ? rb_lane_shl(x, at - field) : x;
    return rb_and(moved, rb_lanes(mask));
}

/* 0 or `value` in every byte: the sign of depths 4v to 4v + 3 of group `bit` (8 depths) of Z0 (half 0) or Z1. */
TEMPLATE rb sign_bits(const uint8_t *z, int half, int bit, int at) { return move_bits(rb_load(z + half * VECTOR), bit, at, (uint8_t)(1 << at)); }
TEMPLATE rb even_sign_bits(const uint8_t *z, int half, int bit, int at) {
    rb x = rb_load(z + half * VECTOR);
    if (half) {
        rb seven = rb_and(x, rb_lanes(0x00ffffff)), all = rb_xor(seven, rb_load(z));
        all = rb_xor(all, rb_lane_shl(all, 16));
        all = rb_xor(all, rb_lane_shl(all, 8)); /* byte 3: the exclusive or of all four */
        x = rb_or(seven, rb_and(all, rb_lanes(0xff000000)));
    }
    return move_bits(x, bit, at, (uint8_t)(1 << at));
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

/* Codes of the IQ2 formats from an entry's nibbles, odd vectors the high ones, and signs at bit 2: 43 + or - 8, 25, 43. */
static const uint8_t iq2_values[16] = {51, 68, 86, 0, 35, 18, 0};
TEMPLATE rb iq2_codes(rb entry, int v, rb sign) { return rb_lookup(iq2_values, rb_or(v & 1 ? nibbles(entry, 1) : nibbles(entry, 0), sign)); }

#endif
