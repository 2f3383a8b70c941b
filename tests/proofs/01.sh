# List 01: from a GGUF file to an answer. Sourced by wheelhouse-ci/proofs.

# A clone of what is committed runs both commands of the README.
fresh_clone() {
    [ -z "$(git status --porcelain)" ] || figure "changes that are not committed are not part of the clone"
    git clone -q "$ROOT" "$work/clone"
    cd "$work/clone"
    local answer
    answer=$(RASE_STORE=$work/store wheelhouse-ci/demo "What is the capital of France?" 2>&1 | tee /dev/stderr)
    figure "$(grep -F 'tokens/s' <<<"$answer" | head -n 1)"
    grep -qF "The capital of France is Paris." <<<"$answer" || { figure "another answer: $answer" && return 1; }
    [ $suite = yes ] || { figure "the suite was left out" && return 0; }
    local start=$SECONDS
    wheelhouse-ci/test -q | tee "$work/suite"
    figure "suite in $((SECONDS - start)) s: $(tail -n 1 "$work/suite")"
    [ $((SECONDS - start)) -le 600 ] || { figure "the suite takes more than 10 minutes" && return 1; }
}

newest_openai_client() {
    $python -m pip install -q --upgrade openai
    figure "openai $($python -c 'import openai; print(openai.__version__)')"
    checks tests/server/test_openai_client.py
}

models_and_tokenizers() {
    export RASE_TEST_STRINGS=10000
    checks --timeout 900 tests/models tests/text/test_tokenizer_equality.py tests/text/test_tokenizer_goldens.py
}

speed() {
    undisturbed "$python" -m pytest -p no:cacheprovider -q -m proof tests/proofs/test_01_speed.py
}

wheel_and_smoke() {
    wheelhouse-ci/wheel
    figure "$(cd dist && ls -- *.whl)"
    wheelhouse-ci/smoke
}

proof 1 "A fresh clone runs both commands of the README" fresh_clone
proof 2 "The stock openai client chats over a real socket" newest_openai_client
proof 3 "SmolLM2 is near the float64 reference, with one set of bits" checks tests/proofs/test_01_numbers.py
proof 4 "Every format and architecture within its gates; tokenizers give the ids of their originals" models_and_tokenizers
proof 5 "Every named case of the bug reports is a test and passes" checks tests/proofs/test_01_cases.py tests/cases
proof 6 "Speeds against the limits measured in the same run" speed
proof 7 "A kill at every write, fsync, rename and unlink leaves old or new" checks tests/registry/test_faults.py
proof 8 "A wheel that works in an empty folder without a compiler" wheel_and_smoke
proof gil "The host stays live beside hashing, loading, prefill and decode" checks tests/proofs/test_01_gil.py
