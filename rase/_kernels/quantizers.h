/* Weights to blocks of the GGUF formats, without an importance matrix: the searches that llama.cpp's reference uses.
 *
 * Called for whole blocks of float32; every function writes one block. Sums are float32 in the order of the block: what a
 * search picks is a choice of codes, not a promise of bits. Plain C on pointers, compiled for the baseline. */
#ifndef RASE_QUANTIZERS_H
#define RASE_QUANTIZERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd/half.h"

enum { MAX_BLOCK = 256 };

/* Nearest integer, ties to even; |x| < 2^22. */
static inline int nearest(float x) {
    float shifted = x + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return (bits & 0x007fffff) - 0x00400000;
}
/* Nearest integer, ties away from zero: roundf, without the library. */
static inline int rounded(float x) { return (int)(x < 0 ? x - 0.5f : x + 0.5f); }
static inline int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
static inline float inverse(float x) { return x != 0 ? 1.0f / x : 0.0f; }

static inline float put_half(uint8_t *out, float x) { /* and what a reader will find there */
    uint16_t half = float_to_half(x);
    memcpy(out, &half, 2);
    return half_to_float(half);
}

/* The value of the largest magnitude, with its sign. */
static float furthest(const float *x, int n) {
    float found = 0.0f;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(found)) found = x[i];
    return found;
}

static void to_q8_0(const float *x, uint8_t *out) {
    float d = fabsf(furthest(x, 32)) / 127.0f, inv = inverse(d);
    put_half(out, d);
    for (int i = 0; i < 32; i++) out[2 + i] = (uint8_t)(int8_t)rounded(x[i] * inv);
}

/* Q4_0 and Q5_0: the furthest value gets the code 0, -half of the range. */
static void codes_around_zero(const float *x, int half_range, uint8_t *out, uint8_t *codes) {
    float d = furthest(x, 32) / (float)-half_range, inv = inverse(d);
    put_half(out, d);
    for (int i = 0; i < 32; i++)
        codes[i] = (uint8_t)clamped((int)(x[i] * inv + (float)half_range + 0.5f), 0, 2 * half_range - 1);
}
static void put_nibbles(const uint8_t *codes, int width, uint8_t *out) {
    for (int i = 0; i < width; i++) out[i] = (uint8_t)((codes[i] & 15) | codes[i + width] << 4);
}
static void put_fifth_bits(const uint8_t *codes, uint8_t *out) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(codes[i] >> 4) << i;
    memcpy(out, &bits, 4);
}
static void to_q4_0(const float *x, uint8_t *out) {
    uint8_t codes[32];
    codes_around_zero(x, 8, out, codes);
    put_nibbles(codes, 16, out + 2);
}
static void to_q5_0(const float *x, uint8_t *out) {
    uint8_t codes[32];
    codes_around_zero(x, 16, out, codes);
    put_fifth_bits(codes, out + 2);
    put_nibbles(codes, 16, out + 6);
}
static void to_q5_1(const float *x, uint8_t *out) {
    uint8_t codes[32];
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    float d = (high - low) / 31.0f, inv = inverse(d);
    put_half(out, d);
    put_half(out + 2, low);
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)clamped((int)((x[i] - low) * inv + 0.5f), 0, 31);
    put_fifth_bits(codes, out + 4);
    put_nibbles(codes, 16, out + 8);
}

/* x ~ scale * code with codes -half_range .. half_range - 1: of 19 scales around the one that just holds the furthest value, the
 * one whose least-squares fit (weights x^2) explains the most. Returns that fit's scale. */
static float fit_scale(const float *x, int n, int half_range) {
    float end = furthest(x, n), scale = 0.0f, best = -1.0f;
    if (fabsf(end) < 1e-15f) return 0.0f;
    for (int turn = 0; turn < 19; turn++) {
        int step = turn == 0 ? 0 : turn <= 9 ? turn - 10 : turn - 9; /* the plain scale first: it wins a tie */
        float inv = -((float)half_range + 0.1f * (float)step) / end, product = 0.0f, square = 0.0f;
        for (int i = 0; i < n; i++) {
            float code = (float)clamped(nearest(inv * x[i]), -half_range, half_range - 1), weight = x[i] * x[i];
            product += weight * x[i] * code;
            square += weight * code * code;
        }
        if (square > 0 && product * product > best * square) {
            scale = product / square;
            best = scale * product;
        }
    }
    return scale;
}

/* x ~ scale * code - minimum with codes 0..most and minimum >= 0: of `steps` + 2 ranges, each with its weighted least-squares
 * fit, the one of the least squared error. Weights: the root mean square plus |x|. */
static float fit_range(const float *x, int n, int most, float first, float delta, int steps, float *minimum) {
    float weight[32], low = x[0], high = x[0], mean = 0.0f, sum_w = 0.0f, sum_x = 0.0f;
    for (int i = 0; i < n; i++) mean += x[i] * x[i];
    mean = sqrtf(mean / (float)n);
    for (int i = 0; i < n; i++) {
        weight[i] = mean + fabsf(x[i]);
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sum_w += weight[i];
        sum_x += weight[i] * x[i];
    }
    low = low > 0 ? 0 : low;
    *minimum = -low;
    if (high == low) return 0.0f;
    float scale = (high - low) / (float)most, best = 0.0f;
    for (int step = -1; step <= steps; step++) {
        float inv = ((float)most + (step < 0 ? 0.0f : first + delta * (float)step)) / (high - low);
        float code[32], sum_c = 0.0f, sum_cc = 0.0f, sum_xc = 0.0f, error = 0.0f, try_scale = scale, try_low = low;
        for (int i = 0; i < n; i++) {
            code[i] = (float)clamped(nearest(inv * (x[i] - low)), 0, most);
            sum_c += weight[i] * code[i];
            sum_cc += weight[i] * code[i] * code[i];
            sum_xc += weight[i] * code[i] * x[i];
        }
        if (step >= 0) {
            float determinant = sum_w * sum_cc - sum_c * sum_c;
            if (!(determinant > 0)) continue;
            try_scale = (sum_w * sum_xc - sum_x * sum_c) / determinant;
            try_low = (sum_cc * sum_x - sum_c * sum_xc) / determinant;
            if (try_low > 0) try_low = 0, try_scale = sum_xc / sum_cc;
        }
        for (int i = 0; i < n; i++) {
            float off = try_scale * code[i] + try_low - x[i];
            error += weight[i] * off * off;
        }
        if (step < 0 || error < best) {
            best = error;
            scale = try_scale;
            *minimum = -try_low;
        }
    }
    return scale;
}

/* Q4_K and Q5_K: d, dmin, 12 bytes of six-bit scales and minimums, and the codes of 8 sub-blocks of 32. */
static void codes_of_ranges(const float *x, int most, float first, int steps, uint8_t *out, uint8_t *codes) {
    float scales[8], minimums[8], scale = 0.0f, minimum = 0.0f;
    uint8_t *packed = out + 4;
    for (int s = 0; s < 8; s++) {
        scales[s] = fit_range(x + 32 * s, 32, most, first, 0.1f, steps, minimums + s);
        scale = scales[s] > scale ? scales[s] : scale;
        minimum = minimums[s] > minimum ? minimums[s] : minimum;
    }
    float d = put_half(out, scale / 63.0f), dmin = put_half(out + 2, minimum / 63.0f);
    memset(packed, 0, 12);
    for (int s = 0; s < 8; s++) {
        int of_scale = clamped(nearest(63.0f * inverse(scale) * scales[s]), 0, 63);
        int of_minimum = clamped(nearest(63.0f * inverse(minimum) * minimums[s]), 0, 63);
        if (s < 4) {
            packed[s] |= (uint8_t)of_scale;
            packed[s + 4] |= (uint8_t)of_minimum;
        } else {
            packed[s + 4] = (uint8_t)((of_scale & 15) | (of_minimum & 15) << 4);
            packed[s - 4] |= (uint8_t)(of_scale >> 4 << 6);
            packed[s] |= (uint8_t)(of_minimum >> 4 << 6);
        }
        float inv = inverse(d * (float)of_scale), lift = dmin * (float)of_minimum;
        for (int i = 32 * s; i < 32 * s + 32; i++) codes[i] = (uint8_t)clamped(nearest((x[i] + lift) * inv), 0, most);
    }
}
static void to_q4_k(const float *x, uint8_t *out) {
    uint8_t codes[256];
    codes_of_ranges(x, 15, -1.0f, 20, out, codes);
    for (int pair = 0; pair < 4; pair++) put_nibbles(codes + 64 * pair, 32, out + 16 + 32 * pair);
}
static void to_q5_k(const float *x, uint8_t *out) {
    uint8_t codes[256];
    codes_of_ranges(x, 31, -0.5f, 15, out, codes);
    memset(out + 16, 0, 32);
    for (int i = 0; i < 256; i++) out[16 + i % 32] |= (uint8_t)(codes[i] >> 4 << i / 32);
    for (int pair = 0; pair < 4; pair++) put_nibbles(codes + 64 * pair, 32, out + 48 + 32 * pair);
}

static void to_q6_k(const float *x, uint8_t *out) {
    float scales[16];
    uint8_t codes[256];
    for (int s = 0; s < 16; s++) scales[s] = fit_scale(x + 16 * s, 16, 32);
    float end = furthest(scales, 16);
    memset(out, 0, 210);
    if (fabsf(end) < 1e-15f) return;
    float d = put_half(out + 208, end / -128.0f);
    for (int s = 0; s < 16; s++) {
        int scale = clamped(nearest(-128.0f / end * scales[s]), -128, 127);
        float inv = inverse(d * (float)scale);
        out[192 + s] = (uint8_t)(int8_t)scale;
        for (int i = 16 * s; i < 16 * s + 16; i++) codes[i] = (uint8_t)(clamped(nearest(x[i] * inv), -32, 31) + 32);
    }
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 128; i++) {
            uint8_t code = codes[128 * h + i];
            out[64 * h + i % 64] |= (uint8_t)((code & 15) << i / 64 * 4);
            out[128 + 32 * h + i % 32] |= (uint8_t)(code >> 4 << i / 32 * 2);
        }
    }
}

typedef struct {
    int id, block, bytes; /* ggml type number, weights and bytes of a block */
    void (*to)(const float *x, uint8_t *out);
} quantizer;

static const quantizer quantizers[] = {
    {2, 32, 18, to_q4_0},    {6, 32, 22, to_q5_0},     {7, 32, 24, to_q5_1},     {8, 32, 34, to_q8_0},
    {12, 256, 144, to_q4_k}, {13, 256, 176, to_q5_k}, {14, 256, 210, to_q6_k},
};

static const quantizer *quantizer_of(int id) {
    for (unsigned i = 0; i < sizeof quantizers / sizeof quantizers[0]; i++)
        if (quantizers[i].id == id) return quantizers + i;
    return 0;
}

/* Blocks [first, last) of x; returns 0, or 1 where x holds a NaN or an infinity. */
static int quantize_blocks(const quantizer *q, const float *x, int64_t first, int64_t last, uint8_t *out) {
    for (int64_t b = first; b < last; b++) {
        float poison = 0.0f;
        for (int i = 0; i < q->block; i++) poison += x[b * q->block + i] * 0.0f;
        if (poison != 0.0f) return 1;
        q->to(x + b * q->block, out + b * q->bytes);
    }
    return 0;
}

#endif
