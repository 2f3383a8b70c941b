/* The codebook that IQ4_NL and IQ4_XS share: -127, -104 ... 113, as codes around 128. */
#ifndef RASE_QUANTS_IQ4_H
#define RASE_QUANTS_IQ4_H

#include "common.h"

static const uint8_t iq4_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

#endif
