/* float32 panel times many activation rows: the dense half of the hybrid prefill (rule R3).
 *
 * One float32 accumulator per output, depth ascending, one FMA per element (rule R1): tile sizes change no bits. */
#ifndef RASE_OPS_GEMM_H
#define RASE_OPS_GEMM_H

/* N accumulators, one panel register, activations as broadcast operands. */
#define GEMM_TILE(N)                                                                                              \
    static inline __attribute__((always_inline)) void gemm_tile_##N(                                              \
        const float *panel, int64_t cols, const float *a, int64_t a_stride, float *out, int64_t out_stride) {     \
        rf acc[N];                                                                                                \
        _Pragma("GCC unroll 24") for (int i = 0; i < N; i++) acc[i] = rf_zero();                                  \
        for (int64_t k = 0; k < cols; k++) {                                                                      \
            rf w = rf_load(panel + k * RASE_R);                                                                   \
            _Pragma("GCC unroll 24") for (int i = 0; i < N; i++)                                                  \
                acc[i] = rf_fma(w, rf_set1(a[i * a_stride + k]), acc[i]);                                         \
        }                                                                                                         \
        _Pragma("GCC unroll 24") for (int i = 0; i < N; i++) rf_store(out + i * out_stride, acc[i]);              \
    }
#define GEMM_RUN(N) \
    for (; i + N <= m; i += N) gemm_tile_##N(panel, cols, a + i * a_stride, a_stride, out + i * out_stride, out_stride);

GEMM_TILE(1)
GEMM_TILE(2)
GEMM_TILE(4)
#if RASE_GEMM_ROWS >= 12
GEMM_TILE(12)
#endif
#if RASE_GEMM_ROWS >= 24
GEMM_TILE(24)
#endif

static void gemm_f32(const float *panel, int64_t cols, const float *a, int64_t a_stride, int64_t m, float *out,
                     int64_t out_stride) {
    int64_t i = 0;
#if RASE_GEMM_ROWS >= 24
    GEMM_RUN(24)
#endif
#if RASE_GEMM_ROWS >= 12
    GEMM_RUN(12)
#endif
    GEMM_RUN(4)
    GEMM_RUN(2)
    GEMM_RUN(1)
}

#undef GEMM_TILE
#undef GEMM_RUN
#endif
