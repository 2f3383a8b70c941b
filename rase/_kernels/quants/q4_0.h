/* Q4_0: weight = d * (code - 8), code 0..15. Packed block: R scales; 4 vectors of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q4_0_H
#define RASE_QUANTS_Q4_0_H

#include "block32.h"

static const block32 q4_0 = {16, 15, 8, BLOCK32_SCALE, 1, four_bits};
BLOCK32_FORMAT(q4_0, 2)

#endif
