/* The bf16 tiles beside the AVX-512 kernels: 16 rows per group. */
#include "../ops/tiles.h"

const rase_tiles rase_tiles_amx = {
    .begin = tiles_begin,
    .end = tiles_end,
    .left = tiles_left,
    .right = tiles_right,
    .multiply = tiles_multiply,
};
