/* exp, tanh and erfc over 16 lanes, the same bits in every variant.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2, with ln 2 in two parts and the polynomial of Cephes'
 * expf (Moshier). A result below 2^-126 is +0: a subnormal one costs a trap into microcode, 280 cycles a vector where 10 do, and
 * softmax meets one in most rows (what is masked is exp(-infinity)). NaN stays NaN. */
#ifndef RASE_OPS_VECMATH_H
#define RASE_OPS_VECMATH_H

#if !defined(__AVX512F__) /* which has an instruction for it */
/* x * 2^n, rounded once; n a whole number, at most 252 in size. */
static inline v16 v16_ldexp(v16 x, v16 n) {
    const v16 magic = v16_set1(12582912.0f);
    v16 half = v16_sub(v16_add(v16_mul(n, v16_set1(0.5f)), magic), magic);
    x = v16_mul(x, v16_pow2_magic(v16_add(half, magic)));
    return v16_mul(x, v16_pow2_magic(v16_add(v16_sub(n, half), magic)));
}
#endif

#define EXP_LEAST (-87.3365f) /* 126 ln 2 = 87.33654 */

/* exp(x), where t is x brought between EXP_LEAST and 89. */
static inline v16 v16_exp_of(v16 x, v16 t) {
    const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, nearest even */
    v16 n = v16_sub(v16_add(v16_mul(t, v16_set1(1.44269504f)), magic), magic);
    v16 r = v16_fma(n, v16_set1(-0.693359375f), t);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.9875691500e-4f);
    p = v16_fma(p, r, v16_set1(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set1(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set1(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set1(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set1(5.0000001201e-1f));
    p = v16_add(v16_fma(p, v16_mul(r, r), r), v16_set1(1.0f));
    return v16_zero_below(x, EXP_LEAST, v16_ldexp(p, n));
}

static inline v16 v16_exp(v16 x) {
    v16 t = v16_max(v16_min(x, v16_set1(89.0f)), v16_set1(EXP_LEAST));
    return v16_keep_nan(x, v16_exp_of(x, t));
}

/* tanh(x): Cephes' tanhf (Moshier), a polynomial below 0.625, else 1 - 2 / (exp(2x) + 1); absolute error below 2^-23. There is
 * no choice between lanes: the weight of the second form is 0 or 1, but for a sliver at the boundary, where both agree. */
static inline v16 v16_tanh(v16 x) {
    const v16 one = v16_set1(1.0f), edge = v16_set1(0.625f);
    v16 t = v16_max(v16_min(x, edge), v16_set1(-0.625f)), z = v16_mul(t, t);
    v16 p = v16_set1(-5.70498872745e-3f);
    p = v16_fma(p, z, v16_set1(2.06390887954e-2f));
    p = v16_fma(p, z, v16_set1(-5.37397155531e-2f));
    p = v16_fma(p, z, v16_set1(1.33314422036e-1f));
    p = v16_fma(p, z, v16_set1(-3.33332819422e-1f));
    v16 near = v16_fma(v16_mul(p, z), t, t);
    v16 far = v16_sub(one, v16_div(v16_set1(2.0f), v16_add(v16_exp(v16_add(x, x)), one)));
    v16 w = v16_mul(v16_sub(v16_abs(x), edge), v16_set1(1e8f));
    w = v16_min(v16_max(w, v16_zero()), one);
    return v16_keep_nan(x, v16_fma(w, far, v16_mul(v16_sub(one, w), near)));
}

/* erfc(sqrt(square / 2)) for z = sqrt(square / 2) >= 0: the Chebyshev fit of Press et al., "Numerical Recipes", 6.2; fractional
 * error 1.2e-7, beside that of exp. The argument of exp is made of the square, which costs no rounding of z. */
static inline v16 v16_erfc(v16 z, v16 square) {
    v16 t = v16_div(v16_set1(1.0f), v16_fma(z, v16_set1(0.5f), v16_set1(1.0f)));
    v16 p = v16_set1(0.17087277f);
    p = v16_fma(p, t, v16_set1(-0.82215223f));
    p = v16_fma(p, t, v16_set1(1.48851587f));
    p = v16_fma(p, t, v16_set1(-1.13520398f));
    p = v16_fma(p, t, v16_set1(0.27886807f));
    p = v16_fma(p, t, v16_set1(-0.18628806f));
    p = v16_fma(p, t, v16_set1(0.09678418f));
    p = v16_fma(p, t, v16_set1(0.37409196f));
    p = v16_fma(p, t, v16_set1(1.00002368f));
    p = v16_fma(p, t, v16_set1(-1.26551223f));
    return v16_mul(t, v16_exp(v16_fma(square, v16_set1(-0.5f), p)));
}

static void exp_array(const float *x, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(out + i, v16_exp(v16_load(x + i)));
    if (i < n) v16_store_n(out + i, v16_exp(v16_load_n(x + i, (int)(n - i))), (int)(n - i));
}

#endif
