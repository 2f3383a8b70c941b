# Environments and peers for proofs that need them; sourced by lists in tests/proofs. RASE_PROOF_CACHE keeps them.

heavy=${RASE_PROOF_CACHE:-$work}

# heavy_environment NAME PACKAGE...: a virtual environment with these packages, made once; says its Python on stdout.
heavy_environment() {
    local folder=$heavy/$1
    shift
    if [ ! -e "$folder/ready" ]; then
        "$python" -m venv "$folder" >&2
        "$folder/bin/python" -m pip install -q "$@" >&2
        touch "$folder/ready"
    fi
    echo "$folder/bin/python"
}

# beside NAME COMMAND...: rase's own environment, with the packages of the environment NAME beside it.
beside() {
    local packages
    packages=$("$heavy/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    shift
    PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH} "$@"
}

amx() { grep -qw amx_bf16 /proc/cpuinfo; }

# peer_builds [MORE...]: the builds of llama.cpp for this processor, and MORE where it has AMX; made once, before anything is measured.
peer_builds() {
    local names=(avx512)
    ! amx || names+=(amx "$@")
    "$python" -m bench.builds "${names[@]}"
    figure "$("$python" -c 'from bench import builds; print("llama-cpp-python", builds.LLAMA_CPP_PYTHON)'): ${names[*]}"
}
