/* exp over 16 lanes, the same bits in every variant.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2, with ln 2 in two parts and the polynomial of Cephes'
 * expf (Moshier). The scale is applied in two halves, so that a subnormal result is rounded once. NaN stays NaN. */
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

static inline v16 v16_exp(v16 x) {
    const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, nearest even */
    v16 t = v16_max(v16_min(x, v16_set1(89.0f)), v16_set1(-105.0f));
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
    p = v16_ldexp(p, n);
    return v16_keep_nan(x, p);
}

static void exp_array(const float *x, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(out + i, v16_exp(v16_load(x + i)));
    if (i < n) v16_store_n(out + i, v16_exp(v16_load_n(x + i, (int)(n - i))), (int)(n - i));
}

#endif
