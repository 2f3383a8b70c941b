/* IQ1_S: weight = (d / 8 * scale) * (code - 9), code = 8 * level + (0 or 2): 8 sub-blocks of 32, scale 1, 3 .. 15. Packed block:
 * R d; 13 vectors of levels (trits.h); a vector of nibbles, that of sub-block 4h + i is number h of byte i: three bits of the scale, and
 * whether the weights lie above the codebook's. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ1_S_H
#define RASE_QUANTS_IQ1_S_H

#include "iq1.h"

TEMPLATE void iq1_s_scales(const uint8_t *block, rb *out) {
    rb nibbles = rb_load(block + TRIT_VECTORS * VECTOR);
    UNROLL(h, 2) out[h] = rb_or(move_bits(nibbles, 4 * h, 1, 0x0e), rb_set1(1));
}
TEMPLATE rb iq1_s_codes(const uint8_t *block, int h, int i, int v) {
    return iq1_codes(block, 8 * (4 * h + i) + v, rb_load(block + TRIT_VECTORS * VECTOR), 8 * i + 4 * h + 3);
}
#if RB_PERMUTE
/* By such a nibble: the factor, 8 * scale, times 254 and 1; and scale * (1 or -1 - 8), times 1 and 128. */
#define IQ1_S_FACTOR(nibble) 254 * 8 * IQ1_SCALE(nibble), 8 * IQ1_SCALE(nibble),
#define IQ1_S_BELOW(nibble) IQ1_SCALE(nibble) * ((nibble) & 8 ? -7 : -9)
#define IQ1_S_LESS(nibble) IQ1_S_BELOW(nibble), 128 * IQ1_S_BELOW(nibble),
static const int16_t iq1_s_factor[32] __attribute__((aligned(64))) = {IQ1_NIBBLES(IQ1_S_FACTOR)}, iq1_s_less[32] __attribute__((aligned(64))) = {IQ1_NIBBLES(IQ1_S_LESS)};
TEMPLATE void iq1_s_factors(const uint8_t *block, int h, int i, rh *factor, rh *less) {
    rb nibble = rb_lane_shr(rb_load(block + TRIT_VECTORS * VECTOR), 8 * i + 4 * h);
    *factor = rb_lookup_lanes(iq1_s_factor, nibble), *less = rb_lookup_lanes(iq1_s_less, nibble);
}
TEMPLATE rb iq1_s_levels(const uint8_t *block, int h, int i, int v) { return trits(block, 8 * (4 * h + i) + v); }
#define IQ1_S_IN_REGISTERS .levels = iq1_s_levels, .factors = iq1_s_factors
#else
#define IQ1_S_IN_REGISTERS
#endif
BLOCK256_EXPAND(iq1_s, 32, 1)
static const block256 iq1_s = {TRIT_BYTES + 4, 32, 18, 9, 0, 0, 0, iq1_s_scales, NULL, iq1_s_codes, .unit_shift = 3, .run = 256, .in_order = 1, .fixed = 1, .expand = iq1_s_expand, IQ1_S_IN_REGISTERS};

/* File block: d, low bytes of the indices[32], words[8] of 16 bits: four upper triples of indices, the scale, and whether the weights lie
 * below. */
static int iq1_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint16_t indices[32];
        uint8_t levels[256], *nibbles = block + TRIT_VECTORS * VECTOR + 4 * r;
        for (int s = 0; s < 8; s++) {
            uint16_t word;
            memcpy(&word, src + 34 + 2 * s, 2);
            for (int k = 0; k < 4; k++) indices[4 * s + k] = (uint16_t)(src[2 + 4 * s + k] | (word >> 3 * k & 7) << 8);
            nibbles[s % 4] |= (uint8_t)(((word >> 12) ^ 8) << 4 * (s / 4));
        }
        iq1_levels(indices, levels);
        pack_trits(levels, block + 4 * r);
    }
    return 50;
}

BLOCK256_FORMAT(iq1_s, 19)

#endif
