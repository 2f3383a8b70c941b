/* IQ2_XXS: weight = (d / 8 * scale) * (code - 43): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 8 out of 256.
 * Packed block: R d; 8 vectors of indices; 4 pairs of sign vectors, byte 3 of the second of pair i: four-bit scales i (low) and
 * 4 + i (high). Layout: codebook.h. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ2_XXS_H
#define RASE_QUANTS_IQ2_XXS_H

#include "codebook.h"
#include "grid_iq2.h"

TEMPLATE void iq2_xxs_scales(const uint8_t *block, rb *out) {
    rb all = rb_lanes(0);
    UNROLL(i, 4) {
        rb top = rb_and(rb_load(block + (8 + 2 * i + 1) * VECTOR), rb_lanes(0xff000000));
        all = rb_or(all, i < 3 ? rb_lane_shr(top, 24 - 8 * i) : top);
    }
    UNROLL(h, 2) out[h] = odd_scales(all, h);
}
TEMPLATE rb iq2_xxs_codes(const uint8_t *block, int h, int i, int v) {
    rb entry = rb_grid(iq2_xxs_grid, index_byte(block + (4 * h + i) * VECTOR, v / 2));
    const uint8_t *z = block + (8 + 2 * (2 * h + i / 2)) * VECTOR;
    return iq2_codes(entry, v, even_sign_bits(z, v & 1, 4 * (i & 1) + v / 2, 2));
}
static const block256 iq2_xxs = {64, 32, 86, 43, 0, iq2_xxs_scales, NULL, iq2_xxs_codes, 3, 32, 1};

/* File block: d; per 32 weights indices[4], then 32 bits of four 7-bit signs and the scale. */
static int iq2_xxs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t signs[32], top[4] = {0};
        for (int s = 0; s < 8; s++) {
            uint32_t rest;
            memcpy(block + s * VECTOR + 4 * r, src + 2 + 8 * s, 4);
            memcpy(&rest, src + 6 + 8 * s, 4);
            for (int k = 0; k < 4; k++) signs[4 * s + k] = rest >> 7 * k & 127;
            top[s & 3] |= (uint8_t)(rest >> 28 << 4 * (s / 4));
        }
        pack_signs(signs, top, block + 8 * VECTOR + 4 * r);
    }
    return 66;
}

BLOCK256_FORMAT(iq2_xxs, 16)

#endif
