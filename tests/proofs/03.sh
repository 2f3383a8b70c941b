# List 03: what people run, exact to the reference. Sourced by wheelhouse-ci/proofs.

# llama-cpp-python is built from source where the index has no wheel: some ten minutes, once per environment.
quantize() {
    $python -m pip install -q llama-cpp-python
    checks -s tests/proofs/test_03_quantize.py tests/convert
}

proof 5 "Quantized files are as good as llama.cpp's, of the same formats, and load there" quantize
