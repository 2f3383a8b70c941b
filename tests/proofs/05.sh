# List 05: other devices, operations, more than one machine. Sourced by wheelhouse-ci/proofs.

proof 8 "Cases HTT-7, HTT-9 and SEC-3; baseline objects hold no AVX" \
    checks --timeout 600 tests/cases/test_htt.py tests/cases/http/test_log_http.py tests/server/test_guard.py tests/kernels/test_baseline.py
