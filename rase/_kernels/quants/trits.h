/* Weights of three levels, five to a byte: TQ1_0 and IQ1. Packed: 13 vectors; digit n of vector w is the level, 0..2, of depths
 * 4 (5w + n) to 4 (5w + n) + 3, the last vector has four. A byte stands for the fraction byte / 256 in base 3; where tables are
 * in registers (RB_PERMUTE) it is one of 243 numbers so chosen that two digits depend on six of its bits, two on six others, and the last
 * on six sums of bits: trit_bytes.h. */
#ifndef RASE_QUANTS_TRITS_H
#define RASE_QUANTS_TRITS_H

#include "block256.h"

enum { TRIT_VECTORS = 13, TRIT_BYTES = 4 * TRIT_VECTORS };

#if RB_PERMUTE
#include "trit_bytes.h"

/* A table for each digit, of what stands for its levels; and digit n of the bytes of a vector through one's own. */
typedef struct {
    uint8_t first[2][64], second[2][64], last[64];
} trit_tables;
TEMPLATE rb trits_of(const trit_tables *tables, rb x, const int n) {
    if (n == 4) return rb_lookup_64(tables->last, rb_sums(x, TRIT_SUMS));
    return n < 2 ? rb_lookup_64(tables->first[n], x) : rb_lookup_64(tables->second[n - 2], rb_shr(x, 2));
}
static const trit_tables trit_levels = TRIT_TABLES(TRIT_ONE);
#endif

/* Vector v of levels. */
TEMPLATE rb trits(const uint8_t *words, const int v) {
    const int w = v / 5, n = v % 5;
    rb x = rb_load(words + w * VECTOR);
#if RB_PERMUTE
    return trits_of(&trit_levels, x, n);
#else
    for (int i = 0; i < n; i++) x = rb_add(rb_add(x, x), x); /* without the first digit */
    return rb_trits(x);
#endif
}

/* 256 levels of one row to its lanes. */
static void pack_trits(const uint8_t *levels, uint8_t *lane) {
    for (int w = 0; w < TRIT_VECTORS; w++) {
        for (int i = 0; i < 4; i++) {
            int number = 0;
            for (int n = 0; n < 5; n++) number = 3 * number + (20 * w + 4 * n < 256 ? levels[20 * w + 4 * n + i] : 0);
#if RB_PERMUTE
            lane[w * VECTOR + i] = trit_bytes[number];
#else
            lane[w * VECTOR + i] = (uint8_t)((number * 256 + 242) / 243);
#endif
        }
    }
}

#endif
