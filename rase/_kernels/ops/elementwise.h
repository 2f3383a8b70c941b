/* Row-local kernels: norms, sums and products, SiLU and GELU, soft caps, rotary embedding, float16 store. float32 throughout, sums by rule R1. */
#ifndef RASE_OPS_ELEMENTWISE_H
#define RASE_OPS_ELEMENTWISE_H

static inline v16 load_lanes(const float *p, int lanes) { return lanes == 16 ? v16_load(p) : v16_load_n(p, lanes); }
static inline void store_lanes(float *p, v16 x, int lanes) {
    if (lanes == 16) v16_store(p, x);
    else v16_store_n(p, x, lanes);
}
static inline int lanes_at(int64_t i, int64_t n) { return n - i < 16 ? (int)(n - i) : 16; }

/* Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. */
static void rms_norm(const float *x, const float *weight, int64_t n, int64_t group, float eps, float *out) {
    for (int64_t start = 0; start < n; start += group, x += group, out += group) {
        v16 squares = v16_zero();
        for (int64_t i = 0; i < group; i += 16) {
            v16 v = load_lanes(x + i, lanes_at(i, group));
            squares = v16_fma(v, v, squares);
        }
        v16 inverse = v16_set1(1.0f / sqrtf(v16_sum(squares) / (float)group + eps));
        for (int64_t i = 0; i < group; i += 16) {
            int lanes = lanes_at(i, group);
            v16 v = v16_mul(load_lanes(x + i, lanes), inverse);
            store_lanes(out + i, v16_mul(v, load_lanes(weight + i, lanes)), lanes);
        }
    }
}

/* Ba et al., "Layer Normalization", 2016, but for the bias: (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight. Two passes
 * over the differences, as stored; lanes past n are zero when they are read again. */
static void layer_norm(const float *x, const float *weight, int64_t n, float eps, float *out) {
    v16 sums = v16_zero(), squares = v16_zero();
    for (int64_t i = 0; i < n; i += 16) sums = v16_add(sums, load_lanes(x + i, lanes_at(i, n)));
    v16 mean = v16_set1(v16_sum(sums) / (float)n);
    for (int64_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        store_lanes(out + i, v16_sub(load_lanes(x + i, lanes), mean), lanes);
        v16 v = load_lanes(out + i, lanes);
        squares = v16_fma(v, v, squares);
    }
    v16 inverse = v16_set1(1.0f / sqrtf(v16_sum(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 v = v16_mul(load_lanes(out + i, lanes), inverse);
        store_lanes(out + i, v16_mul(v, load_lanes(weight + i, lanes)), lanes);
    }
}

static inline v16 v16_silu(v16 x) {
    return v16_div(x, v16_add(v16_exp(v16_sub(v16_zero(), x)), v16_set1(1.0f)));
}

/* Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2,
 * which cancels nowhere. */
static inline v16 v16_gelu(v16 x) {
    v16 size = v16_abs(x), tail = v16_erfc(v16_mul(size, v16_set1(0.70710678f)), v16_mul(x, x));
    return v16_keep_nan(x, v16_fma(v16_mul(size, v16_set1(-0.5f)), tail, v16_max(x, v16_zero())));
}

/* Its tanh form, x (1 + tanh u) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline v16 v16_gelu_tanh(v16 x) {
    v16 cubic = v16_fma(v16_mul(x, x), v16_set1(0.044715f), v16_set1(1.0f));
    v16 u = v16_mul(v16_mul(x, cubic), v16_set1(-1.5957691f)); /* -2 sqrt(2 / pi) */
    return v16_div(x, v16_add(v16_exp(u), v16_set1(1.0f)));
}

#define UNARY(NAME, EXPRESSION)                                          \
    static void NAME(const float *a, int64_t n, float *out) {            \
        for (int64_t i = 0; i < n; i += 16) {                            \
            int lanes = lanes_at(i, n);                                  \
            v16 x = load_lanes(a + i, lanes);                            \
            store_lanes(out + i, EXPRESSION, lanes);                     \
        }                                                                \
    }
#define BINARY(NAME, EXPRESSION)                                                  \
    static void NAME(const float *a, const float *b, int64_t n, float *out) {     \
        for (int64_t i = 0; i < n; i += 16) {                                     \
            int lanes = lanes_at(i, n);                                           \
            v16 x = load_lanes(a + i, lanes), y = load_lanes(b + i, lanes);       \
            store_lanes(out + i, EXPRESSION, lanes);                              \
        }                                                                         \
    }
UNARY(silu, v16_silu(x))
UNARY(sigmoid, v16_div(v16_set1(1.0f), v16_add(v16_exp(v16_sub(v16_zero(), x)), v16_set1(1.0f))))
UNARY(gelu, v16_gelu(x))
UNARY(gelu_tanh, v16_gelu_tanh(x))
UNARY(tanh_array, v16_tanh(x))
BINARY(add, v16_add(x, y))
BINARY(mul, v16_mul(x, y))
BINARY(silu_mul, v16_mul(v16_silu(x), y))
#undef UNARY
#undef BINARY

static void scale(const float *a, float factor, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] * factor;
}

static void soft_cap(const float *a, float cap, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 x = v16_tanh(v16_div(load_lanes(a + i, lanes), v16_set1(cap)));
        store_lanes(out + i, v16_mul(x, v16_set1(cap)), lanes);
    }
}

/* What a sampler looks at first. For each whole block of RASE_PEAK_BLOCK numbers, 16 lanes: the largest of x[i] with i mod 16 = lane, or
 * NaN where one of them is not finite. out (16 * (n / RASE_PEAK_BLOCK),). */
static void peaks(const float *x, int64_t n, float *out) {
    for (int64_t start = 0; start + RASE_PEAK_BLOCK <= n; start += RASE_PEAK_BLOCK, out += 16) {
        v16 most = v16_load(x + start), faults = v16_sub(most, most);
        for (int64_t i = start + 16; i < start + RASE_PEAK_BLOCK; i += 16) {
            v16 v = v16_load(x + i);
            most = v16_max(most, v);
            faults = v16_add(faults, v16_sub(v, v));
        }
        v16_store(out, v16_add(most, faults));
    }
}

/* Su et al., "RoFormer", 2021: (a, b) -> (a cos - b sin, b cos + a sin); one product is rounded, the other enters by FMA. */
static void rotate(float *x, int64_t n_heads, int64_t head_dim, int64_t n_dims, int neighbour, const float *cos,
                   const float *sin) {
    const int64_t half = n_dims / 2, whole = neighbour ? 0 : half / 16 * 16, step = neighbour ? 2 : 1, apart = neighbour ? 1 : half;
    for (int64_t head = 0; head < n_heads; head++, x += head_dim) {
        for (int64_t i = 0; i < whole; i += 16) {
            v16 a = v16_load(x + i), b = v16_load(x + half + i), c = v16_load(cos + i), s = v16_load(sin + i);
            v16_store(x + i, v16_fma(a, c, v16_sub(v16_set1(-0.0f), v16_mul(b, s))));
            v16_store(x + half + i, v16_fma(b, c, v16_mul(a, s)));
        }
        for (int64_t i = whole; i < half; i++) {
            float a = x[step * i], b = x[step * i + apart];
            x[step * i] = f_fma(a, cos[i], -(b * sin[i]));
            x[step * i + apart] = f_fma(b, cos[i], a * sin[i]);
        }
    }
}

static void store_f16(const float *x, int64_t n, int64_t padded, uint16_t *out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) v16_to_f16(out + i, v16_load(x + i));
    if (i < padded) v16_to_f16(out + i, i < n ? v16_load_n(x + i, (int)(n - i)) : v16_zero());
}

#endif
