"""What a folder says of its text: template, special tokens, name. The tokenizer is its tokenizer.json."""

from __future__ import annotations

from typing import Any

from rase.checkpoint.config import Config
from rase.safetensors.folder import SafetensorsFolder

__all__ = ["text_metadata"]

_ENDS = (
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
)  # what GGUF calls up to three tokens that end an answer


def text_metadata(folder: SafetensorsFolder, config: Config) -> dict[str, Any]:
    """``tokenizer.*`` and ``general.name``. Raises ``CorruptModelFile``."""
    own: dict[str, Any] = {"general.name": folder.path.name}
    generation = Config(folder.document("generation_config.json") or {}, config.file)
    for source in (generation, config):
        for name, value in _special(source).items():
            own.setdefault(f"tokenizer.ggml.{name}", value)
    table = folder.document("tokenizer_config.json") or {}
    for name in ("bos", "eos"):
        if (token := _content(table.get(f"{name}_token"))) is not None:
            own[f"tokenizer.{name}_token"] = token
    if (template := _template(folder, table)) is not None:
        own["tokenizer.chat_template"] = template
    return own


def _special(config: Config) -> dict[str, int]:
    """The ids of one document; its end tokens count only together."""
    found: dict[str, int] = {}
    begin, end = config.get("bos_token_id"), config.get("eos_token_id")
    if begin is not None:
        found["bos_token_id"] = config.integer("bos_token_id")
    ends = end if isinstance(end, list) else [] if end is None else [end]
    if not all(type(id) is int and 0 <= id < 2**31 for id in ends):
        raise config.bad("eos_token_id", "ids of tokens", end)
    found.update(zip(_ENDS, ends, strict=False))
    return found


def _content(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _template(folder: SafetensorsFolder, table: dict[str, Any]) -> str | None:
    """The file of its own, which newer folders have, else the one inside the tokenizer's configuration."""
    name = "chat_template.jinja"
    if name in folder.documents:
        try:
            return folder.documents[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise folder.file(name).corrupt("it is not UTF-8", found=f"byte {error.start}") from None
    value = (folder.document("chat_template.json") or table).get("chat_template")
    if isinstance(value, list):  # several by name
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) and value.strip() else None
