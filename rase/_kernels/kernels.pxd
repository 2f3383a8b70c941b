# What other extensions see of kernels.pyx: the C table (kernels.h) and the variant that owns a pointer to it.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

cdef extern from "kernels.h" nogil:
    enum:
        RASE_PAGE_TOKENS
        RASE_PEAK_BLOCK
        RASE_CHUNK
        RASE_KV_F16
        RASE_KV_FORMATS
        RASE_MAX_FORMAT
        RASE_ACT_F32
        RASE_ACT_Q16_32
        RASE_ACT_Q16_256
        RASE_TILE_BYTES
        RASE_FEW_TILES
        RASE_SIDES
        RASE_WIDE_FROM
    int64_t RASE_TILES_LEFT(int64_t m, int64_t cols)
    int64_t RASE_TILE_SUMS(int64_t m, int64_t n_groups)
    int64_t RASE_WIDE_AT(int64_t row, int64_t cols)

    ctypedef struct rase_act:
        const float *f32
        int64_t f32_stride
        const int8_t *q
        const int16_t *wide
        const float *d
        const float *dsums
        const int32_t *sums
        const int16_t *sides

    ctypedef struct rase_format:
        int id
        int block
        int act
        size_t (*group_bytes)(int64_t) noexcept nogil
        void (*pack)(const uint8_t *, size_t, int, int64_t, uint8_t *) noexcept nogil
        void (*row)(const uint8_t *, int, int64_t, float *) noexcept nogil
        void (*panel)(const uint8_t *, int64_t, int64_t, int64_t, float *) noexcept nogil
        void (*dot)(const uint8_t *, int64_t, int64_t, const rase_act *, int64_t, int64_t, float *,
                    int64_t) noexcept nogil

    ctypedef struct rase_attention_task:
        const float *q
        float *out
        int64_t q_stride
        int64_t out_stride
        int64_t n_tokens
        int64_t first_position
        int64_t group
        int64_t head_dim
        int64_t head_stride
        int64_t window
        int64_t seen
        float scale
        float soft_cap
        const uint8_t **pages
        int64_t k_offset
        int64_t v_offset
        int64_t first_chunk
        int64_t last_chunk
        float *parts
        const uint8_t *const *next_pages
        int64_t next_offset, next_low, next_high
        float *scratch

    ctypedef struct rase_kv:
        const char *name
        size_t (*head_bytes)(int64_t) noexcept nogil
        void (*store)(const float *, int64_t, int64_t, uint8_t *, int64_t) noexcept nogil
        void (*attention)(const rase_attention_task *) noexcept nogil
        void (*tiled)(const rase_attention_task *) noexcept nogil

    ctypedef struct rase_delta_task:
        const float *q
        const float *k
        const float *v
        const float *decay
        const float *beta
        float *out
        int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride
        int64_t n_tokens, k_dim, v_dim
        float scale
        float *state

    ctypedef struct rase_kernels:
        int rows_per_group
        const rase_format **formats
        void (*quantize_32)(const float *, int64_t, int8_t *, int16_t *, float *, int32_t *, float *) noexcept nogil
        void (*quantize_256)(const float *, int64_t, int8_t *, int16_t *, float *, int16_t *) noexcept nogil
        void (*gemm_f32)(const float *, int64_t, const float *, int64_t, int64_t, float *, int64_t) noexcept nogil
        void (*rms_norm)(const float *, const float *, int64_t, int64_t, float, float *) noexcept nogil
        void (*layer_norm)(const float *, const float *, int64_t, float, float *) noexcept nogil
        void (*add)(const float *, const float *, int64_t, float *) noexcept nogil
        void (*mul)(const float *, const float *, int64_t, float *) noexcept nogil
        void (*scale)(const float *, float, int64_t, float *) noexcept nogil
        void (*silu)(const float *, int64_t, float *) noexcept nogil
        void (*sigmoid)(const float *, int64_t, float *) noexcept nogil
        void (*gelu)(const float *, int64_t, float *) noexcept nogil
        void (*gelu_tanh)(const float *, int64_t, float *) noexcept nogil
        void (*tanh)(const float *, int64_t, float *) noexcept nogil
        void (*soft_cap)(const float *, float, int64_t, float *) noexcept nogil
        void (*peaks)(const float *, int64_t, float *) noexcept nogil
        void (*silu_mul)(const float *, const float *, int64_t, float *) noexcept nogil
        void (*route)(const float *, int64_t, int64_t, int, float, float *) noexcept nogil
        void (*add_scaled)(const float *, float, int64_t, float *) noexcept nogil
        void (*rotate)(float *, int64_t, int64_t, int64_t, int, const float *, const float *) noexcept nogil
        void (*exp)(const float *, int64_t, float *) noexcept nogil
        void (*l2_norm)(const float *, int64_t, int64_t, float, float *) noexcept nogil
        void (*decay)(const float *, const float *, const float *, int64_t, float *) noexcept nogil
        void (*causal_conv)(const float *, int64_t, int64_t, const float *, int64_t, int64_t, float *, int64_t, float *,
                            int64_t) noexcept nogil
        void (*delta_rule)(const rase_delta_task *) noexcept nogil
        const rase_kv **kv
        int64_t (*attention_tokens)(int64_t) noexcept nogil
        size_t (*attention_scratch)(int64_t, int64_t) noexcept nogil
        int64_t (*attention_part)(int64_t) noexcept nogil
        void (*attention_merge)(const rase_attention_task *) noexcept nogil
        float (*fma_burst)(int64_t, int64_t *) noexcept nogil
        uint8_t (*read_burst)(const uint8_t *, int64_t) noexcept nogil

    ctypedef struct rase_tiles:
        void (*begin)() noexcept nogil
        void (*end)() noexcept nogil
        void (*left)(const float *, int64_t, int64_t, uint8_t *) noexcept nogil
        void (*few)(const rase_format *, const uint8_t *, int64_t, int64_t, const uint8_t *, int64_t, uint8_t *,
                    float *, int64_t) noexcept nogil
        void (*right)(const rase_format *, const uint8_t *, int64_t, int64_t, int64_t, uint8_t *) noexcept nogil
        void (*multiply)(const uint8_t *, int64_t, int64_t, int64_t, int64_t, const uint8_t *, int64_t, float *,
                         float *, int64_t) noexcept nogil
        int (*burst)(int64_t, int) noexcept nogil

cdef class Variant:
    cdef int index
    cdef const rase_kernels *table
    cdef const rase_tiles *tiles        # NULL without bf16 tiles
    cdef const rase_format *format(self, int format_id) except NULL
