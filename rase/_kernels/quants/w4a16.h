/* W4A16 (AWQ): weight = d * code - d * zero, code 0..15, in groups of 128 depths with a float16 scale and a float16 zero point.
 *
 * d * zero is exact in float32 for the whole zero points of 0 to 15 that files have, and so is a weight. The format is Q4_1's but for
 * the groups: four times 32 weights share the scale and the minimum -(d * zero).
 *
 * File row: per group the scale, the zero point, then nibbles, depth ascending from the low nibble up. Packed block: R scales,
 * R zero points; for each 32 depths 4 vectors of nibbles. Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_W4A16_H
#define RASE_QUANTS_W4A16_H

#include "block32.h"

static const block32 w4a16 = {16, 15, 0, BLOCK32_ZERO, 4, four_bits};

static void w4a16_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    for (int64_t k = 0; k < cols; k += 128, src += 68, group += block32_bytes(w4a16)) {
        uint8_t *codes = group + 4 * RASE_R;
        pack_halves(src, row_bytes, rows, 2, group);
        pack_words(src + 4, row_bytes, rows, 16, codes);
        for (int s = 0; s < 4; s++, codes += 4 * VECTOR) { /* neighbours in a byte to nibbles 16 depths apart */
            for (int r = 0; r < rows; r++) {
                uint8_t out[16], in[16];
                for (int w = 0; w < 4; w++) memcpy(in + 4 * w, codes + w * VECTOR + 4 * r, 4);
                for (int j = 0; j < 16; j++) out[j] = (uint8_t)((in[j / 2] >> 4 * (j & 1) & 15) | (in[8 + j / 2] >> 4 * (j & 1) & 15) << 4);
                for (int w = 0; w < 4; w++) memcpy(codes + w * VECTOR + 4 * r, out + 4 * w, 4);
            }
        }
    }
    memset(group, 0, -(uintptr_t)group & 63);
}

BLOCK32_KERNELS(w4a16, 63, 128)

#endif
