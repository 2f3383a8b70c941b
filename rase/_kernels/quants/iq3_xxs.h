/* IQ3_XXS: weight = (d / 4 * scale) * (code - 62): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 4 out of 256.
 * Packed block: R d; 16 vectors of indices; 4 pairs of sign vectors, byte 3 of the second of pair i: four-bit scales i (low) and
 * 4 + i (high). Layout: codebook.h. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ3_XXS_H
#define RASE_QUANTS_IQ3_XXS_H

#include "codebook.h"
#include "grid_iq3.h"

/* 62 + or - 4, 12 ... 52, 62; the sign is bit 3. */
static const uint8_t iq3_xxs_values[16] = {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0};

TEMPLATE void iq3_xxs_scales(const uint8_t *block, rb *out) {
    rb all = rb_lanes(0);
    UNROLL(i, 4) {
        rb top = rb_and(rb_load(block + (16 + 2 * i + 1) * VECTOR), rb_lanes(0xff000000));
        all = rb_or(all, i < 3 ? rb_lane_shr(top, 24 - 8 * i) : top);
    }
    UNROLL(h, 2) out[h] = odd_scales(all, h);
}
TEMPLATE rb iq3_xxs_codes(const uint8_t *block, int h, int i, int v) {
    rb entry = rb_grid(iq3_xxs_grid, index_byte(block + (2 * (4 * h + i) + v / 4) * VECTOR, v & 3));
    const uint8_t *z = block + (16 + 2 * (2 * h + i / 2)) * VECTOR;
    return rb_lookup(iq3_xxs_values, rb_or(entry, even_sign_bits(z, v & 1, 4 * (i & 1) + v / 2, 3)));
}
static const block256 iq3_xxs = {96, 32, 124, 62, 0, iq3_xxs_scales, NULL, iq3_xxs_codes, 2, 32, 1};

/* File block: d, indices[64]; per 32 weights 32 bits of four 7-bit signs and the scale. */
static int iq3_xxs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 2, row_bytes, rows, 16, block);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t signs[32], top[4] = {0};
        for (int s = 0; s < 8; s++) {
            uint32_t rest;
            memcpy(&rest, src + 66 + 4 * s, 4);
            for (int k = 0; k < 4; k++) signs[4 * s + k] = rest >> 7 * k & 127;
            top[s & 3] |= (uint8_t)(rest >> 28 << 4 * (s / 4));
        }
        pack_signs(signs, top, block + 16 * VECTOR + 4 * r);
    }
    return 98;
}

BLOCK256_FORMAT(iq3_xxs, 18)

#endif
