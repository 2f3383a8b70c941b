/* F32 weights: IEEE 754 binary32, little-endian. Layout, accumulator and order: float.h. */
#ifndef RASE_QUANTS_F32_H
#define RASE_QUANTS_F32_H

#include "float.h"

TEMPLATE rf f32_load(const uint8_t *p) { return rf_load((const float *)p); }
FLOAT_FORMAT(f32, 0, uint32_t, f32_load)

#endif
