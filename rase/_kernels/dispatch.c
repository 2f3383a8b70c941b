/* Detects what the processor and the operating system support. Compiled for the baseline instruction set. */
#include "dispatch.h"

#if defined(__x86_64__) || defined(_M_X64)
#define RASE_X86 1
#endif

typedef struct {
    const rase_kernels *kernels;
    const char *(*missing)(void);
} variant;

static const char *nothing_missing(void) { return NULL; }

#ifdef RASE_X86
/* __builtin_cpu_supports consults CPUID and, for the wide registers, what the operating system saves (XCR0). */
static const char *avx2_missing(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return "AVX2";
    if (!__builtin_cpu_supports("fma")) return "FMA";
    if (!__builtin_cpu_supports("f16c")) return "F16C";
    return NULL;
}

static const char *avx512_missing(void) {
    const char *missing = avx2_missing();
    if (missing) return missing;
    if (!__builtin_cpu_supports("avx512f")) return "AVX512F";
    if (!__builtin_cpu_supports("avx512bw")) return "AVX512BW";
    if (!__builtin_cpu_supports("avx512dq")) return "AVX512DQ";
    if (!__builtin_cpu_supports("avx512vl")) return "AVX512VL";
    if (!__builtin_cpu_supports("avx512vnni")) return "AVX512_VNNI";
    return NULL;
}
#endif

/* Weakest first: the last one without a missing feature is the default. */
static const variant variants[] = {
    {&rase_kernels_scalar, nothing_missing},
#ifdef RASE_X86
    {&rase_kernels_avx2, avx2_missing},
    {&rase_kernels_avx512, avx512_missing},
#endif
};

int rase_variant_count(void) { return (int)(sizeof variants / sizeof variants[0]); }
const rase_kernels *rase_variant(int index) { return variants[index].kernels; }
const char *rase_variant_missing(int index) { return variants[index].missing(); }
