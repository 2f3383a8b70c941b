/* What the processor can do at most, in the vectors of this variant: the yardstick for measured speeds. */
#ifndef RASE_OPS_LIMITS_H
#define RASE_OPS_LIMITS_H

enum { BURST_CHAINS = 12, READ_AHEAD = 4096, READ_STRIDE = 256 };

/* Independent chains of x = x / 2 + 1 in registers alone, as many as hide the latency of an FMA; returns the sum of all
 * lanes, which is exactly 2 * BURST_CHAINS * R once steps >= 32, and the float operations done (a multiply and an add each). */
static float fma_burst(int64_t steps, int64_t *operations) {
    rf x[BURST_CHAINS], half = rf_set1(0.5f), one = rf_set1(1.0f), sum = rf_zero();
    float lanes[RASE_R], total = 0.0f;
    _Pragma("GCC unroll 12") for (int i = 0; i < BURST_CHAINS; i++) x[i] = rf_set1((float)i); /* differ: not one chain */
    for (int64_t step = 0; step < steps; step++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < BURST_CHAINS; i++) x[i] = rf_fma(x[i], half, one);
    }
    _Pragma("GCC unroll 12") for (int i = 0; i < BURST_CHAINS; i++) sum = rf_add(sum, x[i]);
    rf_store(lanes, sum);
    for (int l = 0; l < RASE_R; l++) total += lanes[l];
    *operations = 2 * steps * BURST_CHAINS * RASE_R;
    return total;
}

/* Read n bytes (a multiple of READ_STRIDE, 64-byte aligned) with prefetch; returns the OR of all of them. */
static uint8_t read_burst(const uint8_t *data, int64_t n) {
    enum { STEP = 4 * RASE_R };
    rb seen[4] = {rb_set1(0), rb_set1(0), rb_set1(0), rb_set1(0)};
    uint8_t bytes[STEP], any = 0;
    for (int64_t i = 0; i < n; i += READ_STRIDE) {
        _Pragma("GCC unroll 4") for (int line = 0; line < READ_STRIDE; line += 64)
            __builtin_prefetch(data + i + READ_AHEAD + line); /* beyond the end at last, which is harmless */
        _Pragma("GCC unroll 8") for (int at = 0; at < READ_STRIDE; at += STEP)
            seen[at / STEP % 4] = rb_or(seen[at / STEP % 4], rb_load(data + i + at));
    }
    rb_store(bytes, rb_or(rb_or(seen[0], seen[1]), rb_or(seen[2], seen[3])));
    for (int i = 0; i < STEP; i++) any |= bytes[i];
    return any;
}

#endif
