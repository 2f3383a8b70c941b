/* Q4_K: weight = (d * scale) * code - dmin * minimum; 8 sub-blocks of 32, scale and minimum 0..63, code 0..15.
 * Packed block: R d, R dmin; 3 vectors of scales; per sub-block 4 vectors of nibbles (depths 0-15 low, 16-31 high).
 * Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q4_K_H
#define RASE_QUANTS_Q4_K_H

#include "block256.h"

TEMPLATE rb q4_k_codes(const uint8_t *block, int h, int i, int v) {
    return nibbles(rb_load(block + (3 + 4 * (4 * h + i) + (v & 3)) * VECTOR), v / 4);
}
static const block256 q4_k = {140, 32, 15, 0, 1, 0, 0, six_bit_scales, six_bit_minimums, q4_k_codes, 0, 64, 0, 0, NULL};

/* Nibbles of two neighbouring sub-blocks share the file's bytes: low the first, high the second. 8 vectors, in place. */
static void regroup_nibbles(uint8_t *codes) {
    for (int v = 0; v < 4; v++) swap_fields(codes + v * VECTOR, codes + (v + 4) * VECTOR, 4);
}

/* File block: d, dmin, scales[12], nibbles[128]. */
static int q4_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 2, halves);
    pack_words(src + 4, row_bytes, rows, 35, block);
    for (int pair = 0; pair < 4; pair++) regroup_nibbles(block + (3 + 8 * pair) * VECTOR);
    return 144;
}

BLOCK256_FORMAT(q4_k, 12)

#endif
