/* IQ4_XS: weight = (d * scale) * value[code]; 8 sub-blocks of 32, scale -32..31, 16 values in -127..113.
 * Packed block: R d; R 16-bit words of the scales' upper pairs, pair h of nibble i for scale 4h + i; a vector of their lower
 * nibbles, 0-3 low and 4-7 high; per sub-block 4 vectors of nibbles. Accumulator and bound: block256.h. */
#ifndef RASE_QUANTS_IQ4_XS_H
#define RASE_QUANTS_IQ4_XS_H

#include "block256.h"
#include "iq4.h"

TEMPLATE void iq4_xs_scales(const uint8_t *block, rb *out) {
    rb high = spread_nibbles(rb_from_u16(block - 2 * RASE_R)), low = rb_load(block);
    UNROLL(h, 2) out[h] = rb_sub(rb_or(nibbles(low, h), move_bits(high, 2 * h, 4, 0x30)), rb_set1(32));
}
TEMPLATE rb iq4_xs_codes(const uint8_t *block, int h, int i, int v) {
    const uint8_t *codes = block + (1 + 4 * (4 * h + i)) * VECTOR;
    return four_bit_values(iq4_values, codes, v);
}
static const block256 iq4_xs = {132, 32, 241, 128, 0, 1, 1, iq4_xs_scales, NULL, iq4_xs_codes, .run = 16};

/* File block: d, upper pairs of the scales in 16 bits, lower nibbles[4], codes[128]. */
static int iq4_xs_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    pack_halves(src, row_bytes, rows, 1, halves);
    pack_words(src + 8, row_bytes, rows, 32, block + VECTOR);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint32_t pairs = src[2] | (uint32_t)src[3] << 8, high = 0;
        uint8_t low[4];
        for (int s = 0; s < 8; s++) high |= (pairs >> 2 * s & 3) << (4 * (s & 3) + 2 * (s / 4));
        for (int i = 0; i < 4; i++) /* byte k of the file: scale 2k low, 2k + 1 high */
            low[i] = (uint8_t)((src[4 + i / 2] >> 4 * (i & 1) & 15) | (src[6 + i / 2] >> 4 * (i & 1) & 15) << 4);
        memcpy(halves + 2 * (RASE_R + r), &high, 2);
        memcpy(block + 4 * r, low, 4);
    }
    return 136;
}

BLOCK256_FORMAT(iq4_xs, 23)

#endif
