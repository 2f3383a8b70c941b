/* IQ2_XXS: weight = (d / 8 * scale) * (code - 43): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 8 out of 256.
 * Packed block: R d; 8 vectors of indices; then 8 vectors: where codebooks are in registers the file's words of 4 times 7 signs and
 * a scale, else 4 pairs of sign vectors, byte 3 of the second of pair i: four-bit scales i (low) and 4 + i (high). Layout: codebook.h.
 * Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ2_XXS_H
#define RASE_QUANTS_IQ2_XXS_H

#include "grid_iq2.h"
#include "turned.h"

#if RB_PERMUTE
PLANES(iq2_xxs, IQ2_XXS_GRID_LIST, IQ2)
static const turned_codes iq2_xxs_values = IQ2_TURNED(IQ2_CODE);
TEMPLATE void iq2_xxs_scales(const uint8_t *block, rb *out) { word_scales(block + 8 * VECTOR, out); }
TEMPLATE void iq2_xxs_turned(const uint8_t *block, int h, int i, int e, rb *out) {
    rb index = rb_load(block + (4 * h + i) * VECTOR);
    iq2_turned(iq2_xxs_values, rb_lookup_256(iq2_xxs_planes[0], index), rb_lookup_256(iq2_xxs_planes[1], index),
               even_signs(rb_load(block + (8 + 4 * h + i) * VECTOR)), e, out);
}
TURNED_BACK(iq2_xxs)
BLOCK256_EXPAND(iq2_xxs, 32, 0)
#define IQ2_XXS_TURNED iq2_xxs_turned
#define IQ2_XXS_EXPAND iq2_xxs_expand
#else
GRID(iq2_xxs, IQ2_XXS_GRID_LIST)
TEMPLATE void iq2_xxs_scales(const uint8_t *block, rb *out) { pair_scales(block + 8 * VECTOR, out); }
TEMPLATE rb iq2_xxs_codes(const uint8_t *block, int h, int i, int v) {
    rb entry = rb_grid(iq2_xxs_grid, rb_byte(rb_load(block + (4 * h + i) * VECTOR), v / 2));
    const uint8_t *z = block + (8 + 2 * (2 * h + i / 2)) * VECTOR;
    return iq2_entry_codes(entry, v, even_pair(z, v & 1), 4 * (i & 1) + v / 2);
}
#define IQ2_XXS_TURNED NULL
#define IQ2_XXS_EXPAND NULL
#endif
static const block256 iq2_xxs = {64, 32, 86, 43, 0, 0, 0, iq2_xxs_scales, NULL, iq2_xxs_codes, 3, 32, 1, 0, IQ2_XXS_EXPAND, IQ2_XXS_TURNED};

/* File block: d; per 32 weights indices[4], then 32 bits of four 7-bit signs and the scale. */
static int iq2_xxs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        for (int s = 0; s < 8; s++) memcpy(block + s * VECTOR + 4 * r, src + 2 + 8 * s, 4);
#if RB_PERMUTE
        pack_sign_words(src + 6, 8, block + 8 * VECTOR + 4 * r);
#else
        pack_sign_pairs(src + 6, 8, block + 8 * VECTOR + 4 * r);
#endif
    }
    return 66;
}

BLOCK256_FORMAT(iq2_xxs, 16)

#endif
