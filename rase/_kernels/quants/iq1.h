/* What IQ1_S and IQ1_M share: codes 8 * level + (0 or 2), where the file has entries of 8 levels out of a codebook of 2048.
 *
 * Eleven bits an entry are widened to five levels a byte (trits.h), 1.6 bits a weight instead of 1.4: no register holds that
 * codebook, and gathering its entries took twice the time of everything else. */
#ifndef RASE_QUANTS_IQ1_H
#define RASE_QUANTS_IQ1_H

#include "codebook.h"
#include "grid_iq1.h"
#include "trits.h"

#if RB_PERMUTE
static const trit_tables iq1_tables = TRIT_TABLES(TRIT_EIGHT);
/* Tables by a nibble whose lower three bits are a scale. */
#define IQ1_SCALE(nibble) (2 * ((nibble) & 7) + 1)
#define IQ1_NIBBLES(EACH)                                                                                                   \
    EACH(0) EACH(1) EACH(2) EACH(3) EACH(4) EACH(5) EACH(6) EACH(7) EACH(8) EACH(9) EACH(10) EACH(11) EACH(12) EACH(13) EACH(14) EACH(15)
#endif

/* Vector v of codes; bit `bit` of the lanes of `above` says whether they are above the codebook's. */
TEMPLATE rb iq1_codes(const uint8_t *words, const int v, rb above, const int bit) {
#if RB_PERMUTE
    return rb_mix(trits_of(&iq1_tables, rb_load(words + v / 5 * VECTOR), v % 5), rb_fields(above, bit - 1, bit - 1, bit - 1, bit - 1), 0x02020202);
#else
    rb two = rb_and(rb_lane_sign(bit < 31 ? rb_lane_shl(above, 31 - bit) : above), rb_set1(2));
    return rb_or(rb_shl(trits(words, v), 3), two);
#endif
}

/* Entries of 32 indices, in order, to levels. */
static void iq1_levels(const uint16_t *indices, uint8_t *levels) {
    for (int g = 0; g < 32; g++)
        for (int i = 0; i < 8; i++) levels[8 * g + i] = (uint8_t)(iq1_grid[indices[g]] >> (8 * (i & 3) + 4 * (i / 4)) & 15);
}

#endif
