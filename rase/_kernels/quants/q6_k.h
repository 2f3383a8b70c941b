/* Q6_K: weight = (d * scale) * (code - 32); 16 sub-blocks of 16, scale -128..127, code 0..63.
 * Packed block: R d; 4 vectors of scales; per sub-block a vector of the upper two bits, field v for depths 4v to 4v + 3, and
 * two vectors of low nibbles (depths 0-7 low, 8-15 high). Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q6_K_H
#define RASE_QUANTS_Q6_K_H

#include "block256.h"

TEMPLATE void q6_k_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 4) out[h] = rb_load(block + h * VECTOR);
}
TEMPLATE rb q6_k_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *sub = block + (4 + 3 * (4 * h + i)) * VECTOR;
    return rb_or(nibbles(rb_load(sub + (1 + (v & 1)) * VECTOR), v / 2), move_bits(rb_load(sub), 2 * v, 4, 0x30));
}
static const block256 q6_k = {208, 16, 63, 32, 0, 1, 0, q6_k_scales, NULL, q6_k_codes, .run = 16};

/* File block: low nibbles[128], upper pairs[64], scales[16], d. In half h, byte 32p + 16e + 4v + i of the nibbles holds depths
 * 128h + 32p + 16e + 4v + i (low) and 64 more (high). */
static int q6_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    uint8_t half[16 * VECTOR], *codes = block + 4 * VECTOR;
    pack_halves(src + 208, row_bytes, rows, 1, halves);
    pack_words(src + 192, row_bytes, rows, 4, block);
    for (int h = 0; h < 2; h++) {
        pack_words(src + 64 * h, row_bytes, rows, 16, half);
        for (int p = 0; p < 2; p++) {
            for (int e = 0; e < 2; e++) {
                uint8_t *four = half + (8 * p + 4 * e) * VECTOR, *low = codes + (3 * (8 * h + 2 * p + e) + 1) * VECTOR;
                for (int v = 0; v < 2; v++) swap_fields(four + v * VECTOR, four + (v + 2) * VECTOR, 4);
                memcpy(low, four, 2 * VECTOR);
                memcpy(low + 12 * VECTOR, four + 2 * VECTOR, 2 * VECTOR);
            }
        }
    }
    pack_words(src + 128, row_bytes, rows, 16, half);
    regroup_pairs(half, codes, 3 * VECTOR);
    return 210;
}

BLOCK256_FORMAT(q6_k, 14)

#endif
