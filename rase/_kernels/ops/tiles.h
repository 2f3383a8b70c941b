/* Prompt tokens in bf16 tiles (AMX): out = A W^T with activations A (m, cols) and a packed matrix W (rules R1, R3).
 *
 * Both sides are rounded to bf16 (nearest even, denormals to zero) and the tile unit sums the products in float32: within a step
 * of 32 depths in its own fixed order, steps ascending over all of cols; no overflow short of float32's own. Cutting rows, columns
 * or depth into blocks changes no bit: an output depends on its own row of A and of W only, and a partial sum goes through
 * memory as the float32 that it is. Tails are zeros: whole tiles always.
 *
 * A tile is 1 KiB. Left side (activations): [row tile][step][16 rows][32 depths] bf16. Right side (weights): [group][step][16
 * pairs of depths][16 rows][2] bf16. Tile registers, but for tiles_multiply.h: 0-3 sums (2 x 2), 4-5 left, 6-7 right. */
#ifndef RASE_OPS_TILES_H
#define RASE_OPS_TILES_H

#include <immintrin.h>
#include <string.h>

#include "../kernels.h"

enum { TILE_BYTES = 1024, TILE_DEPTH = 32 };

/* Tile registers are constants. The compiler knows neither the memory behind these nor their order: all are volatile and clobber memory. */
#define TILE_LOAD(T, P, STRIDE) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(P), "r"((int64_t)(STRIDE)), "i"(T) : "memory")
#define TILE_LOAD_ONCE(T, P, STRIDE) /* what the first-level cache need not keep */ \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(P), "r"((int64_t)(STRIDE)), "i"(T) : "memory")
#define TILE_STORE(T, P, STRIDE) \
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(P), "r"((int64_t)(STRIDE)), "i"(T) : "memory")
#define TILE_ZERO(T) __asm__ volatile("tilezero %%tmm%c0" : : "i"(T))
#define TILE_DOT(C, A, B) __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B))

/* What the tile registers of this thread are configured for, 0 for nothing known: a configuration costs some 300 cycles, so each
 * kernel asks for its own and most often finds it. */
enum { TILES_BF16 = 1, TILES_I8 = 2 };
static _Thread_local int tiles_are;

/* The operand is the whole 64-byte structure: gcc 12's own intrinsic names 8 bytes of it, and the stores before it vanish. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) tile_configuration;

static void tiles_configure(const tile_configuration *c, int what) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
    tiles_are = what;
}
/* Eight tiles of 16 rows of 64 bytes. */
static void tiles_bf16(void) {
    if (tiles_are == TILES_BF16) return;
    tile_configuration c = {.palette = 1};
    for (int t = 0; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = 16;
    tiles_configure(&c, TILES_BF16);
}

static void tiles_begin(void) { tiles_are = 0; } /* who computed in this thread meanwhile is not known */
static void tiles_end(void) {
    if (tiles_are) __asm__ volatile("tilerelease" : :);
    tiles_are = 0;
}

static inline __m512i two_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

static inline __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

static void tiles_left(const float *x, int64_t cols, int64_t row, uint8_t *tiles) {
    uint8_t *out = tiles + row / 16 * ((cols + 31) / 32) * TILE_BYTES + row % 16 * 64;
    int64_t k = 0;
    for (; k + TILE_DEPTH <= cols; k += TILE_DEPTH, out += TILE_BYTES)
        _mm512_store_si512(out, two_bf16(_mm512_loadu_ps(x + k), _mm512_loadu_ps(x + k + 16)));
    if (k == cols) return;
    __m512 low = _mm512_maskz_loadu_ps(first_lanes(cols - k), x + k);
    _mm512_store_si512(out, two_bf16(low, _mm512_maskz_loadu_ps(first_lanes(cols - k - 16), x + k + 16)));
}

/* Words 0, 16, 1, 17, ...: both depths of a row side by side. */
static inline __m512i side_by_side(__m512 even, __m512 odd) {
    const __m512i order = _mm512_setr_epi32(
        0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005, 0x00160006, 0x00170007, 0x00180008,
        0x00190009, 0x001a000a, 0x001b000b, 0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return _mm512_permutexvar_epi16(order, two_bf16(even, odd));
}

/* Sums 0 to 3: up to four tiles of activations times one of weights, which is the right side or the left one. */
static inline __attribute__((always_inline)) void tile_meet(const uint8_t *weights, const rase_tile_target *t, const int weights_left) {
#define MEET(SUM, ROWS)                                          \
    TILE_LOAD(ROWS, t->rows + (SUM) * t->rows_stride, 64);       \
    if (weights_left) TILE_DOT(SUM, 4, ROWS);                    \
    else TILE_DOT(SUM, ROWS, 4);                                 \
    if (t->row_tiles == (SUM) + 1) return;
    TILE_LOAD(4, weights, 64);
    MEET(0, 5)
    MEET(1, 6)
    MEET(2, 7)
    MEET(3, 5)
#undef MEET
}

/* Depths of a group on their way to tiles of a right side, one after the other. */
typedef struct {
    __m512 even;
    uint8_t *at;
    rase_tile_target target;
} tile_stream;

static inline tile_stream tile_stream_to(const rase_tile_target *target) {
    return (tile_stream){_mm512_setzero_ps(), target->weights, *target};
}

static inline __attribute__((always_inline)) void tile_put(tile_stream *s, __m512 x, int k) {
    if (k % 2 == 0) {
        s->even = x;
        return;
    }
    _mm512_store_si512(s->at, side_by_side(s->even, x));
    s->at += 64;
    if (k % TILE_DEPTH != TILE_DEPTH - 1 || !s->target.rows) return;
    s->at -= TILE_BYTES;
    tile_meet(s->at, &s->target, 0);
    s->target.rows += TILE_BYTES;
    s->at = (uint8_t *)((uintptr_t)s->at ^ TILE_BYTES);
}

/* After `depth` of them: zeros up to a whole step. */
static inline void tile_end(tile_stream *s, int64_t depth) {
    for (; depth % TILE_DEPTH; depth++) tile_put(s, _mm512_setzero_ps(), (int)(depth % TILE_DEPTH));
}

static void tiles_right(const rase_format *format, const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, uint8_t *tiles) {
    const rase_tile_target to = {.weights = tiles};
    format->tiles(group, cols, k0, k1, &to);
}

/* A step of 16 rows, each of 16 different weights, scale[r] * code + less[r] in one FMA, as a tile of a left side. Codes: four vectors,
 * in lane r of vector v the nibbles of depths 4v to 4v + 3 (low) and 16 more (high). A row has 32 weights in a step: computing the
 * 16 once and looking them up is half the work. */
static inline __attribute__((always_inline)) void tile_row_step(const uint8_t *codes, const float *scale, const float *less,
                                                                uint8_t *tile) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_set1_epi16(15), second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    __m512i x[4], y[4]; /* four rows a vector, row 4l + j in quarter l of x[j] */
    for (int v = 0; v < 4; v++) x[v] = _mm512_load_si512(codes + 64 * v);
    for (int v = 0; v < 4; v += 2) y[v] = _mm512_unpacklo_epi32(x[v], x[v + 1]), y[v + 1] = _mm512_unpackhi_epi32(x[v], x[v + 1]);
    for (int h = 0; h < 2; h++) x[2 * h] = _mm512_unpacklo_epi64(y[h], y[h + 2]), x[2 * h + 1] = _mm512_unpackhi_epi64(y[h], y[h + 2]);
    _Pragma("GCC unroll 8") for (int pair = 0; pair < 8; pair++) { /* rows a and b: a table of 32 words, b's the second half */
        const int j = pair / 2, half = pair % 2, a = 8 * half + j, b = a + 4;
        __m512i code = _mm512_cvtepu8_epi16(half ? _mm512_extracti64x4_epi64(x[j], 1) : _mm512_castsi512_si256(x[j]));
        __m512i table = two_bf16(_mm512_fmadd_ps(numbers, _mm512_set1_ps(scale[a]), _mm512_set1_ps(less[a])),
                                 _mm512_fmadd_ps(numbers, _mm512_set1_ps(scale[b]), _mm512_set1_ps(less[b])));
        __m512i first = _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(code, low, second, 0xea), table); /* (x & y) | z */
        code = _mm512_srli_epi16(_mm512_or_si512(code, _mm512_slli_epi16(second, 4)), 4);
        __m512i last = _mm512_permutexvar_epi16(code, table);
        _mm256_store_si256((__m256i *)(tile + 64 * a), _mm512_castsi512_si256(first));
        _mm256_store_si256((__m256i *)(tile + 64 * a + 32), _mm512_castsi512_si256(last));
        _mm256_store_si256((__m256i *)(tile + 64 * b), _mm512_extracti64x4_epi64(first, 1));
        _mm256_store_si256((__m256i *)(tile + 64 * b + 32), _mm512_extracti64x4_epi64(last, 1));
    }
}

/* The sums of 2 x 2 tiles, or fewer, over `steps` steps. */
static inline __attribute__((always_inline)) void tile_steps(const uint8_t *left, int64_t left_stride, const uint8_t *right,
                                                             int64_t right_stride, int64_t steps, const int two_left,
                                                             const int two_right) {
    for (int64_t s = 0; s < steps; s++, left += TILE_BYTES, right += TILE_BYTES) {
        TILE_LOAD(4, left, 64);
        TILE_LOAD(6, right, 64);
        TILE_DOT(0, 4, 6);
        if (two_right) {
            TILE_LOAD(7, right + right_stride, 64);
            TILE_DOT(1, 4, 7);
        }
        if (two_left) {
            TILE_LOAD(5, left + left_stride, 64);
            TILE_DOT(2, 5, 6);
        }
        if (two_left && two_right) TILE_DOT(3, 5, 7);
    }
}

/* Four sum tiles from or to memory: `down` and `across` floats between them, `stride` floats between their rows. */
static inline void tile_sums_load(const float *from, int64_t down, int64_t across, int64_t stride) {
    TILE_LOAD(0, from, 4 * stride);
    TILE_LOAD(1, from + across, 4 * stride);
    TILE_LOAD(2, from + down, 4 * stride);
    TILE_LOAD(3, from + down + across, 4 * stride);
}
static inline void tile_sums_store(float *to, int64_t down, int64_t across, int64_t stride) {
    TILE_STORE(0, to, 4 * stride);
    TILE_STORE(1, to + across, 4 * stride);
    TILE_STORE(2, to + down, 4 * stride);
    TILE_STORE(3, to + down + across, 4 * stride);
}

/* Tiles of one side as tiles of the other: 16 x 16 pairs, transposed. */
static void tile_turn(const uint8_t *from, uint8_t *to) {
    v16 x[16];
    for (int i = 0; i < 16; i++) x[i] = v16_load((const float *)(from + 64 * i));
    v16_transpose(x);
    for (int i = 0; i < 16; i++) v16_store((float *)(to + 64 * i), x[i]);
}

/* All depths of n_groups groups times m rows, at most RASE_FEW_TILES tiles of them: each step of a group meets its rows when it is
 * unpacked, so that weights are read in one stream and neither they nor sums leave the first-level cache. Which side is the left one
 * changes no bit: products commute, and their order is that of depths. */
static void tiles_few(const rase_format *format, const uint8_t *groups, int64_t n_groups, int64_t cols, const uint8_t *left,
                      int64_t m, uint8_t *turned, float *out, int64_t out_stride) {
    uint8_t weights[2 * TILE_BYTES] __attribute__((aligned(2 * TILE_BYTES)));
    float sums[RASE_FEW_TILES * 256] __attribute__((aligned(64)));
    const int64_t stride = (cols + 31) / 32 * TILE_BYTES;
    const int row_tiles = (int)((m + 15) / 16), turn = turned && format->tile_rows;
    const rase_tile_target to = {weights, turn ? turned : left, stride, row_tiles};
    tiles_bf16();
    for (int64_t t = 0; turn && t < row_tiles * stride; t += TILE_BYTES) tile_turn(left + t, turned + t);
    for (int64_t g = 0; g < n_groups; g++, groups += format->group_bytes(cols), out += 16) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        if (turn) format->tile_rows(groups, cols, &to);
        else format->tiles(groups, cols, 0, cols, &to);
        TILE_STORE(0, sums, 64);
        if (row_tiles > 1) TILE_STORE(1, sums + 256, 64);
        if (row_tiles > 2) TILE_STORE(2, sums + 512, 64);
        if (row_tiles > 3) TILE_STORE(3, sums + 768, 64);
        for (int t = 0; turn && t < row_tiles; t++) tile_turn((uint8_t *)(sums + 256 * t), (uint8_t *)(sums + 256 * t));
        for (int64_t r = 0; r < m; r++) _mm512_storeu_ps(out + r * out_stride, _mm512_load_ps(sums + 16 * r));
    }
}

#endif
