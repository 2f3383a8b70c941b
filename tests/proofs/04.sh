# List 04: many requests, one pass over the weights, the same bits. Sourced by wheelhouse-ci/proofs.
# Speeds are of two threads, in turn in one run. RASE_BENCH_CACHE chooses where peers and models are kept.

. wheelhouse-ci/heavy.sh

speed=tests/proofs/test_04_speed.py

# Made before anything is measured, and kept for the next time.
ingredients() {
    peer_builds
    "$python" -c 'from bench.models import synthetic; synthetic("qwen3-0.6b")'
}

proof 0 "The peer is built and the model made" ingredients
proof 1 "Invariance: 500 requests, nothing around them changes a bit; three planted faults are seen" \
    checks --timeout 3600 tests/proofs/test_04_invariance.py tests/engine/test_invariance.py
proof 2 "Decode of 4 and 8 streams: 2.8 and 4.2 times one; twice llama.cpp's batch" \
    measured $speed::test_streams_share_the_passes
proof 3 "A 4,000-token prompt beside a stream: its gaps, and what it costs" measured $speed::test_a_long_prompt_beside_a_stream
proof 4 "A known prefix of 1,000 tokens: first token in 8 % of the time; a chat computes what is new" \
    measured $speed::test_a_known_prefix $speed::test_a_chat_computes_what_is_new
proof 5 "Prompt lookup: 1.5 times decode on grounded text, 0.97 on fresh prose" measured $speed::test_prompt_lookup
proof 6 "1,000 concurrent chats, full queues, 2,000 disconnects" checks --timeout 900 tests/proofs/test_04_server.py -k "not idle"
proof 7 "32 threads load, generate, cancel, unload, verify and list for a minute" \
    checks --timeout 300 tests/proofs/test_04_stress.py
proof 8 "An idle server uses no processor" checks --timeout 300 tests/proofs/test_04_server.py -k idle
proof 9 "Cases CTX, HTT-1, HTT-9, PLT-3 and SMP" \
    checks tests/cases/test_ctx.py tests/cases/test_htt.py tests/cases/test_plt.py tests/cases/test_smp.py
