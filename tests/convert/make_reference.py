"""Writes reference.json: the errors of llama.cpp's own quantizers on the weights of test_quantize.py.

    python -m tests.convert.make_reference FOLDER     with libggml-base.so of a llama-cpp-python
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np

from tests.support.float_model import float_weights


def main(folder: str) -> None:
    library = ctypes.CDLL(str(Path(folder) / "libggml-base.so"))
    values = float_weights((64, 1024), 3)
    errors = {}
    for name in ("Q4_K", "Q5_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[name]
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros((len(values), values.shape[1] // block * nbytes), dtype=np.uint8)
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
        written = library.ggml_quantize_chunk(
            ctypes.c_int(kind.value), ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int64(0), ctypes.c_int64(len(values)), ctypes.c_int64(values.shape[1]), None,
        )  # fmt: skip
        assert written == out.nbytes
        back = gguf.quants.dequantize(out, kind)
        errors[name] = float(np.square(back - values).mean() / np.square(values).mean())
    (Path(__file__).parent / "reference.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
