/* How workers share out one phase of a forward pass: units are taken one by one, and a phase is over when all are done.
 *
 * Workers wait for work, not for each other: one that the system has put aside is not missed unless it holds a unit, and when it
 * comes back it walks past what the others did meanwhile. So a busy machine costs one delay per pass and not one per phase.
 * Waiting spins briefly, then sleeps in the kernel. Counters lie on cache lines of their own. */
#ifndef RASE_TICKETS_H
#define RASE_TICKETS_H

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

enum { RASE_SPINS = 3000 }; /* some 50 microseconds: longer than a free core takes to finish its unit of a decode step */

typedef struct {
    _Alignas(64) atomic_int next;
    _Alignas(64) atomic_int done;
    _Alignas(64) atomic_int sleepers;
} rase_tickets;

static inline void rase_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void rase_tickets_reset(rase_tickets *t) {
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
}

/* The next unit for this worker; `units` or more when none is left. */
static inline int rase_tickets_take(rase_tickets *t, int units) {
    if (atomic_load_explicit(&t->next, memory_order_relaxed) >= units) return units; /* the counter stays near `units` */
    return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
}

/* `count` units are done: what they wrote is visible to whoever returns from the wait. */
static inline void rase_tickets_finish(rase_tickets *t, int count, int units) {
    if (atomic_fetch_add(&t->done, count) + count < units) return;
#if defined(__linux__)
    if (atomic_load(&t->sleepers)) syscall(SYS_futex, (int *)&t->done, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#endif
}

static inline void rase_tickets_wait(rase_tickets *t, int units) {
    for (int spin = 0; spin < RASE_SPINS; spin++) {
        if (atomic_load_explicit(&t->done, memory_order_acquire) >= units) return;
        rase_pause();
    }
#if defined(__linux__)
    atomic_fetch_add(&t->sleepers, 1);
    for (int done; (done = atomic_load(&t->done)) < units;)
        syscall(SYS_futex, (int *)&t->done, FUTEX_WAIT_PRIVATE, done, NULL, NULL, 0);
    atomic_fetch_sub(&t->sleepers, 1);
#else
    while (atomic_load(&t->done) < units) sched_yield();
#endif
}

/* One of several workers has done its part; what is left, 0 for the last one, which sees what the others wrote. */
static inline int rase_count_down(int *left) { return __atomic_sub_fetch(left, 1, __ATOMIC_ACQ_REL); }

static inline int64_t rase_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
