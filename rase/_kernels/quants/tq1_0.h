/* TQ1_0: weight = d * (code - 1), code 0..2, five to a byte. Packed block: R d; 13 vectors of trits.h. Accumulator and bound:
 * block256.h, with one scale of 1. */
#ifndef RASE_QUANTS_TQ1_0_H
#define RASE_QUANTS_TQ1_0_H

#include "trits.h"

TEMPLATE void tq1_0_scales(const uint8_t *block, rb *out) {
    (void)block;
    out[0] = out[1] = rb_set1(1);
}
TEMPLATE rb tq1_0_codes(const uint8_t *block, int h, int i, int v) { return trits(block, 8 * (4 * h + i) + v); }
BLOCK256_EXPAND(tq1_0, 32, 1)
static const block256 tq1_0 = {TRIT_BYTES, 32, 2, 1, 0, 0, 0, tq1_0_scales, NULL, tq1_0_codes, .run = 256, .in_order = 1, .fixed = 1, .expand = tq1_0_expand};

/* File block: codes[48] of five digits, codes[4] of four, d. Digit n of byte m is depth 32n + m for m < 32, then
 * 160 + 16n + m - 32, then 240 + 4n + m - 48. */
static int tq1_0_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    static const int power[5] = {1, 3, 9, 27, 81};
    pack_halves(src + 52, row_bytes, rows, 1, halves);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint8_t levels[256];
        for (int m = 0; m < 52; m++) {
            int start = m < 32 ? m : m < 48 ? 128 + m : 192 + m, step = m < 32 ? 32 : m < 48 ? 16 : 4;
            for (int n = 0; n < (m < 48 ? 5 : 4); n++) levels[start + n * step] = (uint8_t)((uint8_t)(src[m] * power[n]) * 3 >> 8);
        }
        pack_trits(levels, block + 4 * r);
    }
    return 54;
}

BLOCK256_FORMAT(tq1_0, 34)

#endif
