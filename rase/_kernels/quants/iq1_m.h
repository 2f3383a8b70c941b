/* IQ1_M: weight = (d / 8 * scale) * (code - 9), code = 8 * level + (0 or 2): 16 sub-blocks of 16, scale 1, 3 .. 15. Packed block:
 * R d; R 16-bit words, bit h of nibble i: bit 2 of scale 4h + i; 13 vectors of levels (trits.h); a vector of bits, bit g of a lane:
 * whether the weights of entry g (8 depths) lie above the codebook's; a vector of the scales' lower pairs, field h of byte i.
 * Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ1_M_H
#define RASE_QUANTS_IQ1_M_H

#include "iq1.h"

TEMPLATE void iq1_m_scales(const uint8_t *block, rb *out) {
    rb low = rb_load(block + (TRIT_VECTORS + 1) * VECTOR), top = spread_nibbles(rb_from_u16(block - 2 * RASE_R));
    UNROLL(h, 4) out[h] = rb_or(rb_or(move_bits(low, 2 * h, 1, 6), move_bits(top, h, 3, 8)), rb_set1(1));
}
TEMPLATE rb iq1_m_codes(const uint8_t *block, int h, int i, int v) {
    return iq1_codes(block, 4 * (4 * h + i) + v, rb_load(block + TRIT_VECTORS * VECTOR), 2 * (4 * h + i) + v / 2);
}
BLOCK256_EXPAND(iq1_m, 16, 1)
static const block256 iq1_m = {TRIT_BYTES + 8, 16, 18, 9, 0, 0, 1, iq1_m_scales, NULL, iq1_m_codes, 3, 256, 1, 1, iq1_m_expand, NULL};

/* File block: low bytes of the indices[32]; nibbles[16], three upper bits of the index, and whether the weights lie below; four
 * 16-bit words of four scales each, whose upper nibbles are d. */
static int iq1_m_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    memset(halves, 0, 4 * RASE_R);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint16_t indices[32], d = 0, top = 0, scales;
        uint8_t levels[256], *rest = block + TRIT_VECTORS * VECTOR;
        uint32_t low = 0, above = 0;
        for (int g = 0; g < 32; g++) {
            int nibble = src[32 + g / 2] >> 4 * (g & 1) & 15;
            indices[g] = (uint16_t)(src[g] | (nibble & 7) << 8);
            above |= (uint32_t)(nibble < 8) << g;
        }
        for (int h = 0; h < 4; h++) {
            memcpy(&scales, src + 48 + 2 * h, 2);
            d |= (uint16_t)(scales >> 12 << 4 * h);
            for (int i = 0; i < 4; i++) {
                low |= (uint32_t)(scales >> 3 * i & 3) << (8 * i + 2 * h);
                top |= (uint16_t)((scales >> (3 * i + 2) & 1) << (4 * i + h));
            }
        }
        iq1_levels(indices, levels);
        pack_trits(levels, block + 4 * r);
        memcpy(halves + 2 * r, &d, 2);
        memcpy(rest + 4 * r, &above, 4);
        memcpy(rest + VECTOR + 4 * r, &low, 4);
        memcpy(halves + 2 * (RASE_R + r), &top, 2);
    }
    return 56;
}

BLOCK256_FORMAT(iq1_m, 29)

#endif
