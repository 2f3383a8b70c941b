/* IQ3_S: weight = (d * scale) * (code - 15): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 4 out of 512.
 * Packed block: R d; a vector of scales; 16 vectors of indices; 2 vectors of ninth bits, bit 8i + v of vector h: vector v of
 * sub-block 4h + i; 4 pairs of sign vectors. Layout: codebook.h. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ3_S_H
#define RASE_QUANTS_IQ3_S_H

#include "codebook.h"
#include "grid_iq3.h"

/* 15 + or - 1, 3 ... 15; the sign is bit 3. */
static const uint8_t iq3_s_values[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};

TEMPLATE void iq3_s_scales(const uint8_t *block, rb *out) { UNROLL(h, 2) out[h] = odd_scales(rb_load(block), h); }
TEMPLATE rb iq3_s_codes(const uint8_t *block, int h, int i, int v) {
    rb low = index_byte(block + (1 + 2 * (4 * h + i) + v / 4) * VECTOR, v & 3);
    rb ninth = move_lane_bits(rb_load(block + (17 + h) * VECTOR), 8 * i + v, 8, 256);
    const uint8_t *z = block + (19 + 2 * (2 * h + i / 2)) * VECTOR;
    rb entry = rb_grid(iq3_s_grid, rb_or(low, ninth));
    return rb_lookup(iq3_s_values, rb_or(entry, sign_bits(z, v & 1, 4 * (i & 1) + v / 2, 3)));
}
static const block256 iq3_s = {108, 32, 30, 15, 0, iq3_s_scales, NULL, iq3_s_codes, 0, 128, 1};

/* File block: d, low bytes of the indices[64], ninth bits[8], signs[32], scales[4]. */
static int iq3_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 2, row_bytes, rows, 18, block + VECTOR);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        pack_scales_8(src + 106, block + 4 * r);
        pack_signs(src + 74, NULL, block + 19 * VECTOR + 4 * r);
    }
    return 110;
}

BLOCK256_FORMAT(iq3_s, 21)

#endif
