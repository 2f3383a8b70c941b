/* The table of formats by ggml type number: one header each, one line each. */
#include "bf16.h"
#include "f16.h"
#include "f32.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"

#define RASE_FORMATS                                                                                              \
    {                                                                                                             \
        [0] = &f32_format, [1] = &f16_format, [2] = &q4_0_format, [3] = &q4_1_format, [6] = &q5_0_format,          \
        [7] = &q5_1_format, [8] = &q8_0_format, [10] = &q2_k_format, [11] = &q3_k_format, [12] = &q4_k_format,     \
        [13] = &q5_k_format, [14] = &q6_k_format, [30] = &bf16_format,                                            \
    }
