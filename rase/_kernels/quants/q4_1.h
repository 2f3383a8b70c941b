/* Q4_1: weight = d * code + m, code 0..15. Packed block: R scales, R minimums; 4 vectors of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q4_1_H
#define RASE_QUANTS_Q4_1_H

#include "block32.h"

BLOCK32_FORMAT(q4_1, 3, 16, 15, 0, 1, four_bits)

#endif
