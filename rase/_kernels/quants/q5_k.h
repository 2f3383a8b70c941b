/* Q5_K: weight = (d * scale) * code - dmin * minimum; 8 sub-blocks of 32, scale and minimum 0..63, code 0..31.
 * Packed block: R d, R dmin; 3 vectors of scales; per sub-block a vector of fifth bits, bit v for depths 4v to 4v + 3, and 4
 * vectors of nibbles (depths 0-15 low, 16-31 high). Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q5_K_H
#define RASE_QUANTS_Q5_K_H

#include "q4_k.h"

TEMPLATE rb q5_k_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *sub = block + (3 + 5 * (4 * h + i)) * VECTOR;
    return rb_or(nibbles(rb_load(sub + (1 + (v & 3)) * VECTOR), v / 4), move_bits(rb_load(sub), v, 4, 0x10));
}
static const block256 q5_k = {172, 32, 31, 0, 1, 0, 0, six_bit_scales, six_bit_minimums, q5_k_codes, .run = 32};

/* File block: d, dmin, scales[12], fifth bits[32] (bit s of byte l: sub-block s, weight l), nibbles[128] as in Q4_K. */
static int q5_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 2, halves);
    uint8_t fifth[8 * VECTOR], low[32 * VECTOR], *codes = block + 3 * VECTOR;
    pack_words(src + 4, row_bytes, rows, 3, block);
    pack_words(src + 16, row_bytes, rows, 8, fifth);
    pack_words(src + 48, row_bytes, rows, 32, low);
    transpose_bits(fifth);
    for (int pair = 0; pair < 4; pair++) regroup_nibbles(low + 8 * pair * VECTOR);
    for (int s = 0; s < 8; s++, codes += 5 * VECTOR) {
        memcpy(codes, fifth + s * VECTOR, VECTOR);
        memcpy(codes + VECTOR, low + 4 * s * VECTOR, 4 * VECTOR);
    }
    return 176;
}

BLOCK256_FORMAT(q5_k, 13)

#endif
