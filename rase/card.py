"""The card of a model: what its file says of it, and what it will take, from metadata alone.

Nothing of the tensors' data is read. The hashes are not checked: that is ``verify``.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rase import env
from rase.device import RuntimeDevice

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.gguf.modelfile import ModelFile
    from rase.graph.ops import Graph
    from rase.loading import Kind
    from rase.registry.manifest import ModelManifest

__all__ = ["card_lines", "file_card", "model_card"]

VARIABLES = ("tools", "documents", "enable_thinking", "reasoning_effort")  # that chat templates may know
CONTEXTS = (2048, 8192, 32768, 131072)  # tokens for which the card tells the memory, and the whole context
_GROUPS = (  # by the last part of a tensor's name; the first that fits
    ("norms", ("norm",)), ("experts", ("_exps", "gate_inp")), ("attention", ("attn", "ssm")),
    ("feed-forward", ("ffn",)), ("embeddings", ("token", "output", "position")),
)  # fmt: skip


def model_card(manifest: ModelManifest) -> dict[str, Any]:
    """What the file of ``manifest`` says, as ``file_card`` tells it."""
    return file_card(
        manifest.weights, architecture=manifest.architecture, context_length=manifest.context_length,
        kind=manifest.kind.value, chat_template=manifest.chat_template, tokenizer=manifest.tokenizer,
    )  # fmt: skip


def file_card(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    context_length: int | None = None,
    kind: Kind | None = None,
    chat_template: str | None = None,
    tokenizer: str | None = None,
) -> dict[str, Any]:
    """What a model file, or a folder, says of itself, as values for JSON; the rest is as in a manifest.

    ``architecture``, ``layers``, ``dim``, ``vocab_size``; ``context_length`` in tokens; ``windows``: layers
    by the tokens that they see, or "state"; ``parameters``; ``groups``: for each part of the model its
    parameters, bytes and formats; ``kind``; ``template``, and ``template_variables`` that it knows;
    ``tokenizer``; ``general``: name, licence and source, as the file gives them; ``memory``: bytes at load,
    and with full contexts of several lengths in a cache of the format that RASE_KV says. Raises what loading
    raises before it reads a tensor: ``ModelFileNotFound``, ``CorruptModelFile``, ``UnsupportedArchitecture``.
    """
    from rase import models
    from rase.backends.base import CompileOptions
    from rase.models.files import open_model
    from rase.text.select import choose_template

    with open_model(path) as file:
        kind = models.kind_of(file.metadata) if kind is None else kind
        graph = models.build(file.metadata, file.tensors, architecture, context_length, kind)
        named = models.resolve(architecture or graph.architecture)
        template = choose_template(chat_template, file.metadata, named.chat_template)
        source = (template.source if template else None) or ""
        kv = "f16" if kind == "embedding" else env.get("RASE_KV")
        estimate = RuntimeDevice.select().backend().estimate(graph, file.tensors, CompileOptions(kv=kv))
        lengths = sorted({n for n in CONTEXTS if n < graph.context_length} | {graph.context_length})
        return {
            "architecture": graph.architecture, "layers": sum(_windows(graph).values()),
            "dim": graph.dim, "vocab_size": graph.vocab_size, "context_length": graph.context_length,
            "windows": _windows(graph),
            "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            "groups": _groups(file.tensors),
            "kind": kind,
            "template": template.name if template else None,
            "template_variables": [name for name in VARIABLES if re.search(rf"\b{name}\b", source)],
            "tokenizer": "attached" if tokenizer else _tokenizer(file),
            "general": _general(file.metadata),
            "memory": {
                "kv": kv,
                "load": estimate.weights + estimate.scratch,
                "contexts": {str(n): estimate.total(n) for n in lengths},
            },
        }  # fmt: skip


def card_lines(card: Mapping[str, Any], size: Callable[[int], str]) -> list[str]:
    """The card as lines for people; ``size`` writes bytes."""
    rows = [(name, str(value)) for name, value in card["general"].items()]
    shape = f"{card['layers']} layers, dim {card['dim']:,}, vocabulary {card['vocab_size']:,}"
    rows.append(("architecture", f"{card['architecture']}: {shape}"))
    rows.append(("parameters", _count(card["parameters"])))
    for name, group in card["groups"].items():
        formats = ", ".join(f"{form} {share:.0%}" for form, share in group["formats"].items())
        rows.append((f"  {name}", f"{_count(group['parameters'])}, {size(group['bytes'])}: {formats}"))
    windows = [
        f"{count} layers have a state" if tokens == "state" else f"{count} layers see {tokens} tokens"
        for tokens, count in card["windows"].items()
        if tokens != "all"
    ]
    rows.append(("context", ", ".join([f"{card['context_length']:,} tokens", *windows])))
    if card["kind"] == "generator":
        rows.append(("template", _template(card)))
    rows.append(("tokenizer", str(card["tokenizer"])))
    cache = "" if card["memory"]["kv"] == "f16" else f" of {card['memory']['kv']}"
    rows.append(("memory", f"{size(card['memory']['load'])} at load"))
    rows += [
        ("", f"{size(total)} with {int(tokens):,} tokens in the cache{cache}")
        for tokens, total in card["memory"]["contexts"].items()
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name.ljust(width)}  {text}" for name, text in rows]


def _template(card: Mapping[str, Any]) -> str:
    name, known = card["template"], ", ".join(card["template_variables"])
    if name is None:
        return "none: it continues text, chat requests are refused"
    return ("the file's own" if name == "gguf" else f"{name}, built in") + (
        f"; knows {known}" if known else ""
    )


def _tokenizer(file: ModelFile) -> str | None:
    if file.tokenizer_json is not None:
        return "tokenizer.json"
    return file.metadata.get("tokenizer.ggml.model")


def _windows(graph: Graph) -> dict[str, int]:
    """Layers by what they see: "all", the tokens of their window, or "state": what it kept of the past."""
    counts: Counter[str] = Counter()
    for group in graph.caches:
        if group.kind == "state":  # a layer may have states of several sizes
            counts["state"] = max(counts["state"], group.n_layers)
        else:
            counts["all" if group.window is None else str(group.window)] += group.n_layers
    return dict(counts)


def _groups(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Parameters, bytes and the formats' shares of them, for each part of the model."""
    parts: dict[str, Any] = {}
    for name, tensor in tensors.items():
        last = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
        part = next((part for part, words in _GROUPS if any(word in last for word in words)), "other")
        group = parts.setdefault(part, {"parameters": 0, "bytes": 0, "formats": Counter()})
        count = math.prod(tensor.shape)
        group["parameters"] += count
        group["bytes"] += tensor.nbytes
        group["formats"][tensor.format.name] += count
    for group in parts.values():
        group["formats"] = {form: n / group["parameters"] for form, n in group["formats"].most_common()}
    return parts


def _general(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Name, licence and origin, where the file says them."""
    found = {}
    for label, keys in (
        ("name", ("general.name", "general.basename")),
        ("author", ("general.author", "general.organization")),
        ("licence", ("general.license",)), ("licence name", ("general.license.name",)),
        ("licence link", ("general.license.link",)), ("source", ("general.source.url", "general.url")),
    ):  # fmt: skip
        value = next((metadata[key] for key in keys if isinstance(metadata.get(key), str)), "")
        if value.strip():
            found[label] = value.strip()[:200]
    return found


def _count(parameters: int) -> str:
    """Parameters as people write them."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return str(parameters)
