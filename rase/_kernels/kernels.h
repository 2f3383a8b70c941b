/* The table of kernels that every instruction-set variant fills, and the types it speaks.
 *
 * One source is compiled once per variant (simd/<isa>.c); the variant is chosen once, at import, by dispatch.c.
 * Everything below is plain C on pointers and counts: no Python, OpenMP, allocation, input/output or globals.
 *
 * Words: a linear weight is a matrix (rows, cols) with out = W x. `rows_per_group` = R rows are interleaved into one
 * packed *group*, so that vector lanes are outputs; the last group is padded with zero rows. Depth is `cols`. */
#ifndef RASE_KERNELS_H
#define RASE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { RASE_PAGE_TOKENS = 32, RASE_CHUNK = 256, RASE_PEAK_BLOCK = 256, RASE_MAX_FORMAT = 64 };

/* What a format multiplies with: float32, or two int8 halves in blocks of 32 (legacy formats) or 256 (K-quants). */
enum { RASE_ACT_F32 = 0, RASE_ACT_Q16_32 = 1, RASE_ACT_Q16_256 = 2, RASE_HALF = 254 };

/* Activations of `m` rows of depth `cols`; only the members of one kind are used.
 *
 * A quantized activation has 16 bits in two int8 halves, so that it costs two integer dot steps and almost no accuracy:
 * x ~ d * (254 * high + low), high and low in [-127, 127], d = amax / 32384 (32384 = 254 * 127 + 126: one more would round to 128 * 254).
 * `wide` is both halves in one, 254 * high + low, for many rows at once: 32 depths of four rows after
 * one another, and of each four depths 0, 2, 1, 3.
 * Q16_32 : blocks of 32; sums = sum of the 32 values of a half; dsums = d * (float)(254 * sum of high + sum of low).
 * Q16_256: blocks of 256; sides = for each block the 16 sums of 16 activations 254 * high + low, then the 8 sums of 32, each sum
 * as a pair (low, high) with sum = 128 * high + low, so that one dot step of two int16 multiplies it.
 * Layout: q (m, 2, cols) with the high half first; wide (m / 4 rounded up, cols / 32, 4, 32); sums (m, 2, cols / 32); sides (m, cols / 256, 24, 2);
 * d and dsums (m, cols / block); f32 (m, stride). Up to seven rows beyond the last may be read: what is there
 * reaches nobody. */
typedef struct {
    const float *f32;
    int64_t f32_stride; /* elements between rows of f32 */
    const int8_t *q;
    const int16_t *wide;
    const float *d;
    const float *dsums;
    const int32_t *sums;
    const int16_t *sides;
} rase_act;
enum { RASE_SIDES = 48, RASE_WIDE_COLS = 32, RASE_WIDE_FROM = 3 /* rows: `dot` of fewer does not read `wide` */ };
#define RASE_WIDE_AT(row, cols) ((row) / 4 * 4 * (cols) + (row) % 4 * RASE_WIDE_COLS) /* the first 32 depths of a row */

/* Where a group's depths go as bf16 tiles (ops/tiles.h): with `rows`, each step meets its tiles of activations at once. */
typedef struct {
    uint8_t *weights;    /* a tile for each step, or two in turn; 2048-byte aligned then */
    const uint8_t *rows; /* the first tile of activations, at the first step; NULL: the tiles at `weights` are all */
    int64_t rows_stride; /* bytes between tiles of 16 rows */
    int row_tiles;       /* 1..RASE_FEW_TILES; their sums are the tile registers 0, 1, ... */
} rase_tile_target;
enum { RASE_FEW_TILES = 4 };

typedef struct {
    int id;       /* ggml type number */
    int block;    /* weights per block along depth */
    int act;      /* RASE_ACT_* */
    /* Bytes of one packed group of R rows of depth cols; a multiple of 64. */
    size_t (*group_bytes)(int64_t cols);
    /* Pack `rows` (1..R) file rows that lie row_bytes apart into one group; missing rows become zeros. */
    void (*pack)(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group);
    /* Dequantize row `lane` of a group: out (cols,), bit-equal to the file format's definition. */
    void (*row)(const uint8_t *group, int lane, int64_t cols, float *out);
    /* Dequantize depths [k0, k1) (multiples of block) of a group: out (k1 - k0, R) float32. */
    void (*panel)(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, float *out);
    /* The same depths, k0 a multiple of 256, as a right side of bf16 tiles; NULL where a variant has none. */
    void (*tiles)(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, const rase_tile_target *to);
    /* All depths as a left side that meets activations as the right one: faster where a row has few weights. NULL: `tiles` is all. */
    void (*tile_rows)(const uint8_t *group, int64_t cols, const rase_tile_target *to);
    /* out[i * out_stride + g * R + lane] = row (g, lane) . activation row i, for g < n_groups and m0 <= i < m1,
     * by rules R1 (float weights) and R2 (quantized weights): the bits depend on neither n_groups, m0, m1 nor the variant. */
    void (*dot)(const uint8_t *groups, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1,
                float *out, int64_t out_stride);
} rase_format;

/* One attention task: all query heads of one KV head, for a run of query tokens of one sequence, over a run of chunks. */
typedef struct {
    const float *q;         /* query rows: token i, head j at q + i * q_stride + j * head_dim; rotated, unscaled */
    float *out;             /* same shape, stride out_stride */
    int64_t q_stride, out_stride;
    int64_t n_tokens;       /* query tokens, positions first_position .. first_position + n_tokens - 1 */
    int64_t first_position;
    int64_t group;          /* query heads per KV head */
    int64_t head_dim;
    int64_t head_stride;    /* head_dim rounded up to 16: elements of one stored K or V row */
    int64_t window;         /* keys visible to a query, itself included; 0 = all */
    int64_t seen;           /* positions before this one are visible to every query, later than it too; 0 = causal */
    float scale;
    float soft_cap;         /* scores become soft_cap * tanh(score / soft_cap); 0 = as they are */
    const uint8_t *const *pages;  /* pages[p] holds positions [32p, 32p + 32); only those that the chunks need are read */
    int64_t k_offset, v_offset;   /* bytes into a page where this head's K and V begin, in the layout of the KV format */
    int64_t first_chunk, last_chunk; /* positions [256 * first_chunk, 256 * last_chunk) */
    float *parts;           /* NULL: the chunks are all that the tokens see, write `out`; else where the part of each chunk goes:
                               (chunks, n_tokens * group, attention_part(head_stride)) floats, for `attention_merge` */
    /* K that the caller's next task reads first, to be fetched ahead: the pages of its first chunk, where K begins in them, and which
       positions of the chunk it needs. next_high 0: nothing. */
    const uint8_t *const *next_pages;
    int64_t next_offset, next_low, next_high;
    float *scratch;         /* attention_scratch() floats, 64-byte aligned */
} rase_attention_task;

/* How K and V are stored. */
enum { RASE_KV_F16 = 0, RASE_KV_Q8_0 = 1, RASE_KV_FORMATS = 2 };
typedef struct {
    const char *name;
    size_t (*head_bytes)(int64_t head_stride); /* of the K, or the V, of one head in one page */
    /* Round one row x (n,), padded with +0 to head_stride, into slot 0..31 of a head's run of bytes. */
    void (*store)(const float *x, int64_t n, int64_t head_stride, uint8_t *run, int64_t slot);
    void (*attention)(const rase_attention_task *task); /* the bits depend on neither the run of tokens nor that of chunks */
    void (*tiled)(const rase_attention_task *task);     /* the same in bf16 tiles, between begin and end of rase_tiles, or NULL */
} rase_kv;

/* The tokens of one sequence through the state of one value head, by the gated delta rule (ops/recurrent.h). Rows of token t
 * lie at q + t * q_stride and so on; q and k (k_dim,), v and out (v_dim,), decay and beta one number each. */
typedef struct {
    const float *q, *k, *v, *decay, *beta;
    float *out;
    int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride;
    int64_t n_tokens, k_dim, v_dim;
    float scale;
    float *state; /* (k_dim, v_dim) in blocks of columns, read and written */
} rase_delta_task;

typedef struct {
    int rows_per_group; /* R */
    const rase_format *formats[RASE_MAX_FORMAT]; /* by ggml type number; NULL where unsupported */

    /* Quantize one row x (cols,): q (2, cols), d (cols/block,), sums, dsums and sides as in rase_act; wide from
     * RASE_WIDE_AT(row, cols) on, or NULL where fewer than RASE_WIDE_FROM rows are multiplied at once. */
    void (*quantize_32)(const float *x, int64_t cols, int8_t *q, int16_t *wide, float *d, int32_t *sums, float *dsums);
    void (*quantize_256)(const float *x, int64_t cols, int8_t *q, int16_t *wide, float *d, int16_t *sides);

    /* out[i * out_stride + lane] = sum over k ascending of panel[k * R + lane] * a[i * a_stride + k], one FMA each, i < m. */
    void (*gemm_f32)(const float *panel, int64_t cols, const float *a, int64_t a_stride, int64_t m, float *out,
                     int64_t out_stride);

    /* out = x / sqrt(mean(x^2) + eps) * weight over each consecutive `group` of n elements. */
    void (*rms_norm)(const float *x, const float *weight, int64_t n, int64_t group, float eps, float *out);
    void (*layer_norm)(const float *x, const float *weight, int64_t n, float eps, float *out); /* its bias is one `add` */
    void (*add)(const float *a, const float *b, int64_t n, float *out);
    void (*mul)(const float *a, const float *b, int64_t n, float *out);
    void (*scale)(const float *a, float factor, int64_t n, float *out);
    void (*silu)(const float *a, int64_t n, float *out);          /* x / (1 + exp(-x)) */
    void (*sigmoid)(const float *a, int64_t n, float *out);       /* 1 / (1 + exp(-x)) */
    void (*gelu)(const float *a, int64_t n, float *out);          /* x (1 + erf(x / sqrt 2)) / 2 */
    void (*gelu_tanh)(const float *a, int64_t n, float *out);     /* its tanh form */
    void (*tanh)(const float *a, int64_t n, float *out);
    void (*soft_cap)(const float *a, float cap, int64_t n, float *out); /* cap * tanh(x / cap) */
    void (*peaks)(const float *x, int64_t n, float *out); /* 16 of each whole block of RASE_PEAK_BLOCK; ops/elementwise.h */
    void (*silu_mul)(const float *a, const float *b, int64_t n, float *out); /* silu(a) * b, the bits of silu then mul */
    /* The k experts of a token: out (2k,) is their ids ascending, then their gates; ops/route.h. */
    void (*route)(const float *logits, int64_t n_experts, int64_t k, int renormalize, float scale, float *out);
    void (*add_scaled)(const float *x, float factor, int64_t n, float *out); /* out += factor * x */
    /* Rotate n_heads heads of head_dim in place; cos, sin (n_dims / 2,); neighbour: pairs (2i, 2i+1), else (i, i + n_dims/2). */
    void (*rotate)(float *x, int64_t n_heads, int64_t head_dim, int64_t n_dims, int neighbour, const float *cos,
                   const float *sin);
    void (*exp)(const float *x, int64_t n, float *out);

    /* Recurrent layers: ops/recurrent.h. */
    void (*l2_norm)(const float *x, int64_t n, int64_t group, float eps, float *out);
    void (*decay)(const float *x, const float *rate, const float *bias, int64_t n, float *out);
    void (*causal_conv)(const float *panels, int64_t taps, int64_t channels, const float *x, int64_t x_stride, int64_t n,
                        float *state, int64_t state_stride, float *out, int64_t out_stride);
    void (*delta_rule)(const rase_delta_task *task);

    const rase_kv *kv[RASE_KV_FORMATS];
    int64_t (*attention_tokens)(int64_t group);                      /* the most query tokens of one task */
    size_t (*attention_scratch)(int64_t group, int64_t head_stride); /* floats */
    int64_t (*attention_part)(int64_t head_stride);                  /* floats of one row's part */
    void (*attention_merge)(const rase_attention_task *task);        /* parts of all chunks, ascending, to out */

    /* The limits of the machine in this variant's vectors: ops/limits.h. */
    float (*fma_burst)(int64_t steps, int64_t *operations);
    uint8_t (*read_burst)(const uint8_t *data, int64_t n);
} rase_kernels;

/* Prompt tokens in bf16 tiles (ops/tiles.h), for variants whose processor has them and whose groups have 16 rows. */
typedef struct {
    void (*begin)(void); /* on a thread before its first tile, and `end` after its last */
    void (*end)(void);
    /* Row number `row` of the left side, x (cols,), to its place among tiles of 16 rows x 32 depths. */
    void (*left)(const float *x, int64_t cols, int64_t row, uint8_t *tiles);
    /* Depths [k0, k1) of a packed group to the right side; k0 a multiple of 256. Tails are filled with zeros. */
    void (*right)(const rase_format *format, const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, uint8_t *tiles);
    /* out[i * out_stride + 16 g + lane] = left row i . row (g, lane) of packed groups, all depths, for i < m <= 16 * RASE_FEW_TILES.
     * `turned`: room for as much as `left`, or NULL, which is slower for some formats. */
    void (*few)(const rase_format *format, const uint8_t *groups, int64_t n_groups, int64_t cols, const uint8_t *left, int64_t m,
                uint8_t *turned, float *out, int64_t out_stride);
    /* out[i * out_stride + 16 g + lane] = left row i . right row (g, lane) for i < m, g < n_groups; steps [first, first +
     * steps) of `all_steps` in one call, in ascending order. `right` holds these steps of each group; `sums` keeps what
     * earlier steps gave: RASE_TILE_SUMS(m, n_groups) floats. */
    void (*multiply)(const uint8_t *left, int64_t all_steps, int64_t first, int64_t steps, int64_t m, const uint8_t *right,
                     int64_t n_groups, float *sums, float *out, int64_t out_stride);
    /* The limits of the unit: ops/tiles_limits.h. */
    int (*burst)(int64_t steps, int loads);
} rase_tiles;

enum { RASE_TILE_BYTES = 1024 };
#define RASE_TILES_LEFT(m, cols) (((m) + 15) / 16 * (((cols) + 31) / 32) * RASE_TILE_BYTES) /* bytes */
#define RASE_TILE_SUMS(m, n_groups) (((m) + 31) / 32 * (((n_groups) + 1) / 2) * 1024)

extern const rase_tiles rase_tiles_amx;
extern const rase_kernels rase_kernels_scalar, rase_kernels_avx2, rase_kernels_avxvnni, rase_kernels_avx512;
extern const rase_kernels rase_kernels_avx512vbmi, rase_kernels_amx, rase_kernels_neon, rase_kernels_dotprod;

#endif
