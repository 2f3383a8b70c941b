/* Detects what the processor and the operating system support. Compiled for the baseline instruction set. */
#include "dispatch.h"

#if defined(__x86_64__) || defined(_M_X64)
#define RASE_X86 1
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

typedef struct {
    const char *name;
    const rase_kernels *kernels;
    const rase_tiles *tiles;
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

/* Tiles need the operating system's permission, once per process; whoever refuses it (a container, a small signal stack) only
 * costs speed. */
static const char *amx_missing(void) {
    const char *missing = avx512_missing();
    if (missing) return missing;
    if (!__builtin_cpu_supports("avx512bf16")) return "AVX512_BF16";
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    static int permission = -1;                           /* -1: not asked yet */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1)) return "AMX with bf16";
    if (permission < 0) permission = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return permission ? NULL : "the operating system's permission to use AMX";
#else
    return "an operating system on which rase knows how to ask for AMX";
#endif
}
#endif

/* Weakest first: the last one without a missing feature is the default. */
static const variant variants[] = {
    {"scalar", &rase_kernels_scalar, NULL, nothing_missing},
#ifdef RASE_X86
    {"avx2", &rase_kernels_avx2, NULL, avx2_missing},
    {"avx512", &rase_kernels_avx512, NULL, avx512_missing},
    {"amx", &rase_kernels_amx, &rase_tiles_amx, amx_missing},
#endif
};

int rase_variant_count(void) { return (int)(sizeof variants / sizeof variants[0]); }
const char *rase_variant_name(int index) { return variants[index].name; }
const rase_tiles *rase_variant_tiles(int index) { return variants[index].tiles; }
const rase_kernels *rase_variant(int index) { return variants[index].kernels; }
const char *rase_variant_missing(int index) { return variants[index].missing(); }
