/* Q2_K: weight = (d * scale) * code - dmin * minimum; 16 sub-blocks of 16, scale and minimum 0..15, code 0..3.
 * Packed block: R d, R dmin; 4 vectors of scales (low nibble) and minimums (high); 16 vectors of codes, one per sub-block,
 * field v for depths 4v to 4v + 3. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q2_K_H
#define RASE_QUANTS_Q2_K_H

#include "block256.h"

TEMPLATE void q2_k_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 4) out[h] = nibbles(rb_load(block + h * VECTOR), 0);
}
TEMPLATE void q2_k_minimums(const uint8_t *block, rb *out) {
    UNROLL(h, 4) out[h] = nibbles(rb_load(block + h * VECTOR), 1);
}
TEMPLATE rb q2_k_codes(const uint8_t *block, int h, int i, int v) {
    return move_bits(rb_load(block + (4 + 4 * h + i) * VECTOR), 2 * v, 0, 3);
}
static const block256 q2_k = {80, 16, 3, 0, 1, 0, 0, q2_k_scales, q2_k_minimums, q2_k_codes, .run = 256};

/* File block: scales[16], codes[64], d, dmin. */
static int q2_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src + 80, row_bytes, rows, 2, halves);
    uint8_t codes[16 * VECTOR];
    pack_words(src, row_bytes, rows, 4, block);
    pack_words(src + 16, row_bytes, rows, 16, codes);
    regroup_pairs(codes, block + 4 * VECTOR, VECTOR);
    return 84;
}

BLOCK256_FORMAT(q2_k, 10)

#endif
