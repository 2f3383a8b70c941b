/* IQ1_S: weight = (d / 8 * scale) * (code - 9), code = 8 * level + (0 or 2): 8 sub-blocks of 32, scale 1, 3 .. 15, entries of 8
 * out of 2048. Packed block: R d; 8 vectors of indices; 4 vectors of two 16-bit words, one per sub-block: four upper triples of
 * indices, the scale, and whether the weights lie above the codebook's. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ1_S_H
#define RASE_QUANTS_IQ1_S_H

#include "codebook.h"
#include "grid_iq1.h"

TEMPLATE void iq1_s_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 2) { /* bits 12 to 14 of each word to bit 1 and up of its byte */
        rb a = rb_load(block + (8 + 2 * h) * VECTOR), b = rb_load(block + (9 + 2 * h) * VECTOR);
        rb low = rb_or(move_lane_bits(a, 12, 1, 0x0e), move_lane_bits(a, 28, 9, 0x0e00));
        rb high = rb_or(move_lane_bits(b, 12, 17, 0x0e0000), move_lane_bits(b, 28, 25, 0x0e000000));
        out[h] = rb_or(rb_or(low, high), rb_set1(1));
    }
}
TEMPLATE rb iq1_s_codes(const uint8_t *block, int h, int i, int v) {
    rb word = rb_load(block + (8 + 2 * h + i / 2) * VECTOR);
    const int start = 16 * (i & 1);
    rb high = move_lane_bits(word, start + 3 * (v / 2), 8, 0x700);
    rb entry = rb_grid(iq1_grid, rb_or(index_byte(block + (4 * h + i) * VECTOR, v / 2), high));
    rb above = rb_and(rb_lane_sign(i & 1 ? word : rb_lane_shl(word, 16)), rb_set1(2));
    return rb_or(move_bits(entry, 4 * (v & 1), 3, 0x18), above);
}
static const block256 iq1_s = {48, 32, 18, 9, 0, iq1_s_scales, NULL, iq1_s_codes, 3, 256, 1};

/* File block: d, low bytes of the indices[32], words[8] of 16 bits whose uppermost means below. */
static int iq1_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 2, row_bytes, rows, 12, block);
    for (int w = 8; w < 12; w++)
        for (int r = 0; r < RASE_R; r++) block[w * VECTOR + 4 * r + 1] ^= 0x80, block[w * VECTOR + 4 * r + 3] ^= 0x80;
    return 50;
}

BLOCK256_FORMAT(iq1_s, 19)

#endif
