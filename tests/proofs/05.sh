# List 05: other devices, operations, more than one machine. Sourced by wheelhouse-ci/proofs.

. wheelhouse-ci/heavy.sh

# torch PYTEST-ARGUMENTS: with torch, for its CPU device.
torch() {
    heavy_environment torch torch==2.13.0 >/dev/null
    beside torch checks -s --timeout 900 "$@"
}

# lavapipe PYTEST-ARGUMENTS: with wgpu, for Mesa's Vulkan device in software.
lavapipe() {
    heavy_environment wgpu 'wgpu==0.32.*' >/dev/null
    find /usr/share/vulkan/icd.d -name 'lvp_icd*' 2>/dev/null | grep -q . || install mesa-vulkan-drivers libvulkan1
    beside wgpu checks -s --timeout 1500 "$@"
}

# ray PYTEST-ARGUMENTS: with Ray, whose processes live and end with the tests.
ray() {
    heavy_environment ray 'ray[serve,data]==2.60.*' >/dev/null
    beside ray checks -s --timeout 1500 "$@"
}

proof 1 "The contract suite passes for reference and cpu; planted faults are seen" \
    checks tests/backends/test_reference.py tests/backends/test_cpu.py tests/backends/test_contract.py
proof torch "The contract suite passes for torch; planted faults are seen" torch tests/proofs/test_05_torch.py
proof wgpu "The contract suite passes for wgpu on lavapipe; planted faults are seen" lavapipe tests/proofs/test_05_wgpu.py
real() { RASE_PROOF_DEVICE=$1 "$2" tests/proofs/test_05_real.py "${@:3}"; }
proof 2 "Prompts on lavapipe: 90 % of the matrix work, logits and text of the CPU; killed in a prompt, it completes" \
    real wgpu lavapipe
proof 2torch "SmolLM2 and a Qwen3 shape by torch: logits and text of the CPU" real torch torch -k "not killed"
proof 3 "Two processes that share a model give the logits of one; one killed, the other says so in time" \
    torch tests/proofs/test_05_parallel.py

proof 5 "Two Ray replicas: the openai client, one process's bits, prefixes, cancellation, one killed, a data set" \
    ray tests/proofs/test_05_ray.py tests/proofs/test_05_ray_data.py

operations=tests/proofs/test_05_operations.py

peers() {
    peer_builds
    "$python" -c 'from bench.builds import server_python; server_python()'
}

proof 0 "The peer is built, with its server" peers
proof 4 "Serving sweep beside llama_cpp.server: first token and gaps at 99 %, twice its throughput" \
    measured tests/proofs/test_05_serving.py
proof 6 "Readiness: unavailable within 2 s of a stopped scheduler, and during the drain" \
    checks --timeout 300 $operations -k "scheduler or readiness"
proof 7 "SIGTERM under load, 50 times: every stream ends with [DONE] or an error event, status 0" \
    checks --timeout 900 $operations -k ends_well
proof 8 "Cases HTT-7, HTT-9, SEC-3 and PLT-1: emulated processors from SSE2 up; baseline objects hold no AVX" \
    checks --timeout 600 tests/cases/test_htt.py tests/cases/http/test_log_http.py tests/server/test_guard.py \
    tests/kernels/test_baseline.py tests/kernels/test_sse2.py tests/cases/test_plt_emulated.py
# The wheel of this platform: built, audited, tried as a user would and on emulated processors.
wheel() {
    wheelhouse-ci/wheel
    wheelhouse-ci/smoke
    figure "$(basename dist/rase_llm-*.whl), stable ABI audited"
    "$python" -m venv "$work/env"
    "$work/env/bin/python" -m pip install -q dist/rase_llm-*.whl
    (cd "$work" && env/bin/python "$ROOT/wheelhouse-ci/try_wheel.py")
    RASE_PROOF_PYTHON=$work/env/bin/python checks --timeout 600 tests/cases/test_plt_emulated.py
}

proof wheel "The wheel: audited (auditwheel, abi3audit), tried in an empty folder and on x86-64-v2 and v3" wheel
proof container "The Dockerfile, step by step in bare Debian roots: ready, healthy, answers, ends" \
    checks --timeout 3000 tests/proofs/test_05_container.py
