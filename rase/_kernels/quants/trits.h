/* Weights of three levels, five to a byte: TQ1_0 and IQ1. Packed: 13 vectors; digit n of vector w is the level, 0..2, of depths
 * 4 (5w + n) to 4 (5w + n) + 3, the last vector has four. A byte stands for the fraction byte / 256 in base 3; where tables are
 * in registers (RB_PERMUTE) it is 84 times the first digit plus the number of the four others in base 3. */
#ifndef RASE_QUANTS_TRITS_H
#define RASE_QUANTS_TRITS_H

#include "block256.h"

enum { TRIT_VECTORS = 13, TRIT_BYTES = 4 * TRIT_VECTORS };

#if RB_PERMUTE
/* Levels of a byte's later digits, two bits each, from bit 0 up; the first digit of byte / 4. */
#define TRIT_FIELDS(x) ((x) % 84 / 27 % 3 | (x) % 84 / 9 % 3 << 2 | (x) % 84 / 3 % 3 << 4 | (x) % 84 % 3 << 6)
#define TRIT_FIELDS_4(x) TRIT_FIELDS(x), TRIT_FIELDS((x) + 1), TRIT_FIELDS((x) + 2), TRIT_FIELDS((x) + 3)
#define TRIT_FIELDS_16(x) TRIT_FIELDS_4(x), TRIT_FIELDS_4((x) + 4), TRIT_FIELDS_4((x) + 8), TRIT_FIELDS_4((x) + 12)
#define TRIT_FIELDS_64(x) TRIT_FIELDS_16(x), TRIT_FIELDS_16((x) + 16), TRIT_FIELDS_16((x) + 32), TRIT_FIELDS_16((x) + 48)
static const uint8_t trit_fields[256] = {TRIT_FIELDS_64(0), TRIT_FIELDS_64(64), TRIT_FIELDS_64(128), TRIT_FIELDS_64(192)};
#define TRIT_FIRST_7(x) x, x, x, x, x, x, x
#define TRIT_FIRST(one) {TRIT_FIRST_7(0), TRIT_FIRST_7(0), TRIT_FIRST_7(0), TRIT_FIRST_7(one), TRIT_FIRST_7(one), TRIT_FIRST_7(one), \
                         TRIT_FIRST_7(2 * one), TRIT_FIRST_7(2 * one), TRIT_FIRST_7(2 * one), 0}
static const uint8_t trit_first[64] = TRIT_FIRST(1);

/* The later digits of vector w; and the first, through one's own table of it. */
TEMPLATE rb trits_later(const uint8_t *words, int w) { return rb_lookup_256(trit_fields, rb_load(words + w * VECTOR)); }
TEMPLATE rb trits_first(const uint8_t *table, const uint8_t *words, int w) { return rb_lookup_64(table, rb_shr(rb_load(words + w * VECTOR), 2)); }
#endif

/* Vector v of levels. */
TEMPLATE rb trits(const uint8_t *words, const int v) {
    const int w = v / 5, n = v % 5;
#if RB_PERMUTE
    return n ? move_bits(trits_later(words, w), 2 * n - 2, 0, 3) : trits_first(trit_first, words, w);
#else
    rb x = rb_load(words + w * VECTOR);
    for (int i = 0; i < n; i++) x = rb_add(rb_add(x, x), x); /* without the first digit */
    return rb_trits(x);
#endif
}

/* 256 levels of one row to its lanes. */
static void pack_trits(const uint8_t *levels, uint8_t *lane) {
    for (int w = 0; w < TRIT_VECTORS; w++) {
        for (int i = 0; i < 4; i++) {
            int first = levels[20 * w + i], later = 0;
            for (int n = 1; n < 5; n++) later = 3 * later + (20 * w + 4 * n < 256 ? levels[20 * w + 4 * n + i] : 0);
            lane[w * VECTOR + i] = (uint8_t)(RB_PERMUTE ? 84 * first + later : ((81 * first + later) * 256 + 242) / 243);
        }
    }
}

#endif
