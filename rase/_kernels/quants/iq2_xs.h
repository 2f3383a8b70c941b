/* IQ2_XS: weight = (d / 8 * scale) * (code - 43): 16 sub-blocks of 16, scale 1, 3 .. 31, entries of 8 out of 512.
 * Packed block where codebooks are in registers: split_iq2.h, with words of four times seven signs and the scale of sub-block 2k + 1. Else: R d; 2 vectors of scales; 8 vectors of indices; 4 pairs of sign vectors,
 * byte 3 of the second: the ninth bits of the 8 indices; layout: codebook.h. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ2_XS_H
#define RASE_QUANTS_IQ2_XS_H

#include "grid_iq2.h"
#include "split_iq2.h"

#if RB_PERMUTE
TEMPLATE void iq2_xs_scales(const uint8_t *block, rb *out) {
    const uint8_t *words = block + SPLIT_SIGNS * VECTOR;
    UNROLL(h, 4) {
        rb odds[2] = {rb_lane_shr(rb_load(words + 2 * h * VECTOR), 28 - 9), rb_lane_shr(rb_load(words + (2 * h + 1) * VECTOR), 28 - 25)};
        out[h] = split_scales(block, h, rb_mix(odds[0], odds[1], 0xff000000));
    }
}
TEMPLATE rf iq2_xs_scale(const uint8_t *block, int s) {
    return s % 2 ? word_scale(block + SPLIT_SIGNS * VECTOR, s / 2) : split_scale(split_evens(block), s / 2);
}
TEMPLATE void iq2_xs_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    const int k = 2 * h + i / 2;
    (void)e;
    split_sixteen(iq2_xs_planes, block, k, i % 2, turned_signs(even_signs(rb_load(block + (SPLIT_SIGNS + k) * VECTOR)), i % 2, 2), out);
}
TURNED_BACK(iq2_xs)
BLOCK256_EXPAND(iq2_xs, 16, 0)
#define IQ2_XS_BYTES SPLIT_BYTES
#define IQ2_XS_IN_REGISTERS .expand = iq2_xs_expand, .sixteen = iq2_xs_sixteen, .turned = 16, .scale = iq2_xs_scale
#else
GRID(iq2_xs, IQ2_XS_GRID_LIST)
TEMPLATE void iq2_xs_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 4) out[h] = odd_scales(rb_load(block + h / 2 * VECTOR), h & 1);
}
TEMPLATE rb iq2_xs_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *z = block + (10 + 2 * h) * VECTOR;
    const int bit = 2 * i + v / 2;
    rb low = rb_byte(rb_load(block + (2 + 2 * h + i / 2) * VECTOR), 2 * (i & 1) + v / 2);
    rb entry = rb_grid(iq2_xs_grid, rb_mix(low, rb_lane_shr(rb_load(z + VECTOR), 16 + bit), 256));
    return iq2_entry_codes(entry, v, even_pair(z, v & 1), bit);
}
#define IQ2_XS_BYTES 72
#define IQ2_XS_IN_REGISTERS
#endif
static const block256 iq2_xs = {IQ2_XS_BYTES, 16, 86, 43, 0, 0, 0, iq2_xs_scales, NULL, iq2_xs_codes, .unit_shift = 3, .run = 32, .in_order = 1, IQ2_XS_IN_REGISTERS};

/* File block: d; 16-bit words of an index (9 bits) and signs (7)[32]; scales[8]. */
static int iq2_xs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t *lane = block + 4 * r;
#if RB_PERMUTE
        uint32_t signs[8] = {0};
        for (int g = 0; g < 32; g++) {
            uint16_t word;
            memcpy(&word, src + 2 + 2 * g, 2);
            split_entry(iq2_xs_entries[word & 511], g, r, block);
            signs[g / 4] |= (uint32_t)(word >> 9) << 7 * (g % 4);
        }
        split_pack_evens(src + 66, lane);
        for (int k = 0; k < 8; k++) {
            signs[k] |= (uint32_t)(src[66 + k] >> 4) << 28;
            memcpy(lane + (SPLIT_SIGNS + k) * VECTOR, signs + k, 4);
        }
#else
        pack_scales_16(src + 66, lane);
        uint8_t signs[32], top[4] = {0};
        for (int g = 0; g < 32; g++) {
            lane[(2 + g / 4) * VECTOR + g % 4] = src[2 + 2 * g];
            signs[g] = src[3 + 2 * g] >> 1;
            top[g / 8] |= (uint8_t)((src[3 + 2 * g] & 1) << g % 8);
        }
        pack_signs(signs, top, lane + 10 * VECTOR);
#endif
    }
    return 74;
}

BLOCK256_FORMAT(iq2_xs, 17)

#endif
