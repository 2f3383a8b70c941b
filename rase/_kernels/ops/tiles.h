/* Prompt tokens in bf16 tiles (AMX): out = A W^T with activations A (m, cols) and a packed matrix W (rules R1, R3).
 *
 * Both sides are rounded to bf16 (nearest even, denormals to zero) and the tile unit sums the products in float32: within a step
 * of 32 depths in its own fixed order, steps ascending over all of cols; no overflow short of float32's own. Cutting rows, columns
 * or depth into blocks changes no bit: an output depends on its own row of A and of W only, and a partial sum goes through
 * memory as the float32 that it is. Tails are zeros: whole tiles always.
 *
 * A tile is 1 KiB. Left side (activations): [row tile][step][16 rows][32 depths] bf16. Right side (weights): [group][step][16
 * pairs of depths][16 rows][2] bf16. Tile registers: 0-3 sums (2 x 2), 4-5 left, 6-7 right. */
#ifndef RASE_OPS_TILES_H
#define RASE_OPS_TILES_H

#include <immintrin.h>
#include <string.h>

#include "../kernels.h"

enum { TILE_BYTES = 1024, TILE_DEPTH = 32, TILE_STRIDE = 8 }; /* TILE_STRIDE: steps between visits of the sums */

/* The compiler knows neither the memory behind these nor their order: all are volatile and clobber memory. */
#define TILE_LOAD(T, P, STRIDE) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(P), "r"((int64_t)(STRIDE)) : "memory")
#define TILE_STORE(T, P, STRIDE) \
    __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" : : "r"(P), "r"((int64_t)(STRIDE)) : "memory")
#define TILE_ZERO(T) __asm__ volatile("tilezero %%tmm" #T : :)
#define TILE_DOT(C, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)

/* Eight tiles of 16 rows of 64 bytes for the calling thread. The operand is the whole 64-byte structure: gcc 12's own intrinsic
 * names 8 bytes of it, and the stores before it vanish. */
static void tiles_begin(void) {
    struct configuration {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c __attribute__((aligned(64)));
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int t = 0; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static void tiles_end(void) { __asm__ volatile("tilerelease" : :); }

static inline __m512i two_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

static inline __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

static void tiles_left(const float *x, int64_t cols, int64_t row, uint8_t *tiles) {
    uint8_t *out = tiles + row / 16 * ((cols + 31) / 32) * TILE_BYTES + row % 16 * 64;
    int64_t k = 0;
    for (; k + TILE_DEPTH <= cols; k += TILE_DEPTH, out += TILE_BYTES)
        _mm512_store_si512(out, two_bf16(_mm512_loadu_ps(x + k), _mm512_loadu_ps(x + k + 16)));
    if (k == cols) return;
    __m512 low = _mm512_maskz_loadu_ps(first_lanes(cols - k), x + k);
    _mm512_store_si512(out, two_bf16(low, _mm512_maskz_loadu_ps(first_lanes(cols - k - 16), x + k + 16)));
}

/* Words 0, 16, 1, 17, ...: both depths of a row side by side. */
static inline __m512i side_by_side(__m512 even, __m512 odd) {
    const __m512i order = _mm512_setr_epi32(
        0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005, 0x00160006, 0x00170007, 0x00180008,
        0x00190009, 0x001a000a, 0x001b000b, 0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return _mm512_permutexvar_epi16(order, two_bf16(even, odd));
}

/* Depths of a group on their way to tiles, one after the other. */
typedef struct {
    __m512 even;
    uint8_t *right;
    rase_tile_target target;
} tile_stream;

static inline tile_stream tile_stream_to(const rase_tile_target *target) {
    return (tile_stream){_mm512_setzero_ps(), target->right, *target};
}

/* Sums 0 to 3: up to four row tiles times one tile of the right side. */
static inline __attribute__((always_inline)) void tile_meet(const uint8_t *right, const rase_tile_target *t) {
    TILE_LOAD(4, right, 64);
    TILE_LOAD(5, t->left, 64);
    TILE_DOT(0, 5, 4);
    if (t->row_tiles < 2) return;
    TILE_LOAD(6, t->left + t->left_stride, 64);
    TILE_DOT(1, 6, 4);
    if (t->row_tiles < 3) return;
    TILE_LOAD(7, t->left + 2 * t->left_stride, 64);
    TILE_DOT(2, 7, 4);
    if (t->row_tiles < 4) return;
    TILE_LOAD(5, t->left + 3 * t->left_stride, 64);
    TILE_DOT(3, 5, 4);
}

static inline __attribute__((always_inline)) void tile_put(tile_stream *s, __m512 x, int k) {
    if (k % 2 == 0) {
        s->even = x;
        return;
    }
    _mm512_store_si512(s->right, side_by_side(s->even, x));
    s->right += 64;
    if (k % TILE_DEPTH != TILE_DEPTH - 1 || !s->target.left) return;
    s->right -= TILE_BYTES;
    tile_meet(s->right, &s->target);
    s->target.left += TILE_BYTES;
    s->right = (uint8_t *)((uintptr_t)s->right ^ TILE_BYTES);
}

/* After `depth` of them: zeros up to a whole step. */
static inline void tile_end(tile_stream *s, int64_t depth) {
    for (; depth % TILE_DEPTH; depth++) tile_put(s, _mm512_setzero_ps(), (int)(depth % TILE_DEPTH));
}

static void tiles_right(const rase_format *format, const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, uint8_t *tiles) {
    rase_tile_target to = {.right = tiles};
    format->tiles(group, cols, k0, k1, &to);
}

/* The sums of 2 x 2 tiles, or fewer, over `steps` steps. */
static inline __attribute__((always_inline)) void tile_steps(const uint8_t *left, int64_t left_stride, const uint8_t *right,
                                                             int64_t right_stride, int64_t steps, const int two_left,
                                                             const int two_right) {
    for (int64_t s = 0; s < steps; s++, left += TILE_BYTES, right += TILE_BYTES) {
        TILE_LOAD(4, left, 64);
        TILE_LOAD(6, right, 64);
        TILE_DOT(0, 4, 6);
        if (two_right) {
            TILE_LOAD(7, right + right_stride, 64);
            TILE_DOT(1, 4, 7);
        }
        if (two_left) {
            TILE_LOAD(5, left + left_stride, 64);
            TILE_DOT(2, 5, 6);
        }
        if (two_left && two_right) TILE_DOT(3, 5, 7);
    }
}

/* Four sum tiles from or to memory: `down` and `across` floats between them, `stride` floats between their rows. */
static inline void tile_sums_load(const float *from, int64_t down, int64_t across, int64_t stride) {
    TILE_LOAD(0, from, 4 * stride);
    TILE_LOAD(1, from + across, 4 * stride);
    TILE_LOAD(2, from + down, 4 * stride);
    TILE_LOAD(3, from + down + across, 4 * stride);
}
static inline void tile_sums_store(float *to, int64_t down, int64_t across, int64_t stride) {
    TILE_STORE(0, to, 4 * stride);
    TILE_STORE(1, to + across, 4 * stride);
    TILE_STORE(2, to + down, 4 * stride);
    TILE_STORE(3, to + down + across, 4 * stride);
}

/* Four sum tiles to the output; what lies beyond m rows or the groups is not the caller's. */
static void tile_sums_out(float *to, int64_t out_stride, int64_t m, const int two_groups) {
    if (m >= 32 && two_groups) {
        tile_sums_store(to, 16 * out_stride, 16, out_stride);
        return;
    }
    float whole[4 * 256];
    tile_sums_store(whole, 512, 256, 16);
    for (int64_t r = 0; r < 32 && r < m; r++)
        for (int h = 0; h <= two_groups; h++) memcpy(to + r * out_stride + 16 * h, whole + r / 16 * 512 + 256 * h + r % 16 * 16, 64);
}

/* A few steps at a time for all groups, so that their left tiles stay in the first-level cache; the sums wait in the second. */
static void tiles_multiply(const uint8_t *left, int64_t all_steps, int64_t first, int64_t steps, int64_t m, const uint8_t *right,
                           int64_t n_groups, float *sums, float *out, int64_t out_stride) {
    const int64_t left_stride = all_steps * TILE_BYTES, right_stride = steps * TILE_BYTES, pairs = (n_groups + 1) / 2;
    left += first * TILE_BYTES;
    for (int64_t i = 0; i < m; i += 32, left += 2 * left_stride, sums += pairs * 4 * 256) {
        const int two_rows = m - i > 16;
        for (int64_t s = 0; s < steps; s += TILE_STRIDE) {
            const int64_t n = steps - s < TILE_STRIDE ? steps - s : TILE_STRIDE;
            for (int64_t g = 0; g < n_groups; g += 2) {
                const int two_groups = n_groups - g > 1;
                const uint8_t *a = left + s * TILE_BYTES, *w = right + g * right_stride + s * TILE_BYTES;
                float *partial = sums + g / 2 * 4 * 256;
                if (first + s) {
                    tile_sums_load(partial, 512, 256, 16);
                } else {
                    TILE_ZERO(0);
                    TILE_ZERO(1);
                    TILE_ZERO(2);
                    TILE_ZERO(3);
                }
                if (two_rows && two_groups) tile_steps(a, left_stride, w, right_stride, n, 1, 1);
                else if (two_rows) tile_steps(a, left_stride, w, right_stride, n, 1, 0);
                else if (two_groups) tile_steps(a, left_stride, w, right_stride, n, 0, 1);
                else tile_steps(a, left_stride, w, right_stride, n, 0, 0);
                if (first + s + n < all_steps) tile_sums_store(partial, 512, 256, 16);
                else tile_sums_out(out + i * out_stride + 16 * g, out_stride, m - i, two_groups);
            }
        }
    }
}

/* All depths of n_groups groups times m rows, at most RASE_FEW_TILES tiles of them: each step of a group meets its rows when it is
 * unpacked, so that weights are read in one stream and neither they nor sums leave the first-level cache. */
static void tiles_few(const rase_format *format, const uint8_t *groups, int64_t n_groups, int64_t cols, const uint8_t *left,
                      int64_t m, float *out, int64_t out_stride) {
    uint8_t right[2 * TILE_BYTES] __attribute__((aligned(2 * TILE_BYTES)));
    float sums[RASE_FEW_TILES * 256] __attribute__((aligned(64)));
    const rase_tile_target to = {right, left, (cols + 31) / 32 * TILE_BYTES, (int)((m + 15) / 16)};
    for (int64_t g = 0; g < n_groups; g++, groups += format->group_bytes(cols), out += 16) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        format->tiles(groups, cols, 0, cols, &to);
        TILE_STORE(0, sums, 64);
        if (to.row_tiles > 1) TILE_STORE(1, sums + 256, 64);
        if (to.row_tiles > 2) TILE_STORE(2, sums + 512, 64);
        if (to.row_tiles > 3) TILE_STORE(3, sums + 768, 64);
        for (int64_t r = 0; r < m; r++) _mm512_storeu_ps(out + r * out_stride, _mm512_load_ps(sums + 16 * r));
    }
}

#endif
