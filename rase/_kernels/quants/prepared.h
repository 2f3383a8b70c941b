/* One or two activation rows times codebooks in registers (RB_PERMUTE): rule R2 with activations prepared once a call, for all of its groups.
 * Part of block256.h.
 *
 * Prepared are the halves in the order of turned codes (turned.h), and for every part (a sub-block, or a run where that is less) -offset times
 * the sum of each half, from where its dot product starts. Sums of a part are int32; as float32 they are exact, and so are their sums
 * over a run times scales: where 254 * high + low of a run fits int32 (block256.h), high and low alone stay below 2^31 / 255 < 2^24. One FMA
 * makes fma(254, high, low) of them, rounded once, as the conversion of the int32 is.
 *
 * Codes are looked up one part ahead of the dot products, and sums taken one part behind: else the scheduler fills with what waits
 * (IQ2_XS: 347 cycles a block of 276 cycles' worth of operations). */
#ifndef RASE_QUANTS_PREPARED_H
#define RASE_QUANTS_PREPARED_H

#if RB_PERMUTE
enum { PREPARED_BLOCKS = 64 }; /* blocks of one row, in 48 KiB */
/* Of each block, row and half in turn. */
typedef struct {
    int8_t q[PREPARED_BLOCKS * 512] __attribute__((aligned(64)));
    int32_t starts[PREPARED_BLOCKS * 32] __attribute__((aligned(64)));
    int16_t eights[PREPARED_BLOCKS * 64]; /* twice the sums of eights, where codes may be two more */
} prepared_rows;

TEMPLATE int prepared_part(const block256 f) { return f.run < f.sub ? f.run : f.sub; }

/* Blocks [first, first + count) of n rows. */
TEMPLATE void prepare_rows(const block256 f, const rase_act *act, int64_t cols, int64_t row, const int n, int64_t first, int64_t count, prepared_rows *to) {
    const int part = prepared_part(f);
    int32_t *starts = to->starts;
    for (int64_t b = 0; b < count; b++) {
        UNROLL(t, 2 * n) {
            const uint8_t *q = (const uint8_t *)act->q + (2 * row + t) * cols + 256 * (first + b);
            rb x[4];
            UNROLL(v, 4) {
                x[v] = rb_load(q + v * VECTOR);
                if (f.above) rh_store_eights(to->eights + (b * 2 * n + t) * 32 + 8 * v, rb_set1(2), x[v]);
                rb_store((uint8_t *)to->q + (b * 2 * n + t) * 256 + v * VECTOR, f.turned == 32 ? rb_turn_32(x[v]) : f.turned ? rb_turn(x[v]) : x[v]);
            }
            ri all = ri_sub(ri_zero(), ri_dot_sixteens(rb_set1((uint8_t)f.offset), x));
            if (part == 32) starts += ri_store_pairs(starts, all);
            else starts += ri_store_all(starts, all);
        }
    }
}

/* Vectors 4e to 4e + 3 of part p. */
TEMPLATE void prepared_codes(const block256 f, const uint8_t *block, const int p, const int e, rb *out) {
    const int at = p * prepared_part(f), s = at / f.sub, half = at % f.sub / 16 + e;
    f.sixteen(block, s / 4, s % 4, half, out);
}
TEMPLATE rf prepared_scale(const block256 f, const uint8_t *block, const rb *scales, const int p) {
    const int s = p * prepared_part(f) / f.sub;
    return f.scale ? f.scale(block, s) : rf_from_ri(ri_byte_u8(scales[s / 4], s % 4));
}

/* What a tile of n rows keeps of a block. */
typedef struct {
    rp dot[2][2 * DOT_TILE]; /* of two parts in turn, both halves of each row */
    rf scale[2], high[DOT_TILE], low[DOT_TILE];
    rh short_scale[2];
    ri sum[2 * DOT_TILE];
    rf d[DOT_TILE], acc[DOT_TILE];
} prepared_state;

TEMPLATE void prepared_finish(const block256 f, prepared_state *s, const int p, const int n) {
    const int part = prepared_part(f), first = p * part % f.run == 0, last = (p + 1) * part % f.run == 0;
    const rf scale = s->scale[p % 2];
    UNROLL(t, n) {
        if (f.short_scale) {
            ri *sum = s->sum + 2 * t;
            UNROLL(half, 2) sum[half] = ri_dot_pairs(first ? ri_zero() : sum[half], s->dot[p % 2][2 * t + half], s->short_scale[p % 2]);
            if (last) s->acc[t] = rf_fma(rf_from_ri(ri_join(sum[0], sum[1])), s->d[t], s->acc[t]);
            continue;
        }
        rf h = rf_from_ri(s->dot[p % 2][2 * t]), l = rf_from_ri(s->dot[p % 2][2 * t + 1]);
        s->high[t] = first ? rf_mul(h, scale) : rf_fma(h, scale, s->high[t]);
        s->low[t] = first ? rf_mul(l, scale) : rf_fma(l, scale, s->low[t]);
        if (last) s->acc[t] = rf_fma(rf_fma(s->high[t], rf_set1(RASE_HALF), s->low[t]), s->d[t], s->acc[t]);
    }
}

TEMPLATE void prepared_block(const block256 f, const uint8_t *block, const int8_t *q, const int32_t *starts, const int16_t *eights, const int n,
                             prepared_state *s) {
    const int part = prepared_part(f), parts = 256 / part, fours = part / 16;
    const int lines = ((int)block256_bytes(f) + 63) / 64;
    rb scales[4], codes[2][8];
    if (!f.scale && !f.short_scale) f.scales(block, scales);
    UNROLL(e, fours) prepared_codes(f, block, 0, e, codes[0] + 4 * e);
    UNROLL(p, parts) {
        if (f.short_scale) s->short_scale[p % 2] = f.short_scale(block, p);
        else s->scale[p % 2] = prepared_scale(f, block, scales, p);
        UNROLL(t, 2 * n) {
            ri start = ri_all(starts + t * parts + p);
            s->dot[p % 2][t] = rp_begin(f.above ? ri_dot_rh(start, f.above(block, p), eights + 32 * t + 2 * p) : start);
        }
        UNROLL(e, fours) {
            if (p + 1 < parts) prepared_codes(f, block, p + 1, e, codes[(p + 1) % 2] + 4 * e);
            UNROLL(v, 4) {
                const int step = 4 * (p * fours + e) + v;
                read_ahead(block + 64 * (step * lines / 64), (step + 1) * lines / 64 - step * lines / 64);
                UNROLL(t, 2 * n) s->dot[p % 2][t] = rp_dot_u8(s->dot[p % 2][t], codes[p % 2][4 * e + v], q + 256 * t + p * part + 16 * e + 4 * v);
            }
        }
        if (p) prepared_finish(f, s, p - 1, n);
    }
    prepared_finish(f, s, parts - 1, n);
}

TEMPLATE void prepared_dot(const block256 f, const uint8_t *groups, int64_t n_groups, size_t group_bytes, int64_t cols, const rase_act *act, int64_t row,
                           const int n, float *out, int64_t out_stride) {
    const int64_t blocks = cols / 256, step = PREPARED_BLOCKS / n;
    const int parts = 256 / prepared_part(f);
    const float *da = act->d + row * blocks;
    prepared_rows rows;
    for (int64_t first = 0; first < blocks; first += step) {
        const int64_t count = blocks - first < step ? blocks - first : step;
        prepare_rows(f, act, cols, row, n, first, count, &rows);
        for (int64_t g = 0; g < n_groups; g++) {
            const uint8_t *group = groups + (size_t)g * group_bytes;
            prepared_state s;
            UNROLL(t, n) s.acc[t] = first ? rf_load(out + t * out_stride + g * RASE_R) : rf_zero();
            for (int64_t b = first; b < first + count; b++) {
                rf d = block256_d(f, (const uint16_t *)block256_start(f, group, b));
                UNROLL(t, n) s.d[t] = rf_mul(d, rf_set1(da[t * blocks + b]));
                prepared_block(f, block256_rest(f, group, b), rows.q + (b - first) * n * 512, rows.starts + (b - first) * 2 * n * parts,
                               rows.eights + (b - first) * 64 * n, n, &s);
            }
            UNROLL(t, n) rf_store(out + t * out_stride + g * RASE_R, s.acc[t]);
        }
    }
}
/* Whether it is done. */
TEMPLATE int prepared_few(const block256 f, const uint8_t *groups, int64_t n_groups, size_t group_bytes, int64_t cols, const rase_act *act, int64_t m0,
                          int64_t m1, float *out, int64_t out_stride) {
    if (!f.sixteen || m1 - m0 >= RASE_WIDE_FROM) return 0;
    if (m1 - m0 == 2) prepared_dot(f, groups, n_groups, group_bytes, cols, act, m0, 2, out + m0 * out_stride, out_stride);
    else if (m1 > m0) prepared_dot(f, groups, n_groups, group_bytes, cols, act, m0, 1, out + m0 * out_stride, out_stride);
    return 1;
}
#define PREPARED(NAME)                                                                                                  \
    TEMPLATE int NAME##_few(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1, \
                            float *out, int64_t out_stride) {                                                            \
        return prepared_few(NAME, group, n_groups, NAME##_group_bytes(cols), cols, act, m0, m1, out, out_stride);        \
    }
#else
#define PREPARED(NAME)                                                                                                  \
    TEMPLATE int NAME##_few(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1, \
                            float *out, int64_t out_stride) {                                                            \
        return few_not_apart(group, n_groups, cols, act, m0, m1, out, out_stride);                                       \
    }
#endif

#endif
