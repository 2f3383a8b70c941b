/* Quantized weights times up to eight activation rows in int8 tiles (AMX): rule R2 in another unit, the same bits.
 *
 * A tile of activations has the two int8 halves of up to eight rows as its 16 rows, as rase_act's `q` has them; a tile of weights is
 * one sub-block of 16 rows, less its offset. Their product is int32: |sum| <= 32 * 128 * 127 < 2^20. As float32 it is exact, and so is
 * its sum over a run times scales: where 254 * high + low of a run fits int32 (block256.h), high and low alone stay below
 * 2^31 / 255 < 2^24. One FMA makes fma(254, high, low) of them, rounded once, as the conversion of the int32 is.
 *
 * Unpacking runs a block ahead of the tile unit, and the vectors that take its sums LAG sub-blocks behind: three streams that do not
 * wait for each other. Tile registers: 0, 1 sums; 2 to 4 activations; 5 to 7 weights. */
#ifndef RASE_QUANTS_INT8_TILES_H
#define RASE_QUANTS_INT8_TILES_H

#define TILE_DOT_I8(C, A, B) __asm__ volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)
enum { I8_RING = 8 }; /* sub-blocks whose sums are kept */

/* What lies between the three streams. */
typedef struct {
    uint8_t codes[2][64 * 64];          /* of two blocks, in turn: tiles of sub / 4 rows */
    int32_t sums[I8_RING][16 * 16];     /* of sub-blocks: row 2r + h is half h of activation row r */
    float scales[2][16 * 16], d[2][8 * 16];
} i8_buffers;

static void i8_begin(int rows, int depth) {
    struct configuration {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c __attribute__((aligned(64)));
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int t = 0; t < 2; t++) c.row_bytes[t] = 64, c.rows[t] = (uint8_t)(2 * rows);
    for (int t = 2; t < 5; t++) c.row_bytes[t] = (uint16_t)depth, c.rows[t] = (uint8_t)(2 * rows);
    for (int t = 5; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = (uint8_t)(depth / 4);
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
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
