# List 05: other devices, operations, more than one machine. Sourced by wheelhouse-ci/proofs.

operations=tests/proofs/test_05_operations.py

proof 6 "Readiness: unavailable within 2 s of a stopped scheduler, and during the drain" \
    checks --timeout 300 $operations -k "scheduler or readiness"
proof 7 "SIGTERM under load, 50 times: every stream ends with [DONE] or an error event, status 0" \
    checks --timeout 900 $operations -k ends_well
proof 8 "Cases HTT-7, HTT-9 and SEC-3; baseline objects hold no AVX" \
    checks --timeout 600 tests/cases/test_htt.py tests/cases/http/test_log_http.py tests/server/test_guard.py tests/kernels/test_baseline.py
