/* Quantized weights times several activation rows: rule R2 in another loop order, the same bits.
 *
 * Weights are unpacked to scale times (code - offset) as int16 (at most 4096 in size), bytes 0 and 2, then 1 and 3 of every lane
 * side by side; an activation is one int16, 254 * high + low. A run of depths is summed in int32 and enters as float32 by one
 * FMA; within a format's run no sum leaves int32 (block32.h, block256.h). Against the two int8 halves of one row that is as many
 * dot instructions, but neither scales nor offsets are left between them. Where registers are many, four or eight rows meet the
 * weights there; more rows share a panel: 256 depths of a group, unpacked to the first-level cache. Panels of all groups of a set
 * meet some depths of a chunk of rows before the next depths do: so these, and the sums, stay in the second-level cache. */
#ifndef RASE_QUANTS_WIDE_H
#define RASE_QUANTS_WIDE_H

enum {
    WIDE_DEPTH = 256,
#ifdef RASE_FOUR_ROWS
    WIDE_ROWS = 17,                    /* from so many rows on panels are faster than unpacking again for every eight */
#else
    WIDE_ROWS = RASE_WIDE_FROM,
#endif
    WIDE_CHUNK = RASE_WIDE_CHUNK,      /* activation rows that share a panel */
    WIDE_SET = 16,                     /* groups; a multiple of RASE_WIDE_GROUPS */
    WIDE_MANY = 32,                    /* from so many rows on sets are larger than one tile */
    WIDE_PAST = 8 << 20,               /* bytes of all outputs of these rows */
    WIDE_RUN = 4 * RASE_WIDE_COLS,     /* int16 elements of `wide` that hold RASE_WIDE_COLS depths of four rows */
};

typedef struct {
    int16_t weights[WIDE_DEPTH * RASE_R] __attribute__((aligned(64))); /* [pair][row][2] */
    int16_t sides[32 * RASE_R] __attribute__((aligned(64)));           /* blocks of 256: their minimums, times 1 and 128 */
    float d[8 * RASE_R], minimum[8 * RASE_R];                          /* of each block; of 256: what is added, - dmin */
} wide_panel;

/* What belongs to WIDE_DEPTH depths of a chunk of rows, one after another. */
typedef struct {
    float d[8][WIDE_CHUNK]; /* of each block */
    union {
        float sums[8][WIDE_CHUNK];                                            /* blocks of 32 with minimums: dsums */
        int16_t sides[WIDE_CHUNK * RASE_WIDE_COLS] __attribute__((aligned(64))); /* of 256: in the order of `wide` */
    };
} wide_scales;

/* Constant in every use. */
typedef struct {
    int block;       /* 256, or 32 or some of these with one scale */
    int run;         /* depths that are summed in int32 */
    int minimum;     /* blocks of 32: whether they have one; of 256: how many */
    size_t bytes;    /* of a packed block of R rows */
} wide_kind;

/* `count` blocks of a group, from block `first` on, to a panel. */
typedef void wide_unpack(const uint8_t *group, int64_t first, int count, wide_panel *panel);
/* Some rows of a chunk, from number `row`, a multiple of four, on, and their sums so far. */
typedef struct {
    const int16_t *a; /* the rows' `wide` at these depths */
    int64_t next;     /* int16 elements from four rows to the next four */
    int64_t ahead;    /* from these rows to those of the tile that comes next */
    const wide_scales *scales;
    int row;
    float *sums;      /* (fours, RASE_WIDE_GROUPS, 4, R) */
} wide_task;

typedef void wide_rows(const wide_panel *panels, const wide_kind *kind, int depth, const wide_task *task);

/* Register tiles: f times four rows times g groups; what is in a register meets many others, which spares loads, and the sums are so
 * many that the dot units do not wait for each other. Vector AT(four, j, t) of a tile's sums is that of group j and row 4 * four + t. */
enum { FOUR = 4 * RASE_WIDE_GROUPS, MOST_SUMS = FOUR * RASE_WIDE_FOURS };
#define AT(four, j, t) ((four) * FOUR + (j) * 4 + (t))

#ifndef RASE_WIDE_RUN
/* acc = fma(the products of `depth` depths, d, acc) for each row and group. Rows lie at `a`, from depth `at` of their 32 on, four more
 * rows `next` int16 further; the weights of the next group `apart` bytes further. What comes next lies `ahead` int16 further: not asked for here. */
TEMPLATE void wide_run(float *acc, const float *d, const int16_t *weights, int64_t apart, const int16_t *a, int64_t next, int64_t ahead,
                       int at, int depth, const int f, const int g) {
    (void)ahead;
    UNROLL(four, f) {
        const int16_t *rows = a + four * next, *w = weights;
        ri sum[FOUR];
        UNROLL(s, 4 * g) sum[s] = ri_zero();
        for (int k = at; k < at + depth; k += 16) {
            UNROLL(p, 8) {
                UNROLL(j, g) {
                    rh pair = rh_load(w + j * apart / 2 + 2 * p * RASE_R);
                    UNROLL(t, 4) sum[4 * j + t] = ri_dot_rh(sum[4 * j + t], pair, rows + t * RASE_WIDE_COLS + 2 * p);
                }
            }
            w += 16 * RASE_R, rows += k % RASE_WIDE_COLS ? WIDE_RUN - 16 : 16;
        }
        UNROLL(s, 4 * g) {
            float *to = acc + AT(four, 0, s) * RASE_R;
            rf_store(to, rf_fma(rf_from_ri(sum[s]), rf_load(d + AT(four, 0, s) * RASE_R), rf_load(to)));
        }
    }
}
#endif

/* out = a scale of each group times that of each row. */
TEMPLATE void wide_products(const float *groups, const float *rows, float *out, const int f, const int g) {
    UNROLL(j, g) {
        rf scale = rf_load(groups + (size_t)j * (sizeof(wide_panel) / sizeof *groups));
        UNROLL(t, 4 * f) rf_store(out + AT(t / 4, j, t % 4) * RASE_R, rf_mul(scale, rf_set1(rows[t])));
    }
}

/* Panels of one block of 256. */
TEMPLATE void wide_256(const wide_panel *panels, const wide_kind *kind, const wide_task *task, const int f, const int g) {
    const float *da = task->scales->d[0] + task->row;
    const int16_t *a = task->a, *sides = task->scales->sides + task->row * RASE_WIDE_COLS;
    const int64_t next = task->next;
    float *const sums = task->sums, d[MOST_SUMS * RASE_R] __attribute__((aligned(64)));
    wide_products(panels->d, da, d, f, g);
    for (int k = 0; k < WIDE_DEPTH; k += kind->run) {
        const int at = k % RASE_WIDE_COLS;
        wide_run(sums, d, panels->weights + k * RASE_R, sizeof(wide_panel), a + k / RASE_WIDE_COLS * WIDE_RUN + at, next, task->ahead, at,
                 kind->run, f, g);
    }
    if (kind->minimum) {
        wide_products(panels->minimum, da, d, f, g);
        wide_run(sums, d, panels->sides, sizeof(wide_panel), sides, WIDE_RUN, f * WIDE_RUN, 0, 2 * kind->minimum, f, g);
    }
}

/* Panels of up to eight blocks of 32. */
TEMPLATE void wide_32(const wide_panel *panels, const wide_kind *kind, int depth, const wide_task *task, const int f, const int g) {
    float d[MOST_SUMS * RASE_R] __attribute__((aligned(64)));
    for (int b = 0; b < depth / 32; b++) {
        wide_products(panels->d + b * RASE_R, task->scales->d[b] + task->row, d, f, g);
        wide_run(task->sums, d, panels->weights + 32 * b * RASE_R, sizeof(wide_panel), task->a + b * WIDE_RUN, task->next, task->ahead, 0, 32, f, g);
        if (!kind->minimum) continue;
        UNROLL(j, g) {
            rf minimum = rf_load(panels[j].minimum + b * RASE_R);
            UNROLL(t, 4 * f) {
                float *acc = task->sums + AT(t / 4, j, t % 4) * RASE_R;
                rf_store(acc, rf_fma(minimum, rf_set1(task->scales->sums[b][task->row + t]), rf_load(acc)));
            }
        }
    }
}

#define WIDE_TILE(F, G)                                                                                                  \
    static void wide_tile_##F##_##G(const wide_panel *panels, const wide_kind *kind, int depth, const wide_task *task) { \
        if (kind->block == 256) wide_256(panels, kind, task, F, G);                                                      \
        else wide_32(panels, kind, depth, task, F, G);                                                                   \
    }
#define WIDE_TILES(F) WIDE_TILE(F, 1) WIDE_TILE(F, 2)
WIDE_TILES(1)
#if RASE_WIDE_FOURS == 3
WIDE_TILES(2) WIDE_TILES(3)
static wide_rows *const wide_tiles[][2] = {{wide_tile_1_1, wide_tile_1_2}, {wide_tile_2_1, wide_tile_2_2}, {wide_tile_3_1, wide_tile_3_2}};
#else
static wide_rows *const wide_tiles[][2] = {{wide_tile_1_1, wide_tile_1_2}};
#endif

/* Fours of rows of the next tile, of `left`: as many as fit registers, but no single one behind them. */
static int wide_fours(int left) {
    return left == RASE_WIDE_FOURS + 1 ? (RASE_WIDE_FOURS + 1) / 2 : left < RASE_WIDE_FOURS ? left : RASE_WIDE_FOURS;
}

static void wide_gather(const rase_act *act, const wide_kind *kind, int64_t cols, int64_t k, int depth, int64_t start, int rows,
                        wide_scales *scales) {
    const int block = kind->block == 256 ? 256 : 32; /* of activations */
    for (int r = 0; r < rows; r++) {
        const int64_t at = (start + r) * (cols / block) + k / block;
        for (int b = 0; b < depth / block; b++) scales->d[b][r] = act->d[at + b];
        if (!kind->minimum) continue;
        if (block == 32) {
            for (int b = 0; b < depth / block; b++) scales->sums[b][r] = act->dsums[at + b];
        } else {
            const int16_t *of = act->sides + at * RASE_SIDES + (kind->minimum == 16 ? 0 : 32);
            memcpy(scales->sides + r * RASE_WIDE_COLS, of, 32);
            if (kind->minimum == 16) memcpy(scales->sides + r * RASE_WIDE_COLS + 16, of + 16, 32);
        }
    }
}

/* Ask for the lines that `wide_store` will write. */
static void wide_expect(const wide_task *task, int f, int g, float *out, int64_t out_stride) {
    for (int t = 0; t < 4 * f; t++)
        for (int j = 0; j < g; j++) __builtin_prefetch(out + (task->row + t) * out_stride + j * RASE_R, 1, 3);
}

/* Whether whole lines of `out` are written past the caches: where so many rows leave nothing of it there for the next phase, nothing
 * waits for what the lines held before. */
static int wide_past(int64_t rows, const float *out, int64_t out_stride) {
#ifdef RASE_STORE_PAST
    return rows * out_stride * (int64_t)sizeof *out > WIDE_PAST && ((uintptr_t)out | (uintptr_t)out_stride * sizeof *out) % 64 == 0;
#else
    return (void)rows, (void)out, (void)out_stride, 0;
#endif
}
#ifndef RASE_STORE_PAST
#define rf_store_past rf_store
#define rf_stored_past()
#endif

/* The sums of a tile to `out`, those of rows [first, last) of the chunk. Beside the tiles, as these stores wait for the memory. */
static void wide_store(const wide_task *task, int64_t first, int64_t last, int f, int g, int past, float *out, int64_t out_stride) {
    for (int t = 0; t < 4 * f; t++)
        if (task->row + t >= first && task->row + t < last)
            for (int j = 0; j < g; j++)
                (past ? rf_store_past : rf_store)(out + (task->row + t) * out_stride + j * RASE_R, rf_load(task->sums + AT(t / 4, j, t % 4) * RASE_R));
}

/* Rows [first, last) of the activations, at most WIDE_CHUNK from a multiple of four on, times `count` groups. */
static void wide_chunk(const uint8_t *groups, int count, size_t group_bytes, const wide_kind *kind, wide_unpack *unpack, int64_t cols,
                       const rase_act *act, int64_t first, int64_t last, int past, float *out, int64_t out_stride) {
    wide_panel panels[RASE_WIDE_GROUPS];
    wide_scales scales;
    float sums[WIDE_CHUNK / 4 * 4 * WIDE_SET * RASE_R] __attribute__((aligned(64)));
    const int64_t start = first / 4 * 4;
    const int fours = (int)(last - start + 3) / 4;
    const int tiles = (fours + RASE_WIDE_FOURS - 1) / RASE_WIDE_FOURS;
    for (int64_t k = 0; k < cols; k += WIDE_DEPTH) {
        const int depth = cols - k < WIDE_DEPTH ? (int)(cols - k) : WIDE_DEPTH, blocks = depth / kind->block;
        const size_t bytes = kind->bytes * (size_t)blocks;
        const int lines = ((int)(bytes / 64) + tiles) / tiles; /* of what comes next, to read beside each tile */
        wide_gather(act, kind, cols, k, depth, start, 4 * fours, &scales);
        for (int g = 0; g < count; g += RASE_WIDE_GROUPS) {
            const uint8_t *group = groups + (size_t)g * group_bytes;
            const int these = count - g < RASE_WIDE_GROUPS ? count - g : RASE_WIDE_GROUPS;
            for (int j = 0; j < these; j++) unpack(group + (size_t)j * group_bytes, k / kind->block, blocks, panels + j);
            wide_task task = {act->wide + start * cols + k / RASE_WIDE_COLS * WIDE_RUN, 4 * cols, 0, &scales, 0,
                              sums + g / RASE_WIDE_GROUPS * fours * FOUR * RASE_R};
            const uint8_t *ahead = group + kind->bytes * (size_t)(k / kind->block) + bytes;
            for (int i = 0, n; i < fours; i += n) {
                for (int l = 0; l < lines; l++, ahead += 64)
                    for (int j = 0; j < these; j++) __builtin_prefetch(ahead + (size_t)j * group_bytes, 0, 2);
                n = wide_fours(fours - i);
                task.ahead = (i + n < fours ? n : -i) * task.next;
                for (int v = 0; k == 0 && v < n * FOUR; v++) rf_store(task.sums + v * RASE_R, rf_zero());
                if (!past && k + depth == cols) wide_expect(&task, n, these, out + start * out_stride + g * RASE_R, out_stride);
                wide_tiles[n - 1][these - 1](panels, kind, depth, &task);
                if (k + depth == cols) wide_store(&task, first - start, last - start, n, these, past, out + start * out_stride + g * RASE_R, out_stride);
                task.a += n * task.next, task.row += 4 * n, task.sums += n * FOUR * RASE_R;
            }
        }
    }
}

static void wide_dot(const uint8_t *groups, int64_t n_groups, size_t group_bytes, const wide_kind *kind, wide_unpack *unpack,
                     int64_t cols, const rase_act *act, int64_t m0, int64_t m1, float *out, int64_t out_stride) {
    const int64_t set = m1 - m0 < WIDE_MANY ? RASE_WIDE_GROUPS : WIDE_SET;
    const int past = wide_past(m1 - m0, out, out_stride);
    for (int64_t first = m0, last; first < m1; first = last) {
        last = first / 4 * 4 + WIDE_CHUNK < m1 ? first / 4 * 4 + WIDE_CHUNK : m1;
        for (int64_t g = 0, count; g < n_groups; g += count) {
            count = n_groups - g < set ? n_groups - g : set;
            wide_chunk(groups + (size_t)g * group_bytes, (int)count, group_bytes, kind, unpack, cols, act, first, last, past,
                       out + g * RASE_R, out_stride);
        }
    }
    if (past) rf_stored_past();
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
