/* Q5_0: weight = d * (code - 16), code 0..31. Packed block: R scales; 1 vector of fifth bits, 4 of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q5_0_H
#define RASE_QUANTS_Q5_0_H

#include "block32.h"

static const block32 q5_0 = {20, 31, 16, BLOCK32_SCALE, 1, five_bits};
BLOCK32_FORMAT(q5_0, 6)

#endif
