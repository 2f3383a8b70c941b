/* A barrier for the workers of one forward pass: spins briefly, then sleeps in the kernel.
 *
 * Counter and phase lie on cache lines of their own. The number of workers is an argument, since an OpenMP runtime may give
 * fewer threads than were asked for. */
#ifndef RASE_BARRIER_H
#define RASE_BARRIER_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

enum { RASE_SPINS = 3000 }; /* about 50 microseconds: longer than a step of one token takes to be joined by a free core */

typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int phase;
    _Alignas(64) atomic_int sleepers;
} rase_barrier;

static inline void rase_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void rase_barrier_wait(rase_barrier *b, int workers) {
    if (workers < 2) return;
    int phase = atomic_load_explicit(&b->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) == workers - 1) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_store(&b->phase, phase + 1);
#if defined(__linux__)
        if (atomic_load(&b->sleepers)) syscall(SYS_futex, (int *)&b->phase, FUTEX_WAKE_PRIVATE, workers, NULL, NULL, 0);
#endif
        return;
    }
    for (int spin = 0; spin < RASE_SPINS; spin++) {
        if (atomic_load_explicit(&b->phase, memory_order_acquire) != phase) return;
        rase_pause();
    }
#if defined(__linux__)
    atomic_fetch_add(&b->sleepers, 1);
    while (atomic_load(&b->phase) == phase) syscall(SYS_futex, (int *)&b->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&b->sleepers, 1);
#else
    while (atomic_load(&b->phase) == phase) sched_yield();
#endif
}

static inline int64_t rase_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
