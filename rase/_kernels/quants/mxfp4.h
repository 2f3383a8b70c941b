/* MXFP4: weight = 2^(e - 128) * value[code], 16 values in -12..12, twice what E2M1 stands for. Packed block: R exponents; 4
 * vectors of nibbles. Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_MXFP4_H
#define RASE_QUANTS_MXFP4_H

#include "block32.h"

static const uint8_t e2m1_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}; /* around 12 */

TEMPLATE rb mxfp4_codes(const uint8_t *codes, int v) { return four_bit_values(e2m1_values, codes, v); }
static const block32 mxfp4 = {16, 24, 12, BLOCK32_EXPONENT, 1, mxfp4_codes};
BLOCK32_FORMAT(mxfp4, 39)

#endif
