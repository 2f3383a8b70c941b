/* Quantized weights times four or eight activation rows in int8 tiles (AMX): rule R2 in another unit, the same bits.
 *
 * A tile of activations has the two int8 halves of the rows as its rows, as rase_act's `q` has them; a tile of weights is one
 * sub-block of 16 rows. Their product is int32: |sum| <= 32 * 128 * 127 < 2^20. As float32 it is exact, and so is
 * its sum over a run times scales: where 254 * high + low of a run fits int32 (block256.h), high and low alone stay below
 * 2^31 / 255 < 2^24. One FMA makes fma(254, high, low) of them, rounded once, as the conversion of the int32 is.
 *
 * Sums start at I8_BITS: read as float32 they are I8_TOO_MUCH more than they are, exactly, and need no conversion. Between tile
 * instructions only one port multiplies or converts floats (Sapphire Rapids: one vector a cycle), while two add.
 *
 * Three streams that do not wait for each other: unpacking runs some sub-blocks ahead of the tile unit; the stores of its sums
 * run behind it, since one that has to wait for its product holds up all that follow; and the vectors that take these sums run
 * behind the stores. Tile registers: 0 to 3 sums; 4, 7 activations; 5, 6 weights. */
#ifndef RASE_QUANTS_INT8_TILES_H
#define RASE_QUANTS_INT8_TILES_H

#define TILE_DOT_I8(C, A, B) __asm__ volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)
enum {
    I8_ROWS = 8,   /* most activation rows */
    I8_AHEAD = 4,  /* sub-blocks from unpacking to the product */
    I8_BEHIND = 3, /* from the product to the store of its sums */
    I8_RING = 4,   /* whose sums are kept */
    I8_BITS = 0x4b400000
};
#define I8_TOO_MUCH 12582912.0f /* 3 * 2^22, whose bits are I8_BITS; one more is the next integer, for |sum| < 2^22 */
static const int32_t i8_start[16] __attribute__((aligned(64))) = {
    I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS,
    I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS, I8_BITS,
};

/* Numbers of a block: float32 scales of its sub-blocks, their minimums as int16 pairs (rh_side), d times that of each row. */
typedef struct {
    float scales[8 * 16], d[I8_ROWS * 16];
    int16_t minimums[8 * 32];
} i8_block;
/* What lies between the streams. */
typedef struct {
    uint8_t codes[8 * 32 * 16];   /* of eight sub-blocks: tiles of 8 rows */
    float sums[I8_RING][16 * 16]; /* of sub-blocks: row 2r + h is half h of activation row r; I8_TOO_MUCH more than they are */
    i8_block blocks[2];           /* in turn */
} i8_buffers;

/* Registers for n rows of activations and sub-blocks of 32 depths. */
static void tiles_i8(const int n) {
    if (tiles_are == TILES_I8 + n) return;
    tile_configuration c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = t == 4 || t == 7 ? 32 : 64;
        c.rows[t] = t == 5 || t == 6 ? 8 : (uint8_t)(2 * n);
    }
    tiles_configure(&c, TILES_I8 + n);
}

#define I8_MULTIPLY(C, A, B)     \
    TILE_LOAD(A, q, stride);     \
    TILE_LOAD(B, codes, 64);     \
    TILE_LOAD(C, i8_start, 0);   \
    TILE_DOT_I8(C, A, B);
/* Sub-block number j: constant. */
TEMPLATE void i8_multiply(const int j, const int8_t *q, int64_t stride, const uint8_t *codes) {
    switch (j % 4) {
    case 0: I8_MULTIPLY(0, 4, 5) break;
    case 1: I8_MULTIPLY(1, 7, 6) break;
    case 2: I8_MULTIPLY(2, 4, 5) break;
    default: I8_MULTIPLY(3, 7, 6) break;
    }
}
TEMPLATE void i8_store(const int j, float *sums) {
    switch (j % 4) {
    case 0: TILE_STORE(0, sums, 64); break;
    case 1: TILE_STORE(1, sums, 64); break;
    case 2: TILE_STORE(2, sums, 64); break;
    default: TILE_STORE(3, sums, 64); break;
    }
}
#undef I8_MULTIPLY

#endif
