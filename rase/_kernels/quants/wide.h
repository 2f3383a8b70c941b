/* Quantized weights times several activation rows: rule R2 in another loop order, the same bits.
 *
 * Weights are unpacked to scale times (code - offset) as int16 (at most 4096 in size), bytes 0 and 2, then 1 and 3 of every lane
 * side by side; an activation is one int16, 254 * high + low. A run of depths is summed in int32 and enters as float32 by one
 * FMA; within a format's run no sum leaves int32 (block32.h, block256.h). Against the two int8 halves of one row that is as many
 * dot instructions, but neither scales nor offsets are left between them. Where registers are many, four or eight rows meet the
 * weights there; more rows share a panel: 256 depths of a group, unpacked to the first-level cache. */
#ifndef RASE_QUANTS_WIDE_H
#define RASE_QUANTS_WIDE_H

enum {
    WIDE_DEPTH = 256,
#ifdef RASE_FOUR_ROWS
    WIDE_ROWS = 17,                    /* from so many rows on panels are faster than unpacking again for every eight */
#else
    WIDE_ROWS = RASE_WIDE_FROM,
#endif
    WIDE_CHUNK = 64,                   /* activation rows that share a panel, and stay in the second-level cache meanwhile */
    WIDE_RUN = 4 * RASE_WIDE_COLS,     /* int16 elements of `wide` that hold RASE_WIDE_COLS depths of four rows */
};

typedef struct {
    int16_t weights[WIDE_DEPTH * RASE_R] __attribute__((aligned(64))); /* [pair][row][2] */
    int16_t sides[32 * RASE_R] __attribute__((aligned(64)));           /* blocks of 256: their minimums, times 1 and 128 */
    float d[8 * RASE_R], minimum[8 * RASE_R];                          /* of each block */
} wide_panel;

/* Constant in every use. */
typedef struct {
    int block;       /* 32 or 256 */
    int run;         /* depths that are summed in int32 */
    int minimum;     /* blocks of 32: whether they have one; of 256: how many */
    size_t bytes;    /* of a packed block of R rows */
} wide_kind;

/* `count` blocks of a group, from block `first` on, to a panel. */
typedef void wide_unpack(const uint8_t *group, int64_t first, int count, wide_panel *panel);
/* Four rows of activations from `row`, a multiple of four, on, and their sums so far. */
typedef struct {
    const rase_act *act;
    int64_t cols, row;
    float *sums;            /* (groups, 4, R) */
    const uint8_t *weights; /* what the first panel was made of */
    size_t apart;           /* the other panels' from it */
    int first, lines;       /* cache lines to read ahead in each of WIDE_DEPTH / 16 steps, and from which on */
} wide_task;

typedef void wide_rows(const wide_panel *panels, const wide_kind *kind, int depth, int64_t k, const wide_task *task);

/* Register tiles: 4 rows times g groups; an activation that is in a register meets g weights, which spares loads, and the sums are
 * so many that the dot units do not wait for each other. */
enum { ROWS = 4, MOST_SUMS = ROWS * RASE_WIDE_GROUPS };

#ifndef RASE_WIDE_STEP
/* sum[j][t] += 16 depths of panel j times row t. */
TEMPLATE void wide_step(ri *sum, const int g, const int16_t *const *weights, const int16_t *a) {
    UNROLL(p, 8) {
        UNROLL(j, g) {
            rh w = rh_load(weights[j] + 2 * p * RASE_R);
            UNROLL(t, ROWS) sum[j * ROWS + t] = ri_dot_rh(sum[j * ROWS + t], w, a + t * RASE_WIDE_COLS + 2 * p);
        }
    }
}
#endif

/* The lines ahead that fall to depths [from, from + depth). In small portions: a burst of requests to memory would stop the core. */
TEMPLATE void wide_read_ahead(const wide_task *task, int from, int depth, const int g) {
    const int start = task->first + from / 16 * task->lines;
    for (int line = start; line < start + depth / 16 * task->lines; line++) {
        UNROLL(j, g) {
            const uint8_t *p = task->weights + 64 * line + (size_t)j * task->apart;
            if (line % 2 == 0) __builtin_prefetch(p + AHEAD_FARTHER, 0, 2);
            __builtin_prefetch(p + AHEAD_NEAR, 0, 3);
        }
    }
}

/* sum = the products of depths [k, k + depth), `from` in the panels. */
TEMPLATE void wide_sum(const wide_panel *panels, int from, int depth, const wide_task *task, int64_t k, const int g, ri *sum) {
    const int16_t *a = task->act->wide + task->row * task->cols + k / RASE_WIDE_COLS * WIDE_RUN + k % RASE_WIDE_COLS;
    const int16_t *weights[RASE_WIDE_GROUPS];
    UNROLL(j, g) weights[j] = panels[j].weights + from * RASE_R;
    UNROLL(t, ROWS * g) sum[t] = ri_zero();
    for (int d = 0; d < depth; d += 16) {
        wide_step(sum, g, weights, a);
        UNROLL(j, g) weights[j] += 16 * RASE_R;
        a += (k + d) % RASE_WIDE_COLS ? WIDE_RUN - 16 : 16;
    }
}

/* Panels of one block of 256. */
TEMPLATE void wide_256(const wide_panel *panels, const wide_kind *kind, int64_t k, const wide_task *task, const int g) {
    const int64_t blocks = task->cols / 256, b = k / 256;
    const float *da = task->act->d + task->row * blocks + b;
    rf acc[MOST_SUMS], d[MOST_SUMS];
    ri sum[MOST_SUMS];
    UNROLL(t, ROWS * g) acc[t] = k ? rf_load(task->sums + t * RASE_R) : rf_zero();
    UNROLL(t, ROWS * g) d[t] = rf_mul(rf_load(panels[t / ROWS].d), rf_set1(da[t % ROWS * blocks]));
    for (int i = 0; i < WIDE_DEPTH; i += kind->run) {
        wide_read_ahead(task, i, kind->run, g);
        wide_sum(panels, i, kind->run, task, k + i, g, sum);
        UNROLL(t, ROWS * g) acc[t] = rf_fma(rf_from_ri(sum[t]), d[t], acc[t]);
    }
    if (kind->minimum) {
        const int16_t *of = task->act->sides + (task->row * blocks + b) * RASE_SIDES + (kind->minimum == 16 ? 0 : 32);
        UNROLL(t, ROWS * g) sum[t] = ri_zero();
        for (int s = 0; s < kind->minimum; s++)
            UNROLL(t, ROWS * g)
                sum[t] = ri_dot_rh(sum[t], rh_load(panels[t / ROWS].sides + 2 * s * RASE_R), of + t % ROWS * blocks * RASE_SIDES + 2 * s);
        UNROLL(t, ROWS * g)
            acc[t] = rf_fnma(rf_mul(rf_load(panels[t / ROWS].minimum), rf_set1(da[t % ROWS * blocks])), rf_from_ri(sum[t]), acc[t]);
    }
    UNROLL(t, ROWS * g) rf_store(task->sums + t * RASE_R, acc[t]);
}

/* Panels of up to eight blocks of 32. */
TEMPLATE void wide_32(const wide_panel *panels, const wide_kind *kind, int depth, int64_t k, const wide_task *task, const int g) {
    const int64_t blocks = task->cols / 32;
    rf acc[MOST_SUMS];
    ri sum[MOST_SUMS];
    UNROLL(t, ROWS * g) acc[t] = k ? rf_load(task->sums + t * RASE_R) : rf_zero();
    for (int b = 0; b < depth / 32; b++) {
        const int64_t at = task->row * blocks + k / 32 + b;
        wide_read_ahead(task, 32 * b, 32, g);
        wide_sum(panels, 32 * b, 32, task, k + 32 * b, g, sum);
        UNROLL(t, ROWS * g) {
            rf d = rf_mul(rf_load(panels[t / ROWS].d + b * RASE_R), rf_set1(task->act->d[at + t % ROWS * blocks]));
            acc[t] = rf_fma(rf_from_ri(sum[t]), d, acc[t]);
        }
        if (kind->minimum)
            UNROLL(t, ROWS * g)
                acc[t] = rf_fma(rf_load(panels[t / ROWS].minimum + b * RASE_R), rf_set1(task->act->dsums[at + t % ROWS * blocks]), acc[t]);
    }
    UNROLL(t, ROWS * g) rf_store(task->sums + t * RASE_R, acc[t]);
}

#define WIDE_TILE(G)                                                                                                             \
    static void wide_tile_##G(const wide_panel *panels, const wide_kind *kind, int depth, int64_t k, const wide_task *task) {    \
        if (kind->block == 256) wide_256(panels, kind, k, task, G);                                                              \
        else wide_32(panels, kind, depth, k, task, G);                                                                           \
    }
WIDE_TILE(1)
WIDE_TILE(2)
#if RASE_WIDE_GROUPS > 2
WIDE_TILE(3)
static wide_rows *const wide_tiles[] = {wide_tile_1, wide_tile_2, wide_tile_3};
#else
static wide_rows *const wide_tiles[] = {wide_tile_1, wide_tile_2};
#endif

/* Rows [first, last) of the activations, at most WIDE_CHUNK from a multiple of four on, times `count` groups. */
static void wide_chunk(const uint8_t *groups, int count, size_t group_bytes, const wide_kind *kind, wide_unpack *unpack, int64_t cols,
                       const rase_act *act, int64_t first, int64_t last, int is_first, float *out, int64_t out_stride) {
    wide_panel panels[RASE_WIDE_GROUPS];
    float sums[WIDE_CHUNK * RASE_WIDE_GROUPS * RASE_R] __attribute__((aligned(64)));
    const int64_t start = first / ROWS * ROWS;
    for (int64_t k = 0; k < cols; k += WIDE_DEPTH) {
        const int depth = cols - k < WIDE_DEPTH ? (int)(cols - k) : WIDE_DEPTH, blocks = depth / kind->block;
        const size_t bytes = kind->bytes * (size_t)blocks;
        for (int j = 0; j < count; j++)
            unpack(groups + (size_t)j * group_bytes, k / kind->block, blocks, panels + j);
        const int steps = (int)((last - start + ROWS - 1) / ROWS) * (WIDE_DEPTH / 16);
        const int lines = is_first ? (int)(bytes / 64 + (size_t)steps) / steps : 0;
        for (int64_t i = start; i < last; i += ROWS) {
            const wide_task task = {act, cols, i, sums + (i - start) * count * RASE_R,
                                    groups + kind->bytes * (size_t)(k / kind->block), group_bytes,
                                    (int)(i - start) / ROWS * (WIDE_DEPTH / 16) * lines, lines};
            wide_tiles[count - 1](panels, kind, depth, k, &task);
        }
    }
    for (int64_t i = first; i < last; i++)
        for (int j = 0; j < count; j++)
            rf_store(out + i * out_stride + j * RASE_R,
                     rf_load(sums + ((i - start) / ROWS * count * ROWS + j * ROWS + (i - start) % ROWS) * RASE_R));
}

static void wide_dot(const uint8_t *groups, int64_t n_groups, size_t group_bytes, const wide_kind *kind, wide_unpack *unpack,
                     int64_t cols, const rase_act *act, int64_t m0, int64_t m1, float *out, int64_t out_stride) {
    for (int64_t first = m0, last; first < m1; first = last) {
        last = first / ROWS * ROWS + WIDE_CHUNK < m1 ? first / ROWS * ROWS + WIDE_CHUNK : m1;
        for (int64_t g = 0, count; g < n_groups; g += count) {
            count = n_groups - g < RASE_WIDE_GROUPS ? n_groups - g : RASE_WIDE_GROUPS;
            wide_chunk(groups + (size_t)g * group_bytes, (int)count, group_bytes, kind, unpack, cols, act, first, last, first == m0,
                       out + g * RASE_R, out_stride);
        }
    }
}

#ifdef RASE_FOUR_ROWS
/* Where the activations of four rows lie for depth k, a multiple of 32: row t follows 32 t further. */
TEMPLATE const int16_t *wide_at(const rase_act *act, int64_t cols, int64_t row, int64_t k) {
    return act->wide + row * cols + k / RASE_WIDE_COLS * WIDE_RUN;
}
/* Sums a row: two where the long runs of four rows alone would wait for the dot units. */
TEMPLATE int rows_chains(const int n, const int run) { return n > 4 || run <= 32 ? 1 : 2; }
/* sum += one vector of weights times depths `from` to `from` + 3 of n rows, four of them at each pointer. */
TEMPLATE void rows_dots(ri *sum, rh even, rh odd, const int16_t *const *fours, const int from, const int n, const int run) {
    const int other = (rows_chains(n, run) - 1) * n;
    UNROLL(t, n) sum[t] = ri_dot_rh(sum[t], even, fours[t / 4] + from + t % 4 * RASE_WIDE_COLS);
    UNROLL(t, n) sum[other + t] = ri_dot_rh(sum[other + t], odd, fours[t / 4] + from + t % 4 * RASE_WIDE_COLS + 2);
}
TEMPLATE ri rows_sum(const ri *sum, int t, const int n, const int run) { return rows_chains(n, run) > 1 ? ri_add(sum[t], sum[n + t]) : sum[t]; }
/* The compiler would make a pointer of its own for every row and depth, and keep them in memory. */
#define KEEP_POINTERS(fours) __asm__("" : "+r"((fours)[0]), "+r"((fours)[1]));
#define ROWS_OF(NAME, FOUR, EIGHT, IN_TILES)                                                                                        \
    TEMPLATE int NAME##_tiled(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1,    \
                              float *out, int64_t out_stride) {                                                                   \
        (void)group, (void)n_groups, (void)cols, (void)act, (void)m0, (void)m1, (void)out, (void)out_stride;                      \
        IN_TILES                                                                                                                  \
        return 0;                                                                                                                 \
    }                                                                                                                             \
    static void NAME##_four(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) { FOUR; }            \
    static void NAME##_eight(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) { EIGHT; }
#endif

#endif
