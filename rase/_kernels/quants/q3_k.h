/* Q3_K: weight = (d * scale) * (code - 4); 16 sub-blocks of 16, scale -32..31, code 0..7.
 * Packed block: R d; 3 vectors of 6-bit scales; per two sub-blocks a vector of third bits, bit v for depths 4v to 4v + 3 of
 * the 32, and two vectors of lower pairs, field v for depths 4v to 4v + 3 of the 16. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q3_K_H
#define RASE_QUANTS_Q3_K_H

#include "block256.h"

/* Words A and B hold the low nibbles of scales 0-7 (low) and 8-15 (high), word C the upper pairs: field h for 4h to 4h + 3. */
TEMPLATE void q3_k_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 4) {
        rb low = nibbles(rb_load(block + (h & 1) * VECTOR), h / 2);
        rb high = move_bits(rb_load(block + 2 * VECTOR), 2 * h, 4, 0x30);
        out[h] = rb_sub(rb_or(low, high), rb_set1(32));
    }
}
TEMPLATE rb q3_k_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *two = block + (3 + 3 * (2 * h + i / 2)) * VECTOR;
    rb third = rb_load(two), low = rb_load(two + (1 + (i & 1)) * VECTOR);
    return rb_or(move_bits(low, 2 * v, 0, 3), move_bits(third, 4 * (i & 1) + v, 2, 4));
}
static const block256 q3_k = {108, 16, 7, 4, 0, 1, 0, q3_k_scales, NULL, q3_k_codes, .run = 256};

/* File block: third bits[32] (bit s of byte l: depth 32s + l), lower pairs[64], scales[12], d. */
static int q3_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src + 108, row_bytes, rows, 1, halves);
    pack_words(src + 96, row_bytes, rows, 3, block);
    uint8_t third[8 * VECTOR], low[16 * VECTOR], pairs[16 * VECTOR], *codes = block + 3 * VECTOR;
    pack_words(src, row_bytes, rows, 8, third);
    pack_words(src + 32, row_bytes, rows, 16, low);
    transpose_bits(third);
    regroup_pairs(low, pairs, VECTOR);
    for (int s = 0; s < 8; s++, codes += 3 * VECTOR) {
        memcpy(codes, third + s * VECTOR, VECTOR);
        memcpy(codes + VECTOR, pairs + 2 * s * VECTOR, 2 * VECTOR);
    }
    return 110;
}

BLOCK256_FORMAT(q3_k, 11)

#endif
