/* The whole of one variant: every kernel body over the primitives of the simd header included before, and its table. */
#include "../kernels.h"
#include "../ops/vecmath.h"
#include "../ops/elementwise.h"
#include "../ops/route.h"
#include "../ops/quantize.h"
#include "../ops/gemm.h"
#include "../ops/kv.h"
#include "../ops/attention_tiles.h"
#include "../ops/attention.h"
#include "../mathfn.h"
#include "../ops/recurrent.h"
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
        .layer_norm = layer_norm,                                                                         \
        .add = add,                                                                                       \
        .mul = mul,                                                                                       \
        .scale = scale,                                                                                   \
        .silu = silu,                                                                                     \
        .sigmoid = sigmoid,                                                                               \
        .gelu = gelu,                                                                                     \
        .gelu_tanh = gelu_tanh,                                                                           \
        .tanh = tanh_array,                                                                               \
        .soft_cap = soft_cap,                                                                             \
        .peaks = peaks,                                                                                   \
        .silu_mul = silu_mul,                                                                             \
        .route = route,                                                                                   \
        .add_scaled = add_scaled,                                                                         \
        .rotate = rotate,                                                                                 \
        .exp = exp_array,                                                                                 \
        .l2_norm = l2_norm,                                                                               \
        .decay = decay,                                                                                   \
        .causal_conv = causal_conv,                                                                       \
        .delta_rule = delta_rule,                                                                         \
        .kv = RASE_KV_TABLE,                                                                              \
        .attention_tokens = attention_tokens,                                                             \
        .attention_scratch = task_scratch,                                                                \
        .attention_part = attention_part,                                                                 \
        .attention_merge = attention_merge,                                                               \
        .fma_burst = fma_burst,                                                                           \
        .read_burst = read_burst,                                                                         \
    };
