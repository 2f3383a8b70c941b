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
/* By a byte whose bits from LEVEL on are a level, and bit 1 is set for 2. */
#define IQ1_CODE(level, above) (8 * ((level) & 3) + 2 * (above))
static const uint8_t iq1_first[64] = TRIT_FIRST(8), iq1_later[2][64] = {CODES_64(IQ1_CODE, 2, 1), CODES_64(IQ1_CODE, 4, 1)};
#endif

/* Vector v of codes; bit `bit` of the lanes of `above` says whether they are above the codebook's. */
TEMPLATE rb iq1_codes(const uint8_t *words, const int v, rb above, const int bit) {
#if RB_PERMUTE
    const int n = v % 5, at = 2 * n - 2;
    rb two = rb_fields(above, bit - 1, bit - 1, bit - 1, bit - 1);
    if (n == 0) return rb_mix(trits_first(iq1_first, words, v / 5), two, 0x02020202);
    rb levels = trits_later(words, v / 5);
    levels = at == 0 ? rb_shl(levels, 2) : at == 6 ? rb_shr(levels, 2) : levels;
    return rb_lookup_64(iq1_later[at >= 4], rb_mix(levels, two, 0x02020202));
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
