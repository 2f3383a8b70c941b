/* Q5_1: weight = d * code + m, code 0..31. Packed block: R scales, R minimums; 1 vector of fifth bits, 4 of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q5_1_H
#define RASE_QUANTS_Q5_1_H

#include "block32.h"

static const block32 q5_1 = {20, 31, 0, BLOCK32_MINIMUM, 1, five_bits};
BLOCK32_FORMAT(q5_1, 7)

#endif
