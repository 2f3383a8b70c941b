/* Quantized weights times eight activation rows in int8 tiles (AMX): rule R2 in another unit, the same bits.
 *
 * A tile of activations has the two int8 halves of eight rows as its 16 rows, as rase_act's `q` has them; a tile of weights is
 * one sub-block of 16 rows. Their product is int32: |sum| <= 32 * 128 * 127 < 2^20. As float32 it is exact, and so is
 * its sum over a run times scales: where 254 * high + low of a run fits int32 (block256.h), high and low alone stay below
 * 2^31 / 255 < 2^24. One FMA makes fma(254, high, low) of them, rounded once, as the conversion of the int32 is.
 *
 * Unpacking runs a block ahead of the tile unit, and the vectors that take its sums some sub-blocks behind: three streams that do
 * not wait for each other. Tile registers: 0, 1 sums; 2 to 4 activations; 5 to 7 weights. */
#ifndef RASE_QUANTS_INT8_TILES_H
#define RASE_QUANTS_INT8_TILES_H

#define TILE_DOT_I8(C, A, B) __asm__ volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)
enum { I8_ROWS = 8, I8_RING = 8 }; /* activation rows; sub-blocks whose sums are kept */

/* What lies between the three streams. */
typedef struct {
    uint8_t codes[2][64 * 64];      /* of two blocks, in turn: tiles of 8 rows */
    int32_t sums[I8_RING][16 * 16]; /* of sub-blocks: row 2r + h is half h of activation row r */
    float scales[2][8 * 16], d[2][I8_ROWS * 16];
} i8_buffers;

/* Registers for sub-blocks of 32 depths. */
static void tiles_i8(void) {
    if (tiles_are == TILES_I8) return;
    tile_configuration c = {.palette = 1};
    for (int t = 0; t < 8; t++) c.row_bytes[t] = t >= 2 && t < 5 ? 32 : 64, c.rows[t] = t < 5 ? 2 * I8_ROWS : 8;
    tiles_configure(&c, TILES_I8);
}

#define I8_STEP(C, A, B)              \
    TILE_ZERO(C);                     \
    TILE_LOAD(A, q, stride);          \
    TILE_LOAD(B, codes, 64);          \
    TILE_DOT_I8(C, A, B);             \
    TILE_STORE(C, sums, 64);
/* Sub-block number j: constant. */
TEMPLATE void i8_multiply(const int j, const int8_t *q, int64_t stride, const uint8_t *codes, int32_t *sums) {
    switch (j % 6) {
    case 0: I8_STEP(0, 2, 5) break;
    case 1: I8_STEP(1, 3, 6) break;
    case 2: I8_STEP(0, 4, 7) break;
    case 3: I8_STEP(1, 2, 5) break;
    case 4: I8_STEP(0, 3, 6) break;
    default: I8_STEP(1, 4, 7) break;
    }
}
#undef I8_STEP

#endif
