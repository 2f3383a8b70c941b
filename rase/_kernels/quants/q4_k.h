/* Q4_K: weight = (d * scale) * code - dmin * minimum; 8 sub-blocks of 32, scale and minimum 0..63, code 0..15.
 * Packed block: R d, R dmin; 3 vectors of scales; per sub-block 4 vectors of nibbles (depths 0-15 low, 16-31 high).
 * Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_Q4_K_H
#define RASE_QUANTS_Q4_K_H

#include "block256.h"

TEMPLATE rb q4_k_codes(const uint8_t *block, int h, int i, int v) {
    return nibbles(rb_load(block + (3 + 4 * (4 * h + i) + (v & 3)) * VECTOR), v / 4);
}
static const block256 q4_k = {140, 32, 15, 0, 1, 0, 0, six_bit_scales, six_bit_minimums, q4_k_codes, .run = 64};

/* Nibbles of two neighbouring sub-blocks share the file's bytes: low the first, high the second. 8 vectors, in place. */
static void regroup_nibbles(uint8_t *codes) {
    for (int v = 0; v < 4; v++) swap_fields(codes + v * VECTOR, codes + (v + 4) * VECTOR, 4);
}

/* File block: d, dmin, scales[12], nibbles[128]. */
static int q4_k_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 2, halves);
    pack_words(src + 4, row_bytes, rows, 35, block);
    for (int pair = 0; pair < 4; pair++) regroup_nibbles(block + (3 + 8 * pair) * VECTOR);
    return 144;
}

#ifdef RASE_TILES
/* Each tile meets the activations one step late: it was stored by halves of lines, which no load can take over at once. */
static void q4_k_tile_rows(const uint8_t *group, int64_t cols, const rase_tile_target *target) {
    rase_tile_target to = *target;
    for (int64_t b = 0; b < cols / 256; b++) {
        const uint8_t *start = block256_start(q4_k, group, b), *block = block256_rest(q4_k, group, b);
        rf d = rf_from_f16((const uint16_t *)start), dmin = rf_from_f16((const uint16_t *)start + RASE_R);
        float scale[8 * RASE_R], less[8 * RASE_R];
        rb scales[2], minimums[2];
        six_bit_scales(block, scales);
        six_bit_minimums(block, minimums);
        UNROLL(s, 8) {
            rf_store(scale + s * RASE_R, rf_mul(d, rf_from_ri(ri_byte_u8(scales[s / 4], s % 4))));
            rf_store(less + s * RASE_R, rf_sub(rf_set1(-0.0f), rf_mul(dmin, rf_from_ri(ri_byte_u8(minimums[s / 4], s % 4)))));
        }
        read_ahead(start, 4);
        for (int s = 0; s < 8; s++) {
            uint8_t *tile = to.weights + s % 2 * TILE_BYTES, *before = to.weights + (s + 1) % 2 * TILE_BYTES;
            read_ahead(start + 256 * (s + 1), 4);
            tile_row_step(block + (3 + 4 * s) * VECTOR, scale + s * RASE_R, less + s * RASE_R, tile);
            if (b == 0 && s == 0) continue;
            tile_meet(before, &to, 1);
            to.rows += TILE_BYTES;
        }
    }
    tile_meet(to.weights + TILE_BYTES, &to, 1);
}
#endif
BLOCK256_FORMAT_IN_ROWS(q4_k, 12, TILE_ROWS(q4_k))

#endif
