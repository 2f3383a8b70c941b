# List 05: other devices, operations, more than one machine. Sourced by wheelhouse-ci/proofs.

. wheelhouse-ci/heavy.sh

# torch PYTEST-ARGUMENTS: with torch, for its CPU device.
torch() {
    heavy_environment torch torch==2.13.0 >/dev/null
    beside torch checks -s --timeout 900 "$@"
}

proof 1 "The contract suite passes for reference and cpu; planted faults are seen" \
    checks tests/backends/test_reference.py tests/backends/test_cpu.py tests/backends/test_contract.py
proof torch "The contract suite passes for torch; planted faults are seen" torch tests/proofs/test_05_torch.py
proof 3 "Two processes that share a model give the logits of one; one killed, the other says so in time" \
    torch tests/proofs/test_05_parallel.py

operations=tests/proofs/test_05_operations.py

# measured TESTS...: proofs of speed, with the first claim on the processor: servers and clients share it as they do
# every day, and whoever else computes here gets what they leave.
measured() {
    local status=0 first=()
    nice -n -20 true 2>/dev/null && first=(nice -n -20)
    "${first[@]}" "$python" -m pytest -p no:cacheprovider -q -m proof "$@" 2>&1 | tee "$work/log" || status=$?
    ! grep -q '^SKIPPED' "$work/log" || { figure "a skipped test proves nothing" && return 1; }
    return $status
}

# Builds of the peer are made before anything is measured, and kept for the next time.
peers() {
    local names=(avx512)
    ! grep -qw amx_bf16 /proc/cpuinfo || names+=(amx)
    "$python" -m bench.builds "${names[@]}"
    "$python" -c 'from bench.builds import server_python; server_python()'
    figure "${names[*]}"
}

proof 0 "The peer is built, with its server" peers
proof 4 "Serving sweep beside llama_cpp.server: first token and gaps at 99 %, twice its throughput" \
    measured tests/proofs/test_05_serving.py
proof 6 "Readiness: unavailable within 2 s of a stopped scheduler, and during the drain" \
    checks --timeout 300 $operations -k "scheduler or readiness"
proof 7 "SIGTERM under load, 50 times: every stream ends with [DONE] or an error event, status 0" \
    checks --timeout 900 $operations -k ends_well
proof 8 "Cases HTT-7, HTT-9 and SEC-3; baseline objects hold no AVX" \
    checks --timeout 600 tests/cases/test_htt.py tests/cases/http/test_log_http.py tests/server/test_guard.py tests/kernels/test_baseline.py
