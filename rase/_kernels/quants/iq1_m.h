/* IQ1_M: weight = (d / 8 * scale) * (code - 9), code = 8 * level + (0 or 2): 16 sub-blocks of 16, scale 1, 3 .. 15, entries of 8
 * out of 2048. Packed block: R d; R 16-bit words, bit h of nibble i: bit 2 of scale 4h + i; a vector of the scales' lower
 * pairs, field h of byte i; 8 vectors of indices; 4 vectors of nibbles, one per entry: the upper triple of the index, and
 * whether the weights lie above the codebook's. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ1_M_H
#define RASE_QUANTS_IQ1_M_H

#include "codebook.h"
#include "grid_iq1.h"

TEMPLATE void iq1_m_scales(const uint8_t *block, rb *out) {
    rb top = spread_nibbles(rb_from_u16(block)), low = rb_load(block + 2 * RASE_R);
    UNROLL(h, 4) out[h] = rb_or(rb_or(move_bits(low, 2 * h, 1, 6), move_bits(top, h, 3, 8)), rb_set1(1));
}
TEMPLATE rb iq1_m_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *words = block + 2 * RASE_R + VECTOR;
    const int g = 2 * i + v / 2;
    rb word = rb_load(words + (8 + h) * VECTOR), high = move_lane_bits(word, 4 * g, 8, 0x700);
    rb entry = rb_grid(iq1_grid, rb_or(index_byte(words + (2 * h + i / 2) * VECTOR, 2 * (i & 1) + v / 2), high));
    rb above = rb_and(rb_lane_sign(g < 7 ? rb_lane_shl(word, 28 - 4 * g) : word), rb_set1(2));
    return rb_or(move_bits(entry, 4 * (v & 1), 3, 0x18), above);
}
static const block256 iq1_m = {54, 16, 18, 9, 0, iq1_m_scales, NULL, iq1_m_codes, 3, 256, 1};

/* File block: low bytes of the indices[32]; nibbles[16], whose uppermost bit means below; four 16-bit words of four scales
 * each, whose upper nibbles are d. */
static int iq1_m_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    uint8_t *words = block + 2 * RASE_R + VECTOR;
    pack_words(src, row_bytes, rows, 12, words);
    for (int w = 8; w < 12; w++)
        for (int b = 0; b < VECTOR; b++) words[w * VECTOR + b] ^= 0x88;
    memset(halves, 0, 2 * RASE_R);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint16_t d = 0, top = 0, scales;
        uint32_t low = 0;
        for (int h = 0; h < 4; h++) {
            memcpy(&scales, src + 48 + 2 * h, 2);
            d |= (uint16_t)(scales >> 12 << 4 * h);
            for (int i = 0; i < 4; i++) {
                low |= (uint32_t)(scales >> 3 * i & 3) << (8 * i + 2 * h);
                top |= (uint16_t)((scales >> (3 * i + 2) & 1) << (4 * i + h));
            }
        }
        memcpy(halves + 2 * r, &d, 2);
        memcpy(block + 2 * r, &top, 2);
        memcpy(block + 2 * RASE_R + 4 * r, &low, 4);
    }
    return 56;
}

BLOCK256_FORMAT(iq1_m, 29)

#endif
