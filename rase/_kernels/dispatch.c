/* Detects what the processor and the operating system support. Compiled for the baseline instruction set. */
#include "dispatch.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#define RASE_X86 1
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define RASE_ARM 1
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#define RASE_ARM 1
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

/* Not every compiler's __builtin_cpu_supports knows it: leaf 7.1, EAX bit 4. */
static const char *avxvnni_missing(void) {
    const char *missing = avx2_missing();
    unsigned eax, ebx, ecx, edx;
    if (missing) return missing;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && eax >> 4 & 1 ? NULL : "AVX_VNNI";
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

/* Ice Lake and Zen 4 on: permutations of bytes and of bits. */
static const char *avx512vbmi_missing(void) {
    const char *missing = avx512_missing();
    if (missing) return missing;
    if (!__builtin_cpu_supports("avx512vbmi")) return "AVX512_VBMI";
    if (!__builtin_cpu_supports("gfni")) return "GFNI";
    return NULL;
}

/* Tiles need the operating system's permission, once per process; whoever refuses it (a container, a small signal stack) only
 * costs speed. */
static const char *amx_missing(void) {
    const char *missing = avx512vbmi_missing();
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

#ifdef RASE_ARM
/* What the operating system says of the processor: Linux hands a program bits, macOS answers by name. */
#ifdef __linux__
static int arm_has(unsigned long bit, const char *name) { (void)name; return (getauxval(AT_HWCAP) & bit) != 0; }
#else
static int arm_has(unsigned long bit, const char *name) {
    int has = 0;
    size_t size = sizeof has;
    (void)bit;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has;
}
#endif

static const char *dotprod_missing(void) {
    /* Its object is compiled for Armv8.2, whose instructions such processors have: atomics and rounding multiplies. */
    if (!arm_has(1ul << 8, "hw.optional.arm.FEAT_LSE")) return "FEAT_LSE";
    if (!arm_has(1ul << 12, "hw.optional.arm.FEAT_RDM")) return "FEAT_RDM";
    if (!arm_has(1ul << 20, "hw.optional.arm.FEAT_DotProd")) return "FEAT_DotProd";
    return NULL;
}
#endif

/* Weakest first: the last one without a missing feature is the default. */
static const variant variants[] = {
    {"scalar", &rase_kernels_scalar, NULL, nothing_missing},
#ifdef RASE_X86
    {"avx2", &rase_kernels_avx2, NULL, avx2_missing},
    {"avxvnni", &rase_kernels_avxvnni, NULL, avxvnni_missing},
    {"avx512", &rase_kernels_avx512, NULL, avx512_missing},
    {"avx512vbmi", &rase_kernels_avx512vbmi, NULL, avx512vbmi_missing},
    {"amx", &rase_kernels_amx, &rase_tiles_amx, amx_missing},
#endif
#ifdef RASE_ARM
    {"neon", &rase_kernels_neon, NULL, nothing_missing},
    {"dotprod", &rase_kernels_dotprod, NULL, dotprod_missing},
#endif
};

int rase_variant_count(void) { return (int)(sizeof variants / sizeof variants[0]); }
const char *rase_variant_name(int index) { return variants[index].name; }
const rase_tiles *rase_variant_tiles(int index) { return variants[index].tiles; }
const rase_kernels *rase_variant(int index) { return variants[index].kernels; }
const char *rase_variant_missing(int index) { return variants[index].missing(); }
