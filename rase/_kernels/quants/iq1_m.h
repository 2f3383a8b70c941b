/* IQ1_M: weight = (d / 8 * scale) * (code - 9), code = 8 * level + (0 or 2): 16 sub-blocks of 16, scale 1, 3 .. 15. Packed block:
 * R d; R 16-bit words of scales; 13 vectors of levels (trits.h); a vector of bits, bit g of a lane: whether the weights of entry g (8 depths)
 * lie above the codebook's; a vector of scales. The scales, three bits each: bit h of nibble i of the words is the uppermost bit of scale
 * 4h + i, field h of byte i of the vector the others. Where codebooks are in registers: ten in the lane from bit 0 up, five in the word, and the
 * last in bits 30, 31 and 15; and even entries' bits are bits g / 2, odd entries' 16 + g / 2. Accumulator and bound: block256.h, prepared.h. */
#ifndef RASE_QUANTS_IQ1_M_H
#define RASE_QUANTS_IQ1_M_H

#include "iq1.h"

#if RB_PERMUTE
/* The last scale in place. */
TEMPLATE rb iq1_m_last(rb low, rb top) { return rb_mix(rb_lane_shr(low, 30), rb_lane_shr(top, 13), 4); }
TEMPLATE void iq1_m_scales(const uint8_t *block, rb *out) {
    rb low = rb_load(block + (TRIT_VECTORS + 1) * VECTOR), top = rb_from_u16(block - 2 * RASE_R);
    rb bits[4] = {rb_fields(low, -1, 2, 5, 8), rb_fields(low, 11, 14, 17, 20),
                  rb_mix(rb_fields(low, 23, 26, 0, 0), rb_fields(top, 0, 0, -1, 2), 0xffff0000),
                  rb_mix(rb_fields(top, 5, 8, 11, 0), rb_lane_shl(iq1_m_last(low, top), 25), 0xff000000)};
    UNROLL(h, 4) out[h] = rb_or(rb_and(bits[h], rb_set1(0x0e)), rb_set1(1));
}
#define IQ1_M_SHORT(scale) IQ1_SCALE(scale), 0,
static const int16_t iq1_m_shorts[32] __attribute__((aligned(64))) = {IQ1_NIBBLES(IQ1_M_SHORT)};
TEMPLATE rh iq1_m_short_scale(const uint8_t *block, int s) {
    rb low = rb_load(block + (TRIT_VECTORS + 1) * VECTOR), top = rb_from_u16(block - 2 * RASE_R);
    return rb_lookup_lanes(iq1_m_shorts, s < 10 ? rb_lane_shr(low, 3 * s) : s < 15 ? rb_lane_shr(top, 3 * s - 30) : iq1_m_last(low, top));
}
TEMPLATE rh iq1_m_above(const uint8_t *block, int s) {
    rb above = rb_load(block + TRIT_VECTORS * VECTOR);
    return rb_and(s ? rb_lane_shr(above, s) : above, rb_lanes(0x00010001));
}
TEMPLATE void iq1_m_sixteen(const uint8_t *block, int h, int i, int e, rb *out) {
    (void)e;
    UNROLL(v, 4) {
        const int at = 4 * (4 * h + i) + v;
        out[v] = trits_of(&iq1_tables, rb_load(block + at / 5 * VECTOR), at % 5);
    }
}
#define IQ1_M_BIT(g) ((g) / 2 + (g) % 2 * 16)
#define IQ1_M_IN_REGISTERS .sixteen = iq1_m_sixteen, .short_scale = iq1_m_short_scale, .above = iq1_m_above
#else
TEMPLATE void iq1_m_scales(const uint8_t *block, rb *out) {
    rb low = rb_load(block + (TRIT_VECTORS + 1) * VECTOR), top = spread_nibbles(rb_from_u16(block - 2 * RASE_R));
    UNROLL(h, 4) out[h] = rb_or(rb_or(move_bits(low, 2 * h, 1, 6), move_bits(top, h, 3, 8)), rb_set1(1));
}
#define IQ1_M_BIT(g) (g)
#define IQ1_M_IN_REGISTERS
#endif
TEMPLATE rb iq1_m_codes(const uint8_t *block, int h, int i, int v) {
    return iq1_codes(block, 4 * (4 * h + i) + v, rb_load(block + TRIT_VECTORS * VECTOR), IQ1_M_BIT(2 * (4 * h + i) + v / 2));
}
BLOCK256_EXPAND(iq1_m, 16, 1)
static const block256 iq1_m = {TRIT_BYTES + 8, 16, 18, 9, 0, 0, 1, iq1_m_scales, NULL, iq1_m_codes, .unit_shift = 3, .run = 256, .in_order = 1, .fixed = 1, .expand = iq1_m_expand, IQ1_M_IN_REGISTERS};

/* File block: low bytes of the indices[32]; nibbles[16], three upper bits of the index, and whether the weights lie below; four
 * 16-bit words of four scales each, whose upper nibbles are d. */
static int iq1_m_pack_block(const uint8_t *src, size_t row_bytes, int rows, uint8_t *halves, uint8_t *block) {
    memset(halves, 0, 4 * RASE_R);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        uint16_t indices[32], d = 0, top = 0, scales;
        uint8_t levels[256], *rest = block + TRIT_VECTORS * VECTOR;
        uint32_t low = 0, above = 0;
        for (int g = 0; g < 32; g++) {
            int nibble = src[32 + g / 2] >> 4 * (g & 1) & 15;
            indices[g] = (uint16_t)(src[g] | (nibble & 7) << 8);
            above |= (uint32_t)(nibble < 8) << IQ1_M_BIT(g);
        }
        for (int h = 0; h < 4; h++) {
            memcpy(&scales, src + 48 + 2 * h, 2);
            d |= (uint16_t)(scales >> 12 << 4 * h);
            for (int i = 0; i < 4; i++) {
                const unsigned scale = scales >> 3 * i & 7;
#if RB_PERMUTE
                const int s = 4 * h + i;
                if (s < 10) low |= scale << 3 * s;
                else if (s < 15) top |= (uint16_t)(scale << (3 * s - 30));
                else low |= scale << 30, top |= (uint16_t)(scale >> 2 << 15);
#else
                low |= (scale & 3) << (8 * i + 2 * h);
                top |= (uint16_t)(scale >> 2 << (4 * i + h));
#endif
            }
        }
        iq1_levels(indices, levels);
        pack_trits(levels, block + 4 * r);
        memcpy(halves + 2 * r, &d, 2);
        memcpy(rest + 4 * r, &above, 4);
        memcpy(rest + VECTOR + 4 * r, &low, 4);
        memcpy(halves + 2 * (RASE_R + r), &top, 2);
    }
    return 56;
}

BLOCK256_FORMAT(iq1_m, 29)

#endif
