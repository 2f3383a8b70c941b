/* IQ2_S: weight = (d / 8 * scale) * (code - 43): 16 sub-blocks of 16, scale 1, 3 .. 31, entries of 8 out of 1024.
 * Packed block where codebooks are in registers: split_iq2.h. Else: R d; 2 vectors of scales; 8 vectors of indices; 4 pairs of sign vectors;
 * 4 times R 16-bit words, bits 2g and 2g + 1 of word h: the upper bits of index 8h + g; layout: codebook.h. Accumulator and bound:
 * block256.h. */
#ifndef RASE_QUANTS_IQ2_S_H
#define RASE_QUANTS_IQ2_S_H

#include "grid_iq2.h"
#include "split_iq2.h"

#if RB_PERMUTE
TEMPLATE void iq2_s_scales(const uint8_t *block, rb *out) {
    rb odd = rb_load(block + SPLIT_SCALES * VECTOR);
    UNROLL(h, 4)
        out[h] = split_odd(rb_mix(rb_from_tops(split_even_scales(block, h)), rb_fields(odd, 0, 8 * h - 1, 0, 8 * h + 3), 0xff00ff00));
}
TEMPLATE void iq2_s_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    const int k = 2 * h + i / 2;
    (void)e;
    split_sixteen(iq2_s_planes, block, k, i / 2, i % 2, rb_load(block + (SPLIT_SIGNS + k) * VECTOR), out);
}
TURNED_BACK(iq2_s)
BLOCK256_EXPAND(iq2_s, 16, 0)
#define IQ2_S_BYTES (SPLIT_BYTES + 4)
#define IQ2_S_SIXTEEN iq2_s_sixteen
#define IQ2_S_EXPAND iq2_s_expand
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
#define IQ2_S_SIXTEEN NULL
#define IQ2_S_EXPAND NULL
#endif
static const block256 iq2_s = {IQ2_S_BYTES, 16, 86, 43, 0, 0, 0, iq2_s_scales, NULL, iq2_s_codes, 3, 32, 1, 0, IQ2_S_EXPAND, IQ2_S_SIXTEEN, 1, NULL, NULL};

/* File block: d, low bytes of the indices[32], signs[32], upper pairs[8], scales[8]. */
static int iq2_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
#if !RB_PERMUTE
    pack_words(src + 2, row_bytes, rows, 8, block + 2 * VECTOR);
#endif
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t *lane = block + 4 * r;
#if RB_PERMUTE
        for (int g = 0; g < 32; g++)
            split_entry(iq2_s_entries[src[2 + g] | (src[66 + g / 4] >> 2 * (g & 3) & 3) << 8], src[34 + g], g, lane);
        for (int k = 0; k < 8; k++) {
            split_scale(src[74 + k] & 15, lane + k * VECTOR);
            lane[SPLIT_SCALES * VECTOR + k / 2] |= (uint8_t)(src[74 + k] >> 4 << 4 * (k & 1));
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
