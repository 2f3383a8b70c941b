/* Runs kernels on inputs from a file, for tests of variants that the interpreter's machine cannot run (test_arm.py).
 *
 *     driver list                     one line per variant of the build: its name, and what is missing here
 *     driver VARIANT INPUT OUTPUT
 *
 * INPUT is a run of records: an int64 operation, nine int64 parameters, then the arrays. OUTPUT holds the results one after the
 * other, always by logical row, so that variants of any rows_per_group write the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"

enum { LINEAR, QUANTIZE, GEMM, NORM, ELEMENTWISE, ROTATE, STORE, ATTENTION, COLUMNS = 16 };

static FILE *input, *output;
static const rase_kernels *k;

static void *memory(size_t bytes) { /* on a 64-byte boundary, filled with what a missed write would show */
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (p == NULL) exit(3);
    return memset(p, 0xA5, (bytes + 127) / 64 * 64);
}
static void *take(size_t bytes) {
    void *p = memory(bytes);
    if (fread(p, 1, bytes, input) != bytes) exit(4);
    return p;
}
static void give(const void *p, size_t bytes) {
    if (fwrite(p, 1, bytes, output) != bytes) exit(5);
}

/* format, rows, cols, row_bytes, m: raw (rows, row_bytes), x (m, cols). Gives the rows dequantized one by one, then from panels
 * in two parts, then the products with the first 1, 2, ... m activation rows. */
static void linear(const int64_t *p) {
    const rase_format *f = k->formats[p[0]];
    int64_t rows = p[1], cols = p[2], m = p[4], r = k->rows_per_group, groups = (rows + r - 1) / r;
    if (f == NULL) exit(6);
    uint8_t *raw = take((size_t)(rows * p[3]));
    float *x = take(sizeof(float) * (size_t)(m * cols));
    size_t bytes = f->group_bytes(cols);
    uint8_t *packed = memory(bytes * (size_t)groups);
    for (int64_t g = 0; g < groups; g++)
        f->pack(raw + g * r * p[3], (size_t)p[3], (int)(rows - g * r < r ? rows - g * r : r), cols, packed + (size_t)g * bytes);

    float *row = memory(sizeof(float) * (size_t)cols), *panel = memory(sizeof(float) * (size_t)(cols * r));
    for (int64_t i = 0; i < rows; i++) {
        f->row(packed + (size_t)(i / r) * bytes, (int)(i % r), cols, row);
        give(row, sizeof(float) * (size_t)cols);
    }
    int64_t cut = cols / f->block / 2 * f->block;
    for (int64_t i = 0; i < rows; i++) {
        if (i % r == 0) {
            const uint8_t *group = packed + (size_t)(i / r) * bytes;
            if (cut) f->panel(group, cols, 0, cut, panel);
            f->panel(group, cols, cut, cols, panel + cut * r);
        }
        for (int64_t j = 0; j < cols; j++) row[j] = panel[j * r + i % r];
        give(row, sizeof(float) * (size_t)cols);
    }

    int8_t *q = memory((size_t)(2 * m * cols));
    int16_t *wide = memory(sizeof(int16_t) * (size_t)((m + 3) * cols)), *sides = memory(sizeof(int16_t) * (size_t)(2 * m * cols));
    float *d = memory(sizeof(float) * (size_t)(m * cols)), *dsums = memory(sizeof(float) * (size_t)(m * cols));
    int32_t *sums = memory(sizeof(int32_t) * (size_t)(2 * m * cols));
    for (int64_t i = 0; i < m && f->act != RASE_ACT_F32; i++) {
        if (f->act == RASE_ACT_Q16_32)
            k->quantize_32(x + i * cols, cols, q + 2 * i * cols, wide + RASE_WIDE_AT(i, cols), d + i * (cols / 32),
                           sums + 2 * i * (cols / 32), dsums + i * (cols / 32));
        else
            k->quantize_256(x + i * cols, cols, q + 2 * i * cols, wide + RASE_WIDE_AT(i, cols), d + i * (cols / 256),
                            sides + i * (cols / 256) * RASE_SIDES);
    }
    rase_act act = {.f32 = x, .f32_stride = cols, .q = q, .wide = wide, .d = d, .dsums = dsums, .sums = sums,
                    .sides = sides};
    float *out = memory(sizeof(float) * (size_t)(m * groups * r));
    for (int64_t n = 1; n <= m; n++) {
        f->dot(packed, groups, cols, &act, 0, n, out, groups * r);
        for (int64_t i = 0; i < n; i++) give(out + i * groups * r, sizeof(float) * (size_t)rows);
    }
}

/* block (32 or 256), n: x (n,). Gives q, wide, d, then sums and dsums of blocks of 32, or sides of 256. */
static void quantize(const int64_t *p) {
    int64_t n = p[1];
    float *x = take(sizeof(float) * (size_t)n), *d = memory(sizeof(float) * (size_t)n), *dsums = memory(sizeof(float) * (size_t)n);
    int8_t *q = memory((size_t)(2 * n));
    int16_t *wide = memory(sizeof(int16_t) * (size_t)(4 * n)), *sides = memory(sizeof(int16_t) * (size_t)n);
    int32_t *sums = memory(sizeof(int32_t) * (size_t)n);
    if (p[0] == 32) k->quantize_32(x, n, q, wide, d, sums, dsums);
    else k->quantize_256(x, n, q, wide, d, sides);
    give(q, (size_t)(2 * n));
    for (int64_t i = 0; i < n; i += RASE_WIDE_COLS) give(wide + 4 * i, sizeof(int16_t) * RASE_WIDE_COLS);
    give(d, sizeof(float) * (size_t)(n / p[0]));
    if (p[0] == 256) give(sides, sizeof(int16_t) * (size_t)(RASE_SIDES * (n / 256)));
    else give(sums, sizeof(int32_t) * (size_t)(n / 16)), give(dsums, sizeof(float) * (size_t)(n / 32));
}

/* depth, m: panel (depth, 16), a (m, depth). Gives (16 / R, m, R): the columns in turns of R. */
static void gemm(const int64_t *p) {
    int64_t depth = p[0], m = p[1], r = k->rows_per_group;
    float *panel = take(sizeof(float) * (size_t)(depth * COLUMNS)), *a = take(sizeof(float) * (size_t)(m * depth));
    float *part = memory(sizeof(float) * (size_t)(depth * r)), *out = memory(sizeof(float) * (size_t)(m * COLUMNS));
    for (int64_t c = 0; c < COLUMNS; c += r) {
        for (int64_t i = 0; i < depth; i++) memcpy(part + i * r, panel + i * COLUMNS + c, sizeof(float) * (size_t)r);
        k->gemm_f32(part, depth, a, depth, m, out + c, COLUMNS);
    }
    give(out, sizeof(float) * (size_t)(m * COLUMNS));
}

/* n, group: x (n,), weight (group,). */
static void norm(const int64_t *p) {
    float *x = take(sizeof(float) * (size_t)p[0]), *weight = take(sizeof(float) * (size_t)p[1]);
    float *out = memory(sizeof(float) * (size_t)p[0]);
    k->rms_norm(x, weight, p[0], p[1], 1e-5f, out);
    give(out, sizeof(float) * (size_t)p[0]);
}

/* n: a (n,), b (n,). Gives add, mul, scale by 0.3, silu, silu_mul, exp, tanh, gelu, gelu_tanh, a cap of 5, b + 0.3 a. */
static void elementwise(const int64_t *p) {
    int64_t n = p[0];
    size_t bytes = sizeof(float) * (size_t)n;
    float *a = take(bytes), *b = take(bytes), *out = memory(bytes);
    k->add(a, b, n, out), give(out, bytes);
    k->mul(a, b, n, out), give(out, bytes);
    k->scale(a, 0.3f, n, out), give(out, bytes);
    k->silu(a, n, out), give(out, bytes);
    k->silu_mul(a, b, n, out), give(out, bytes);
    k->exp(a, n, out), give(out, bytes);
    k->tanh(a, n, out), give(out, bytes);
    k->gelu(a, n, out), give(out, bytes);
    k->gelu_tanh(a, n, out), give(out, bytes);
    k->soft_cap(a, 5.0f, n, out), give(out, bytes);
    k->add_scaled(a, 0.3f, n, b), give(b, bytes);
}

/* n_heads, head_dim, n_dims, neighbour: x (n_heads, head_dim), cos (n_dims / 2,), sin. */
static void rotate(const int64_t *p) {
    size_t bytes = sizeof(float) * (size_t)(p[0] * p[1]);
    float *x = take(bytes), *cos = take(sizeof(float) * (size_t)(p[2] / 2)), *sin = take(sizeof(float) * (size_t)(p[2] / 2));
    k->rotate(x, p[0], p[1], p[2], (int)p[3], cos, sin);
    give(x, bytes);
}

/* n, KV format: x (n,) to slot 3 of a head's run. Gives the run; what is not stored keeps what `memory` put there. */
static void store(const int64_t *p) {
    const rase_kv *kv = k->kv[p[1]];
    int64_t stride = (p[0] + 15) / 16 * 16;
    float *x = take(sizeof(float) * (size_t)p[0]);
    uint8_t *run = memory(kv->head_bytes(stride));
    kv->store(x, p[0], stride, run, 3);
    give(run, kv->head_bytes(stride));
}

/* tokens, group, head_dim, head_stride, first_position, window, pages, soft cap, KV format: q (tokens, group, head_dim), pages of
 * K and V (pages, 2, head's run). Chunk by chunk, then merged. */
static void attention(const int64_t *p) {
    const rase_kv *kv = k->kv[p[8]];
    int64_t row = p[1] * p[2], most = k->attention_tokens(p[1]), part = k->attention_part(p[3]);
    size_t bytes = sizeof(float) * (size_t)(p[0] * row), head = kv->head_bytes(p[3]);
    float *q = take(bytes), *out = memory(bytes);
    uint8_t *data = take(2 * head * (size_t)p[6]);
    const uint8_t **pages = memory(sizeof(void *) * (size_t)p[6]);
    for (int64_t i = 0; i < p[6]; i++) pages[i] = data + 2 * head * (size_t)i;
    float *parts = memory(sizeof(float) * (size_t)((p[6] / 8 + 1) * most * p[1] * part));
    rase_attention_task task = {
        .q_stride = row, .out_stride = row, .group = p[1], .head_dim = p[2], .head_stride = p[3], .window = p[5],
        .scale = 0.125f, .soft_cap = (float)p[7], .pages = pages, .v_offset = (int64_t)head,
        .scratch = memory(sizeof(float) * k->attention_scratch(p[1], p[3])),
    };
    for (int64_t i = 0; i < p[0]; i += most) {
        task.q = q + i * row, task.out = out + i * row;
        task.n_tokens = p[0] - i < most ? p[0] - i : most;
        task.first_position = p[4] + i;
        int64_t oldest = p[5] && task.first_position >= p[5] ? task.first_position - p[5] + 1 : 0;
        int64_t begin = oldest / RASE_CHUNK, end = (task.first_position + task.n_tokens - 1) / RASE_CHUNK + 1;
        for (int64_t c = begin; c < end; c++) {
            task.first_chunk = c, task.last_chunk = c + 1;
            task.parts = parts + (c - begin) * task.n_tokens * p[1] * part;
            kv->attention(&task);
        }
        task.first_chunk = begin, task.last_chunk = end, task.parts = parts;
        k->attention_merge(&task);
    }
    give(out, bytes);
}

static void (*const operations[])(const int64_t *) = {
    [LINEAR] = linear, [QUANTIZE] = quantize, [GEMM] = gemm,   [NORM] = norm,
    [ELEMENTWISE] = elementwise, [ROTATE] = rotate, [STORE] = store, [ATTENTION] = attention,
};

int main(int argc, char **argv) {
    for (int i = 0; i < rase_variant_count(); i++) {
        const char *missing = rase_variant_missing(i);
        if (argc == 2) printf("%s %s\n", rase_variant_name(i), missing ? missing : "");
        else if (argc == 4 && strcmp(argv[1], rase_variant_name(i)) == 0 && missing == NULL) k = rase_variant(i);
    }
    if (argc == 2) return 0;
    if (k == NULL || (input = fopen(argv[2], "rb")) == NULL || (output = fopen(argv[3], "wb")) == NULL) return 2;
    int64_t record[10];
    while (fread(record, sizeof record, 1, input) == 1) operations[record[0]](record + 1); /* all memory goes with the process */
    return fclose(output) != 0;
}
