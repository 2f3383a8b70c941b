/* Attention of prompt tokens in bf16 tiles (rule R8), for the task of ops/attention.h.
 *
 * Queries, K and V as stored, and softmax numerators are rounded to bf16. Scores: tiles over head_dim in steps of 32, times scale
 * in float32. Maximum, numerators and their sum are those of ops/attention.h, the sum over what was not yet rounded. P.V: tiles
 * over the positions of a chunk in steps of 32, ascending; parts merge by rule R8's formula. A row's bits do not depend on the
 * rows beside it: what it does not see has the numerator +0, and adding zero products changes no sum. V that is infinite or NaN
 * would not vanish so: it is taken out of the tiles and added to the rows that see it.
 *
 * K is the left side, which takes its rows as they are, and queries the right one: a tile of scores has positions down and rows
 * (query tokens times heads) across, so that the vectors of a softmax are rows and nothing is summed across lanes. */
#ifndef RASE_OPS_TILES_ATTENTION_H
#define RASE_OPS_TILES_ATTENTION_H

#include "tiles.h"

enum { CHUNK_STEPS = RASE_CHUNK / TILE_DEPTH, PAIR_ROWS = 32 };

/* Memory of one task, all parts 64-byte aligned. */
typedef struct {
    uint8_t *queries;    /* right: 16 rows a group, depth head_stride */
    uint8_t *keys;       /* left: (RASE_CHUNK, head_stride) */
    uint8_t *values;     /* right: 16 elements of a head a group, depth RASE_CHUNK positions; groups in pairs */
    uint8_t *numerators; /* of PAIR_ROWS rows, left: (PAIR_ROWS, RASE_CHUNK) */
    float *scores;       /* of these rows: (2, RASE_CHUNK, 16), positions down; the numerators in float32 where V has lost something */
    float *parts;        /* of these rows: (PAIR_ROWS, 16 * groups) */
    float *tops, *sums;  /* of these rows */
    float *all, *all_tops, *all_sums;
    float *scales; /* of a page's K or V */
    int64_t steps, groups; /* of head_stride */
} tile_memory;

/* Lay out `base`, which may be NULL; returns the floats. */
static int64_t tile_memory_at(float *base, int64_t rows, int64_t stride, tile_memory *m) {
    const int64_t tile = TILE_BYTES / 4;
    int64_t at = 0;
    m->steps = (stride + 31) / 32, m->groups = m->steps * 2;
#define PLACE(MEMBER, FLOATS) m->MEMBER = (void *)((uintptr_t)base + 4 * (uintptr_t)at), at += (FLOATS)
    PLACE(queries, (rows + PAIR_ROWS - 1) / PAIR_ROWS * 2 * m->steps * tile);
    PLACE(keys, RASE_CHUNK / 16 * m->steps * tile);
    PLACE(values, m->groups * CHUNK_STEPS * tile);
    PLACE(numerators, 2 * CHUNK_STEPS * tile);
    PLACE(scores, PAIR_ROWS * RASE_CHUNK);
    PLACE(parts, PAIR_ROWS * 16 * m->groups);
    PLACE(tops, PAIR_ROWS);
    PLACE(sums, PAIR_ROWS);
    PLACE(all, rows * attention_part(stride));
    PLACE(all_tops, rows + PAIR_ROWS);
    PLACE(all_sums, rows + PAIR_ROWS);
    PLACE(scales, kv_scale_floats(stride));
#undef PLACE
    return at;
}

static size_t tiles_attention_scratch(int64_t group, int64_t stride) {
    tile_memory memory;
    return (size_t)tile_memory_at(NULL, attention_tokens(group) * group, stride, &memory);
}

/* Query rows [r, r + 16) as a group of the right side; rows that are not there are zeros. */
static void tile_queries(const rase_attention_task *task, int64_t r, tile_memory *m) {
    const int64_t rows = task->n_tokens * task->group, dim = task->head_dim;
    for (int64_t s = 0; s < m->steps; s++) {
        v16 x[16];
        for (int i = 0; i < 16; i++) {
            const float *q = task->q + (r + i) / task->group * task->q_stride + (r + i) % task->group * dim;
            const int64_t left = r + i < rows ? dim - 32 * s : 0;
            const v16 low = _mm512_maskz_loadu_ps(first_lanes(left), q + 32 * s);
            x[i] = _mm512_castsi512_ps(two_bf16(low, _mm512_maskz_loadu_ps(first_lanes(left - 16), q + 32 * s + 16)));
        }
        v16_transpose(x);
        for (int i = 0; i < 16; i++) v16_store((float *)(m->queries + (r / 16 * m->steps + s) * TILE_BYTES + 64 * i), x[i]);
    }
}

/* The K rows of a page, 32 depths at a time; `then` is fetched alongside. */
TILE void tile_keys(const int kv, const uint8_t *run, const float *scales, const uint8_t *then, int64_t stride, int64_t steps,
                    uint8_t *tiles) {
    for (int64_t j = 0; j < RASE_PAGE_TOKENS; j++) {
        uint8_t *to = tiles + j / 16 * steps * TILE_BYTES + j % 16 * 64;
        for (int64_t i = 0; i < stride; i += 32, to += TILE_BYTES) {
            kv_prefetch(kv, then, (j * stride + i) / 16);
            const v16 high = i + 16 < stride ? kv_load(kv, run, scales, j, i + 16, stride) : v16_zero();
            _mm512_store_si512(to, two_bf16(kv_load(kv, run, scales, j, i, stride), high));
        }
    }
}

/* The V rows [low, high) of a page, zeros in place of the others; `finite`: and of what is not. Whether there was such a number. */
TILE int tile_values(const int kv, const uint8_t *run, const float *scales, const uint8_t *then, int64_t low, int64_t high,
                     int64_t stride, const int finite, uint8_t *tiles) {
    v16 check[2] = {v16_zero(), v16_zero()}; /* 0 * infinity is NaN */
    for (int64_t j = 0; j < RASE_PAGE_TOKENS; j += 2) {
        for (int64_t i = 0; i < stride; i += 16) {
            v16 x[2];
            EVERY(r, 2) {
                x[r] = j + r >= low && j + r < high ? kv_load(kv, run, scales, j + r, i, stride) : v16_zero();
                check[r] = v16_fma(x[r], v16_zero(), check[r]);
                if (finite) x[r] = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v16_abs(x[r]), v16_set1(INFINITY), _CMP_LT_OQ), x[r]);
            }
            kv_prefetch(kv, then, (j * stride + 2 * i) / 16);
            _mm512_store_si512(tiles + i / 16 * CHUNK_STEPS * TILE_BYTES + 32 * j, side_by_side(x[0], x[1]));
        }
    }
    v16 both = v16_add(check[0], check[1]);
    return _mm512_cmp_ps_mask(both, both, _CMP_UNORD_Q) != 0;
}

/* K and V of what a chunk's rows see; 1 if V has lost something. */
TILE int tile_chunk(const int kv, const rase_attention_task *task, const chunk_view *view, tile_memory *m) {
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    const int64_t first = view->low / RASE_PAGE_TOKENS, end = (view->high + RASE_PAGE_TOKENS - 1) / RASE_PAGE_TOKENS;
    int removed = 0;
    for (int64_t p = first; p < end; p++) {
        const uint8_t *then = p + 1 < end ? pages[p + 1] + task->k_offset : pages[first] + task->v_offset;
        kv_scales(kv, pages[p] + task->k_offset, task->head_stride, m->scales);
        tile_keys(kv, pages[p] + task->k_offset, m->scales, then, task->head_stride, m->steps, m->keys + 2 * p * m->steps * TILE_BYTES);
    }
    for (int64_t p = first; p < end; p++) {
        const uint8_t *run = pages[p] + task->v_offset, *then = p + 1 < end ? pages[p + 1] + task->v_offset : run;
        kv_scales(kv, run, task->head_stride, m->scales);
        const int64_t low = view->low - p * RASE_PAGE_TOKENS, high = view->high - p * RASE_PAGE_TOKENS;
        if (!tile_values(kv, run, m->scales, then, low, high, task->head_stride, 0, m->values + p * TILE_BYTES)) continue;
        removed = tile_values(kv, run, m->scales, run, low, high, task->head_stride, 1, m->values + p * TILE_BYTES);
    }
    return removed;
}

/* What tile_values took out, for the rows from r on that see it: the sum becomes what it must, infinite or NaN. */
TILE void add_removed(const int kv, const rase_attention_task *task, const chunk_view *view, int64_t r, tile_memory *m) {
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    float row[16];
    int64_t low, high;
    for (int64_t t = r; t < r + PAIR_ROWS && t < view->last_row; t++) {
        row_range(task, view->chunk, t, &low, &high);
        const float *p = m->scores + (t - r) / 16 * 16 * RASE_CHUNK + (t - r) % 16;
        for (int64_t j = low; t >= view->first_row && j < high; j++) {
            const uint8_t *run = pages[j / RASE_PAGE_TOKENS] + task->v_offset;
            kv_scales(kv, run, task->head_stride, m->scales);
            for (int64_t i = 0; i < task->head_stride; i += 16) {
                v16_store(row, kv_load(kv, run, m->scales, j % RASE_PAGE_TOKENS, i, task->head_stride));
                for (int e = 0; e < 16; e++)
                    if (!isfinite(row[e])) m->parts[(t - r) * 16 * m->groups + i + e] += p[16 * j] * row[e];
            }
        }
    }
}

/* What the 16 rows from r on see of a chunk: positions low[i] <= j < high[i], and the ends of what all see and of what any sees. */
typedef struct {
    __m512i low, high;
    int64_t first, end, all_first, all_end;
} tile_view;

static tile_view tile_view_of(const rase_attention_task *task, const chunk_view *view, int64_t r) {
    int32_t lows[16], highs[16];
    int64_t low, high;
    tile_view seen = {.first = RASE_CHUNK, .end = 0, .all_first = 0, .all_end = RASE_CHUNK};
    for (int i = 0; i < 16; i++) {
        low = high = 0;
        if (r + i >= view->first_row && r + i < view->last_row) row_range(task, view->chunk, r + i, &low, &high);
        if (low < high) { /* what a row gets that sees nothing does not matter */
            seen.first = low < seen.first ? low : seen.first, seen.end = high > seen.end ? high : seen.end;
            seen.all_first = low > seen.all_first ? low : seen.all_first, seen.all_end = high < seen.all_end ? high : seen.all_end;
        }
        lows[i] = (int32_t)low, highs[i] = (int32_t)high;
    }
    seen.low = _mm512_loadu_si512(lows), seen.high = _mm512_loadu_si512(highs);
    return seen;
}

/* The rows that see position j. */
static inline __mmask16 tile_seen(const tile_view *seen, int64_t j) {
    const __m512i at = _mm512_set1_epi32((int)j);
    return _mm512_cmple_epi32_mask(seen->low, at) & _mm512_cmpgt_epi32_mask(seen->high, at);
}

TILE v16 tile_score(const rase_attention_task *task, const float *scores, int64_t j) {
    v16 x = v16_mul(v16_load(scores + 16 * j), v16_set1(task->scale));
    return task->soft_cap > 0.0f ? v16_mul(v16_tanh(v16_div(x, v16_set1(task->soft_cap))), v16_set1(task->soft_cap)) : x;
}

/* v16_exp where x <= 0 or NaN: such a maximum is its second operand, and NaN goes through all the rest. */
static inline v16 exp_falling(v16 x) { return v16_exp_of(x, _mm512_max_ps(v16_set1(EXP_LEAST), x)); }

/* Numerators of 32 positions from j on, as a tile; added to `lanes` by position mod 16. `whole`: all rows see all of them. */
TILE void tile_numerators(const rase_attention_task *task, const tile_view *seen, int64_t j, const int whole, int keep, v16 top,
                          float *scores, v16 *lanes, uint8_t *tile) {
    v16 pairs[16];
    for (int i = 0; i < 16; i++) {
        v16 e[2];
        EVERY(h, 2) {
            const int64_t at = j + 2 * i + h;
            e[h] = exp_falling(v16_sub(tile_score(task, scores, at), top));
            if (!whole) e[h] = _mm512_maskz_mov_ps(tile_seen(seen, at), e[h]);
            v16 *lane = lanes + (2 * i + h) % 16;
            *lane = v16_add(*lane, e[h]);
            if (keep) v16_store(scores + 16 * at, e[h]);
        }
        pairs[i] = _mm512_castsi512_ps(side_by_side(e[0], e[1]));
    }
    v16_transpose(pairs);
    for (int i = 0; i < 16; i++) v16_store((float *)(tile + 64 * i), pairs[i]);
}

/* Softmax of 16 rows, positions down: the numerators of the steps [first, end) as a row of tiles; maximum and sum of each row. */
static void tile_softmax(const rase_attention_task *task, const tile_view *seen, int64_t first, int64_t end, int keep, float *scores,
                         uint8_t *numerators, float *tops, float *sums) {
    v16 top = v16_set1(-INFINITY), lanes[16];
    for (int64_t j = seen->first; j < seen->end; j++) {
        v16 x = tile_score(task, scores, j);
        if (j >= seen->all_first && j < seen->all_end) top = v16_max(x, top);
        else top = _mm512_mask_max_ps(top, tile_seen(seen, j), x, top);
    }
    for (int i = 0; i < 16; i++) lanes[i] = v16_zero();
    for (int64_t j = 32 * first; j < 32 * end; j += 32) {
        uint8_t *tile = numerators + j / 32 * TILE_BYTES;
        if (j >= seen->end || j + 32 <= seen->first) memset(tile, 0, TILE_BYTES);
        else if (j >= seen->all_first && j + 32 <= seen->all_end) tile_numerators(task, seen, j, 1, keep, top, scores, lanes, tile);
        else tile_numerators(task, seen, j, 0, keep, top, scores, lanes, tile);
    }
    for (int fold = 8; fold; fold /= 2)
        for (int i = 0; i < fold; i++) lanes[i] = v16_add(lanes[i], lanes[i + fold]);
    v16_store(tops, top);
    v16_store(sums, lanes[0]);
}

/* Parts of the PAIR_ROWS rows from r on to m->parts. */
static void tile_pair(const rase_attention_task *task, const chunk_view *view, int64_t r, int keep, tile_memory *m) {
    const int two = r + 16 < task->n_tokens * task->group;
    const int64_t key_stride = m->steps * TILE_BYTES, value_stride = CHUNK_STEPS * TILE_BYTES, each = 16 * m->groups;
    const tile_view seen[2] = {tile_view_of(task, view, r), tile_view_of(task, view, r + 16)};
    const int64_t low = seen[0].first < seen[1].first ? seen[0].first : seen[1].first;
    const int64_t high = seen[0].end > seen[1].end ? seen[0].end : seen[1].end, first = low / 32, end = (high + 31) / 32;
    const uint8_t *q = m->queries + r / 16 * key_stride;
    for (int64_t s = first; s < end; s++) {
        const uint8_t *k = m->keys + 2 * s * key_stride;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        if (two) tile_steps(k, key_stride, q, key_stride, m->steps, 1, 1);
        else tile_steps(k, key_stride, q, key_stride, m->steps, 1, 0);
        tile_sums_store(m->scores + 512 * s, 256, 16 * RASE_CHUNK, 16);
    }
    for (int t = 0; t <= two; t++)
        tile_softmax(task, &seen[t], first, end, keep, m->scores + t * 16 * RASE_CHUNK, m->numerators + t * value_stride,
                     m->tops + 16 * t, m->sums + 16 * t);
    for (int64_t g = 0; g < m->groups; g += 2) {
        const uint8_t *p = m->numerators + first * TILE_BYTES, *v = m->values + (g * CHUNK_STEPS + first) * TILE_BYTES;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        if (two) tile_steps(p, value_stride, v, value_stride, end - first, 1, 1);
        else tile_steps(p, value_stride, v, value_stride, end - first, 0, 1);
        tile_sums_store(m->parts + 16 * g, 16 * each, 16, each);
    }
}

/* merge_part for rows [first, last) of the 16 from `r` on, whose parts are those from `at` on. */
static void tile_merge(const rase_attention_task *task, int64_t r, int64_t at, int64_t first, int64_t last, tile_memory *m) {
    const int64_t stride = task->head_stride, each = attention_part(stride);
    const v16 top = v16_load(m->all_tops + r), sum = v16_load(m->all_sums + r), part_top = v16_load(m->tops + at);
    const v16 part_sum = v16_load(m->sums + at), high = v16_max(top, part_top);
    const v16 alpha = v16_exp(v16_sub(top, high)), beta = v16_exp(v16_sub(part_top, high));
    const __mmask16 rows = first_lanes(last) & (__mmask16)~first_lanes(first) & _mm512_cmp_ps_mask(part_sum, v16_zero(), _CMP_NEQ_UQ);
    const __mmask16 fresh = _mm512_cmp_ps_mask(sum, v16_zero(), _CMP_EQ_OQ);
    float alphas[16], betas[16];
    v16_store(alphas, alpha);
    v16_store(betas, beta);
    v16_store(m->all_tops + r, _mm512_mask_mov_ps(top, rows, _mm512_mask_mov_ps(high, fresh, part_top)));
    v16 both = v16_fma(sum, alpha, v16_mul(part_sum, beta));
    v16_store(m->all_sums + r, _mm512_mask_mov_ps(sum, rows, _mm512_mask_mov_ps(both, fresh, part_sum)));
    for (int t = 0; t < 16; t++) {
        float *all = m->all + (r + t) * each;
        const float *part = m->parts + (at + t) * 16 * m->groups;
        const v16 a = v16_set1(alphas[t]), b = v16_set1(betas[t]);
        if (!(rows >> t & 1)) continue;
        if (fresh >> t & 1) memcpy(all, part, sizeof(float) * (size_t)stride);
        else
            for (int64_t i = 0; i < stride; i += 16) v16_store(all + i, v16_fma(v16_load(all + i), a, v16_mul(v16_load(part + i), b)));
    }
}

TILE void attend_in_tiles(const int kv, const rase_attention_task *task) {
    const int64_t stride = task->head_stride, each = attention_part(stride), rows = task->n_tokens * task->group;
    tile_memory m;
    tile_memory_at(task->scratch, rows, stride, &m);
    for (int64_t r = 0; r < rows; r += 16) {
        tile_queries(task, r, &m);
        v16_store(m.all_sums + r, v16_zero());
        v16_store(m.all_tops + r, v16_zero());
    }
    for (int64_t c = task->first_chunk; c < task->last_chunk; c++) {
        const chunk_view view = view_of(task, c * RASE_CHUNK);
        float *parts = task->parts ? task->parts + (c - task->first_chunk) * rows * each : NULL;
        for (int64_t r = 0; parts && r < rows; r++) parts[r * each + stride + 1] = 0.0f; /* of those that see nothing */
        if (view.low >= view.high) continue;
        const int removed = tile_chunk(kv, task, &view, &m);
        for (int64_t pair = view.first_row / PAIR_ROWS * PAIR_ROWS; pair < view.last_row; pair += PAIR_ROWS) {
            tile_pair(task, &view, pair, removed, &m);
            if (removed) add_removed(kv, task, &view, pair, &m);
            for (int64_t t = 0; !parts && t < PAIR_ROWS && pair + t < view.last_row; t += 16)
                tile_merge(task, pair + t, t, view.first_row - pair - t, view.last_row - pair - t, &m);
            for (int64_t r = pair < view.first_row ? view.first_row : pair; parts && r < pair + PAIR_ROWS && r < view.last_row; r++) {
                memcpy(parts + r * each, m.parts + (r - pair) * 16 * m.groups, sizeof(float) * (size_t)stride);
                parts[r * each + stride] = m.tops[r - pair], parts[r * each + stride + 1] = m.sums[r - pair];
            }
        }
    }
    if (task->parts) return;
    for (int64_t r = 0; r < rows; r++) m.all[r * each + stride + 1] = m.all_sums[r];
    finish_rows(task, m.all);
}

#endif
