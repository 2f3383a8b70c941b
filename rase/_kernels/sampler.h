/* Sampling one row of logits: checks, selection, softmax sums, the random draw.
 *
 * Shapes: `row` is (n,) float32; `block_max` is (ceil(n / SAMPLER_BLOCK),) uint32. Callers own all memory.
 * Order: `logit_key` maps float32 to uint32 and keeps the order; `rank_of` packs (key descending, id ascending) into
 * one uint64. No two ranks are equal, so any correct selection gives the same result.
 * Sums are double in one fixed order (16 lanes by id mod 16 within a block of 256, blocks ascending); the exponential
 * is rase_exp. Largest possible sum: n <= 2^31 terms of at most 1.
 */
#ifndef RASE_SAMPLER_H
#define RASE_SAMPLER_H

#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "mathfn.h"

#define SAMPLER_BLOCK RASE_PEAK_BLOCK

enum { SAMPLER_OK = 0, SAMPLER_NAN = 1, SAMPLER_INF = 2 };

static inline uint32_t logit_key(float x) {
    uint32_t bits;
    x += 0.0f; /* -0 becomes +0: equal logits have equal keys */
    memcpy(&bits, &x, 4);
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

static inline uint64_t rank_of(uint32_t key, int64_t id) { return ((uint64_t)(~key) << 32) | (uint32_t)id; }

/* Four lanes, in the vector extension that gcc and clang share: the compilers leave this loop scalar. */
typedef float sampler_floats __attribute__((vector_size(16)));
typedef int32_t sampler_ints __attribute__((vector_size(16)));

/* NaN or infinity: which of them, NaN before infinity, is in a row that is not finite throughout. */
static inline int fault_of(const float *row, int64_t n) {
    for (int64_t id = 0; id < n; id++)
        if (row[id] != row[id]) return SAMPLER_NAN;
    return SAMPLER_INF;
}

/* Fill block_max with the largest key of each block; return a SAMPLER_* status for the whole row. */
static inline int scan_row(const float *row, int64_t n, uint32_t *block_max) {
    const float infinity = (float)(1.0 / 0.0);
    const sampler_floats lowest = {-infinity, -infinity, -infinity, -infinity}, zero = {0};
    sampler_ints finite = {-1, -1, -1, -1}; /* per lane: every logit so far is finite */
    int32_t rest_finite = -1;
    int64_t block = 0;
    for (int64_t start = 0; start < n; start += SAMPLER_BLOCK, block++) {
        const float *logits = row + start;
        int64_t count = n - start < SAMPLER_BLOCK ? n - start : SAMPLER_BLOCK, i = 0;
        sampler_floats high[4] = {lowest, lowest, lowest, lowest};
        for (; i + 16 <= count; i += 16)
            for (int part = 0; part < 4; part++) {
                sampler_floats x;
                memcpy(&x, logits + i + 4 * part, 16);
                sampler_ints above = x > high[part];
                high[part] = (sampler_floats)(((sampler_ints)x & above) | ((sampler_ints)high[part] & ~above));
                finite &= x - x == zero;
            }
        float best = -infinity;
        for (; i < count; i++) {
            best = logits[i] > best ? logits[i] : best;
            rest_finite &= -(int32_t)(logits[i] - logits[i] == 0.0f);
        }
        for (int lane = 0; lane < 16; lane++)
            best = high[lane / 4][lane % 4] > best ? high[lane / 4][lane % 4] : best;
        block_max[block] = logit_key(best);
    }
    return rest_finite & finite[0] & finite[1] & finite[2] & finite[3] ? SAMPLER_OK : fault_of(row, n);
}

/* The same from the peaks of each whole block (ops/elementwise.h), which a program has left: 16 numbers for 256. */
static inline int scan_peaks(const float *row, int64_t n, const float *peaks, uint32_t *block_max) {
    int64_t whole = n / SAMPLER_BLOCK, rest = whole * SAMPLER_BLOCK;
    sampler_ints finite = {-1, -1, -1, -1};
    for (int64_t block = 0; block < whole; block++) {
        sampler_floats high, x;
        memcpy(&high, peaks + 16 * block, 16);
        finite &= high == high;
        for (int part = 1; part < 4; part++) {
            memcpy(&x, peaks + 16 * block + 4 * part, 16);
            sampler_ints above = x > high;
            high = (sampler_floats)(((sampler_ints)x & above) | ((sampler_ints)high & ~above));
            finite &= x == x;
        }
        float best = high[0];
        for (int lane = 1; lane < 4; lane++) best = high[lane] > best ? high[lane] : best;
        block_max[block] = logit_key(best);
    }
    int ok = finite[0] & finite[1] & finite[2] & finite[3] & -(scan_row(row + rest, n - rest, block_max + whole) == SAMPLER_OK);
    return ok ? SAMPLER_OK : fault_of(row, n);
}

/* The lowest id with the largest logit; n where block_max is not that of the row. */
static inline int64_t argmax_row(const float *row, int64_t n, const uint32_t *block_max) {
    int64_t blocks = (n + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK, best = 0;
    for (int64_t block = 1; block < blocks; block++)
        if (block_max[block] > block_max[best]) best = block;
    int64_t id = best * SAMPLER_BLOCK;
    while (id < n && logit_key(row[id]) != block_max[best]) id++;
    return id;
}

/* Max-heap of uint64: put `value` at the root of heap[0:count] and let it sink. */
static inline void heap_sink(uint64_t *heap, int64_t count, int64_t at, uint64_t value) {
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= value) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

/* Keep the `limit` smallest values seen; returns the new count. The root is the largest that is kept. */
static inline int64_t heap_keep(uint64_t *heap, int64_t count, int64_t limit, uint64_t value) {
    if (count < limit) {
        heap[count++] = value;
        if (count == limit)
            for (int64_t at = count / 2 - 1; at >= 0; at--) heap_sink(heap, count, at, heap[at]);
    } else if (value < heap[0]) {
        heap_sink(heap, count, 0, value);
    }
    return count;
}

/* Sort ascending. */
static inline void heap_sort(uint64_t *values, int64_t count) {
    for (int64_t at = count / 2 - 1; at >= 0; at--) heap_sink(values, count, at, values[at]);
    for (int64_t end = count - 1; end > 0; end--) {
        uint64_t last = values[end];
        values[end] = values[0];
        heap_sink(values, end, 0, last);
    }
}

/* Write the ranks of the k best ids to out[0:k], best first. Returns how many. */
static inline int64_t select_best(const float *row, int64_t n, const uint32_t *block_max, int64_t k, uint64_t *out) {
    int64_t blocks = (n + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK, count = 0;
    uint32_t least = 0;
    if (blocks >= k) { /* k blocks hold a key this large, so no smaller key can be among the k best */
        for (int64_t block = 0; block < blocks; block++) count = heap_keep(out, count, k, ~block_max[block]);
        least = ~(uint32_t)out[0];
        count = 0;
    }
    for (int64_t block = 0; block < blocks; block++) {
        if (block_max[block] < least) continue;
        int64_t end = (block + 1) * SAMPLER_BLOCK < n ? (block + 1) * SAMPLER_BLOCK : n;
        for (int64_t id = block * SAMPLER_BLOCK; id < end; id++) {
            uint32_t key = logit_key(row[id]);
            if (key >= least) count = heap_keep(out, count, k, rank_of(key, id));
        }
    }
    heap_sort(out, count);
    return count;
}

/* All ids, best first: radix sort of the keys, stable, so that equal keys stay in order of their ids. */
static inline void sort_all(const float *row, int64_t n, uint64_t *out, uint64_t *spare) {
    for (int64_t id = 0; id < n; id++) out[id] = rank_of(logit_key(row[id]), id);
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t start[257] = {0};
        for (int64_t i = 0; i < n; i++) start[((out[i] >> shift) & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++) start[digit + 1] += start[digit];
        for (int64_t i = 0; i < n; i++) spare[start[(out[i] >> shift) & 255]++] = out[i];
        uint64_t *swap = out;
        out = spare;
        spare = swap;
    } /* four passes: the result is in the caller's `out` again */
}

/* A finite float32, rounded once. */
static inline float to_logit(double x) {
    const double most = 3.4028234663852886e38;
    return (float)(x > most ? most : x < -most ? -most : x);
}

/* Apply penalties to the logits of the `count` distinct ids of a history.
 * uses[id]: times generated, 0 for ids of the prompt alone. Repetition (Keskar et al., CTRL, 2019) divides
 * positive logits and multiplies negative ones; frequency and presence subtract as in the OpenAI API. In double,
 * rounded to float32 once. */
static inline void penalise(float *row, const int32_t *ids, int64_t count, const int32_t *uses, double repetition,
                            double presence, double frequency) {
    for (int64_t i = 0; i < count; i++) {
        double logit = row[ids[i]];
        logit = logit > 0.0 ? logit / repetition : logit * repetition;
        int32_t times = uses[ids[i]];
        if (times > 0) logit -= presence + frequency * times;
        row[ids[i]] = to_logit(logit);
    }
}

/* Add values[i] to the logit of ids[i]. */
static inline void add_bias(float *row, const int32_t *ids, const double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[ids[i]] = to_logit(row[ids[i]] + values[i]);
}

/* Weight of one logit: exp((logit - top) * scale), or 0 below `floor`. top is the largest logit, so it is <= 1. */
static inline double weight_of(float logit, double top, double scale, double floor) {
    double weight = rase_exp(((double)logit - top) * scale);
    return weight < floor ? 0.0 : weight;
}

/* Sum of the weights of up to SAMPLER_BLOCK logits, in 16 lanes folded 8-4-2-1. */
static inline double block_weight(const float *row, int64_t count, double top, double scale, double floor) {
    double lanes[16] = {0}, weights[SAMPLER_BLOCK];
    for (int64_t i = 0; i < count; i++) weights[i] = weight_of(row[i], top, scale, floor);
    for (int64_t i = 0; i < count; i++) lanes[i & 15] += weights[i];
    for (int width = 8; width >= 1; width /= 2)
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

/* Fill block_sum with the weight of each block; return the total, blocks ascending. */
static inline double row_weight(const float *row, int64_t n, double top, double scale, double floor,
                                double *block_sum) {
    double total = 0.0;
    int64_t block = 0;
    for (int64_t start = 0; start < n; start += SAMPLER_BLOCK, block++) {
        int64_t count = n - start < SAMPLER_BLOCK ? n - start : SAMPLER_BLOCK;
        block_sum[block] = block_weight(row + start, count, top, scale, floor);
        total += block_sum[block];
    }
    return total;
}

/* The id at which the running weight passes `target`, which is in [0, total). Never an id of weight 0. */
static inline int64_t walk_row(const float *row, int64_t n, double top, double scale, double floor,
                               const double *block_sum, double target) {
    int64_t blocks = (n + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK, block = 0, last = 0, chosen = -1;
    double before = 0.0, running = 0.0;
    for (int64_t i = 0; i < blocks; i++) {
        if (block_sum[i] > 0.0) block = i, before = running; /* the last one is kept if rounding leaves a rest */
        running += block_sum[i];
        if (target < running) break;
    }
    target -= before;
    running = 0.0;
    int64_t end = (block + 1) * SAMPLER_BLOCK < n ? (block + 1) * SAMPLER_BLOCK : n;
    for (int64_t id = block * SAMPLER_BLOCK; id < end && chosen < 0; id++) {
        double weight = weight_of(row[id], top, scale, floor);
        if (weight > 0.0) last = id;
        running += weight;
        if (target < running) chosen = id;
    }
    return chosen < 0 ? last : chosen;
}

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): counter and key to 128 bits. */
static inline void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* A number in [0, 1) with 53 random bits that depends on nothing but these three. */
static inline double draw(uint64_t seed, uint32_t choice, uint64_t position) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, 0}, out[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox4x32(counter, key, out);
    return ((double)(out[0] >> 5) * 67108864.0 + (double)(out[1] >> 6)) * (1.0 / 9007199254740992.0);
}

#endif
