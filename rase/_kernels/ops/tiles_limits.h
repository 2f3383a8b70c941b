/* What the tile unit can do at most: the yardstick for prompts in bf16 tiles, and for the mode that the unit is in. */
#ifndef RASE_OPS_TILES_LIMITS_H
#define RASE_OPS_TILES_LIMITS_H

#include "tiles.h"

/* `steps` times four products of tiles, or (`loads`) four tiles loaded and four products at the end. Operands are small integers of both signs
 * (zeros would take less power, and the clock would rise), so that sums are exact: returns whether they are right. Bound: 2 * 3 * 32 * steps
 * <= 2^24, steps <= 2^16. */
static int tiles_burst(int64_t steps, int loads) {
    uint16_t left[512] __attribute__((aligned(64))), right[512] __attribute__((aligned(64)));
    float sums[256] __attribute__((aligned(64)));
    int32_t expected = 0;
    tiles_bf16();
    for (int i = 0; i < 512; i++) {
        const float a = (float)(i * 7 % 5 - 2), b = (float)(i * 11 % 7 - 3);
        uint32_t bits;
        memcpy(&bits, &a, 4), left[i] = (uint16_t)(bits >> 16);
        memcpy(&bits, &b, 4), right[i] = (uint16_t)(bits >> 16);
    }
    for (int k = 0; k < TILE_DEPTH; k++) /* row 0 times column 0 */
        expected += (k * 7 % 5 - 2) * ((k / 2 * 32 + k % 2) * 11 % 7 - 3);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_LOAD(4, left, 64);
    TILE_LOAD(5, left, 64);
    TILE_LOAD(6, right, 64);
    TILE_LOAD(7, right, 64);
    for (int64_t step = 0; step < steps; step++) {
        if (loads) {
            TILE_LOAD(4, left, 64);
            TILE_LOAD(6, right, 64);
            TILE_LOAD(5, left, 64);
            TILE_LOAD(7, right, 64);
            if (step + 1 < steps) continue;
        }
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    TILE_STORE(3, sums, 64);
    return sums[0] == (float)(loads ? 1 : steps) * (float)expected;
}

#endif
