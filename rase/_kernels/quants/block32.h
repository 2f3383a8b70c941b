/* The legacy formats: blocks of 32 weights with one float16 scale and, in two of them, one float16 minimum (rule R2).
 *
 * Per block and half of the activations: sum = sum of code * activation, less offset * activation sum, exact in int32:
 * |sum| <= 32 * 31 * 127 + 16 * 4064 < 2^18 (Q8_0: 32 * 255 * 127 < 2^21). Then acc = fma(254 * high + low, d * da,
 * acc), the integer exact (below 2^28), and with a minimum acc = fma(m, dsums, acc); float32, blocks ascending. */
#ifndef RASE_QUANTS_BLOCK32_H
#define RASE_QUANTS_BLOCK32_H

#include "common.h"

/* Weight vector v (depths 4v to 4v + 3) of a block as codes 0..max. */
typedef rb block32_codes(const uint8_t *codes, int v);

/* Bytes of one block of R rows. */
TEMPLATE size_t block32_bytes(int code_bytes, int has_minimum) { return (size_t)(code_bytes + 2 + 2 * has_minimum) * RASE_R; }

TEMPLATE void block32_tile(const uint8_t *group, int64_t cols, int code_bytes, int max, int offset, int has_minimum,
                           block32_codes weights, const rase_act *act, int64_t row, const int n, float *out,
                           int64_t out_stride) {
    (void)max; /* not every variant has a limit */
    const int64_t blocks = cols / 32;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks, *dsums = act->dsums + row * blocks;
    const int32_t *sums = act->sums + 2 * row * blocks;
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block32_bytes(code_bytes, has_minimum), q += 32) {
        const uint16_t *halves = (const uint16_t *)group;
        const uint8_t *codes = group + (1 + has_minimum) * 2 * RASE_R;
        read_ahead(group, (int)(block32_bytes(code_bytes, has_minimum) + 63) / 64);
        rf d = rf_from_f16(halves), minimum = has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        ri sum[2 * DOT_TILE];
        rp dot[2 * DOT_TILE];
        UNROLL(t, 2 * n) {
            sum[t] = offset ? ri_set1(-offset * sums[t * blocks + b]) : ri_zero();
            dot[t] = rp_begin(sum[t]);
        }
        UNROLL(step, 8) {
            const int v = (step & 1) * 4 + step / 2; /* both halves of a nibble vector in turn: one load serves two */
            rb w = weights(codes, v);
            UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], w, q + t * cols + 4 * v);
            if (step == 3 && RP_CALLS(max) < 8) {
                UNROLL(t, 2 * n) {
                    sum[t] = rp_end(dot[t], sum[t]);
                    dot[t] = rp_begin(ri_zero());
                }
            }
        }
        UNROLL(t, n) {
            ri high = rp_end(dot[2 * t], sum[2 * t]), low = rp_end(dot[2 * t + 1], sum[2 * t + 1]);
            acc[t] = join_exact(acc[t], high, low, d, da[t * blocks + b]);
            if (has_minimum) acc[t] = rf_fma(minimum, rf_set1(dsums[t * blocks + b]), acc[t]);
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

/* d * (code - offset), then + minimum, each rounded: the order of the file format's definition. */
TEMPLATE void block32_panel(const uint8_t *group, int64_t k0, int64_t k1, int code_bytes, int offset,
                            int has_minimum, block32_codes weights, float *out) {
    for (int64_t b = k0 / 32; b < k1 / 32; b++) {
        const uint8_t *block = group + (size_t)b * block32_bytes(code_bytes, has_minimum);
        const uint16_t *halves = (const uint16_t *)block;
        const uint8_t *codes = block + (1 + has_minimum) * 2 * RASE_R;
        rf d = rf_from_f16(halves), minimum = has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        UNROLL(v, 8) {
            rb w = weights(codes, v);
            UNROLL(i, 4) {
                rf x = rf_mul(d, rf_from_ri(ri_sub(ri_byte_u8(w, i), ri_set1(offset))));
                rf_store(out, has_minimum ? rf_add(x, minimum) : x);
                out += RASE_R;
            }
        }
    }
}

/* File block: halves, [4 bytes of fifth bits,] 16 bytes of nibbles: weight j low, weight j + 16 high. Nibbles are copied; the
 * fifth bits of a row, bit 4v + i for weight 4v + i, become bit v of byte i. */
TEMPLATE void block32_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group, int halves,
                           int code_bytes) {
    const int has_fifth = code_bytes == 20;
    for (int64_t b = 0; b < cols / 32; b++, src += 2 * halves + code_bytes) {
        uint8_t *codes = group + halves * 2 * RASE_R;
        pack_halves(src, row_bytes, rows, halves, group);
        pack_words(src + 2 * halves, row_bytes, rows, code_bytes / 4, codes);
        if (has_fifth) {
            for (int r = 0; r < RASE_R; r++) {
                uint32_t x, y;
                memcpy(&x, codes + 4 * r, 4);
                for (int turn = 0; turn < 2; turn++) { /* even bits down, odd bits up; twice moves bit 4v + i to 8i + v */
                    y = (x ^ x >> 1) & 0x22222222u, x ^= y ^ y << 1;
                    y = (x ^ x >> 2) & 0x0c0c0c0cu, x ^= y ^ y << 2;
                    y = (x ^ x >> 4) & 0x00f000f0u, x ^= y ^ y << 4;
                    y = (x ^ x >> 8) & 0x0000ff00u, x ^= y ^ y << 8;
                }
                memcpy(codes + 4 * r, &x, 4);
            }
        }
        group = codes + code_bytes * RASE_R;
    }
    memset(group, 0, -(uintptr_t)group & 63);
}

/* Codes of the nibble formats, without and with a plane of fifth bits before the nibbles. */
TEMPLATE rb four_bits(const uint8_t *codes, int v) { return nibbles(rb_load(codes + (v & 3) * VECTOR), v / 4); }
TEMPLATE rb five_bits(const uint8_t *codes, int v) {
    return rb_or(four_bits(codes + VECTOR, v), move_bits(rb_load(codes), v, 4, 0x10));
}

#define BLOCK32_FORMAT(NAME, ID, CODE_BYTES, MAX, OFFSET, HAS_MINIMUM, WEIGHTS)                                          \
    static size_t NAME##_group_bytes(int64_t cols) {                                                                     \
        return round_64((size_t)(cols / 32) * block32_bytes((CODE_BYTES), (HAS_MINIMUM)));                                \
    }                                                                                                                    \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {              \
        block32_pack(src, row_bytes, rows, cols, group, 1 + (HAS_MINIMUM), (CODE_BYTES));                                \
    }                                                                                                                    \
    static void NAME##_panel(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, float *out) {                   \
        (void)cols;                                                                                                      \
        block32_panel(group, k0, k1, (CODE_BYTES), (OFFSET), (HAS_MINIMUM), WEIGHTS, out);                         \
    }                                                                                                                    \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,         \
                              float *out, int64_t out_stride) {                                                          \
        block32_tile(group, cols, (CODE_BYTES), (MAX), (OFFSET), (HAS_MINIMUM), WEIGHTS, act, row, n, out, out_stride);  \
    }                                                                                                                    \
    QUANTISED_FORMAT(NAME, ID, 32, RASE_ACT_Q16_32)

#endif
