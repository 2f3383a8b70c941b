"""Writes folders in the layout of transformers, and beside each what llama.cpp's converter makes of it.

In an environment with torch (tests/proofs/03.sh): python -m tests.proofs.converted LLAMA_CPP FOLDER, with the
source of llama.cpp, which llama-cpp-python ships. Files get no vocabulary: none is compared here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rase.testing.tiny import ZOO
from tests.support import hf_folder

# llama.cpp ignores a window that a folder of Mistral names, and so its converter leaves it out.
NAMES = tuple(name for name in ZOO if name != "mistral-window")


def convert(llama_cpp: Path, target: Path) -> None:
    """NAME and NAME.gguf for each of ``NAMES`` in ``target``."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import conversion
    import gguf

    tokens = {f"t{i}": i for i in range(max(tiny.vocab for tiny in ZOO.values()))}
    tokenizer = json.dumps({"model": {"vocab": tokens}, "added_tokens": []})  # counted for Gemma 3
    for name in NAMES:
        tiny = ZOO[name].but(factors=None)
        folder = hf_folder.write_tiny(target / name, name, tiny, documents={"tokenizer.json": tokenizer})
        values = conversion.ModelBase.load_hparams(folder, False)
        found = conversion.get_model_architecture(values, conversion.ModelType.TEXT)
        converter = conversion.get_model_class(found)
        converter.set_vocab = lambda self: None
        converter.no_mtp = True
        converter(folder, gguf.LlamaFileType.ALL_F32, target / f"{name}.gguf", eager=True).write()
        (folder / "tokenizer.json").unlink()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
