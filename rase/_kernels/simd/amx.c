/* AVX-512 with tiles: the AVX-512 kernels, and prompt tokens in bf16 tiles. */
#define RASE_TILES 1
#include "avx512.h"

#include "variant.h"
#include "../ops/tiles_limits.h"
#include "../ops/tiles_multiply.h"

RASE_TABLE(amx)

const rase_tiles rase_tiles_amx = {
    .begin = tiles_begin,
    .end = tiles_end,
    .left = tiles_left,
    .right = tiles_right,
    .few = tiles_few,
    .multiply = tiles_multiply,
    .burst = tiles_burst,
};
