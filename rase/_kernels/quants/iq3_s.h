/* IQ3_S: weight = (d * scale) * (code - 15): 8 sub-blocks of 32, scale 1, 3 .. 31, entries of 4 out of 512.
 * Packed block: R d; a vector of scales; 16 vectors of indices; 2 vectors of ninth bits; 8 vectors of signs. Where codebooks are in
 * registers, ninth bits are 64 for each vector of indices and signs the file's bytes; else bit 8i + v of vector h is the ninth one of
 * vector v of sub-block 4h + i, and signs come in 4 pairs of vectors. Layout: codebook.h. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ3_S_H
#define RASE_QUANTS_IQ3_S_H

#include "grid_iq3.h"
#include "turned.h"

/* 15 + or - 1, 3 ... 15. */
#define IQ3_S_CODE(level, sign) ((sign) ? 14 - 2 * ((level) & 7) : 16 + 2 * ((level) & 7))

TEMPLATE void iq3_s_scales(const uint8_t *block, rb *out) { UNROLL(h, 2) out[h] = odd_scales(rb_load(block), h); }
#if RB_PERMUTE
IQ3_PLANES(iq3_s, IQ3_S_GRID_LIST)
static const turned_codes iq3_s_values = IQ3_TURNED(IQ3_S_CODE);
TEMPLATE void iq3_s_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    const int g = 2 * (4 * h + i) + e;
    rb index = rb_load(block + (1 + g) * VECTOR), plane[2];
    UNROLL(p, 2)
        plane[p] = rb_choose(block + 17 * VECTOR + 8 * g, rb_lookup_256(iq3_s_planes[p], index), rb_lookup_256(iq3_s_planes[p] + 256, index));
    iq3_turned(iq3_s_values, plane[0], plane[1], rb_load(block + (19 + 4 * h + i) * VECTOR), e, out);
}
TURNED_BACK(iq3_s)
BLOCK256_EXPAND(iq3_s, 32, 0)
#define IQ3_S_SIXTEEN iq3_s_sixteen
#define IQ3_S_EXPAND iq3_s_expand
#else
GRID(iq3_s, IQ3_S_GRID_LIST)
static const uint8_t iq3_s_values[16] = {CODES_16(IQ3_S_CODE, 0, 3, 0)};
TEMPLATE rb iq3_s_codes(const uint8_t *block, int h, int i, int v) {
    rb low = rb_byte(rb_load(block + (1 + 2 * (4 * h + i) + v / 4) * VECTOR), v & 3);
    rb ninth = move_lane(rb_load(block + (17 + h) * VECTOR), 8 * i + v, 8);
    const uint8_t *z = block + (19 + 2 * (2 * h + i / 2)) * VECTOR;
    rb entry = rb_grid(iq3_s_grid, rb_mix(low, ninth, 256));
    return rb_lookup(iq3_s_values, rb_or(entry, move_bits(rb_load(z + (v & 1) * VECTOR), 4 * (i & 1) + v / 2, 3, 8)));
}
#define IQ3_S_SIXTEEN NULL
#define IQ3_S_EXPAND NULL
#endif
static const block256 iq3_s = {108, 32, 30, 15, 0, 0, 0, iq3_s_scales, NULL, iq3_s_codes, 0, 128, 1, 0, IQ3_S_EXPAND, IQ3_S_SIXTEEN, 1, NULL, NULL};

/* File block: d, low bytes of the indices[64], ninth bits[8], signs[32], scales[4]. */
static int iq3_s_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 2, row_bytes, rows, 18, block + VECTOR);
#if RB_PERMUTE
    order_entries(block + VECTOR, 16);
    memset(block + 17 * VECTOR, 0, 2 * VECTOR);
    pack_ninth_bits(src + 66, row_bytes, rows, block + 17 * VECTOR);
    pack_words(src + 74, row_bytes, rows, 8, block + 19 * VECTOR);
#endif
    for (int r = 0; r < rows; r++, src += row_bytes) {
        pack_scales_8(src + 106, block + 4 * r);
#if !RB_PERMUTE
        pack_signs(src + 74, NULL, block + 19 * VECTOR + 4 * r);
#endif
    }
    return 110;
}

BLOCK256_FORMAT(iq3_s, 21)

#endif
