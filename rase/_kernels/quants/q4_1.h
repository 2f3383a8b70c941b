/* Q4_1: weight = d * code + m, code 0..15. Packed block: R scales, R minimums; 4 vectors of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q4_1_H
#define RASE_QUANTS_Q4_1_H

#include "block32.h"

static const block32 q4_1 = {16, 15, 0, BLOCK32_MINIMUM, 1, four_bits};
BLOCK32_FORMAT(q4_1, 3)

#endif
