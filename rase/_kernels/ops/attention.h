/* Attention of the query heads that share one KV head, for a run of tokens of one sequence (rule R8).
 *
 * Positions are cut into chunks [256c, 256c + 256). A chunk gives its own part (accumulator, maximum, sum) in two passes; parts
 * merge in ascending order by one formula, whoever computed them. Scores: 16 lanes over head_dim, folded 8-4-2-1, times scale.
 * The sum of a chunk: lane = position mod 16. P.V: one FMA per position, ascending, one accumulator per output. K and V are
 * read as stored. All sums are float32. Few rows read the pages where they lie; many convert each chunk once. */
#ifndef RASE_OPS_ATTENTION_H
#define RASE_OPS_ATTENTION_H

#if defined(RASE_TILES)
enum { ATT_ROWS = 256, ATT_TOKENS = 128 };
#else
enum { ATT_ROWS = 128, ATT_TOKENS = 64 };
#endif
enum { ATT_FEW = 8, ATT_PASS = 128 }; /* ATT_PASS: positions of V that fit the L1 cache */

/* Query tokens of one task, so that its rows (tokens times heads of the group) share what is converted and stay in the L2 cache. */
static int64_t attention_tokens(int64_t group) {
    int64_t tokens = ATT_ROWS / group;
    return tokens < 1 ? 1 : tokens > ATT_TOKENS ? ATT_TOKENS : tokens;
}

/* A part of one row: accumulator (head_stride), maximum, sum; a sum of 0 says that the row saw nothing. */
static int64_t attention_part(int64_t stride) { return stride + 16; }

/* Floats: the scales of a page's K or V, one chunk of them in float32, then per row its scores, its query and two parts. */
static size_t attention_scratch(int64_t group, int64_t stride) {
    int64_t rows = attention_tokens(group) * group;
    return (size_t)(kv_scale_floats(stride) + RASE_CHUNK * stride + rows * (RASE_CHUNK + stride + 2 * attention_part(stride)));
}

/* Softmax numerators of one row in place: positions [low, high) of a chunk, the others of their vectors become 0, and adding +0
 * to a sum of numerators changes no bit. */
static inline void chunk_softmax(float *scores, int64_t low, int64_t high, float cap, float *part) {
    int64_t first = low / 16 * 16, end = (high + 15) / 16 * 16;
    if (cap > 0.0f) soft_cap(scores + first, cap, end - first, scores + first);
    for (int64_t j = first; j < low; j++) scores[j] = -INFINITY;
    for (int64_t j = high; j < end; j++) scores[j] = -INFINITY;
    v16 highest = v16_set1(-INFINITY);
    for (int64_t j = first; j < end; j += 16) highest = v16_max(v16_load(scores + j), highest);
    float top = v16_maxall(highest);
    v16 shift = v16_set1(top), sums = v16_zero();
    for (int64_t j = first; j < end; j += 16) v16_store(scores + j, v16_exp(v16_sub(v16_load(scores + j), shift)));
    for (int64_t j = first; j < low; j++) scores[j] = 0.0f;
    for (int64_t j = high; j < end; j++) scores[j] = 0.0f;
    for (int64_t j = first; j < end; j += 16) sums = v16_add(sums, v16_load(scores + j));
    part[0] = top;
    part[1] = v16_sum(sums);
}

/* (A, M, S) <- merge of (A, M, S) and (a, m, s): the one formula of rule R8. */
static inline void merge_part(float *all, const float *part, int64_t stride) {
    float *top = all + stride, *sum = top + 1, m = part[stride], s = part[stride + 1];
    if (s == 0.0f) return;
    if (*sum == 0.0f) {
        memcpy(all, part, sizeof(float) * (size_t)(stride + 2));
        return;
    }
    float high = *top > m ? *top : m, e[2] = {*top - high, m - high};
    exp_array(e, 2, e);
    *sum = f_fma(*sum, e[0], s * e[1]);
    *top = high;
    v16 alpha = v16_set1(e[0]), beta = v16_set1(e[1]);
    for (int64_t i = 0; i < stride; i += 16)
        v16_store(all + i, v16_fma(v16_load(all + i), alpha, v16_mul(v16_load(part + i), beta)));
}

/* What the tasks of one chunk share: the rows [first_row, last_row) that see some of its positions [low, high). */
typedef struct {
    int64_t chunk, low, high, first_row, last_row;
} chunk_view;

/* Positions of the chunk that row r sees: [*low, *high), empty where *low >= *high. */
static inline void row_range(const rase_attention_task *task, int64_t chunk, int64_t r, int64_t *low, int64_t *high) {
    int64_t position = task->first_position + r / task->group - chunk, end = position + 1;
    if (task->seen - chunk > end) end = task->seen - chunk;
    *high = end < RASE_CHUNK ? end : RASE_CHUNK;
    *low = task->window && position >= task->window ? position - task->window + 1 : 0;
}

static inline chunk_view view_of(const rase_attention_task *task, int64_t chunk) {
    int64_t rows = task->n_tokens * task->group, low, high;
    chunk_view view = {chunk, RASE_CHUNK, 0, rows, 0};
    for (int64_t r = 0; r < rows; r += task->group) {
        row_range(task, chunk, r, &low, &high);
        if (low >= high) continue;
        view.low = low < view.low ? low : view.low, view.high = high > view.high ? high : view.high;
        view.first_row = r < view.first_row ? r : view.first_row, view.last_row = r + task->group;
    }
    return view;
}

/* acc += P.V of the positions [from, to) for the n rows from r0 on: together where all see a position, else row by row, so that
 * no row touches a position that it does not see. `rows` is where position `from` lies. */
static void seen_values(const rase_attention_task *task, int64_t chunk, value_function *alone, value_function *together, int64_t n,
                        int64_t r0, const float *scores, const uint8_t *rows, const float *scales, const uint8_t *then, int64_t from,
                        int64_t to, float *acc) {
    int64_t stride = task->head_stride, each = attention_part(stride), low, high, first = from, last = to;
    for (int64_t r = r0; r < r0 + n; r++) {
        row_range(task, chunk, r, &low, &high);
        first = low > first ? low : first, last = high < last ? high : last;
    }
    if (first > last) first = last = to; /* nothing is seen by all */
    const float *p = scores + r0 * RASE_CHUNK + from;
    acc += r0 * each;
    for (int64_t r = 0; first > from && r < n; r++) { /* before what all see */
        row_range(task, chunk, r0 + r, &low, &high);
        low = low > from ? low : from, high = high < first ? high : first;
        if (low < high) alone(p + r * RASE_CHUNK, rows, scales, then, low - from, high - from, stride, acc + r * each, each);
    }
    if (first < last) together(p, rows, scales, then, first - from, last - from, stride, acc, each);
    for (int64_t r = 0; last < to && r < n; r++) { /* after it */
        row_range(task, chunk, r0 + r, &low, &high);
        low = low > last ? low : last, high = high < to ? high : to;
        if (low < high) alone(p + r * RASE_CHUNK, rows, scales, then, low - from, high - from, stride, acc + r * each, each);
    }
}

static inline void softmax_rows(const rase_attention_task *task, const chunk_view *view, float *scores, float *parts) {
    int64_t stride = task->head_stride, each = attention_part(stride), low, high;
    for (int64_t r = view->first_row; r < view->last_row; r++) {
        row_range(task, view->chunk, r, &low, &high);
        chunk_softmax(scores + r * RASE_CHUNK, low, high, task->soft_cap, parts + r * each + stride);
        memset(parts + r * each, 0, sizeof(float) * (size_t)stride);
    }
}


#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* A run that is to be read, and how many of its rows; or NULL. */
typedef struct {
    const uint8_t *run;
    int64_t needs;
} next_run;

/* K of the chunk that comes after this one. */
typedef struct {
    const uint8_t *const *pages;
    int64_t offset, low, high;
} keys_ahead;
static inline int64_t whole_keys(int64_t n) { return MIN((n + 7) / 8 * 8, RASE_PAGE_TOKENS); } /* scores are most often taken 8 at a time */
/* Its run number n. */
static inline next_run run_ahead(const keys_ahead *ahead, int64_t n) {
    int64_t page = ahead->low / RASE_PAGE_TOKENS + n, left = ahead->high - page * RASE_PAGE_TOKENS;
    return left > 0 ? (next_run){ahead->pages[page] + ahead->offset, whole_keys(left)} : (next_run){NULL, 0};
}

/* Beside rows [first, last) of `run` the same rows of another one are fetched. This is that one, or `run` itself where the other does not
 * need all of them; then the rows that it does need are asked for here, since those that it does not would be in the way. */
static inline const uint8_t *fetch_beside(const kv_reader *reader, next_run next, const uint8_t *run, int64_t first, int64_t last, int64_t stride) {
    if (next.needs >= last) return next.run;
    if (next.needs > first) reader->fetch(next.run, first, next.needs, stride);
    return run;
}

/* One chunk for few rows: K and V are read from their pages, FEW_ROWS queries at a time. Beside K of a page its V is fetched, and
 * beside V the page of the same number of what comes after: far enough ahead, and most often as long. */
static void few_rows(const rase_attention_task *task, const chunk_view *view, const kv_reader *reader, const float *query,
                     float *scales, float *scores, float *parts, const keys_ahead *ahead) {
    int64_t stride = task->head_stride, first_page = view->low / RASE_PAGE_TOKENS;
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    for (int64_t page = first_page; page * RASE_PAGE_TOKENS < view->high; page++) {
        int64_t from = page * RASE_PAGE_TOKENS, to = MIN(view->high, from + RASE_PAGE_TOKENS);
        const uint8_t *run = pages[page] + task->k_offset;
        const next_run values = {pages[page] + task->v_offset, to - from};
        reader->scales(run, stride, scales);
        for (int64_t r = view->first_row; r < view->last_row; r += FEW_ROWS)
            for (int64_t j = 0; j < to - from; j += 16) {
                const int64_t count = MIN(to - from - j, 16);
                const uint8_t *then = r == view->first_row ? fetch_beside(reader, values, run, j, j + count, stride) : run; /* asked for once */
                reader->dot[MIN(view->last_row - r, FEW_ROWS) - 1](query + r * stride, run, scales, then, j, count, stride, task->scale,
                                                                   scores + r * RASE_CHUNK + from);
            }
    }
    softmax_rows(task, view, scores, parts);
    for (int64_t page = first_page; page * RASE_PAGE_TOKENS < view->high; page++) {
        int64_t from = page * RASE_PAGE_TOKENS, to = MIN(view->high, from + RASE_PAGE_TOKENS), reads = to - from;
        const uint8_t *run = pages[page] + task->v_offset;
        const next_run keys = run_ahead(ahead, page - first_page);
        const uint8_t *then = fetch_beside(reader, keys, run, 0, reads, stride);
        reader->scales(run, stride, scales);
        for (int64_t r = view->first_row; r < view->last_row; r += FEW_ROWS, then = run) {
            int64_t n = MIN(view->last_row - r, FEW_ROWS);
            seen_values(task, view->chunk, reader->values[0], reader->values[n - 1], n, r, scores, run, scales, then, from, to, parts);
        }
        if (keys.needs > reads) reader->fetch(keys.run, reads, keys.needs, stride);
    }
}

/* scores of one page, whose keys are columns, for all rows that see some of its positions. */
static void page_scores(const rase_attention_task *task, const chunk_view *view, int64_t page, const float *query,
                        const float *keys, float *scores) {
    int64_t stride = task->head_stride, low, high, none;
    for (int64_t r = view->first_row, n; r < view->last_row; r += n) {
        n = view->last_row - r;
        n = n >= SCORE_ROWS ? SCORE_ROWS : n >= 2 ? 2 : 1;
        row_range(task, view->chunk, r, &low, &none); /* tokens ascend: so do both ends */
        row_range(task, view->chunk, r + n - 1, &none, &high);
        for (int64_t v = 0; v < RASE_PAGE_TOKENS; v += 16 * SCORE_VECS) {
            int64_t at = page * RASE_PAGE_TOKENS + v;
            if (at + 16 * SCORE_VECS <= low || at >= high) continue;
            (n == SCORE_ROWS ? scores_SCORE_ROWS : n == 2 ? scores_2 : scores_1)(query + r * stride, keys + v, stride, task->scale,
                                                                                 scores + r * RASE_CHUNK + at);
        }
    }
}

/* One chunk for many rows: K, then V, of the chunk are converted once to `rows` (RASE_CHUNK * head_stride floats). */
static void many_rows(const rase_attention_task *task, const chunk_view *view, const kv_reader *reader, const float *query,
                      float *scales, float *rows, float *scores, float *parts, const keys_ahead *ahead) {
    int64_t stride = task->head_stride, first_page = view->low / RASE_PAGE_TOKENS;
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    for (int64_t page = first_page; page * RASE_PAGE_TOKENS < view->high; page++) {
        int last = (page + 1) * RASE_PAGE_TOKENS >= view->high;
        const uint8_t *then = last ? pages[first_page] + task->v_offset : pages[page + 1] + task->k_offset;
        reader->scales(pages[page] + task->k_offset, stride, scales);
        reader->load_keys(pages[page] + task->k_offset, scales, then, stride, rows);
        page_scores(task, view, page, query, rows, scores);
    }
    softmax_rows(task, view, scores, parts);
    for (int64_t page = first_page; page * RASE_PAGE_TOKENS < view->high; page++) {
        int64_t from = page * RASE_PAGE_TOKENS, to = MIN(view->high, from + RASE_PAGE_TOKENS);
        const uint8_t *run = pages[page] + task->v_offset, *next = run_ahead(ahead, 0).run;
        const uint8_t *then = to < view->high ? pages[page + 1] + task->v_offset : next ? next : run;
        reader->scales(run, stride, scales);
        reader->load_values(run, scales, then, to - from, stride, rows + from * stride);
    }
    for (int64_t from = view->low / ATT_PASS * ATT_PASS; from < view->high; from += ATT_PASS) {
        const uint8_t *run = (const uint8_t *)(rows + from * stride);
        for (int64_t r = view->first_row, n; r < view->last_row; r += n) {
            n = view->last_row - r;
            n = n >= VALUE_ROWS ? VALUE_ROWS : MIN(n, FEW_ROWS);
            seen_values(task, view->chunk, few_values[0], n == VALUE_ROWS ? values_KV_F32_VALUE_ROWS : few_values[n - 1], n, r,
                        scores, run, NULL, run, from, MIN(from + ATT_PASS, view->high), parts);
        }
    }
}

static void finish_rows(const rase_attention_task *task, const float *all) {
    int64_t stride = task->head_stride;
    for (int64_t r = 0; r < task->n_tokens * task->group; r++, all += attention_part(stride)) {
        float *out = task->out + r / task->group * task->out_stride + r % task->group * task->head_dim;
        v16 total = v16_set1(all[stride + 1]);
        for (int64_t i = 0; i < task->head_dim; i += 16)
            store_lanes(out + i, v16_div(v16_load(all + i), total), lanes_at(i, task->head_dim));
    }
}

/* At most attention_tokens(group) tokens. */
static void attend(const rase_attention_task *task, const kv_reader *reader) {
    int64_t stride = task->head_stride, each = attention_part(stride), rows = task->n_tokens * task->group;
    float *scales = task->scratch, *converted = scales + kv_scale_floats(stride), *scores = converted + RASE_CHUNK * stride;
    float *query = scores + rows * RASE_CHUNK;
    float *all = query + rows * stride, *parts = all + rows * each;
    for (int64_t r = 0; r < rows; r++) {
        const float *q = task->q + r / task->group * task->q_stride + r % task->group * task->head_dim;
        for (int64_t i = 0; i < stride; i += 16)
            v16_store(query + r * stride + i, i < task->head_dim ? load_lanes(q + i, lanes_at(i, task->head_dim)) : v16_zero());
        all[r * each + stride + 1] = 0.0f;
    }
    for (int64_t c = task->first_chunk; c < task->last_chunk; c++) {
        chunk_view view = view_of(task, c * RASE_CHUNK);
        if (task->parts) parts = task->parts + (c - task->first_chunk) * rows * each;
        for (int64_t r = 0; r < rows; r++) parts[r * each + stride + 1] = 0.0f;
        keys_ahead ahead = {task->next_pages, task->next_offset, task->next_low, task->next_high};
        if (c + 1 < task->last_chunk) {
            int64_t end = task->first_position + task->n_tokens, seen = end > task->seen ? end : task->seen;
            ahead = (keys_ahead){task->pages + (c + 1) * RASE_CHUNK / RASE_PAGE_TOKENS, task->k_offset, 0, MIN(seen - (c + 1) * RASE_CHUNK, RASE_CHUNK)};
        }
        if (rows <= ATT_FEW)
            few_rows(task, &view, reader, query, scales, scores, parts, &ahead);
        else
            many_rows(task, &view, reader, query, scales, converted, scores, parts, &ahead);
        for (int64_t r = view.first_row; !task->parts && r < view.last_row; r++) merge_part(all + r * each, parts + r * each, stride);
    }
    if (!task->parts) finish_rows(task, all);
}

/* Merge the parts of the chunks [first_chunk, last_chunk), which lie at task->parts, into out. Needs scratch for one part a row. */
static void attention_merge(const rase_attention_task *task) {
    int64_t stride = task->head_stride, each = attention_part(stride), rows = task->n_tokens * task->group;
    memcpy(task->scratch, task->parts, sizeof(float) * (size_t)(rows * each));
    for (int64_t c = task->first_chunk + 1; c < task->last_chunk; c++)
        for (int64_t r = 0; r < rows; r++)
            merge_part(task->scratch + r * each, task->parts + ((c - task->first_chunk) * rows + r) * each, stride);
    finish_rows(task, task->scratch);
}

KV_READER(RASE_KV_F16)
KV_READER(RASE_KV_Q8_0)
static void attention_f16(const rase_attention_task *task) { attend(task, &reader_RASE_KV_F16); }
static void attention_q8_0(const rase_attention_task *task) { attend(task, &reader_RASE_KV_Q8_0); }

#if defined(RASE_TILES)
#include "tiles_attention.h"
static void tiled_f16(const rase_attention_task *task) {
    tiles_bf16();
    attend_in_tiles(RASE_KV_F16, task);
}
static void tiled_q8_0(const rase_attention_task *task) {
    tiles_bf16();
    attend_in_tiles(RASE_KV_Q8_0, task);
}
static size_t task_scratch(int64_t group, int64_t stride) {
    size_t plain = attention_scratch(group, stride), tiled = tiles_attention_scratch(group, stride);
    return plain > tiled ? plain : tiled;
}
#else
#define tiled_f16 NULL
#define tiled_q8_0 NULL
#define task_scratch attention_scratch
#endif

static const rase_kv kv_f16 = {
    .name = "f16", .head_bytes = kv_f16_bytes, .store = kv_f16_store, .attention = attention_f16, .tiled = tiled_f16,
};
static const rase_kv kv_q8_0 = {
    .name = "q8_0", .head_bytes = kv_q8_0_bytes, .store = kv_q8_0_store, .attention = attention_q8_0, .tiled = tiled_q8_0,
};

#define RASE_KV_TABLE {[RASE_KV_F16] = &kv_f16, [RASE_KV_Q8_0] = &kv_q8_0}

#undef MIN
#endif
