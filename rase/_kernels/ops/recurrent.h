/* Layers with a state: L2 norm, decay, causal convolution, and the gated delta rule, one token after the other.
 *
 * The tokens of a sequence are the order of every sum over time, so that no cut of them changes a bit. Lanes are outputs
 * (channels, value columns), depth is summed ascending by one FMA each (rule R1). States are float32. */
#ifndef RASE_OPS_RECURRENT_H
#define RASE_OPS_RECURRENT_H

/* out = x / sqrt(sum(x^2) + eps) over each consecutive `group` of n elements. */
static void l2_norm(const float *x, int64_t n, int64_t group, float eps, float *out) {
    for (int64_t start = 0; start < n; start += group, x += group, out += group) {
        v16 squares = v16_zero();
        for (int64_t i = 0; i < group; i += 16) {
            v16 v = load_lanes(x + i, lanes_at(i, group));
            squares = v16_fma(v, v, squares);
        }
        v16 inverse = v16_set1(1.0f / sqrtf(v16_sum(squares) + eps));
        for (int64_t i = 0; i < group; i += 16) {
            int lanes = lanes_at(i, group);
            store_lanes(out + i, v16_mul(load_lanes(x + i, lanes), inverse), lanes);
        }
    }
}

/* exp(rate * log(1 + exp(x + bias))) in double: few elements, and a rounding of the exponent would grow with it. */
static void decay(const float *x, const float *rate, const float *bias, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) {
        double step = (double)x[i] + (double)bias[i];
        if (!(step > 40.0)) step = rase_log1p(rase_exp(step)); /* above, log(1 + exp(x)) is x in double */
        out[i] = (float)rase_exp((double)rate[i] * step);
    }
}

/* Some channels that lie beside each other: their panels (groups, taps, R); x and out rows of n tokens; state (taps - 1,
 * channels) with rows state_stride apart: the rows of x before the first token, which become those before the next. */
static void causal_conv(const float *panels, int64_t taps, int64_t channels, const float *x, int64_t x_stride, int64_t n,
                        float *state, int64_t state_stride, float *out, int64_t out_stride) {
    int64_t kept = taps - 1;
    for (int64_t t = 0; t < n; t++) {
        const float *panel = panels;
        for (int64_t c = 0; c < channels; c += RASE_R, panel += taps * RASE_R) {
            int lanes = channels - c < RASE_R ? (int)(channels - c) : RASE_R;
            v16 sum = v16_zero();
            for (int64_t j = 0; j < taps; j++) {
                int64_t row = t - kept + j;
                const float *from = row < 0 ? state + (row + kept) * state_stride : x + row * x_stride;
                sum = v16_fma(load_lanes(panel + j * RASE_R, lanes), load_lanes(from + c, lanes), sum);
            }
            store_lanes(out + t * out_stride + c, sum, lanes);
        }
    }
    for (int64_t j = 0; j < kept; j++) { /* ascending: a row is read before it is written */
        int64_t row = n - kept + j;
        const float *from = row < 0 ? state + (row + kept) * state_stride : x + row * x_stride;
        memmove(state + j * state_stride, from, (size_t)channels * sizeof(float));
    }
}

/* `blocks` x 16 columns of one head's state, or `lanes` of them, for all tokens of the task. A block of 64 columns lies in one
 * piece of memory, row after row, so that it stays in the first-level cache; what is left over lies in blocks of 16. */
static inline __attribute__((always_inline)) void delta_columns(const rase_delta_task *task, int64_t column, const int blocks,
                                                                const int lanes) {
    int64_t stride = blocks == 1 ? lanes : 16 * blocks;
    float *state = task->state + column * task->k_dim;
    for (int64_t t = 0; t < task->n_tokens; t++) {
        const float *q = task->q + t * task->q_stride, *k = task->k + t * task->k_stride;
        const float *v = task->v + t * task->v_stride + column;
        v16 keep = v16_set1(task->decay[t * task->decay_stride]), beta = v16_set1(task->beta[t * task->beta_stride]);
        v16 sums[4], missing[4];
        for (int b = 0; b < blocks; b++) sums[b] = v16_zero();
        for (int64_t i = 0; i < task->k_dim; i++)
            for (int b = 0; b < blocks; b++) {
                v16 s = v16_mul(load_lanes(state + i * stride + 16 * b, lanes), keep);
                sums[b] = v16_fma(v16_set1(k[i]), s, sums[b]);
            }
        for (int b = 0; b < blocks; b++) {
            missing[b] = v16_mul(beta, v16_sub(load_lanes(v + 16 * b, lanes), sums[b]));
            sums[b] = v16_zero();
        }
        for (int64_t i = 0; i < task->k_dim; i++)
            for (int b = 0; b < blocks; b++) { /* the product of the first pass again: cheaper than to have stored it */
                v16 s = v16_mul(load_lanes(state + i * stride + 16 * b, lanes), keep);
                s = v16_fma(v16_set1(k[i]), missing[b], s);
                store_lanes(state + i * stride + 16 * b, s, lanes);
                sums[b] = v16_fma(v16_set1(q[i]), s, sums[b]);
            }
        for (int b = 0; b < blocks; b++)
            store_lanes(task->out + t * task->out_stride + column + 16 * b, v16_mul(sums[b], v16_set1(task->scale)), lanes);
    }
}

/* Yang et al., "Gated Delta Networks", 2024: S <- decay S; S <- S + k beta (v - k'S)'; out = scale q'S. */
static void delta_rule(const rase_delta_task *task) {
    int64_t column = 0;
    for (; column + 64 <= task->v_dim; column += 64) delta_columns(task, column, 4, 16);
    for (; column < task->v_dim; column += 16) {
        int lanes = lanes_at(column, task->v_dim);
        if (lanes == 16) delta_columns(task, column, 1, 16);
        else delta_columns(task, column, 1, lanes);
    }
}

#endif
