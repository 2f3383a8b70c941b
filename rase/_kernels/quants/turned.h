/* Codebooks in registers (RB_PERMUTE): two planes of a byte per entry that hold its levels side by side, looked up for 64 entries at once
 * (split_iq2.h). A lane of four such bytes holds the levels of depths 0, 8, 4, 12 of 16, and three times more by moving on to the next field:
 * "turned" codes, which meet activations in that order. Signs and scales stay as the file has them. */
#ifndef RASE_QUANTS_TURNED_H
#define RASE_QUANTS_TURNED_H

#include "codebook.h"

#if RB_PERMUTE
/* A code by its byte: bits that belong to other depths do not matter. A table says where the level is, and the sign. The planes of IQ2 hold
 * levels 1, 3, 0, 2 from bit 0 up, and two depths, 0 and 1, or 2 and 3 moved down by two bits, share a byte with both signs in between;
 * those of IQ3 hold levels 2, 0 and 3, 1, with a table for each depth. */
typedef uint8_t turned_pairs[2][64], turned_codes[4][64];
#define IQ2_TURNED(CODE) {CODES_64(CODE, 4, 2), CODES_64(CODE, 0, 3)}
#define IQ3_TURNED(CODE) {CODES_64(CODE, 3, 1), CODES_64(CODE, 3, 2), CODES_64(CODE, 0, 3), CODES_64(CODE, 0, 4)}

/* Scales above the signs of words: 2s + 1 of the uppermost four bits of vector 4h + i. */
TEMPLATE void word_scales(const uint8_t *words, rb *out) {
    UNROLL(h, 2) {
        out[h] = rb_set1(1);
        UNROLL(i, 4) out[h] = rb_mix(out[h], move_lane(rb_load(words + (4 * h + i) * VECTOR), 28, 8 * i + 1), 0x1eu << 8 * i);
    }
}
static const float odd_numbers[16] __attribute__((aligned(64))) = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
TEMPLATE rf word_scale(const uint8_t *words, const int s) { return rf_lookup_lanes(odd_numbers, rb_lane_shr(rb_load(words + s * VECTOR), 28)); }
/* The four signs of depths 0, 8, 4, 12 and the three that follow, of half e of the 32 depths of a lane's sign bytes, from bit `to` on. */
TEMPLATE rb turned_signs(rb signs, const int e, const int to) {
    const int start = 16 * e - to;
    return rb_fields(signs, start, start + 8, start + 4, start + 12);
}
/* Eight signs of each entry from words of four times seven. */
TEMPLATE rb even_signs(rb words) { return rb_even(rb_fields(words, 0, 7, 14, 21)); }

/* IQ2: levels, and signs in bits 2 to 5, to codes. */
TEMPLATE void iq2_turned(const turned_pairs codes, rb levels, rb signs, rb *out) {
    rb pair[2] = {rb_mix(levels, signs, 0x0c0c0c0c), rb_shr(rb_mix(levels, signs, 0x30303030), 2)};
    UNROLL(j, 4) out[j] = rb_lookup_64(codes[j % 2], pair[j / 2]);
}
/* IQ3: of the four entries, in the order 0 2 1 3, of 16 depths, half e of a sign word. */
TEMPLATE void iq3_turned(const turned_codes codes, rb low, rb high, rb signs, const int e, rb *out) {
    rb s = turned_signs(signs, e, 1);
    UNROLL(j, 4) out[j] = rb_lookup_64(codes[j], rb_mix(j & 1 ? high : low, s, 0x02020202u << j));
}
/* Vector v of the depths in order. */
TEMPLATE rb turn_back(const rb *turned, int v) {
    const int odd = v / 2, first = v & 1; /* depths 4v: byte 0, 2, 1, 3 of the turned lanes */
    rb pair[2];
    UNROLL(k, 2) {
        rb x = turned[2 * k], y = turned[2 * k + 1];
        pair[k] = odd ? rb_mix(rb_lane_shr(x, 8), y, 0xff00ff00) : rb_mix(x, rb_lane_shl(y, 8), 0xff00ff00);
    }
    return first ? rb_mix(rb_lane_shr(pair[0], 16), pair[1], 0xffff0000) : rb_mix(pair[0], rb_lane_shl(pair[1], 16), 0xffff0000);
}
/* The codes of NAME_sixteen, in order; and where two calls give the codes of 32 depths, which lie in one another. */
#define TURNED_BACK(NAME)                                                                                                   \
    TEMPLATE rb NAME##_codes(const uint8_t *block, int h, int i, int v) {                                                   \
        rb turned[4];                                                                                                       \
        NAME##_sixteen(block, h, i, v / 4, turned);                                                                          \
        return turn_back(turned, v % 4);                                                                                    \
    }

#define TURNED_BACK_32(NAME)                                                                                                \
    TEMPLATE rb NAME##_codes(const uint8_t *block, int h, int i, int v) {                                                   \
        rb turned[4];                                                                                                       \
        NAME##_sixteen(block, h, i, v % 2, turned);                                                                          \
        return turn_back(turned, v / 4 + v / 2 % 2 * 2);                                                                    \
    }

/* 8 words of signs and a scale, `stride` bytes apart. */
static void pack_sign_words(const uint8_t *words, int stride, uint8_t *lane) {
    for (int s = 0; s < 8; s++) memcpy(lane + s * VECTOR, words + stride * s, 4);
}
#endif

#endif
