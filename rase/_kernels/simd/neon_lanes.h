/* NEON of every 64-bit ARM: 8 rows per group; v16 is four registers, rf, ri and rb are two. Everything but the integer dot
 * products, which neon.h, dotprod.h and i8mm.h add. Meanings: scalar.h. */
#ifndef RASE_SIMD_NEON_LANES_H
#define RASE_SIMD_NEON_LANES_H

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define RASE_R 8
#define RASE_TILE_ROWS 4
#define RASE_GEMM_ROWS 12
#define RASE_BYTE_SHIFTS 1

static inline float f_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

typedef float32x4_t f4;
typedef struct { f4 a, b, c, d; } v16; /* lanes 0-3, 4-7, 8-11, 12-15 */
#define V16_OF1(f, x) ((v16){f((x).a), f((x).b), f((x).c), f((x).d)})
#define V16_OF2(f, x, y) ((v16){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})

/* a > b ? a : b: FMAX would give NaN where either is one. */
static inline f4 neon_max(f4 a, f4 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline f4 neon_min(f4 a, f4 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline f4 neon_keep_nan(f4 x, f4 y) { return vbslq_f32(vceqq_f32(x, x), y, x); }
static inline f4 neon_zero_below(f4 x, f4 least, f4 y) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, least)));
}
static inline f4 neon_pow2_magic(f4 x) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(127)), 23));
}

static inline v16 v16_set1(float x) { f4 y = vdupq_n_f32(x); return (v16){y, y, y, y}; }
static inline v16 v16_zero(void) { return v16_set1(0.0f); }
static inline v16 v16_load(const float *p) { return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
static inline void v16_store(float *p, v16 x) {
    vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d);
}
static inline v16 v16_load_n(const float *p, int n) {
    float lanes[16] = {0};
    memcpy(lanes, p, 4 * (size_t)n);
    return v16_load(lanes);
}
static inline void v16_store_n(float *p, v16 x, int n) {
    float lanes[16];
    v16_store(lanes, x);
    memcpy(p, lanes, 4 * (size_t)n);
}
static inline v16 v16_add(v16 x, v16 y) { return V16_OF2(vaddq_f32, x, y); }
static inline v16 v16_sub(v16 x, v16 y) { return V16_OF2(vsubq_f32, x, y); }
static inline v16 v16_mul(v16 x, v16 y) { return V16_OF2(vmulq_f32, x, y); }
static inline v16 v16_div(v16 x, v16 y) { return V16_OF2(vdivq_f32, x, y); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
static inline v16 v16_max(v16 x, v16 y) { return V16_OF2(neon_max, x, y); }
static inline v16 v16_min(v16 x, v16 y) { return V16_OF2(neon_min, x, y); }
static inline v16 v16_abs(v16 x) { return V16_OF1(vabsq_f32, x); }
static inline v16 v16_zero_below(v16 x, float bound, v16 y) {
    f4 least = vdupq_n_f32(bound);
    return (v16){neon_zero_below(x.a, least, y.a), neon_zero_below(x.b, least, y.b), neon_zero_below(x.c, least, y.c),
                 neon_zero_below(x.d, least, y.d)};
}
static inline v16 v16_keep_nan(v16 x, v16 y) { return V16_OF2(neon_keep_nan, x, y); }
static inline v16 v16_pow2_magic(v16 x) { return V16_OF1(neon_pow2_magic, x); }
static inline f4 neon_from_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void neon_to_f16(uint16_t *p, f4 x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
static inline v16 v16_from_i8(const int8_t *p) {
    int8x16_t x = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
    return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
static inline v16 v16_from_f16(const uint16_t *p) {
    return (v16){neon_from_f16(p), neon_from_f16(p + 4), neon_from_f16(p + 8), neon_from_f16(p + 12)};
}
static inline void v16_to_f16(uint16_t *p, v16 x) {
    neon_to_f16(p, x.a), neon_to_f16(p + 4, x.b), neon_to_f16(p + 8, x.c), neon_to_f16(p + 12, x.d);
}
static inline int16x8_t neon_to_wide(f4 a, f4 b) { /* of each four 0, 2, 1, 3 */
    int16x8_t words = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a)), vmovn_s32(vcvtnq_s32_f32(b)));
    uint8x16_t from = vcombine_u8(vcreate_u8(0x0706030205040100u), vcreate_u8(0x0f0e0b0a0d0c0908u));
    return vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(words), from));
}
static inline void v16_to_wide(int16_t *p, v16 x) { vst1q_s16(p, neon_to_wide(x.a, x.b)), vst1q_s16(p + 8, neon_to_wide(x.c, x.d)); }
static inline int8x8_t neon_to_i8(f4 a, f4 b) {
    return vmovn_s16(vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a)), vmovn_s32(vcvtnq_s32_f32(b))));
}
static inline void v16_to_i8(int8_t *p, v16 x) { vst1_s8(p, neon_to_i8(x.a, x.b)), vst1_s8(p + 8, neon_to_i8(x.c, x.d)); }
static inline f4 neon_fold_to_4(v16 x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); } /* folds 8, 4 */
static inline float v16_sum(v16 x) {
    f4 s = neon_fold_to_4(x);
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(vpadd_f32(t, t), 0);
}
static inline float v16_maxall(v16 x) {
    f4 s = neon_max(neon_max(x.a, x.c), neon_max(x.b, x.d));
    s = neon_max(s, vextq_f32(s, s, 2));
    return vgetq_lane_f32(neon_max(s, vextq_f32(s, s, 1)), 0);
}
/* Fold 2 of two vectors at once: lanes 0 and 1 are those of x, 2 and 3 those of y. */
static inline f4 neon_fold_2(f4 x, f4 y) {
    return vaddq_f32(vcombine_f32(vget_low_f32(x), vget_low_f32(y)), vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
}
static inline f4 neon_sum4(const v16 *x) {
    f4 s[4];
    for (int i = 0; i < 4; i++) s[i] = neon_fold_to_4(x[i]);
    return vpaddq_f32(neon_fold_2(s[0], s[1]), neon_fold_2(s[2], s[3]));
}
static inline v16 v16_sum16(const v16 *x) { return (v16){neon_sum4(x), neon_sum4(x + 4), neon_sum4(x + 8), neon_sum4(x + 12)}; }


static inline void v16_transpose(v16 *x) { /* 4 x 4 blocks of f4 */
    v16 y[16];
    for (int i = 0; i < 16; i += 4) {
        const f4 *rows[4] = {&x[i].a, &x[i + 1].a, &x[i + 2].a, &x[i + 3].a};
        for (int j = 0; j < 4; j++) {
            float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(rows[0][j], rows[1][j]));
            float64x2_t ab1 = vreinterpretq_f64_f32(vtrn2q_f32(rows[0][j], rows[1][j]));
            float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(rows[2][j], rows[3][j]));
            float64x2_t cd1 = vreinterpretq_f64_f32(vtrn2q_f32(rows[2][j], rows[3][j]));
            (&y[4 * j].a)[i / 4] = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
            (&y[4 * j + 1].a)[i / 4] = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
            (&y[4 * j + 2].a)[i / 4] = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
            (&y[4 * j + 3].a)[i / 4] = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
        }
    }
    memcpy(x, y, sizeof y);
}

typedef struct { f4 a, b; } rf; /* rows 0-3, rows 4-7 */
typedef struct { int32x4_t a, b; } ri;
typedef struct { uint8x16_t a, b; } rb;
#define PAIR_OF2(type, f, x, y) ((type){f((x).a, (y).a), f((x).b, (y).b)})

static inline rf rf_set1(float x) { return (rf){vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline rf rf_zero(void) { return rf_set1(0.0f); }
static inline rf rf_load(const float *p) { return (rf){vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void rf_store(float *p, rf x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
static inline rf rf_mul(rf x, rf y) { return PAIR_OF2(rf, vmulq_f32, x, y); }
static inline rf rf_add(rf x, rf y) { return PAIR_OF2(rf, vaddq_f32, x, y); }
static inline rf rf_sub(rf x, rf y) { return PAIR_OF2(rf, vsubq_f32, x, y); }
static inline rf rf_fma(rf x, rf y, rf z) { return (rf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
static inline rf rf_fnma(rf x, rf y, rf z) { return (rf){vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)}; }
static inline rf rf_from_f16(const uint16_t *p) { return (rf){neon_from_f16(p), neon_from_f16(p + 4)}; }
static inline f4 neon_from_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16)); }
static inline rf rf_from_bf16(const uint16_t *p) { return (rf){neon_from_bf16(p), neon_from_bf16(p + 4)}; }
static inline rf rf_from_ri(ri x) { return (rf){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }

static inline ri ri_set1(int32_t x) { return (ri){vdupq_n_s32(x), vdupq_n_s32(x)}; }
static inline ri ri_zero(void) { return ri_set1(0); }
static inline ri ri_add(ri x, ri y) { return PAIR_OF2(ri, vaddq_s32, x, y); }
static inline ri ri_sub(ri x, ri y) { return PAIR_OF2(ri, vsubq_s32, x, y); }
static inline ri ri_mul(ri x, ri y) { return PAIR_OF2(ri, vmulq_s32, x, y); }
static inline ri ri_shl(ri x, int n) { return (ri){x.a << vdupq_n_s32(n), x.b << vdupq_n_s32(n)}; }
static inline ri ri_join(ri a, ri b) { return ri_add(ri_sub(ri_shl(a, 8), ri_shl(a, 1)), b); }
static inline ri neon_widen(int16x8_t x) { return (ri){vmovl_s16(vget_low_s16(x)), vmovl_high_s16(x)}; }
static inline ri ri_from_i8(const int8_t *p) { return neon_widen(vmovl_s8(vld1_s8(p))); }
static inline ri ri_from_u8(const uint8_t *p) { return neon_widen(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)))); }

static inline rb rb_load(const uint8_t *p) { return (rb){vld1q_u8(p), vld1q_u8(p + 16)}; }
static inline void rb_store(uint8_t *p, rb x) { vst1q_u8(p, x.a), vst1q_u8(p + 16, x.b); }
static inline rb rb_set1(uint8_t x) { return (rb){vdupq_n_u8(x), vdupq_n_u8(x)}; }
static inline rb rb_and(rb x, rb y) { return PAIR_OF2(rb, vandq_u8, x, y); }
static inline rb rb_or(rb x, rb y) { return PAIR_OF2(rb, vorrq_u8, x, y); }
static inline rb rb_sub(rb x, rb y) { return PAIR_OF2(rb, vsubq_u8, x, y); }
/* Operators, not intrinsics: those want a literal count. */
static inline rb rb_shl(rb x, int n) { return (rb){x.a << vdupq_n_u8((uint8_t)n), x.b << vdupq_n_u8((uint8_t)n)}; }
static inline rb rb_shr(rb x, int n) { return (rb){x.a >> vdupq_n_u8((uint8_t)n), x.b >> vdupq_n_u8((uint8_t)n)}; }

static inline int32x4_t neon_byte_u8(uint8x16_t x, int i) {
    return vreinterpretq_s32_u32(vandq_u32(vreinterpretq_u32_u8(x) >> vdupq_n_u32(8u * (unsigned)i), vdupq_n_u32(255)));
}
static inline int32x4_t neon_byte_i8(uint8x16_t x, int i) {
    return vshrq_n_s32(vreinterpretq_s32_u8(x) << vdupq_n_s32(24 - 8 * i), 24);
}
static inline ri ri_byte_u8(rb x, int i) { return (ri){neon_byte_u8(x.a, i), neon_byte_u8(x.b, i)}; }
static inline ri ri_byte_i8(rb x, int i) { return (ri){neon_byte_i8(x.a, i), neon_byte_i8(x.b, i)}; }

/* Four activations in the lowest lane, for products by that lane: a plain load, where a broadcast costs a vector slot. */
static inline int8x8_t neon_four(const int8_t *a) {
    float four;
    memcpy(&four, a, 4);
    return vreinterpret_s8_f32((float32x2_t){four, 0.0f});
}

/* Bytes 2p and 2p + 1 of all rows, apart: multiplied by lane, they need no sum across lanes. */
typedef struct { int16x8_t even, odd; } rh;
static inline int16x8_t neon_bytes(rb x, int i, int shift) { /* byte i of every row to bits shift ... of an int16 */
    uint8x16_t from = vcombine_u8(vcreate_u8(0xff0cff08ff04ff00u + 0x0001000100010001u * (uint64_t)i),
                                  vcreate_u8(0xff1cff18ff14ff10u + 0x0001000100010001u * (uint64_t)i));
    uint8x16_t bytes = vqtbl2q_u8((uint8x16x2_t){{x.a, x.b}}, from);
    return vshlq_s16(vreinterpretq_s16_u8(bytes), vdupq_n_s16((int16_t)shift));
}
static inline rh rh_pair_u8(rb x, int p) { return (rh){neon_bytes(x, 2 * p, 0), neon_bytes(x, 2 * p + 1, 0)}; }
static inline rh rh_pair_i8(rb x, int p) {
    return (rh){vshrq_n_s16(neon_bytes(x, 2 * p, 8), 8), vshrq_n_s16(neon_bytes(x, 2 * p + 1, 8), 8)};
}
static inline rh rh_set2(int16_t x, int16_t y) { return (rh){vdupq_n_s16(x), vdupq_n_s16(y)}; }
static inline rh rh_side(rb x, int i) { return (rh){neon_bytes(x, i, 0), neon_bytes(x, i, 7)}; }
static inline ri ri_dot_rh(ri acc, rh w, const int16_t *a) {
    float two;
    memcpy(&two, a, 4);
    int16x4_t x = vreinterpret_s16_f32((float32x2_t){two, 0.0f});
    acc.a = vmlal_lane_s16(acc.a, vget_low_s16(w.even), x, 0);
    acc.b = vmlal_high_lane_s16(acc.b, w.even, x, 0);
    acc.a = vmlal_lane_s16(acc.a, vget_low_s16(w.odd), x, 1);
    acc.b = vmlal_high_lane_s16(acc.b, w.odd, x, 1);
    return acc;
}
#endif
