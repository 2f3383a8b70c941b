# List 02: speed, beside peers and beside the machine's limits. Sourced by wheelhouse-ci/proofs.
# Ratios are of two threads, engines in turn in one run. RASE_BENCH_CACHE chooses where peers and models are kept.

. wheelhouse-ci/heavy.sh

# with_amx COMMAND...: or why not.
with_amx() {
    if amx; then "$@"; else figure "left out: this processor has no AMX"; fi
}

peers=tests/proofs/test_02_peers.py

ingredients() {
    peer_builds openvino
    "$python" -c 'from bench.models import synthetic; [synthetic(name) for name in ("qwen3-0.6b", "qwen3-4b")]'
}

proof 0 "Peers are built and models made" ingredients
proof 1 "Decode, 0.6B Q4_K_M: at least 2 times the best llama.cpp setting" measured $peers::test_decode_of_06b
proof 2 "Decode, 4B Q4_K_M: at least 85 % of the bandwidth" \
    measured tests/proofs/test_02_limits.py::test_decode_of_4b_reads_at_85_per_cent_of_the_bandwidth
proof 3 "Decode, SmolLM2 Q4_1: at least 1.5 times the best llama.cpp setting" measured $peers::test_decode_of_smollm2
proof 4 "Prefill 512 with AMX: at least 4 times llama.cpp (2.5 in AMX's slow mode)" \
    with_amx measured $peers::test_prefill_with_amx
proof 5 "Prefill 512 with AMX: at least 1.8 times OpenVINO (1.2 in the slow mode)" \
    with_amx measured $peers::test_prefill_with_amx_beside_openvino
proof 6 "Prefill 512 without AMX: at least 1.8 times llama.cpp without AMX" measured $peers::test_prefill_without_amx
proof 7 "Prefill 4096, 0.6B: at least 4 times the best llama.cpp setting" measured $peers::test_prefill_of_4096
proof 8 "Decode at 4096, 0.6B: at least 2 times the best llama.cpp setting" measured $peers::test_decode_at_4096
proof 9 "Decode of 4 and 8 sequences: at least 3 and 4.5 times the tokens of one" \
    measured $peers::test_batches_of_sequences
proof 10 "Load with verification, 2.5 GB: at most 3 s; peak at most 1.15 x file + 200 MB" \
    measured $peers::test_load_and_memory_of_4b $peers::test_memory_of_06b
proof 11 "float32 prefill: half of the FMA peak, 3 times unpacking per token, same bits in chunks" \
    measured tests/proofs/test_02_limits.py::test_float32_prefill
proof 12 "AVX2 decode: at least 0.7 of AVX-512" measured $peers::test_avx2_beside_avx512
proof 13 "Exact in every class: threads, chunks, batch, instruction sets; near the reference" \
    checks --timeout 1800 tests/proofs/test_02_numbers.py
