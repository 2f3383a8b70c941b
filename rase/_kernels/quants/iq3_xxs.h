/* IQ3_XXS: weight = (d / 4 * scale) * (code - 62): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 4 out of 256.
 * Packed block: R d; 16 vectors of indices; then 8 vectors: where codebooks are in registers the file's words of 4 times 7 signs and
 * a scale, else 4 pairs of sign vectors, byte 3 of the second of pair i: four-bit scales i (low) and 4 + i (high). Layout: codebook.h.
 * Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ3_XXS_H
#define RASE_QUANTS_IQ3_XXS_H

#include "grid_iq3.h"
#include "turned.h"

/* 62 + or - 4, 12 ... 52, 62. */
#define IQ3_XXS_LEVEL(level) (((level) & 7) == 7 ? 62 : 4 + 8 * ((level) & 7))
#define IQ3_XXS_CODE(level, sign) ((sign) ? 62 - IQ3_XXS_LEVEL(level) : 62 + IQ3_XXS_LEVEL(level))

#if RB_PERMUTE
IQ3_PLANES(iq3_xxs, IQ3_XXS_GRID_LIST)
static const turned_codes iq3_xxs_values = IQ3_TURNED(IQ3_XXS_CODE);
TEMPLATE void iq3_xxs_scales(const uint8_t *block, rb *out) { word_scales(block + 16 * VECTOR, out); }
TEMPLATE void iq3_xxs_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    rb index = rb_load(block + (2 * (4 * h + i) + e) * VECTOR);
    iq3_turned(iq3_xxs_values, rb_lookup_256(iq3_xxs_planes[0], index), rb_lookup_256(iq3_xxs_planes[1], index),
               even_signs(rb_load(block + (16 + 4 * h + i) * VECTOR)), e, out);
}
TURNED_BACK(iq3_xxs)
BLOCK256_EXPAND(iq3_xxs, 32, 0)
#define IQ3_XXS_SIXTEEN iq3_xxs_sixteen
#define IQ3_XXS_EXPAND iq3_xxs_expand
#else
GRID(iq3_xxs, IQ3_XXS_GRID_LIST)
static const uint8_t iq3_xxs_values[16] = {CODES_16(IQ3_XXS_CODE, 0, 3, 0)};
TEMPLATE void iq3_xxs_scales(const uint8_t *block, rb *out) { pair_scales(block + 16 * VECTOR, out); }
TEMPLATE rb iq3_xxs_codes(const uint8_t *block, int h, int i, int v) {
    rb entry = rb_grid(iq3_xxs_grid, rb_byte(rb_load(block + (2 * (4 * h + i) + v / 4) * VECTOR), v & 3));
    const uint8_t *z = block + (16 + 2 * (2 * h + i / 2)) * VECTOR;
    return rb_lookup(iq3_xxs_values, rb_or(entry, move_bits(even_pair(z, v & 1), 4 * (i & 1) + v / 2, 3, 8)));
}
#define IQ3_XXS_SIXTEEN NULL
#define IQ3_XXS_EXPAND NULL
#endif
static const block256 iq3_xxs = {96, 32, 124, 62, 0, 0, 0, iq3_xxs_scales, NULL, iq3_xxs_codes, 2, 32, 1, 0, IQ3_XXS_EXPAND, IQ3_XXS_SIXTEEN, 1, NULL, NULL};

/* File block: d, indices[64]; per 32 weights 32 bits of four 7-bit signs and the scale. */
static int iq3_xxs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 2, row_bytes, rows, 16, block);
#if RB_PERMUTE
    order_entries(block, 16);
    for (int r = 0; r < rows; r++, src += row_bytes) pack_sign_words(src + 66, 4, block + 16 * VECTOR + 4 * r);
#else
    for (int r = 0; r < rows; r++, src += row_bytes) pack_sign_pairs(src + 66, 4, block + 16 * VECTOR + 4 * r);
#endif
    return 98;
}

BLOCK256_FORMAT(iq3_xxs, 18)

#endif
