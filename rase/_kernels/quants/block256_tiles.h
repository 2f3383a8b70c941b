/* Blocks of 256 times four or eight rows of activations in int8 tiles (int8_tiles.h). Part of block256_many.h. */
#ifndef RASE_QUANTS_BLOCK256_TILES_H
#define RASE_QUANTS_BLOCK256_TILES_H

#include "int8_tiles.h"

/* Whether that is faster than registers for more than four rows: Q4_K and Q5_K. Sub-blocks of 16 depths take the tile unit as long as those of 32, twice as
 * often (Q6_K: 20 % slower). */
TEMPLATE int block256_in_tiles(const block256 f) { return f.sub == 32 && f.run >= 32 && !f.offset && !f.expand && !f.sixteen; }

/* A block's lines that lie ahead, one at each of 64 steps or none: two at once hold up the tile unit's own loads, and so does a first
 * fetch to the second level alone. */
enum { I8_READ_AHEAD = 2048 };
TEMPLATE void i8_read_ahead(const uint8_t *block, const int step, const int lines) {
    const int line = (step * lines + 63) / 64;
    __asm__ volatile("" : "+r"(block)); /* stay here */
    if (((step + 1) * lines + 63) / 64 > line) __builtin_prefetch(block + I8_READ_AHEAD + 64 * line, 0, 3);
}

/* Sub-block j (constant) of the block at `start` to its tile. */
TEMPLATE void block256_i8_unpack(const block256 f, const uint8_t *start, const int j, uint8_t *codes) {
    UNROLL(step, f.sub / 4) {
        const int v = block256_step(f, step);
        i8_read_ahead(start, 8 * j + step, (int)block256_bytes(f) / 64);
        rb_store(codes + (j * f.sub / 4 + v) * VECTOR, f.codes(start + 4 * RASE_R, j / 4, j % 4, v));
    }
}
/* Its numbers, and those of some rows, of which the block before needs its own until then. */
TEMPLATE void block256_i8_numbers(const block256 f, const uint8_t *start, const float *da, int64_t blocks, const int j, const int n,
                                  i8_block *to) {
    rb packed[4];
    f.scales(start + 4 * RASE_R, packed);
    rf_store(to->scales + j * RASE_R, rf_from_ri(ri_byte_u8(packed[j / 4], j % 4)));
    if (f.has_minimum) {
        f.minimums(start + 4 * RASE_R, packed);
        rh_store(to->minimums + 2 * j * RASE_R, rh_side(packed[j / 4], j % 4));
    }
    if (j < 5) return;
    const rf d = block256_d(f, (const uint16_t *)start);
    UNROLL(t, n)
        if (t % 3 == j - 5) rf_store(to->d + t * RASE_R, rf_mul(d, rf_set1(da[t * blocks])));
}

/* What follows the tile unit. */
typedef struct {
    rf acc[I8_ROWS];
    ri side[I8_ROWS];
    int64_t b, blocks;       /* the block, of a group */
    const float *da;
    const int16_t *sides[2]; /* of the block, rows 0 and 4 */
    int64_t stride;          /* from row to row of `sides`, bytes */
    float *out;
    int64_t out_stride;
    int rows;                /* that are wanted */
} i8_state;

/* The run that begins with sub-block j enters the sums of rows [first, last). */
TEMPLATE void block256_i8_run(const block256 f, const int j, const i8_buffers *buffers, const i8_block *block, const int first, const int last,
                              i8_state *s) {
    const float *sums = buffers->sums[j % I8_RING], *more = buffers->sums[(j + 1) % I8_RING], *scales = block->scales + j * RASE_R;
    const rf half = rf_set1(RASE_HALF), much = rf_set1(I8_TOO_MUCH);
    const rf scale = rf_load(scales), second = f.run > f.sub ? rf_load(scales + RASE_R) : scale, less = rf_mul(scale, rf_set1(-I8_TOO_MUCH));
    UNROLL(u, last - first) {
        const int t = first + u;
        rf halves[2];
        UNROLL(e, 2) {
            const int at = (2 * t + e) * RASE_R;
            halves[e] = rf_fma(scale, rf_load(sums + at), less); /* exact, and so is all before the last two */
            if (f.run > f.sub) halves[e] = rf_fma(rf_sub(rf_load(more + at), much), second, halves[e]);
        }
        s->acc[t] = rf_fma(rf_fma(halves[0], half, halves[1]), rf_load(block->d + t * RASE_R), s->acc[t]);
    }
}
/* Minimum e (constant) of the block. */
TEMPLATE void block256_i8_minimum(const i8_block *block, const int e, const int n, i8_state *s) {
    const rh minimum = rh_load(block->minimums + 2 * e * RASE_R);
    UNROLL(t, n) {
        const char *side = (const char *)(s->sides[t / 4] + 2 * e) + t % 4 * s->stride;
        s->side[t] = ri_dot_rh(e ? s->side[t] : ri_zero(), minimum, (const int16_t *)side);
    }
}
/* The end of the block at `start`, and perhaps of a group. */
TEMPLATE void block256_i8_end(const block256 f, const uint8_t *start, const int n, i8_state *s) {
    if (f.has_minimum) {
        const rf dmin = rf_from_f16((const uint16_t *)start + RASE_R);
        UNROLL(t, n) s->acc[t] = rf_fnma(rf_mul(dmin, rf_set1(s->da[t * s->blocks + s->b])), rf_from_ri(s->side[t]), s->acc[t]);
        UNROLL(t, 2) s->sides[t] += RASE_SIDES;
    }
    if (++s->b < s->blocks) return;
    s->b = 0;
    UNROLL(t, 2) s->sides[t] -= f.has_minimum ? s->blocks * RASE_SIDES : 0;
    UNROLL(t, n) {
        if (t < s->rows) rf_store(s->out + t * s->out_stride, s->acc[t]);
        s->acc[t] = rf_zero();
    }
    s->out += RASE_R;
}

/* When sub-block j (constant) is multiplied: a run of two sub-blocks is taken half the rows at a time, so that all steps are alike. */
TEMPLATE int i8_runs_end(const block256 f) { return I8_BEHIND + f.run / f.sub - 1; } /* the step at which the block before ends */
TEMPLATE void block256_i8_follow(const block256 f, const int j, const int begun, const uint8_t *start, i8_buffers *buffers,
                                 const i8_block *block, const int n, i8_state *s) {
    const int stored = (j + 8 - I8_BEHIND) % 8, at = (j + 7 - I8_BEHIND) % 8, e = (j + 7 - i8_runs_end(f)) % 8;
    if (j >= I8_BEHIND || begun) i8_store(stored, buffers->sums[stored % I8_RING]);
    if (j <= i8_runs_end(f) && !begun) return;
    if (f.run == f.sub) block256_i8_run(f, at, buffers, block, 0, n, s);
    else if (at % 2) block256_i8_run(f, at - 1, buffers, block, 0, n / 2, s);
    else block256_i8_run(f, (at + 6) % 8, buffers, block, n / 2, n, s);
    if (f.has_minimum) block256_i8_minimum(block, e, n, s);
    if (e == 7) block256_i8_end(f, start, n, s);
}

/* n (4 or 8) rows of activations, from `row` on: out, of the first `rows` of them. The blocks of all groups are one stream. */
TEMPLATE void block256_i8_groups(const block256 f, const uint8_t *start, int64_t n_groups, int64_t cols, const rase_act *act, int64_t row,
                                 int rows, float *out, int64_t out_stride, const int n) {
    const int64_t blocks = cols / 256, bytes = (int64_t)block256_bytes(f);
    const int8_t *q = act->q + 2 * row * cols;
    i8_buffers buffers __attribute__((aligned(64)));
    i8_state s = {.blocks = blocks, .da = act->d + row * blocks, .stride = blocks * RASE_SIDES * 2, .out = out, .out_stride = out_stride, .rows = rows};
    UNROLL(t, 2) s.sides[t] = act->sides + (row + 4 * t) * blocks * RASE_SIDES + 32;
    UNROLL(t, n) s.acc[t] = rf_zero(), s.side[t] = ri_zero();
    tiles_i8(n);
    UNROLL(j, 8) block256_i8_numbers(f, start, s.da, blocks, j, n, buffers.blocks);
    UNROLL(j, I8_AHEAD) block256_i8_unpack(f, start, j, buffers.codes);
    for (int64_t i = 0, b = 0, total = n_groups * blocks; i < total; i++, start += bytes) {
        const uint8_t *next = i + 1 < total ? start + bytes : start;
        i8_block *block = buffers.blocks + (i & 1), *other = buffers.blocks + (~i & 1);
        const int8_t *here = q + 256 * b;
        b = b + 1 < blocks ? b + 1 : 0;
        UNROLL(j, 8) {
            const int before = j <= i8_runs_end(f);
            i8_multiply(j, here + j * f.sub, cols, buffers.codes + j * f.sub * RASE_R);
            block256_i8_follow(f, j, i > 0, before ? start - bytes : start, &buffers, before ? other : block, n, &s);
            block256_i8_numbers(f, next, s.da + b, blocks, j, n, other);
            block256_i8_unpack(f, j < 8 - I8_AHEAD ? start : next, (j + I8_AHEAD) % 8, buffers.codes);
        }
    }
    const i8_block *last = buffers.blocks + ((n_groups * blocks - 1) & 1);
    UNROLL(j, i8_runs_end(f) + 1) block256_i8_follow(f, j, 1, start - bytes, &buffers, last, n, &s);
}

/* Eight rows at a time meet so many groups as stay in the second-level cache, where there are more rows. */
#define BLOCK256_STREAM(NAME)                                                                                                   \
    static __attribute__((noinline)) void NAME##_i8_four(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t row, \
                               int rows, float *out, int64_t out_stride) {                                                       \
        block256_i8_groups(NAME, group, n_groups, cols, act, row, rows, out, out_stride, 4);                                    \
    }                                                                                                                           \
    static __attribute__((noinline)) void NAME##_i8_eight(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t row, \
                               int rows, float *out, int64_t out_stride) {                                                       \
        block256_i8_groups(NAME, group, n_groups, cols, act, row, rows, out, out_stride, 8);                                    \
    }                                                                                                                           \
    static void NAME##_in_tiles(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1,      \
                                float *out, int64_t out_stride) {                                                                \
        const int64_t most = 1 + (256 << 10) / (int64_t)NAME##_group_bytes(cols);                                               \
        for (int64_t g = 0, count; g < n_groups; g += count, group += (size_t)count * NAME##_group_bytes(cols)) {                   \
            count = m1 - m0 > I8_ROWS && n_groups - g > most ? most : n_groups - g;                                             \
            for (int64_t i = m0; i < m1; i += I8_ROWS) {                                                                       \
                const int rows = m1 - i < I8_ROWS ? (int)(m1 - i) : I8_ROWS;                                                   \
                (rows > 4 ? NAME##_i8_eight : NAME##_i8_four)(group, count, cols, act, i, rows, out + i * out_stride + g * RASE_R,  \
                                                              out_stride);                                                     \
            }                                                                                                                  \
        }                                                                                                                      \
    }

#endif
