/* What the formats share: the packed layout, packing helpers, and the outer loops of `dot` and `row`.
 *
 * Packed group of R rows (quantised formats): its blocks of R rows one after the other, padded to 64 bytes. One block:
 *   halves  [1 or 2][R] float16: the scale d, then the minimum where the format has one
 *   codes   [code_bytes / 4][R][4] bytes: vectors of R rows x 4 bytes, so that one load feeds one integer dot step
 * Nothing is widened but IQ1 (iq1.h) and, where codebooks are in registers, IQ2 and IQ3 (split_iq2.h): a packed matrix is as large as the file's, but for the last group's zero rows and the 64-byte padding.
 * Everything is read once and in ascending order: decode from memory falls to a half or a third where a second stream (scales
 * or bit planes kept apart) breaks that order, since the processor then stops fetching ahead (measured on Zen 4). */
#ifndef RASE_QUANTS_COMMON_H
#define RASE_QUANTS_COMMON_H

/* Templates: always inlined with constant counts, so that their arrays are registers. The baseline has no registers to win
 * (its lanes are arrays in memory): there the loops stay loops, and the object stays small. */
#define TEMPLATE static inline __attribute__((always_inline))
#if RASE_TILE_ROWS > 1
#define UNROLL(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#else
#define UNROLL(i, n) _Pragma("GCC unroll 1") for (int i = 0; i < (n); i++)
#endif

enum { VECTOR = 4 * RASE_R }; /* bytes of one rb */

TEMPLATE size_t round_64(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* out[w][lane] = word w of row `lane`, for `words` consecutive 4-byte words; lanes from `rows` on are zero. */
static void pack_words(const uint8_t *src, size_t row_bytes, int rows, int words, uint8_t *out) {
    for (int r = 0; r < rows; r++, src += row_bytes)
        for (int w = 0; w < words; w++) memcpy(out + w * VECTOR + 4 * r, src + 4 * w, 4);
    if (rows < RASE_R)
        for (int w = 0; w < words; w++) memset(out + w * VECTOR + 4 * rows, 0, 4 * (size_t)(RASE_R - rows));
}

static void pack_halves(const uint8_t *src, size_t row_bytes, int rows, int halves, uint8_t *out) {
    memset(out, 0, (size_t)halves * 2 * RASE_R);
    for (int r = 0; r < rows; r++, src += row_bytes)
        for (int h = 0; h < halves; h++) memcpy(out + 2 * (h * RASE_R + r), src + 2 * h, 2);
}

static void pack_bytes(const uint8_t *src, size_t row_bytes, int rows, uint8_t *out) {
    memset(out, 0, RASE_R);
    for (int r = 0; r < rows; r++) out[r] = src[(size_t)r * row_bytes];
}

/* Exchange the upper fields of x with the lower fields of y, fields of `shift` bits (4, 2 or 1): afterwards x holds the lower
 * field of x below that of y, and y the upper ones. */
static void swap_fields(uint8_t *x, uint8_t *y, int shift) {
    uint8_t low = shift == 4 ? 0x0f : shift == 2 ? 0x33 : 0x55;
    for (int i = 0; i < VECTOR; i++) {
        uint8_t a = x[i], b = y[i];
        x[i] = (uint8_t)((a & low) | (b & low) << shift);
        y[i] = (uint8_t)((a >> shift & low) | (b & ~low));
    }
}

/* Transpose fields: 4 vectors of four 2-bit fields, or 8 vectors of eight bits. Field v of vector j becomes field j of vector v. */
static void transpose_pairs(uint8_t *x) {
    for (int v = 0; v < 2; v++) swap_fields(x + v * VECTOR, x + (v + 2) * VECTOR, 4);
    for (int v = 0; v < 4; v += 2) swap_fields(x + v * VECTOR, x + (v + 1) * VECTOR, 2);
}
static void transpose_bits(uint8_t *x) {
    for (int v = 0; v < 4; v++) swap_fields(x + v * VECTOR, x + (v + 4) * VECTOR, 4);
    for (int v = 0; v < 8; v++)
        if (!(v & 2)) swap_fields(x + v * VECTOR, x + (v + 2) * VECTOR, 2);
    for (int v = 0; v < 8; v += 2) swap_fields(x + v * VECTOR, x + (v + 1) * VECTOR, 1);
}

/* Bits `field` and up of a byte to bit `at` and up; mask says which to keep. All three are constants after inlining. */
TEMPLATE rb move_bits(rb x, int field, int at, uint8_t mask) {
    rb moved = field > at ? rb_shr(x, field - at) : field < at ? rb_shl(x, at - field) : x;
    if (RASE_BYTE_SHIFTS && mask == (field > at ? 0xff >> (field - at) : 0xff << (at - field) & 0xff)) return moved;
    return rb_and(moved, rb_set1(mask));
}

/* The 4-bit codes of a vector pair: low nibbles are the lower half of the depths, high nibbles the upper. */
TEMPLATE rb nibbles(rb x, int upper) { return upper ? move_bits(x, 4, 0, 0x0f) : rb_and(x, rb_set1(0x0f)); }

/* acc + d * da * (254 * high + low), where 254 * high + low fits int32: the exact sum enters by one FMA (rule R2). */
TEMPLATE rf join_exact(rf acc, ri high, ri low, rf d, float da) {
    return rf_fma(rf_from_ri(ri_join(high, low)), rf_mul(d, rf_set1(da)), acc);
}

/* Lines of the weights that lie ahead, from memory to the second-level cache and from there to the first. Decode reads every byte
 * once: on Intel's server cores the fetching ahead in hardware alone leaves a third of the bandwidth unused (19 of 30 GB/s on two
 * cores; with both 28), since the few line buffers of the first level wait for memory itself. On Zen 4 neither helps nor harms.
 * `p` is where the stream is now, `lines` how many to fetch; what lies beyond the matrix is fetched in vain, which is harmless. */
enum { AHEAD_FAR = 11520, AHEAD_NEAR = 2880, AHEAD_FARTHER = 20480 };
TEMPLATE void read_ahead(const uint8_t *p, const int lines) {
    __asm__ volatile("" : "+r"(p)); /* stay here: a block's lines all at once stop the core (Q4_K on one: 20 GB/s instead of 27) */
    UNROLL(l, lines) {
        __builtin_prefetch(p + AHEAD_FAR + 64 * l, 0, 2);
        __builtin_prefetch(p + AHEAD_NEAR + 64 * l, 0, 3);
    }
}
/* The same beside the tile unit and other sums of several rows, which take so long that the processor's own prefetcher falls asleep:
 * farther, and every second line, since the second level fetches pairs (8 rows of Q4_K on two cores: 10.5 GB/s became 13). */
TEMPLATE void read_ahead_of_rows(const uint8_t *p, const int lines) {
    UNROLL(l, lines) {
        if (l % 2 == 0) __builtin_prefetch(p + AHEAD_FARTHER + 64 * l, 0, 2);
        __builtin_prefetch(p + AHEAD_NEAR + 64 * l, 0, 3);
    }
}

#ifndef RASE_CODES
/* x[e] = byte e of every lane, 0..max, less offset. */
TEMPLATE void rf_codes(rb w, const int max, const int offset, rf *x) {
    (void)max;
    UNROLL(e, 4) x[e] = rf_from_ri(ri_sub(ri_byte_u8(w, e), ri_set1(offset)));
}
#endif

/* Dequantized depths of a group, ascending, R lanes each: to a float32 panel, or to bf16 tiles (ops/tiles.h). A format hands them
 * over one by one in its template NAME_unpack; `k` is the depth counted from some multiple of 32, even and odd ones in turn. */
typedef struct {
    float *panel;
#ifdef RASE_TILES
    tile_stream tiles;
#endif
} weight_sink;
typedef void weight_put(weight_sink *to, rf x, int k);
TEMPLATE void put_float(weight_sink *to, rf x, int k) {
    (void)k;
    rf_store(to->panel, x);
    to->panel += RASE_R;
}
#define PANEL_OF(NAME)                                                                                   \
    static void NAME##_panel(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, float *out) {   \
        weight_sink to = {.panel = out};                                                                 \
        (void)cols;                                                                                      \
        NAME##_unpack(group, k0, k1, put_float, &to);                                                    \
    }
#ifdef RASE_TILES
TEMPLATE void put_bf16(weight_sink *to, rf x, int k) { tile_put(&to->tiles, x, k); }
#define TILES(NAME) NAME##_tiles
#define TILE_ROWS(NAME) NAME##_tile_rows
#define UNPACKERS(NAME)                                                                                                  \
    PANEL_OF(NAME)                                                                                                       \
    static void NAME##_tiles(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, const rase_tile_target *target) { \
        weight_sink to = {.tiles = tile_stream_to(target)};                                                              \
        (void)cols;                                                                                                      \
        NAME##_unpack(group, k0, k1, put_bf16, &to);                                                                     \
        tile_end(&to.tiles, k1 - k0);                                                                                    \
    }
#else
#define TILES(NAME) NULL
#define TILE_ROWS(NAME) NULL
#define UNPACKERS(NAME) PANEL_OF(NAME)
#endif

/* Activation rows per pass over a group: few, so that the sums of both their halves stay in registers. */
enum { DOT_TILE = RASE_DOT_TILE };
#if RASE_DOT_TILE == 4
#define DOT_ROWS_MORE(TILE) DOT_ROWS(TILE, 4) DOT_ROWS(TILE, 2)
#elif RASE_DOT_TILE == 2
#define DOT_ROWS_MORE(TILE) DOT_ROWS(TILE, 2)
#else
#define DOT_ROWS_MORE(TILE)
#endif
#define DOT_ROWS(TILE, N) \
    for (; i + (N) <= m1; i += (N)) TILE(group, cols, act, i, (N), out + i * out_stride, out_stride);

/* `dot` of one or two activation rows: NAME_tile(group, cols, act, first row, constant row count, out, out_stride); a group stays
 * in the cache while they pass. More rows go the way of wide.h: four or eight at a time by NAME_four(group, cols, act, first row, sums), or
 * many by NAME_wide(group, first block, count, panel), or where a format says so (ROWS_OF) all in int8 tiles. `row` from NAME_panel: a row costs R times its share, which a gather of embeddings never
 * feels. */
#ifdef RASE_FOUR_ROWS
#define DOT_IN_TILES(NAME) if (NAME##_tiled(group, n_groups, cols, act, m0, m1, out, out_stride)) return;
#else
#define DOT_IN_TILES(NAME)
#endif
#ifdef RASE_WIDE_GROUPS
#include "wide.h"
#define DOT_MANY(NAME, ...)                                                                                               \
    if (m1 - m0 >= WIDE_ROWS) {                                                                                           \
        const wide_kind kind = {__VA_ARGS__};                                                                             \
        wide_dot(group, n_groups, NAME##_group_bytes(cols), &kind, NAME##_wide, cols, act, m0, m1, out, out_stride);      \
        return;                                                                                                           \
    }
#else
#define DOT_MANY(NAME, ...)
#endif
#ifdef RASE_FOUR_ROWS
#define DOT_SOME(NAME)                                                                                                    \
    if (m1 - m0 >= RASE_WIDE_FROM) {                                                                                             \
        for (int64_t i = m0 / 4 * 4, n; i < m1; i += n) {                                                                \
            float sums[8 * RASE_R] __attribute__((aligned(64)));                                                          \
            n = m1 - i > 4 ? 8 : 4;                                                                                       \
            (n == 8 ? NAME##_eight : NAME##_four)(group, cols, act, i, sums);                                             \
            for (int64_t t = i < m0 ? m0 - i : 0; t < n && i + t < m1; t++)                                               \
                rf_store(out + (i + t) * out_stride, rf_load(sums + t * RASE_R));                                         \
        }                                                                                                                 \
        continue;                                                                                                         \
    }
#else
#define DOT_SOME(NAME)
#endif
/* FEW does `dot` of a row or two in another way, or returns 0. */
TEMPLATE int few_not_apart(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1, float *out,
                           int64_t out_stride) {
    (void)group, (void)n_groups, (void)cols, (void)act, (void)m0, (void)m1, (void)out, (void)out_stride;
    return 0;
}
#define QUANTISED_FORMAT(NAME, ID, BLOCK, ACT, RUN, MINIMUM, BYTES) \
    QUANTISED_FORMAT_IN_ROWS(NAME, ID, BLOCK, ACT, RUN, MINIMUM, BYTES, NULL, few_not_apart)
#define QUANTISED_FORMAT_IN_ROWS(NAME, ID, BLOCK, ACT, RUN, MINIMUM, BYTES, IN_ROWS, FEW)                                \
    UNPACKERS(NAME)                                                                                                      \
    static void NAME##_dot(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0,        \
                           int64_t m1, float *out, int64_t out_stride) {                                                 \
        DOT_IN_TILES(NAME)                                                                                                   \
        DOT_MANY(NAME, BLOCK, RUN, MINIMUM, BYTES)                                                                                   \
        if (FEW(group, n_groups, cols, act, m0, m1, out, out_stride)) return;                                            \
        for (int64_t g = 0; g < n_groups; g++, group += NAME##_group_bytes(cols), out += RASE_R) {                       \
            DOT_SOME(NAME)                                                                                               \
            int64_t i = m0;                                                                                              \
            DOT_ROWS_MORE(NAME##_tile) DOT_ROWS(NAME##_tile, 1)                                                          \
        }                                                                                                                \
    }                                                                                                                    \
    static void NAME##_row(const uint8_t *group, int lane, int64_t cols, float *out) {                               \
        float block[(BLOCK) * RASE_R];                                                                               \
        for (int64_t k = 0; k < cols; k += (BLOCK)) {                                                                \
            NAME##_panel(group, cols, k, k + (BLOCK), block);                                                        \
            for (int i = 0; i < (BLOCK); i++) out[k + i] = block[i * RASE_R + lane];                                 \
        }                                                                                                            \
    }                                                                                                                \
    static const rase_format NAME##_format = {(ID),          (BLOCK),    (ACT),        NAME##_group_bytes,           \
                                              NAME##_pack,   NAME##_row, NAME##_panel, TILES(NAME), (IN_ROWS), NAME##_dot};

#endif
