/* erf: polynomials below 1.25, 1 - erfc(x) above. Part of mathfn.h, which see for the rules.
 *
 * Coefficients, highest power first, are printed by tests/support/fit_erf.py.
 */
#ifndef RASE_MATHFN_ERF_H
#define RASE_MATHFN_ERF_H

#include "mathfn.h"

/* SMALL: erf(x)/x - 1 of x^2, x in [0, 0.5]. LOW, HIGH, ABOVE: erf(x) - erf(middle) of x - middle, x in
 * 0.5..0.75..1..1.25. NEAR, MIDDLE, FAR: exp(x^2) erfc(x) of x - middle, x in 1.25..1.75..3..6. */
/* absolute error below 2^-56 in erf */
static const double RASE_ERF_SMALL[9] = {
    0x1.8b4b60851826bp-20, -0x1.f224dfc5409afp-17, 0x1.f98db34e8872ep-14, -0x1.c02d4f6e4921ap-11,
    0x1.565bcbf8e0365p-8, -0x1.b82ce30f2b28fp-6, 0x1.ce2f21a03d814p-4, -0x1.812746b0379b5p-2,
    0x1.06eba8214db68p-3,
};
/* absolute error below 2^-60 in erf */
static const double RASE_ERF_LOW[12] = {
    0x1.61097834adbfdp-11, -0x1.80141b1a9e8f8p-11, -0x1.dc3889d810d90p-9, 0x1.b62eba164eaf3p-8,
    0x1.c7cd9ab14a5eep-7, -0x1.52b2666914c7bp-5, -0x1.c1242dff5208fp-6, 0x1.6963c8a394a22p-3,
    -0x1.c8105021684b6p-5, -0x1.e8a3c39181e6dp-2, 0x1.86e9694134b9ep-1, -0x1.f7b91342f2b5bp-56,
};
/* absolute error below 2^-58 in erf */
static const double RASE_ERF_HIGH[12] = {
    0x1.9792cf62e415bp-12, 0x1.d22b9babc231bp-11, -0x1.aae160aa13dabp-9, -0x1.e3ea35cb11457p-10,
    0x1.30ac215e3e32cp-6, -0x1.53bb4d1a8d5b4p-7, -0x1.1350f4b216313p-4, 0x1.cc60567dcb2f2p-4,
    0x1.7c9d756a11577p-4, -0x1.d62beb64e84b2p-2, 0x1.0cab61f084b93p-1, -0x1.1b028547d2be6p-55,
};
/* absolute error below 2^-58 in erf */
static const double RASE_ERF_ABOVE[12] = {
    -0x1.6e432174e4fb9p-13, 0x1.2c9625343c636p-10, -0x1.79bb2c79f597dp-12, -0x1.8b41d0bfe168ep-8,
    0x1.3acc78f6568cfp-7, 0x1.fd1c6a0c1b1e0p-7, -0x1.f65d15f1f9ca6p-5, 0x1.ca5083176cd42p-6,
    0x1.4cb3cf0aa0bd5p-3, -0x1.6ea6cf452e88bp-2, 0x1.45e99bcbb7915p-2, -0x1.867cb608e06bdp-57,
};
/* absolute error below 2^-59 in erf */
static const double RASE_ERF_NEAR[13] = {
    0x1.1a08c8896bf14p-19, -0x1.dc49c2f844995p-18, 0x1.7f8de9cb9fdf7p-16, -0x1.30b6a2d341a15p-14,
    0x1.d450aaf17fbb7p-13, -0x1.5b0acc4366bdap-11, 0x1.ee705e6b48548p-10, -0x1.513ed758d5596p-8,
    0x1.b65944f351821p-7, -0x1.0dc51d2943b4fp-5, 0x1.37ea271bc54bbp-4, -0x1.4f1988444caf3p-3,
    0x1.494daffa2ad68p-2,
};
/* absolute error below 2^-60 in erf */
static const double RASE_ERF_MIDDLE[16] = {
    -0x1.a1c4c2100c202p-30, 0x1.bb3c8fc3835d6p-28, -0x1.a460c2cd19c43p-26, 0x1.aad94abc45e1ap-24,
    -0x1.a9aa84096b7a6p-22, 0x1.9d5fb295a0fb8p-20, -0x1.87bc3e4ff4ce0p-18, 0x1.69c32e8838e2fp-16,
    -0x1.44f8e8e3fad91p-14, 0x1.1b649bbfac4d3p-12, -0x1.deb45e9cca0c2p-11, 0x1.8680d2870f9a8p-9,
    -0x1.32a8abc8db491p-7, 0x1.cdc880a056c49p-6, -0x1.4baeac94dc8b2p-4, 0x1.c3987d04d0b97p-3,
};
/* absolute error below 2^-58 in erf */
static const double RASE_ERF_FAR[16] = {
    -0x1.30defc77a4b14p-39, 0x1.c0aeee8a3aa1fp-37, -0x1.e132e04d2ef9ap-35, 0x1.56de9b1438d59p-32,
    -0x1.f5ec039643d53p-30, 0x1.5d2782b128753p-27, -0x1.de00adb55e927p-25, 0x1.434e79ad4bde3p-22,
    -0x1.aef9123a8b144p-20, 0x1.1ad6c139a4f72p-17, -0x1.6d54b0d98f5b0p-15, 0x1.d007856b13743p-13,
    -0x1.218ed930ffcc0p-10, 0x1.62c12cb66c121p-8, -0x1.aa3eb6a946e21p-6, 0x1.f5b2a049cf2b8p-4,
};

static inline double rase_polynomial(const double *coefficients, int count, double x) {
    double y = coefficients[0];
    for (int i = 1; i < count; i++) y = coefficients[i] + x * y;
    return y;
}

static inline double rase_erf(double x) {
    double size = x < 0.0 ? -x : x, factor;
    if (!(size < 6.0)) return x != x ? x : x < 0.0 ? -1.0 : 1.0; /* erfc(6) < 2^-55 */
    if (size < 0.5) return x + x * rase_polynomial(RASE_ERF_SMALL, 9, x * x);
    if (size < 1.25) {
        double result = size < 0.75  ? 0x1.3f196dcd0f135p-1 + rase_polynomial(RASE_ERF_LOW, 12, size - 0.625)
                        : size < 1.0 ? 0x1.91724951b8fc6p-1 + rase_polynomial(RASE_ERF_HIGH, 12, size - 0.875)
                                     : 0x1.c6dad2829ec62p-1 + rase_polynomial(RASE_ERF_ABOVE, 12, size - 1.125);
        return x < 0.0 ? -result : result;
    }
    if (size < 1.75)
        factor = rase_polynomial(RASE_ERF_NEAR, 13, size - 1.5);
    else if (size < 3.0)
        factor = rase_polynomial(RASE_ERF_MIDDLE, 16, size - 2.375);
    else
        factor = rase_polynomial(RASE_ERF_FAR, 16, size - 4.5);
    rase_dd square = rase_product(size, size);
    double hi, lo, n = rase_exp_parts(-square.hi, -square.lo, &hi, &lo), scale = rase_exp2_whole(n);
    double result = 1.0 - (hi * factor + lo * factor) * scale;
    return x < 0.0 ? -result : result;
}

#endif
