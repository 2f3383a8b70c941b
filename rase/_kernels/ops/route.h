/* Mixtures of experts: which experts a token takes, and the sum of what they gave (rules R1 and R7).
 *
 * The k largest logits, ties to the lowest expert; their ids ascending, then their gates: exp(logit - max) over the sum of the
 * chosen ones, ascending, or of all experts (16 lanes), times scale. A logit that is not finite makes every gate NaN. */
#ifndef RASE_OPS_ROUTE_H
#define RASE_OPS_ROUTE_H

static void route(const float *logits, int64_t n_experts, int64_t k, int renormalize, float scale, float *out) {
    int64_t last = -1; /* the expert chosen before: the next one is the largest below it in (logit descending, id ascending) */
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n_experts; e++) {
            int after = last < 0 || logits[e] < logits[last] || (logits[e] == logits[last] && e > last);
            if (after && (best < 0 || logits[e] > logits[best])) best = e;
        }
        last = best < 0 ? j : best; /* only among NaN is there none left: any expert will do */
        int64_t at = j;
        for (; at > 0 && out[at - 1] > (float)last; at--) out[at] = out[at - 1];
        out[at] = (float)last;
    }
    v16 sums = v16_zero(), poison = v16_zero(), highest = v16_set1(-INFINITY);
    for (int64_t e = 0; e < n_experts; e++) highest = v16_max(v16_set1(logits[e]), highest);
    float top = v16_maxall(highest), total = 0.0f, *gates = out + k;
    for (int64_t e = 0; e < n_experts; e += 16) {
        int lanes = lanes_at(e, n_experts);
        v16 x = load_lanes(logits + e, lanes);
        poison = v16_fma(x, v16_zero(), poison);
        float p[16];
        v16_store(p, v16_exp(v16_sub(x, v16_set1(top))));
        for (int i = lanes; i < 16; i++) p[i] = 0.0f;
        sums = v16_add(sums, v16_load(p));
    }
    for (int64_t j = 0; j < k; j++) gates[j] = logits[(int64_t)out[j]] - top;
    exp_array(gates, k, gates);
    if (renormalize)
        for (int64_t j = 0; j < k; j++) total += gates[j];
    else total = v16_sum(sums);
    total += v16_sum(poison);
    for (int64_t j = 0; j < k; j++) gates[j] = gates[j] / total * scale;
}

/* out += factor * x, one FMA each: the experts of a token enter in ascending order. */
static void add_scaled(const float *x, float factor, int64_t n, float *out) {
    v16 f = v16_set1(factor);
    for (int64_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        store_lanes(out + i, v16_fma(load_lanes(x + i, lanes), f, load_lanes(out + i, lanes)), lanes);
    }
}

#endif
