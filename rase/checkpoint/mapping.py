"""``Checkpoint``: what an architecture's file says of the folders that hold its models.

Most is common to all decoders and stands here; an architecture states what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rase.checkpoint.arrange import Part
    from rase.checkpoint.config import Config
    from rase.gguf.formats import TensorInfo

__all__ = ["EXPERT", "KEYS", "LAYER", "WHOLE", "Checkpoint"]

# Metadata key <- key of config.json, where every decoder has it
KEYS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip

# Tensors of the whole model, of a layer, and of one expert; without .weight or .bias where they end in one
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


@dataclass(frozen=True)
class Checkpoint:
    """One value of "architectures" in config.json, and how its folders differ from the common form.

    ====================  =============================================================================
    ``name``              the value
    ``keys``              further metadata keys <- keys of config.json, all required; "a|b" is either
    ``layer``             names of a layer's tensors that differ from ``LAYER``
    ``experts``           the prefix of a layer's experts, and the names inside one
    ``pairs``             "neighbour" where the graph rotates neighbours: folders hold halves
    ``norm_offset``       what the paper's code adds to norm weights
    ``parts``             the graph's tensors that are not what is stored, and what makes each
    ``expect``            config keys whose value, where there is one, must be this
    ``defaults``          values of config keys that older folders leave out
    ``period``            every so many layers one sees everything, where the folder says nothing else
    ``more``              further metadata, of what no table says
    ====================  =============================================================================
    """

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    experts: tuple[str, Mapping[str, str]] = ("mlp.experts", EXPERT)
    pairs: Literal["half", "neighbour"] = "half"
    norm_offset: float = 0.0
    parts: Mapping[str, Callable[[TensorInfo, Config], Part]] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    period: int = 0
    more: Callable[[Config], Mapping[str, Any]] | None = None
