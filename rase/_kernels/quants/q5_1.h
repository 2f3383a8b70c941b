/* Q5_1: weight = d * code + m, code 0..31. Packed block: R scales, R minimums; 1 vector of fifth bits, 4 of nibbles.
 * Layout, accumulator and bound: block32.h. */
#ifndef RASE_QUANTS_Q5_1_H
#define RASE_QUANTS_Q5_1_H

#include "block32.h"

BLOCK32_FORMAT(q5_1, 7, 20, 31, 0, 1, five_bits)

#endif
