/* BF16 weights: the upper half of a binary32, little-endian. Layout, accumulator and order: float.h. */
#ifndef RASE_QUANTS_BF16_H
#define RASE_QUANTS_BF16_H

#include "float.h"

TEMPLATE rf bf16_load(const uint8_t *p) { return rf_from_bf16((const uint16_t *)p); }
FLOAT_FORMAT(bf16, 30, uint16_t, bf16_load)

#endif
