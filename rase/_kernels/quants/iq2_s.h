/* IQ2_S: weight = (d / 8 * scale) * (code - 43): 16 sub-blocks of 16, scale 1, 3 .. 31, entries of 8 out of 1024.
 * Packed block where codebooks are in registers: split_iq2.h, with signs in turned order, bits 2 to 5 of every byte, and those of the second
 * sixteen depths four bits higher, around the end of the lane; and a vector of the scales of odd sub-blocks. Else: R d; 2 vectors of scales; 8 vectors of indices; 4 pairs of sign vectors;
 * 4 times R 16-bit words, bits 2g and 2g + 1 of word h: the upper bits of index 8h + g; layout: codebook.h. Accumulator and bound:
 * block256.h. */
#ifndef RASE_QUANTS_IQ2_S_H
#define RASE_QUANTS_IQ2_S_H

#include "grid_iq2.h"
#include "split_iq2.h"

#if RB_PERMUTE
enum { IQ2_S_ODDS = 20 };
TEMPLATE void iq2_s_scales(const uint8_t *block, rb *out) {
    rb odds = rb_load(block + IQ2_S_ODDS * VECTOR);
    UNROLL(h, 4) out[h] = split_scales(block, h, rb_fields(odds, 0, 8 * h - 1, 0, 8 * h + 3));
}
TEMPLATE rf iq2_s_scale(const uint8_t *block, int s) {
    return split_scale(s % 2 ? rb_load(block + IQ2_S_ODDS * VECTOR) : split_evens(block), s / 2);
}
TEMPLATE void iq2_s_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    const int k = 2 * h + i / 2;
    (void)e;
    rb signs = rb_load(block + (SPLIT_SIGNS + k) * VECTOR);
    split_sixteen(iq2_s_planes, block, k, i % 2, i % 2 ? rb_lane_ror(signs, 4) : signs, out);
}
/* Signs of entry i of four. */
static uint32_t iq2_s_turned_signs(unsigned signs, int i) {
    uint32_t turned = 0;
    for (int j = 0; j < 2; j++) { /* depths 0 to 3 are byte i % 2 of the turned codes, the others byte 2 + i % 2 */
        const int to = 8 * (2 * j + i % 2) + 2 + 4 * (i / 2);
        const uint64_t four = (uint64_t)(signs >> 4 * j & 15) << to;
        turned |= (uint32_t)(four | four >> 32);
    }
    return turned;
}
TURNED_BACK(iq2_s)
BLOCK256_EXPAND(iq2_s, 16, 0)
#define IQ2_S_BYTES (SPLIT_BYTES + 4)
#define IQ2_S_IN_REGISTERS .expand = iq2_s_expand, .sixteen = iq2_s_sixteen, .turned = 16, .scale = iq2_s_scale
#else
GRID(iq2_s, IQ2_S_GRID_LIST)
TEMPLATE void iq2_s_scales(const uint8_t *block, rb *out) {
    UNROLL(h, 4) out[h] = odd_scales(rb_load(block + h / 2 * VECTOR), h & 1);
}
TEMPLATE rb iq2_s_codes(const uint8_t *block, int h, int i, int v) {
    const int g = 2 * i + v / 2;
    rb low = rb_byte(rb_load(block + (2 + 2 * h + i / 2) * VECTOR), 2 * (i & 1) + v / 2);
    rb high = move_lane(rb_from_u16(block + 18 * VECTOR + h * 2 * RASE_R), 2 * g, 8);
    rb entry = rb_grid(iq2_s_grid, rb_mix(low, high, 0x300));
    return iq2_entry_codes(entry, v, rb_load(block + (10 + 2 * h + (v & 1)) * VECTOR), g);
}
#define IQ2_S_BYTES 80
#define IQ2_S_IN_REGISTERS
#endif
static const block256 iq2_s = {IQ2_S_BYTES, 16, 86, 43, 0, 0, 0, iq2_s_scales, NULL, iq2_s_codes, .unit_shift = 3, .run = 32, .in_order = 1, IQ2_S_IN_REGISTERS};

/* File block: d, low bytes of the indices[32], signs[32], upper pairs[8], scales[8]. */
static int iq2_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
#if !RB_PERMUTE
    pack_words(src + 2, row_bytes, rows, 8, block + 2 * VECTOR);
#endif
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t *lane = block + 4 * r;
#if RB_PERMUTE
        for (int g = 0; g < 32; g++) split_entry(iq2_s_entries[src[2 + g] | (src[66 + g / 4] >> 2 * (g & 3) & 3) << 8], g, r, block);
        split_pack_evens(src + 74, lane);
        for (int k = 0; k < 8; k++) {
            uint32_t signs = 0;
            for (int i = 0; i < 4; i++) signs |= iq2_s_turned_signs(src[34 + 4 * k + i], i);
            memcpy(lane + (SPLIT_SIGNS + k) * VECTOR, &signs, 4);
            lane[IQ2_S_ODDS * VECTOR + k / 2] |= (uint8_t)(src[74 + k] >> 4 << 4 * (k % 2));
        }
#else
        pack_scales_16(src + 74, lane);
        pack_signs(src + 34, NULL, lane + 10 * VECTOR);
        for (int h = 0; h < 4; h++) memcpy(block + 18 * VECTOR + 2 * (h * RASE_R + r), src + 66 + 2 * h, 2);
#endif
    }
    return 82;
}

BLOCK256_FORMAT(iq2_s, 22)

#endif
