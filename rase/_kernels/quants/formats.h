/* The table of formats by ggml type number, and by one of our own from 63 down: one header each, one line each. */
#include "bf16.h"
#include "f16.h"
#include "f32.h"
#include "iq1_m.h"
#include "iq1_s.h"
#include "iq2_s.h"
#include "iq2_xs.h"
#include "iq2_xxs.h"
#include "iq3_s.h"
#include "iq3_xxs.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
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
#include "tq1_0.h"
#include "tq2_0.h"
#include "w4a16.h"

#define RASE_FORMATS                                                                                              \
    {                                                                                                             \
        [0] = &f32_format, [1] = &f16_format, [2] = &q4_0_format, [3] = &q4_1_format, [6] = &q5_0_format,          \
        [7] = &q5_1_format, [8] = &q8_0_format, [10] = &q2_k_format, [11] = &q3_k_format, [12] = &q4_k_format,     \
        [13] = &q5_k_format, [14] = &q6_k_format, [16] = &iq2_xxs_format, [17] = &iq2_xs_format,                   \
        [18] = &iq3_xxs_format, [19] = &iq1_s_format, [20] = &iq4_nl_format, [21] = &iq3_s_format,                 \
        [22] = &iq2_s_format, [23] = &iq4_xs_format, [29] = &iq1_m_format, [30] = &bf16_format,                    \
        [34] = &tq1_0_format, [35] = &tq2_0_format, [39] = &mxfp4_format, [63] = &w4a16_format,                    \
    }
