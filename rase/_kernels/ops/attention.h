/* Attention of the query heads that share one KV head, for a run of tokens of one sequence (rule R8).
 *
 * Positions are cut into chunks [256c, 256c + 256). A chunk gives its own maximum, sum and accumulator in two passes; chunks
 * merge in ascending order by one formula. Scores: 16 lanes over head_dim, folded 8-4-2-1, times scale. The sum of a chunk:
 * lane = position mod 16. P.V: one FMA per position, ascending, one accumulator per output. K and V are read as stored. */
#ifndef RASE_OPS_ATTENTION_H
#define RASE_OPS_ATTENTION_H

enum { ATT_TOKENS = 16, ATT_STEP = 4 }; /* query tokens that share one conversion of a chunk; rows that share one V load */

/* Scratch: K and V of one chunk in float32, then per row: scores (256), accumulator (head_stride), query (head_stride), m, s. */
static size_t attention_scratch(int64_t group, int64_t head_stride) {
    int64_t rows = ATT_TOKENS * group + ATT_STEP;
    return (size_t)(RASE_CHUNK * head_stride + rows * (RASE_CHUNK + 3 * head_stride + 3));
}

/* scores[j] = scale * (q . k[j]) for 16 * n_16 rows of k. */
static inline void chunk_scores(const float *q, const float *k, int64_t n_16, int64_t stride, float scale, float *scores) {
    for (int64_t j = 0; j < n_16; j++, k += 16 * stride) {
        v16 sums[16];
        for (int r = 0; r < 16; r++) sums[r] = v16_zero();
        for (int64_t i = 0; i < stride; i += 16) {
            v16 x = v16_load(q + i);
            for (int r = 0; r < 16; r++) sums[r] = v16_fma(x, v16_load(k + r * stride + i), sums[r]);
        }
        v16_store(scores + 16 * j, v16_mul(v16_sum16(sums), v16_set1(scale)));
    }
}

/* Softmax numerators of one chunk in place, positions [low, high); the others count as absent. The scores of vectors
 * [skip, n_16) were computed. Maximum to *m, sum (lane = position mod 16) to *s. */
static inline void chunk_softmax(float *scores, int64_t low, int64_t high, int64_t skip, int64_t n_16, float *m, float *s) {
    for (int64_t j = 16 * skip; j < low; j++) scores[j] = -INFINITY;
    for (int64_t j = high; j < 16 * n_16; j++) scores[j] = -INFINITY;
    v16 highest = v16_set1(-INFINITY);
    for (int64_t j = skip; j < n_16; j++) highest = v16_max(v16_load(scores + 16 * j), highest);
    float top = v16_maxall(highest);
    v16 shift = v16_set1(top), sums = v16_zero();
    for (int64_t j = skip; j < n_16; j++)
        v16_store(scores + 16 * j, v16_exp(v16_sub(v16_load(scores + 16 * j), shift)));
    for (int64_t j = 16 * skip; j < low; j++) scores[j] = 0.0f; /* adding +0 to a sum of numerators changes no bit */
    for (int64_t j = high; j < 16 * n_16; j++) scores[j] = 0.0f;
    for (int64_t j = skip; j < n_16; j++) sums = v16_add(sums, v16_load(scores + 16 * j));
    *m = top;
    *s = v16_sum(sums);
}

/* acc[r] (head_stride,) = sum of p[r][j] * v[j] over start[r] <= j < end[r], ascending, for ATT_STEP rows. The rows share every
 * load of V where all of them see it; a row never touches a position that it does not see. */
static inline void chunk_values(const float *p, const float *v, const int64_t *start, const int64_t *end, int64_t stride,
                                float *acc) {
    int64_t low = start[0], high = end[0], all_low = start[0], all_high = end[0];
    for (int r = 1; r < ATT_STEP; r++) {
        low = start[r] < low ? start[r] : low, high = end[r] > high ? end[r] : high;
        all_low = start[r] > all_low ? start[r] : all_low, all_high = end[r] < all_high ? end[r] : all_high;
    }
    if (all_low >= all_high) all_low = all_high = high; /* nothing is seen by all: every position goes row by row */
    for (int64_t i = 0; i < stride; i += 16) {
        v16 sums[ATT_STEP];
        for (int r = 0; r < ATT_STEP; r++) sums[r] = v16_zero();
        for (int64_t j = low; j < high; j++) {
            v16 x = v16_load(v + j * stride + i);
            if (j >= all_low && j < all_high) {
                for (; j < all_high; j++) {
                    x = v16_load(v + j * stride + i);
                    for (int r = 0; r < ATT_STEP; r++) sums[r] = v16_fma(v16_set1(p[r * RASE_CHUNK + j]), x, sums[r]);
                }
                j--;
            } else {
                for (int r = 0; r < ATT_STEP; r++)
                    if (j >= start[r] && j < end[r]) sums[r] = v16_fma(v16_set1(p[r * RASE_CHUNK + j]), x, sums[r]);
            }
        }
        for (int r = 0; r < ATT_STEP; r++) v16_store(acc + r * stride + i, sums[r]);
    }
}

/* (M, S, A) <- merge of (M, S, A) and (m, s, a): the one formula of rule R8. */
static inline void chunk_merge(float *top, float *sum, float *acc, float m, float s, const float *a, int64_t stride) {
    float high = *top > m ? *top : m, e[2] = {*top - high, m - high};
    exp_array(e, 2, e);
    *sum = f_fma(*sum, e[0], s * e[1]);
    *top = high;
    v16 alpha = v16_set1(e[0]), beta = v16_set1(e[1]);
    for (int64_t i = 0; i < stride; i += 16)
        v16_store(acc + i, v16_fma(v16_load(acc + i), alpha, v16_mul(v16_load(a + i), beta)));
}

/* Positions [first + from, first + n) of one head to float32 rows; whole pages, so a few rows below `from` may be loaded too.
 * Pages lie far apart, where no hardware prefetcher follows: each asks for the next one, the last for `then` (or NULL). */
static inline void load_chunk(const uint16_t *const *pages, int64_t first, int64_t from, int64_t n, int64_t stride,
                              const uint16_t *then, float *out) {
    for (int64_t j = from / RASE_PAGE_TOKENS * RASE_PAGE_TOKENS; j < n; j += RASE_PAGE_TOKENS) {
        int64_t number = (first + j) / RASE_PAGE_TOKENS;
        int last = j + RASE_PAGE_TOKENS >= n;
        const uint16_t *page = pages[number], *next = last ? then : pages[number + 1];
        int64_t elements = (last ? n - j : RASE_PAGE_TOKENS) * stride;
        for (int64_t i = 0; i < elements; i += 16) {
            if (next && i % 32 == 0) __builtin_prefetch(next + i);
            v16_store(out + j * stride + i, v16_from_f16(page + i));
        }
    }
}

/* Up to ATT_TOKENS tokens from token index t0. */
static void attention_block(const rase_attention_task *task, int64_t t0, int64_t n_tokens) {
    int64_t stride = task->head_stride, group = task->group, rows = n_tokens * group, padded = rows + ATT_STEP;
    float *kv = task->scratch, *scores = kv + RASE_CHUNK * stride, *acc = scores + padded * RASE_CHUNK;
    float *part = acc + padded * stride, *query = part + padded * stride;
    float *top = query + padded * stride, *sum = top + padded, *seen = sum + padded;

    for (int64_t r = 0; r < rows; r++) {
        const float *q = task->q + (t0 + r / group) * task->q_stride + (r % group) * task->head_dim;
        for (int64_t i = 0; i < stride; i += 16)
            v16_store(query + r * stride + i, i < task->head_dim ? load_lanes(q + i, lanes_at(i, task->head_dim)) : v16_zero());
        seen[r] = 0.0f;
    }
    int64_t first = task->first_position + t0, last = first + n_tokens - 1; /* query positions */
    int64_t oldest = task->window && first >= task->window ? first - task->window + 1 : 0;
    for (int64_t chunk = oldest / RASE_CHUNK * RASE_CHUNK; chunk <= last; chunk += RASE_CHUNK) {
        int64_t n = last + 1 - chunk < RASE_CHUNK ? last + 1 - chunk : RASE_CHUNK, n_16 = (n + 15) / 16;
        int64_t unseen = oldest > chunk ? oldest - chunk : 0, skip = unseen / 16; /* vectors of 16 that no row sees */
        const uint16_t *values = task->v_pages[(chunk + unseen) / RASE_PAGE_TOKENS];
        const uint16_t *next_keys = chunk + RASE_CHUNK <= last ? task->k_pages[(chunk + RASE_CHUNK) / RASE_PAGE_TOKENS] : NULL;
        load_chunk(task->k_pages, chunk, unseen, n, stride, values, kv);
        memset(kv + n * stride, 0, sizeof(float) * (size_t)((16 * n_16 - n) * stride));
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * RASE_CHUNK;
            chunk_scores(query + r * stride, kv + 16 * skip * stride, n_16 - skip, stride, task->scale, row + 16 * skip);
        }
        load_chunk(task->v_pages, chunk, unseen, n, stride, next_keys, kv);
        for (int64_t r0 = 0; r0 < rows; r0 += ATT_STEP) {
            float chunk_top[ATT_STEP], chunk_sum[ATT_STEP];
            int64_t start[ATT_STEP], end[ATT_STEP], seeing = -1;
            for (int i = 0; i < ATT_STEP; i++) {
                int64_t r = r0 + i, position = first + r / group;
                start[i] = end[i] = -1;
                if (r >= rows) continue;
                int64_t from = task->window && position - task->window + 1 > chunk ? position - task->window + 1 - chunk : 0;
                int64_t to = position + 1 - chunk < n ? position + 1 - chunk : n;
                if (from >= to) continue; /* this row sees nothing of the chunk */
                chunk_softmax(scores + r * RASE_CHUNK, from, to, skip, n_16, &chunk_top[i], &chunk_sum[i]);
                start[i] = from, end[i] = to, seeing = i;
            }
            if (seeing < 0) continue;
            for (int i = 0; i < ATT_STEP; i++) /* rows that see nothing borrow an empty range */
                if (end[i] < 0) start[i] = end[i] = start[seeing];
            chunk_values(scores + r0 * RASE_CHUNK, kv, start, end, stride, part);
            for (int i = 0; i < ATT_STEP; i++) {
                int64_t r = r0 + i;
                if (start[i] >= end[i]) continue;
                if (seen[r] == 0.0f) {
                    memcpy(acc + r * stride, part + i * stride, sizeof(float) * (size_t)stride);
                    top[r] = chunk_top[i], sum[r] = chunk_sum[i], seen[r] = 1.0f;
                } else {
                    chunk_merge(top + r, sum + r, acc + r * stride, chunk_top[i], chunk_sum[i], part + i * stride, stride);
                }
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float *out = task->out + (t0 + r / group) * task->out_stride + (r % group) * task->head_dim;
        v16 total = v16_set1(sum[r]);
        for (int64_t i = 0; i < task->head_dim; i += 16)
            store_lanes(out + i, v16_div(v16_load(acc + r * stride + i), total), lanes_at(i, task->head_dim));
    }
}

static void attention(const rase_attention_task *task) {
    for (int64_t t = 0; t < task->n_tokens; t += ATT_TOKENS)
        attention_block(task, t, task->n_tokens - t < ATT_TOKENS ? task->n_tokens - t : ATT_TOKENS);
}

#endif
