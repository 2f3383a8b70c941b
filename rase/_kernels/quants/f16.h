/* F16 weights: IEEE 754 binary16, little-endian. Layout, accumulator and order: float.h. */
#ifndef RASE_QUANTS_F16_H
#define RASE_QUANTS_F16_H

#include "float.h"

TEMPLATE rf f16_load(const uint8_t *p) { return rf_from_f16((const uint16_t *)p); }
FLOAT_FORMAT(f16, 1, uint16_t, f16_load)

#endif
