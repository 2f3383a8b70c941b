/* The whole of one variant: every kernel body over the primitives of the simd header included before, and its table. */
#include "../kernels.h"
#include "../ops/vecmath.h"
#include "../ops/elementwise.h"
#include "../ops/quantize.h"
#include "../ops/gemm.h"
#include "../ops/attention.h"
#include "../ops/limits.h"
#include "lookup.h"
#include "../quants/formats.h"

#define RASE_TABLE(NAME)                                                                                  \
    const rase_kernels rase_kernels_##NAME = {                                                            \
        .rows_per_group = RASE_R,                                                                         \
        .formats = RASE_FORMATS,                                                                          \
        .quantize_32 = quantize_32,                                                                       \
        .quantize_256 = quantize_256,                                                                     \
        .gemm_f32 = gemm_f32,                                                                             \
        .rms_norm = rms_norm,                                                                             \
        .add = add,                                                                                       \
        .mul = mul,                                                                                       \
        .scale = scale,                                                                                   \
        .silu = silu,                                                                                     \
        .silu_mul = silu_mul,                                                                             \
        .rotate = rotate,                                                                                 \
        .store_f16 = store_f16,                                                                           \
        .exp = exp_array,                                                                                 \
        .attention_scratch = attention_scratch,                                                           \
        .attention = attention,                                                                           \
        .fma_burst = fma_burst,                                                                           \
        .read_burst = read_burst,                                                                         \
    };
