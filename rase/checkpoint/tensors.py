"""From the tensor names of a folder to the tensors of a graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rase.checkpoint.arrange import Awq, Computed, Pairs, Part, Same
from rase.checkpoint.config import Config
from rase.checkpoint.mapping import LAYER, WHOLE, Checkpoint
from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.gguf.formats import FORMATS, TensorInfo

__all__ = ["Arranged", "arrange"]

_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+?)(\.weight|\.bias|)")
_INNER = re.compile(r"(?:blk\.\d+\.)?(.*?)(?:\.weight|\.bias)?", re.DOTALL)  # of a name of the graph
_EXPERT = re.compile(r"(.+)\.(\d{1,5})\.([^.]+)")
# Constants, what sees images, and layers that predict further tokens
_LEFT = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq|(model\.)?(vision_tower|visual|multi_modal_projector|mtp)\..*"
)
_TEXT = ("language_model.", "model.language_model.")  # the text part of a model that sees images
_PAIRED = ("attn_q", "attn_k")
_AWQ = ("qweight", "qzeros", "scales")  # of one matrix
_RUNS = {form.name for form in FORMATS.values()}


@dataclass
class Arranged:
    """One tensor of the graph: its parts one after the other, or the bytes that it is."""

    name: str
    parts: list[Part] = field(default_factory=list)
    constant: bytes | None = None
    stacked: bool = False

    def info(self, constant_shape: tuple[int, ...] = ()) -> TensorInfo:
        first = self.parts[0]
        shape = (len(self.parts), *first.shape) if self.stacked else first.shape
        where = first.stored[0]
        nbytes = sum(part.nbytes for part in self.parts)
        return TensorInfo(self.name, shape, first.format, where.shard, where.offset, nbytes)


def arrange(stored: Mapping[str, TensorInfo], checkpoint: Checkpoint, config: Config) -> dict[str, Arranged]:
    """The graph's tensors by their names; one that no table knows keeps its own, and the graph refuses it.

    In a tied model a separate output matrix is left out, as the model's own code ignores it. Raises
    ``UnsupportedFormat`` for dtypes that no kernel reads, ``CorruptModelFile`` for experts that are absent.
    """
    tied = config.flag("tie_word_embeddings", False)
    found: dict[str, Arranged] = {}
    stacks: dict[str, dict[int, Part]] = {}
    for full, info in stored.items():
        if _LEFT.fullmatch(full):
            continue
        if (triple := _awq(full, stored)) == ():
            continue
        name, expert = _name(_text(full).replace(".qweight", ".weight"), checkpoint)
        if name.startswith("output.") and tied:
            continue
        if not triple and info.format.name not in _RUNS:
            raise UnsupportedFormat(
                f"tensor '{full}' has dtype {info.format.name}", expected="BF16, F16 or F32",
                hint="Choose a version of the model in one of those.", tensor=full,
            )  # fmt: skip
        part = _part(name, triple or (info,), checkpoint, config)
        if expert is not None:
            stacks.setdefault(name, {})[expert] = part
        else:
            found[name] = Arranged(name, [part])
    for name, experts in stacks.items():
        found[name] = Arranged(name, _stack(name, experts), stacked=True)
    return found


def _text(name: str) -> str:
    for prefix in _TEXT:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    return name


def _name(full: str, checkpoint: Checkpoint) -> tuple[str, int | None]:
    """The graph's name of a stored tensor, and which expert's part it is."""
    base, _, end = full.rpartition(".")
    if base in WHOLE:
        return f"{WHOLE[base]}.{end}", None
    match = _LAYER.fullmatch(full)
    if match is None:
        return full, None
    layer, inner, end = match.groups()
    own = {**LAYER, **checkpoint.layer}.get(inner)
    if own is not None:
        return f"blk.{int(layer)}.{own}{end}", None
    prefix, names = checkpoint.experts
    expert = _EXPERT.fullmatch(inner)
    if expert is not None and expert[1] == prefix and expert[3] in names:
        return f"blk.{int(layer)}.{names[expert[3]]}{end}", int(expert[2])
    return full, None


def _awq(name: str, stored: Mapping[str, TensorInfo]) -> tuple[TensorInfo, ...] | None:
    """The three tensors of an AWQ matrix where ``name`` is the first, none of its own where it is another."""
    base, _, end = name.rpartition(".")
    if end not in _AWQ or f"{base}.{_AWQ[0]}" not in stored:
        return None
    if end != _AWQ[0]:
        return ()
    missing = next((f"{base}.{end}" for end in _AWQ if f"{base}.{end}" not in stored), None)
    if missing is not None:
        raise CorruptModelFile(
            f"tensor '{missing}' is missing", expected="one beside its weights", tensor=missing
        )
    return tuple(stored[f"{base}.{end}"] for end in _AWQ)


def _part(name: str, infos: tuple[TensorInfo, ...], checkpoint: Checkpoint, config: Config) -> Part:
    matched, info, head_dim = _INNER.fullmatch(name), infos[0], config.head_dim
    inner = matched[1] if matched else name
    paired = checkpoint.pairs == "neighbour" and inner in _PAIRED
    if (made := checkpoint.parts.get(inner)) is not None:
        if len(infos) > 1:
            raise UnsupportedFormat(
                f"tensor '{info.name}' is quantized", expected="BF16, F16 or F32 in this kind of layer",
                hint="Choose a version of the model whose layers of this kind are not quantized.",
                tensor=info.name,
            )  # fmt: skip
        return made(info, config)
    if len(infos) == len(_AWQ):
        rows = 8 * info.shape[-1] if info.shape else 0
        return Awq(infos[0], infos[1], infos[2], head_dim if paired and rows % head_dim == 0 else None)
    if paired and info.shape and info.shape[0] % head_dim == 0:
        return Pairs(info, head_dim)
    if checkpoint.norm_offset and inner.endswith("norm") and len(info.shape) == 1:
        offset = checkpoint.norm_offset
        return Computed(info, info.shape, lambda weights: weights + offset)
    return Same(info)


def _stack(name: str, experts: dict[int, Part]) -> list[Part]:
    parts = [experts[i] for i in sorted(experts)]
    if sorted(experts) != list(range(len(experts))):
        gap = next(i for i in range(len(experts)) if i not in experts)
        raise CorruptModelFile(
            f"experts of '{name}'", expected=f"expert {gap}", found="no tensor of it", tensor=name,
            hint="Download the folder again.",
        )  # fmt: skip
    for i, part in enumerate(parts):
        if (part.shape, part.format) != (parts[0].shape, parts[0].format):
            raise CorruptModelFile(
                f"expert {i} of '{name}' differs from expert 0",
                expected=f"{parts[0].format.name} {parts[0].shape}",
                found=f"{part.format.name} {part.shape}", tensor=name,
            )  # fmt: skip
    return parts
