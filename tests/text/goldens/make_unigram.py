"""Train small unigram models with SentencePiece, and write what it makes of texts.

In a throw-away environment, from the root of the repository:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install sentencepiece protobuf numpy
    /tmp/goldens/bin/python -m tests.text.goldens.make_unigram

Made with sentencepiece 0.2.3. The table of normalisation is small and has what its own big ones have: keys of
one letter and of several, keys that are the start of others, blanks, and keys that vanish.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol

from tests.support.texts import PROSE, generated_texts

TARGET = Path(__file__).resolve().parent / "unigram.json"
RULES = {
    "\ufb01": "fi", "e\u0301": "\u00e9", "s\u0323": "\u1e63", "s\u0323\u0307": "\u1e69", "\u212b": "\u00c5",
    "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u200d": "", "\u0132": "IJ", "\u2026": "...",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "rules": {},
    "bytes": {"byte_fallback": True, "vocab_size": 560},
    "bare": {"remove_extra_whitespaces": False, "add_dummy_prefix": False, "user_defined_symbols": []},
}


def trained(options: dict[str, Any]) -> bytes:
    """A model trained on the prose."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rules.tsv"
        spelled = (" ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in value)
                   for key, value in RULES.items())  # fmt: skip
        table.write_text("".join(f"{line}\n" for line in spelled))
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(line for text in PROSE for line in text.split("\n") if line.strip()))
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_writer=out, model_type="unigram", normalization_rule_tsv=str(table),
            hard_vocab_limit=False, minloglevel=2, num_threads=1,
            **{"vocab_size": 300, "character_coverage": 0.995, **options},
        )  # fmt: skip
        return out.getvalue()


def metadata(model: bytes) -> dict[str, Any]:
    """What a converter would write of it under ``tokenizer.ggml``."""
    spec = protocol.ModelProto()
    spec.ParseFromString(model)
    return {
        "model": "t5", "pre": "default", "tokens": [piece.piece for piece in spec.pieces],
        "scores": [piece.score for piece in spec.pieces], "token_type": [piece.type for piece in spec.pieces],
        "add_space_prefix": spec.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": spec.normalizer_spec.remove_extra_whitespaces,
        "precompiled_charsmap": list(spec.normalizer_spec.precompiled_charsmap),
        "unknown_token_id": spec.trainer_spec.unk_id, "eos_token_id": spec.trainer_spec.eos_id,
        "add_bos_token": False, "add_eos_token": False,
    }  # fmt: skip


def main() -> None:
    specials = ("<s>", "\u2581x", "<0x41>", " \t\u3000a", "\u2581\u2581")
    texts = [
        *PROSE,
        *generated_texts(120, 9, specials),
        "s\u0323\u0307 s\u0323 s e\u0301\u0301",
        "  a  b  ",
        "",
    ]
    found: dict[str, Any] = {"texts": texts}
    for name, options in MODELS.items():
        model = trained(options)
        encoder = sentencepiece.SentencePieceProcessor(model_proto=model)
        found[name] = {"metadata": metadata(model), "ids": [encoder.encode(text) for text in texts]}
    TARGET.write_text(json.dumps(found, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(TARGET.name, TARGET.stat().st_size, sentencepiece.__version__)


if __name__ == "__main__":
    main()
