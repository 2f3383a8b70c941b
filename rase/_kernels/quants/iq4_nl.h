/* IQ4_NL: weight = d * value[code], 16 values in -127..113. Packed block: R scales; 4 vectors of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_IQ4_NL_H
#define RASE_QUANTS_IQ4_NL_H

#include "block32.h"
#include "iq4.h"

TEMPLATE rb iq4_nl_codes(const uint8_t *codes, int v) { return four_bit_values(iq4_values, codes, v); }
static const block32 iq4_nl = {16, 241, 128, BLOCK32_SCALE, 1, iq4_nl_codes};
BLOCK32_FORMAT(iq4_nl, 20)

#endif
