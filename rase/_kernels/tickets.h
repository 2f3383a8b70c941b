/* How workers share out one phase of a forward pass: each takes its own run of units from the front, then those of others from
 * the end, and a phase is over when all units are done.
 *
 * Own units are neighbours in memory, so that what a worker reads ahead is what it reads next, however small they are; small units
 * make the wait at the end short. Workers wait for work, not for each other: the units of one that the system has put aside are
 * taken by its neighbours, it is not missed unless it holds one, and when it comes back it walks past what the others did
 * meanwhile. So a busy machine costs one delay per pass and not one per phase. Waiting spins briefly, then sleeps in the kernel.
 * What workers write lies on cache lines of their own. */
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
    _Alignas(64) atomic_int done;
    _Alignas(64) atomic_int sleepers;
} rase_tickets; /* of a phase */

typedef struct {
    _Alignas(64) _Atomic(uint64_t) run; /* phase << 44 | first << 22 | end: what is left for this worker in the phase; see `take` */
} rase_share; /* of a worker */

enum { RASE_MAX_UNITS = 1 << 22, RASE_MAX_PHASES = 1 << 20, RASE_REACH = 8 }; /* workers beyond whose units are not looked for */

static inline void rase_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void rase_tickets_reset(rase_tickets *t) { atomic_store_explicit(&t->done, 0, memory_order_relaxed); }
static inline void rase_share_reset(rase_share *s) { atomic_store_explicit(&s->run, 0, memory_order_relaxed); }

/* A unit of `victim`'s in phase `phase` (from 1 on, ascending in a pass): the first one, or the last. -1 when none is left. Units are
 * dealt by their number, so a share of an earlier phase is one that nobody has touched in this phase, and one of a later phase
 * says that this phase is over. */
static inline int rase_share_take(rase_share *shares, int victim, int workers, int phase, int units, int last) {
    uint64_t seen = atomic_load_explicit(&shares[victim].run, memory_order_relaxed), next;
    int unit;
    do {
        uint64_t first = (uint64_t)units * victim / workers, end = (uint64_t)units * (victim + 1) / workers;
        int at = (int)(seen >> 44);
        if (at > phase) return -1;
        if (at == phase) first = seen >> 22 & (RASE_MAX_UNITS - 1), end = seen & (RASE_MAX_UNITS - 1);
        if (first == end) return -1;
        unit = (int)(last ? --end : first++);
        next = (uint64_t)phase << 44 | first << 22 | end;
    } while (!atomic_compare_exchange_weak_explicit(&shares[victim].run, &seen, next, memory_order_relaxed, memory_order_relaxed));
    return unit;
}

/* The next unit for this worker, -1 when it finds none. */
static inline int rase_tickets_take(rase_share *shares, int worker, int workers, int phase, int units) {
    int unit = rase_share_take(shares, worker, workers, phase, units, 0);
    for (int i = 1; unit < 0 && i < workers && i <= RASE_REACH; i++)
        unit = rase_share_take(shares, (worker + i) % workers, workers, phase, units, 1);
    return unit;
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
