/* TQ2_0: weight = d * (code - 1), code 0..2 (3 is possible). Packed block: R d; 16 vectors of codes, one per 16 depths, field v
 * for depths 4v to 4v + 3. Accumulator and bound: block256.h, with one scale of 1. */
#ifndef RASE_QUANTS_TQ2_0_H
#define RASE_QUANTS_TQ2_0_H

#include "block256.h"

TEMPLATE void tq2_0_scales(const uint8_t *block, rb *out) {
    (void)block;
    out[0] = out[1] = rb_set1(1);
}
TEMPLATE rb tq2_0_codes(const uint8_t *block, int h, int i, int v) {
    return move_bits(rb_load(block + (2 * (4 * h + i) + v / 4) * VECTOR), 2 * (v & 3), 0, 3);
}
static const block256 tq2_0 = {64, 32, 3, 1, 0, 0, 0, tq2_0_scales, NULL, tq2_0_codes, .run = 256, .in_order = 1};

/* File block: codes[64], d. */
static int tq2_0_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    uint8_t codes[16 * VECTOR];
    pack_halves(src + 64, row_bytes, rows, 1, halves);
    pack_words(src, row_bytes, rows, 16, codes);
    regroup_pairs(codes, block, VECTOR);
    return 66;
}

BLOCK256_FORMAT(tq2_0, 35)

#endif
