/* Round to nearest without flush-to-zero, whatever the host library has left in the control register. */
#ifndef RASE_FPENV_H
#define RASE_FPENV_H

#include <stdint.h>

#if defined(__SSE2__)
#include <xmmintrin.h>

static inline uint64_t rase_fp_enter(void) { /* returns what rase_fp_leave restores */
    uint32_t before = _mm_getcsr();
    _mm_setcsr(0x1F80); /* nearest, denormals kept, all exceptions masked */
    return before;
}
static inline void rase_fp_leave(uint64_t before) { _mm_setcsr((uint32_t)before); }

#elif defined(__aarch64__)

static inline uint64_t rase_fp_enter(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return before;
}
static inline void rase_fp_leave(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory"); }

#else
#error "rase needs SSE2 or AArch64 arithmetic"
#endif

#endif
