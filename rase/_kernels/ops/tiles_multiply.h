/* Many prompt tokens times a block of weights in bf16 tiles: what tiles.h defines, with its order of sums, hence its bits.
 *
 * The weights of a block stay in the second-level cache while all activations pass. 2 x 2 tiles of sums take a strip of steps, for
 * which the activations are in the first-level cache, and go back to memory until the next strip. A store waits for its sum, and what
 * waits fills the queue of stores, behind which nothing can begin: so sums are stored one by one in the first step of those that
 * follow, which begin in a fifth tile register. Registers: 0-4 sums, in turn; 5 left; 6, 7 right. The processor renames tiles: a load
 * into 5 does not wait for the product that reads it. */
#ifndef RASE_OPS_TILES_MULTIPLY_H
#define RASE_OPS_TILES_MULTIPLY_H

#include "tiles.h"

enum { STRIP_STEPS = 16, SUM_TILES = 5 };

/* Where 2 x 2 tiles of sums go: floats between tiles, and between rows. */
typedef struct {
    float *to; /* NULL: nowhere */
    int64_t down, across, stride;
} tile_place;

/* 2 x 2 tiles of sums over some steps. */
typedef struct {
    const uint8_t *left, *right;
    int64_t left_stride, right_stride, steps;
    const float *from;    /* their values before, a tile after the other; NULL: zeros */
    tile_place before;    /* of the sums that are still in registers */
    const uint8_t *ahead; /* 32 pairs of lines, `ahead_stride` bytes apart, that will be wanted next for sums */
    int64_t ahead_stride;
    const uint8_t *next;  /* this visit's part of the left tiles of the next rows: `lines` lines in each of both tiles of a step */
    int lines;
} tile_visit;

/* The portions are small: a burst of requests would stop the core. */
static inline __attribute__((always_inline)) void visit_ahead(const tile_visit *v, int64_t step) {
    const uint8_t *sums = v->ahead + step * (32 / STRIP_STEPS) * v->ahead_stride, *next = v->next + step * TILE_BYTES;
    for (int l = 0; l < 32 / STRIP_STEPS; l++, sums += v->ahead_stride) {
        __builtin_prefetch(sums, 1, 3);
        __builtin_prefetch(sums + 64, 1, 3);
    }
    for (int l = 0; l < v->lines; l++) {
        __builtin_prefetch(next + 64 * l, 0, 2);
        __builtin_prefetch(next + v->left_stride + 64 * l, 0, 2);
    }
}

/* Sum number j of a visit whose first one is in register `base`. */
#define SUM(J) ((base + (J)) % SUM_TILES)
/* It begins, and the register after it gives its old sum away. */
#define VISIT_BEGIN(J, RIGHT, OFFSET)                                    \
    if (v->from) TILE_LOAD(SUM(J), v->from + 256 * (J), 64);             \
    else TILE_ZERO(SUM(J));                                              \
    TILE_DOT(SUM(J), 5, RIGHT);                                          \
    if (v->before.to) TILE_STORE(SUM(J + 1), v->before.to + (OFFSET), 4 * v->before.stride);

static inline __attribute__((always_inline)) void tile_visit_in(const int base, const tile_visit *v) {
    const uint8_t *left = v->left, *right = v->right;
    visit_ahead(v, 0);
    TILE_LOAD(5, left, 64);
    TILE_LOAD_ONCE(6, right, 64);
    VISIT_BEGIN(0, 6, 0)
    TILE_LOAD_ONCE(7, right + v->right_stride, 64);
    VISIT_BEGIN(1, 7, v->before.across)
    TILE_LOAD(5, left + v->left_stride, 64);
    VISIT_BEGIN(2, 6, v->before.down)
    VISIT_BEGIN(3, 7, v->before.down + v->before.across)
    for (int64_t step = 1; step < v->steps; step++) {
        left += TILE_BYTES, right += TILE_BYTES;
        TILE_LOAD(5, left, 64);
        TILE_LOAD_ONCE(6, right, 64);
        visit_ahead(v, step);
        TILE_DOT(SUM(0), 5, 6);
        TILE_LOAD_ONCE(7, right + v->right_stride, 64);
        TILE_DOT(SUM(1), 5, 7);
        TILE_LOAD(5, left + v->left_stride, 64);
        TILE_DOT(SUM(2), 5, 6);
        TILE_DOT(SUM(3), 5, 7);
    }
}
static inline __attribute__((always_inline)) void tile_leave_in(const int base, tile_place place) {
    TILE_STORE(SUM(0), place.to, 4 * place.stride);
    TILE_STORE(SUM(1), place.to + place.across, 4 * place.stride);
    TILE_STORE(SUM(2), place.to + place.down, 4 * place.stride);
    TILE_STORE(SUM(3), place.to + place.down + place.across, 4 * place.stride);
}
#undef VISIT_BEGIN
#undef SUM

/* CALL with `base` as a constant. */
#define WITH_BASE(CALL)                          \
    switch (base) {                              \
    case 0: { enum { BASE = 0 }; CALL; break; }  \
    case 1: { enum { BASE = 1 }; CALL; break; }  \
    case 2: { enum { BASE = 2 }; CALL; break; }  \
    case 3: { enum { BASE = 3 }; CALL; break; }  \
    default: { enum { BASE = 4 }; CALL; break; } \
    }
/* Returns the register of the first sum. */
static int tile_visit_after(int base, const tile_visit *v) {
    base = base ? base - 1 : SUM_TILES - 1;
    WITH_BASE(tile_visit_in(BASE, v))
    return base;
}
static void tile_leave(int base, tile_place *place) {
    if (place->to) WITH_BASE(tile_leave_in(BASE, *place))
    place->to = NULL;
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

/* What is less than 2 x 2 tiles: rows [i, end) times groups [g, g_end), as tiles_multiply has them. */
static void tiles_rest(const uint8_t *left, int64_t all_steps, int64_t first, int64_t steps, int64_t i, int64_t end, const uint8_t *right,
                       int64_t g_first, int64_t g_end, int64_t pairs, float *sums, float *out, int64_t out_stride) {
    for (; i < end; i += 32) {
        for (int64_t g = g_first; g < g_end; g += 2) {
            const uint8_t *a = left + i / 16 * all_steps * TILE_BYTES, *w = right + g * steps * TILE_BYTES;
            float *partial = sums + (i / 32 * pairs + g / 2) * 1024;
            const int two_groups = g_end - g > 1;
            if (first) tile_sums_load(partial, 512, 256, 16);
            else {
                TILE_ZERO(0);
                TILE_ZERO(1);
                TILE_ZERO(2);
                TILE_ZERO(3);
            }
            tile_steps(a, all_steps * TILE_BYTES, w, steps * TILE_BYTES, steps, end - i > 16, two_groups);
            if (first + steps < all_steps) tile_sums_store(partial, 512, 256, 16);
            else tile_sums_out(out + i * out_stride + 16 * g, out_stride, end - i, two_groups);
        }
    }
}

static void tiles_multiply(const uint8_t *left, int64_t all_steps, int64_t first, int64_t steps, int64_t m, const uint8_t *right,
                           int64_t n_groups, float *sums, float *out, int64_t out_stride) {
    const int64_t pairs = (n_groups + 1) / 2, rows = m / 32 * 32, groups = n_groups / 2 * 2;
    tile_visit v = {.left_stride = all_steps * TILE_BYTES, .right_stride = steps * TILE_BYTES, .lines = (int)((16 + pairs - 1) / pairs)};
    int base = 0;
    tiles_bf16();
    left += first * TILE_BYTES;
    for (int64_t i = 0; i < rows; i += 32) {
        float *of_rows = sums + (steps < all_steps ? i / 32 * pairs * 1024 : 0); /* what lives in this call alone needs no place of its own */
        for (int64_t s = 0; s < steps; s += STRIP_STEPS) {
            v.steps = steps - s < STRIP_STEPS ? steps - s : STRIP_STEPS;
            const int last = first + s + v.steps == all_steps;
            for (int64_t g = 0; g < groups; g += 2) {
                float *partial = of_rows + g / 2 * 1024;
                const tile_place inside = {partial, 512, 256, 16}, outside = {out + i * out_stride + 16 * g, 16 * out_stride, 16, out_stride};
                v.left = left + i / 16 * v.left_stride + s * TILE_BYTES;
                v.right = right + g * v.right_stride + s * TILE_BYTES;
                v.from = first + s ? partial : NULL;
                if (v.before.to == v.from) tile_leave(base, &v.before);
                v.ahead = (const uint8_t *)(last ? outside.to : g + 2 < groups ? partial + 1024 : of_rows);
                v.ahead_stride = last ? 4 * out_stride : 128;
                v.next = v.left + 2 * v.left_stride + 64 * v.lines * (g / 2);
                base = tile_visit_after(base, &v);
                v.before = last ? outside : inside;
            }
        }
    }
    tile_leave(base, &v.before);
    if (groups < n_groups) tiles_rest(left, all_steps, first, steps, 0, rows, right, groups, n_groups, pairs, sums, out, out_stride);
    if (rows < m) tiles_rest(left, all_steps, first, steps, rows, m, right, 0, n_groups, pairs, sums, out, out_stride);
}

#endif
