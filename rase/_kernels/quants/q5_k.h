/* Q5_K: weight = (d * scale) * code - dmin * minimum; 8 sub-blocks of 32, scale and minimum 0..63, code 0..31.
 * Packed block: R d, R dmin; 3 vectors of scales; 8 vectors of fifth bits, one per sub-block, bit v for depths 4v to 4v + 3;
 * per sub-block 4 vectors of nibbles (depths 0-15 low, 16-31 high). Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q5_K_H
#define RASE_QUANTS_Q5_K_H

#include "q4_k.h"

TEMPLATE rb q5_k_codes(const uint8_t *block, int h, int i, int v) {
    rb fifth = rb_load(block + (3 + 4 * h + i) * VECTOR);
    return rb_or(q4_k_codes(block + 8 * VECTOR, h, i, v), move_bits(fifth, v, 4, 0x10));
}
static const block256 q5_k = {172, 32, 31, 0, 1, six_bit_scales, six_bit_minimums, q5_k_codes};

/* File block: d, dmin, scales[12], fifth bits[32] (bit s of byte l: sub-block s, weight l), nibbles[128] as in Q4_K. */
static int q5_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 2, halves);
    pack_words(src + 4, row_bytes, rows, 43, block);
    transpose_bits(block + 3 * VECTOR);
    for (int pair = 0; pair < 4; pair++) regroup_nibbles(block + (11 + 8 * pair) * VECTOR);
    return 176;
}

BLOCK256_FORMAT(q5_k, 13)

#endif
