/* Attention of prompt tokens in bf16 tiles (rule R8), for the task of ops/attention.h.
 *
 * Queries, K and V as stored, and softmax numerators are rounded to bf16. Scores: tiles over head_dim in steps of 32, times scale
 * in float32. Maximum, numerators and their sum are those of ops/attention.h, the sum over what was not yet rounded. P.V: tiles
 * over the positions of a chunk in steps of 32, ascending; parts merge by rule R8's formula. A row's bits do not depend on the
 * rows beside it: what it does not see has the numerator +0, and adding zero products changes no sum. V that is infinite or NaN
 * would not vanish so: it is taken out of the tiles and added to the rows that see it. */
#ifndef RASE_OPS_TILES_ATTENTION_H
#define RASE_OPS_TILES_ATTENTION_H

#include "tiles.h"

enum { SCORE_STRIDE = RASE_CHUNK + 16, CHUNK_STEPS = RASE_CHUNK / TILE_DEPTH }; /* rows of scores apart in the cache's sets */

/* Memory of one task, all parts 64-byte aligned; rows padded to pairs of tiles, groups to pairs. */
typedef struct {
    float *rows;         /* one page of K or V in float32 */
    uint8_t *queries;    /* left: (rows, head_stride) */
    uint8_t *keys;       /* right: 16 positions a group, depth head_stride */
    uint8_t *values;     /* right: 16 elements of a head a group, depth RASE_CHUNK positions */
    uint8_t *numerators; /* left: (rows, RASE_CHUNK) */
    float *scores, *parts, *all;
    int64_t steps, groups; /* of head_stride */
} tile_memory;

/* Lay out `base`, which may be NULL; returns the floats. */
static int64_t tile_memory_at(float *base, int64_t rows, int64_t stride, tile_memory *m) {
    const int64_t padded = (rows + 31) / 32 * 32, tile = TILE_BYTES / 4;
    int64_t at = 0;
    m->steps = (stride + 31) / 32, m->groups = (stride + 31) / 32 * 2;
#define PLACE(MEMBER, FLOATS) m->MEMBER = (void *)((uintptr_t)base + 4 * (uintptr_t)at), at += (FLOATS)
    PLACE(rows, RASE_PAGE_TOKENS * stride);
    PLACE(queries, padded / 16 * m->steps * tile);
    PLACE(keys, RASE_CHUNK / 16 * m->steps * tile);
    PLACE(values, m->groups * CHUNK_STEPS * tile);
    PLACE(numerators, padded / 16 * CHUNK_STEPS * tile);
    PLACE(scores, padded * SCORE_STRIDE);
    PLACE(parts, padded * (16 * m->groups + 16));
    PLACE(all, rows * attention_part(stride));
#undef PLACE
    return at;
}

static size_t tiles_attention_scratch(int64_t group, int64_t stride) {
    tile_memory memory;
    return (size_t)tile_memory_at(NULL, attention_tokens(group) * group, stride, &memory);
}

static void tile_keys(const rase_attention_task *task, const kv_reader *reader, const chunk_view *view, tile_memory *m) {
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    for (int64_t page = view->low / RASE_PAGE_TOKENS; page * RASE_PAGE_TOKENS < view->high; page++) {
        const uint8_t *run = pages[page] + task->k_offset;
        reader->load_keys(run, run, task->head_stride, m->rows);
        for (int64_t g = 0; g < 2; g++)
            tiles_from_panel(m->rows + 16 * g, RASE_PAGE_TOKENS, task->head_stride, m->keys + (2 * page + g) * m->steps * TILE_BYTES);
    }
}

/* Positions outside [view->low, view->high) become zeros, whatever memory holds; 1 if a value that is not finite was taken out. */
static int tile_values(const rase_attention_task *task, const kv_reader *reader, const chunk_view *view, tile_memory *m) {
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    const int64_t stride = task->head_stride;
    int removed = 0;
    for (int64_t page = view->low / RASE_PAGE_TOKENS; page * RASE_PAGE_TOKENS < view->high; page++) {
        const uint8_t *run = pages[page] + task->v_offset;
        reader->load_values(run, run, RASE_PAGE_TOKENS, stride, m->rows);
        for (int64_t j = 0; j < RASE_PAGE_TOKENS; j++) {
            float *row = m->rows + j * stride;
            if (page * RASE_PAGE_TOKENS + j < view->low || page * RASE_PAGE_TOKENS + j >= view->high) {
                memset(row, 0, sizeof(float) * (size_t)stride);
                continue;
            }
            for (int64_t i = 0; i < stride; i += 16) {
                __m512 x = _mm512_loadu_ps(row + i);
                __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
                if (finite == 0xffff) continue;
                removed = 1;
                _mm512_storeu_ps(row + i, _mm512_maskz_mov_ps(finite, x));
            }
        }
        for (int64_t g = 0; g < stride / 16; g++)
            tiles_from_panel(m->rows + 16 * g, stride, TILE_DEPTH, m->values + (g * CHUNK_STEPS + page) * TILE_BYTES);
    }
    return removed;
}

/* What tile_values took out, for the rows that see it: the sum becomes what it must, infinite or NaN. */
static void add_removed(const rase_attention_task *task, const kv_reader *reader, const chunk_view *view, tile_memory *m) {
    const uint8_t *const *pages = task->pages + view->chunk / RASE_PAGE_TOKENS;
    const int64_t stride = task->head_stride, each = 16 * m->groups + 16;
    int64_t low, high;
    for (int64_t page = view->low / RASE_PAGE_TOKENS; page * RASE_PAGE_TOKENS < view->high; page++) {
        const uint8_t *run = pages[page] + task->v_offset;
        reader->load_values(run, run, RASE_PAGE_TOKENS, stride, m->rows);
        for (int64_t r = view->first_row; r < view->last_row; r++) {
            row_range(task, view->chunk, r, &low, &high);
            for (int64_t j = page * RASE_PAGE_TOKENS; j < (page + 1) * RASE_PAGE_TOKENS; j++)
                for (int64_t i = 0; j >= low && j < high && i < stride; i++) {
                    float v = m->rows[(j - page * RASE_PAGE_TOKENS) * stride + i];
                    if (!isfinite(v)) m->parts[r * each + i] += m->scores[r * SCORE_STRIDE + j] * v;
                }
        }
    }
}

/* What the rows [r, r + 32) of the view see of its chunk together: positions [*low, *high). */
static void pair_range(const rase_attention_task *task, const chunk_view *view, int64_t r, int64_t *low, int64_t *high) {
    int64_t last = r + 31 < view->last_row ? r + 31 : view->last_row - 1, none;
    row_range(task, view->chunk, r > view->first_row ? r : view->first_row, low, &none); /* tokens ascend, and both ends with them */
    row_range(task, view->chunk, last, &none, high);
}

/* Numerators, maximum and sum of row r, and the numerators as a row of tiles over the steps [first, end). */
static void tile_softmax(const rase_attention_task *task, const chunk_view *view, int64_t r, int64_t first, int64_t end,
                         tile_memory *m) {
    float *scores = m->scores + r * SCORE_STRIDE, *part = m->parts + r * (16 * m->groups + 16) + 16 * m->groups;
    uint8_t *tiles = m->numerators + r / 16 * CHUNK_STEPS * TILE_BYTES + r % 16 * 64;
    int64_t low, high;
    row_range(task, view->chunk, r, &low, &high);
    for (int64_t j = low / 16 * 16; j < high; j += 16)
        _mm512_storeu_ps(scores + j, _mm512_mul_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(task->scale)));
    part[1] = 0.0f; /* a row that sees nothing */
    if (low < high) chunk_softmax(scores, low, high, task->soft_cap, part);
    for (int64_t s = first; s < end; s++) {
        __m512 half[2];
        for (int h = 0; h < 2; h++) {
            int64_t j = 32 * s + 16 * h;
            half[h] = j + 16 > low && j < high ? _mm512_loadu_ps(scores + j) : _mm512_setzero_ps();
        }
        _mm512_store_si512(tiles + s * TILE_BYTES, two_bf16(half[0], half[1]));
    }
}

/* Parts of one chunk to m->parts. */
static void tile_chunk(const rase_attention_task *task, const kv_reader *reader, const chunk_view *view, tile_memory *m) {
    const int64_t each = 16 * m->groups + 16;
    int64_t low, high;
    tile_keys(task, reader, view, m);
    for (int64_t r = view->first_row / 32 * 32; r < view->last_row; r += 32) {
        pair_range(task, view, r, &low, &high);
        const uint8_t *q = m->queries + r / 16 * m->steps * TILE_BYTES;
        for (int64_t j = low / 32 * 32; j < high; j += 32) {
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            tile_steps(q, m->steps * TILE_BYTES, m->keys + j / 16 * m->steps * TILE_BYTES, m->steps * TILE_BYTES, m->steps, 1, 1);
            tile_sums_store(m->scores + r * SCORE_STRIDE + j, 16 * SCORE_STRIDE, 16, SCORE_STRIDE);
        }
    }
    int removed = tile_values(task, reader, view, m);
    for (int64_t r = view->first_row / 32 * 32; r < view->last_row; r += 32) {
        pair_range(task, view, r, &low, &high);
        const int64_t first = low / 32, end = (high + 31) / 32;
        for (int64_t i = r; i < r + 32; i++) tile_softmax(task, view, i, first, end, m);
        const uint8_t *p = m->numerators + (r / 16 * CHUNK_STEPS + first) * TILE_BYTES;
        for (int64_t g = 0; g < m->groups; g += 2) {
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            tile_steps(p, CHUNK_STEPS * TILE_BYTES, m->values + (g * CHUNK_STEPS + first) * TILE_BYTES, CHUNK_STEPS * TILE_BYTES,
                       end - first, 1, 1);
            tile_sums_store(m->parts + r * each + 16 * g, 16 * each, 16, each);
        }
    }
    if (removed) add_removed(task, reader, view, m);
}

static void attend_in_tiles(const rase_attention_task *task, const kv_reader *reader) {
    const int64_t stride = task->head_stride, each = attention_part(stride), rows = task->n_tokens * task->group;
    tile_memory m;
    tile_memory_at(task->scratch, rows, stride, &m);
    const int64_t wide = 16 * m.groups + 16;
    for (int64_t r = 0; r < rows; r++) {
        const float *q = task->q + r / task->group * task->q_stride + r % task->group * task->head_dim;
        tiles_left(q, task->head_dim, r, m.queries);
        m.all[r * each + stride + 1] = 0.0f;
    }
    for (int64_t c = task->first_chunk; c < task->last_chunk; c++) {
        chunk_view view = view_of(task, c * RASE_CHUNK);
        if (view.low < view.high) tile_chunk(task, reader, &view, &m);
        for (int64_t r = 0; r < rows; r++) {
            float *from = m.parts + r * wide, *part = from; /* its maximum and sum move down beside head_stride values */
            int seen = r >= view.first_row && r < view.last_row;
            if (task->parts) part = task->parts + ((c - task->first_chunk) * rows + r) * each;
            if (part != from && seen) memcpy(part, from, sizeof(float) * (size_t)stride);
            part[stride] = seen ? from[16 * m.groups] : 0.0f;
            part[stride + 1] = seen ? from[16 * m.groups + 1] : 0.0f;
            if (!task->parts) merge_part(m.all + r * each, part, stride);
        }
    }
    if (!task->parts) finish_rows(task, m.all);
}

#endif
