/* The register tiles of attention. Every tile splits outputs, never a reduction: its size changes no bits (rules R1, R8).
 *
 * Scores: 16 lanes over head_dim, lane = element mod 16, one FMA each, ascending, folded 8-4-2-1. `dot_tile` holds the lanes
 * in one vector (few queries: K is read as stored); `scores_tile` holds 16 positions in one vector and walks the lanes pairwise
 * (many queries: K is transposed once, and no fold shuffles). P.V: one FMA per position, ascending, one accumulator per output. */
#ifndef RASE_OPS_ATTENTION_TILES_H
#define RASE_OPS_ATTENTION_TILES_H

/* Rows and vectors of 16 of the two tiles of many queries; accumulators of the tiles of few queries, and CALL(rows) for each. */
#if defined(__AVX512F__)
enum { SCORE_ROWS = 6, SCORE_VECS = 2, VALUE_ROWS = 6, ACCUMULATORS = 24, FEW_ROWS = 4 };
#elif defined(__AVX2__) || defined(__aarch64__)
enum { SCORE_ROWS = 3, SCORE_VECS = 1, VALUE_ROWS = 6, ACCUMULATORS = 6, FEW_ROWS = 4 };
#else
enum { SCORE_ROWS = 2, SCORE_VECS = 1, VALUE_ROWS = 2, ACCUMULATORS = 2, FEW_ROWS = 1 };
#endif
#if defined(__AVX2__) || defined(__aarch64__)
#define FEW(CALL, KV) CALL(KV, 1) CALL(KV, 2) CALL(KV, 3) CALL(KV, 4)
#else
#define FEW(CALL, KV) CALL(KV, 1)
#endif

#define EVERY(i, n) _Pragma("GCC unroll 32") for (int i = 0; i < (n); i++)
#define TILE static inline __attribute__((always_inline))

/* sums[16 * r + j] = lanes of q[r] . row `first + j` of a page, for r < ROWS and j < POSITIONS. `then` is prefetched alongside. */
TILE void dot_tile(const int kv, const int ROWS, const int POSITIONS, const float *q, const uint8_t *page, const float *scales,
                   const uint8_t *then, int64_t first, int64_t stride, v16 *sums) {
    v16 acc[ACCUMULATORS];
    EVERY(n, ROWS * POSITIONS) acc[n] = v16_zero();
    for (int64_t i = 0; i < stride; i += 16) {
        v16 x[FEW_ROWS];
        EVERY(r, ROWS) x[r] = v16_load(q + r * stride + i);
        EVERY(j, POSITIONS) {
            v16 k = kv_load(kv, page, scales, first + j, i, stride);
            if (j % 2 == 0) kv_prefetch(kv, then, (first * stride + i * POSITIONS) / 16 + j);
            EVERY(r, ROWS) acc[r * POSITIONS + j] = v16_fma(x[r], k, acc[r * POSITIONS + j]);
        }
    }
    EVERY(r, ROWS) {
        EVERY(j, POSITIONS) sums[16 * r + j] = acc[r * POSITIONS + j];
    }
}

/* scores[r][first + j] = scale * (q[r] . row first + j of a page) for j < count, and anything for the others up to 16. */
TILE void dot_16(const int kv, const int ROWS, const float *q, const uint8_t *page, const float *scales, const uint8_t *then,
                 int64_t first, int64_t count, int64_t stride, float scale, float *scores) {
    const int room = ACCUMULATORS / ROWS, positions = room >= 8 ? 8 : room >= 4 ? 4 : room >= 2 ? 2 : 1;
    v16 sums[16 * FEW_ROWS];
    for (int j = 0; j < count; j += positions) dot_tile(kv, ROWS, positions, q, page, scales, then, first + j, stride, sums + j);
    for (int64_t j = (count + positions - 1) / positions * positions; j < 16; j++)
        EVERY(r, ROWS) sums[16 * r + j] = v16_zero();
    for (int r = 0; r < ROWS; r++)
        v16_store(scores + r * RASE_CHUNK + first, v16_mul(v16_sum16(sums + 16 * r), v16_set1(scale)));
}

/* scores[r][16 * v + lane] = scale * (q[r] . position), for ROWS rows and VECS vectors of positions of one page whose keys are
 * transposed: keys[i * RASE_PAGE_TOKENS + position]. Lanes come in the order in which the folds 8, 4, 2, 1 join them. */
TILE void scores_tile(const int ROWS, const int VECS, const float *q, const float *keys, int64_t stride, float scale,
                      float *scores) {
    static const int order[8] = {0, 4, 2, 6, 1, 5, 3, 7}; /* each with its partner, 8 lanes on */
    v16 joined[4][SCORE_ROWS * SCORE_VECS];
    int depth = 0;
    for (int pair = 0; pair < 8; pair++) {
        v16 low[SCORE_ROWS * SCORE_VECS], high[SCORE_ROWS * SCORE_VECS];
        EVERY(n, ROWS * VECS) low[n] = high[n] = v16_zero();
        const float *k = keys + order[pair] * RASE_PAGE_TOKENS, *x = q + order[pair];
        for (int64_t i = 0; i < stride; i += 16, k += 16 * RASE_PAGE_TOKENS) {
            v16 a[SCORE_VECS];
            EVERY(v, VECS) a[v] = v16_load(k + 16 * v);
            EVERY(r, ROWS) {
                v16 y = v16_set1(x[r * stride + i]);
                EVERY(v, VECS) low[r * VECS + v] = v16_fma(y, a[v], low[r * VECS + v]);
            }
            EVERY(v, VECS) a[v] = v16_load(k + 8 * RASE_PAGE_TOKENS + 16 * v);
            EVERY(r, ROWS) {
                v16 y = v16_set1(x[r * stride + i + 8]);
                EVERY(v, VECS) high[r * VECS + v] = v16_fma(y, a[v], high[r * VECS + v]);
            }
        }
        EVERY(n, ROWS * VECS) low[n] = v16_add(low[n], high[n]);
        for (int m = pair; m & 1; m >>= 1) {
            depth--;
            EVERY(n, ROWS * VECS) low[n] = v16_add(joined[depth][n], low[n]);
        }
        EVERY(n, ROWS * VECS) joined[depth][n] = low[n];
        depth++;
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++)
            v16_store(scores + r * RASE_CHUNK + 16 * v, v16_mul(joined[0][r * VECS + v], v16_set1(scale)));
}

/* acc[r] += sum of p[r][j] * v[j] over low <= j < high, ascending, for ROWS rows and the 16 * VECS elements from i on. */
TILE void values_tile(const int kv, const int ROWS, const int VECS, const float *p, const uint8_t *rows, const float *scales,
                      const uint8_t *then, int64_t low, int64_t high, int64_t i, int64_t stride, float *acc, int64_t acc_stride) {
    v16 sums[VALUE_ROWS * 4];
    EVERY(r, ROWS) {
        EVERY(v, VECS) sums[r * VECS + v] = v16_load(acc + r * acc_stride + i + 16 * v);
    }
    for (int64_t j = low; j < high; j++) {
        v16 x[4];
        EVERY(v, VECS) x[v] = kv_load(kv, rows, scales, j, i + 16 * v, stride);
        EVERY(v, VECS) if (v % 2 == 0) kv_prefetch(kv, then, low * stride / 16 + i / 16 * (high - low) + (j - low) * VECS + v);
        EVERY(r, ROWS) {
            v16 y = v16_set1(p[r * RASE_CHUNK + j]);
            EVERY(v, VECS) sums[r * VECS + v] = v16_fma(y, x[v], sums[r * VECS + v]);
        }
    }
    EVERY(r, ROWS) {
        EVERY(v, VECS) v16_store(acc + r * acc_stride + i + 16 * v, sums[r * VECS + v]);
    }
}

/* values_tile over all elements of ROWS rows. */
TILE void values(const int kv, const int ROWS, const float *p, const uint8_t *rows, const float *scales, const uint8_t *then, int64_t low,
                 int64_t high, int64_t stride, float *acc, int64_t acc_stride) {
    const int room = ACCUMULATORS / ROWS;
    int64_t i = 0;
    if (room >= 4)
        for (; i + 64 <= stride; i += 64) values_tile(kv, ROWS, 4, p, rows, scales, then, low, high, i, stride, acc, acc_stride);
    if (room >= 2)
        for (; i + 32 <= stride; i += 32) values_tile(kv, ROWS, 2, p, rows, scales, then, low, high, i, stride, acc, acc_stride);
    for (; i < stride; i += 16) values_tile(kv, ROWS, 1, p, rows, scales, then, low, high, i, stride, acc, acc_stride);
}

/* The K rows of one page to columns: out[i * RASE_PAGE_TOKENS + position]. */
TILE void load_keys(const int kv, const uint8_t *run, const float *scales, const uint8_t *then, int64_t stride, float *out) {
    for (int64_t i = 0; i < stride; i += 16) {
        for (int64_t j = 0; j < RASE_PAGE_TOKENS; j += 16) {
            v16 x[16];
            EVERY(r, 16) x[r] = kv_load(kv, run, scales, j + r, i, stride);
            EVERY(r, 8) kv_prefetch(kv, then, i / 16 * RASE_PAGE_TOKENS + j + 2 * r);
            v16_transpose(x);
            EVERY(r, 16) v16_store(out + (i + r) * RASE_PAGE_TOKENS + j, x[r]);
        }
    }
}

/* The first n V rows of one page: out (n, stride). */
TILE void load_values(const int kv, const uint8_t *run, const float *scales, const uint8_t *then, int64_t n, int64_t stride, float *out) {
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < stride; i += 16) {
            v16_store(out + j * stride + i, kv_load(kv, run, scales, j, i, stride));
            kv_prefetch(kv, then, (j * stride + i) / 16);
        }
    }
}

/* The tiles as functions: one for each number of rows, one set for each way in which rows are stored. */
typedef void dot_function(const float *q, const uint8_t *page, const float *scales, const uint8_t *then, int64_t first,
                          int64_t count, int64_t stride, float scale, float *scores);
typedef void value_function(const float *p, const uint8_t *rows, const float *scales, const uint8_t *then, int64_t low,
                            int64_t high, int64_t stride, float *acc, int64_t acc_stride);
typedef struct {
    dot_function *dot[FEW_ROWS]; /* [rows - 1] */
    value_function *values[FEW_ROWS];
    void (*load_keys)(const uint8_t *run, const float *scales, const uint8_t *then, int64_t stride, float *out);
    void (*load_values)(const uint8_t *run, const float *scales, const uint8_t *then, int64_t n, int64_t stride, float *out);
    void (*scales)(const uint8_t *run, int64_t stride, float *scales); /* of a run, for the functions above */
    void (*fetch)(const uint8_t *run, int64_t first, int64_t last, int64_t stride); /* rows [first, last) to the cache */
} kv_reader;

#define DOT(KV, N)                                                                                                            \
    static void dot_##KV##_##N(const float *q, const uint8_t *page, const float *scales, const uint8_t *then, int64_t first,  \
                               int64_t count, int64_t stride, float scale, float *scores) {                                   \
        dot_16(KV, N, q, page, scales, then, first, count, stride, scale, scores);                                            \
    }
#define VALUES(KV, N)                                                                                                         \
    static void values_##KV##_##N(const float *p, const uint8_t *rows, const float *scales, const uint8_t *then, int64_t low, \
                                  int64_t high, int64_t stride, float *acc, int64_t acc_stride) {                             \
        values(KV, N, p, rows, scales, then, low, high, stride, acc, acc_stride);                                             \
    }
#define NAMED_DOT(KV, N) dot_##KV##_##N,
#define NAMED_VALUES(KV, N) values_##KV##_##N,
#define KV_READER(KV)                                                                                                         \
    FEW(DOT, KV)                                                                                                              \
    FEW(VALUES, KV)                                                                                                           \
    static void load_keys_##KV(const uint8_t *run, const float *scales, const uint8_t *then, int64_t stride, float *out) {    \
        load_keys(KV, run, scales, then, stride, out);                                                                        \
    }                                                                                                                         \
    static void load_values_##KV(const uint8_t *run, const float *scales, const uint8_t *then, int64_t n, int64_t stride,     \
                                 float *out) {                                                                                \
        load_values(KV, run, scales, then, n, stride, out);                                                                   \
    }                                                                                                                         \
    static void scales_##KV(const uint8_t *run, int64_t stride, float *scales) { kv_scales(KV, run, stride, scales); }        \
    static void fetch_##KV(const uint8_t *run, int64_t first, int64_t last, int64_t stride) {                                 \
        for (int64_t n = first * stride / 16; n < last * stride / 16; n += 2) kv_prefetch(KV, run, n);                        \
    }                                                                                                                         \
    static const kv_reader reader_##KV = {{FEW(NAMED_DOT, KV)},   {FEW(NAMED_VALUES, KV)}, load_keys_##KV,                    \
                                          load_values_##KV, scales_##KV, fetch_##KV};

#define SCORES(N)                                                                                                             \
    static void scores_##N(const float *q, const float *keys, int64_t stride, float scale, float *scores) {                   \
        scores_tile(N, SCORE_VECS, q, keys, stride, scale, scores);                                                           \
    }
SCORES(1)
SCORES(2)
SCORES(SCORE_ROWS)
FEW(VALUES, KV_F32)
VALUES(KV_F32, VALUE_ROWS)
static value_function *const few_values[FEW_ROWS] = {FEW(NAMED_VALUES, KV_F32)};

#undef SCORES
#endif
