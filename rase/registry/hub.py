"""The source ``hf:``: files of the Hugging Face hub (or a mirror), each checked against the hash the hub
declares.

Download, cache, proxies, tokens and offline use are the job of ``huggingface_hub``, which checks only the
size of what it fetched; this module adds the hash. Files stay in that library's cache, where other programs
find them too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from rase.errors import Cancelled, EngineError, HubError
from rase.registry.files import CancelCheck, Progress, hash_file

__all__ = ["HubFile", "HuggingFaceHub"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")
_RETRY = "Try again; what was fetched is kept or fetched again as needed."


@dataclass(frozen=True)
class HubFile:
    """A file in the hub's cache and the hash that the hub declares for it (SHA-256, or a git blob's
    SHA-1).
    """

    path: Path
    declared: str | None

    @property
    def sha256(self) -> str | None:
        return self.declared if self.declared and _SHA256.fullmatch(self.declared) else None


class HuggingFaceHub:
    """Public (or, with a token in HF_TOKEN, private) files of the hub.

    ``endpoint`` and ``cache_dir`` default to what HF_ENDPOINT and HF_HOME say.
    """

    def __init__(self, endpoint: str | None = None, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self.endpoint, self.cache_dir = endpoint, cache_dir

    def download(
        self, repo: str, file: str, progress: Progress | None = None, *, revision: str | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Path:  # fmt: skip
        """Return the path of ``file`` of ``repo`` in the hub's cache, fetched if absent, its hash checked.

        ``progress(done, total)`` counts bytes. Raises ``HubError``; a file with the wrong hash is not kept.
        """
        found = self.fetch(repo, file, progress, revision=revision, cancelled=cancelled)
        if found.sha256 is not None:
            actual, _ = hash_file(found.path, cancelled=cancelled, what="the downloaded file")
            if actual != found.sha256:
                self.discard(found)
                raise _wrong_hash(file, found.sha256, actual)
        return found.path

    def fetch(
        self, repo: str, file: str, progress: Progress | None = None, *, revision: str | None = None,
        cancelled: CancelCheck | None = None,
    ) -> HubFile:  # fmt: skip
        """Like ``download``, but leaves a declared SHA-256 to the caller, who hashes the file anyway."""
        hub = _library()
        unreachable: Exception | None = None
        try:
            unreachable = self._check_redirect(hub, repo, file, revision)
            path = hub.hf_hub_download(
                repo, file, revision=revision, cache_dir=self.cache_dir, endpoint=self.endpoint,
                local_files_only=unreachable is not None, library_name="rase",
                tqdm_class=_bar(progress, cancelled),
            )  # fmt: skip
        except EngineError:
            raise
        except Exception as error:  # the library and its HTTP client raise many kinds
            raise _explain(error, repo, file, unreachable) from (unreachable or error)
        # The cache names a blob by the tag that the hub declared: the hash is known offline, too.
        tag = os.path.basename(os.path.realpath(path))
        declared = tag if _SHA256.fullmatch(tag) or _GIT_SHA1.fullmatch(tag) else None
        found = HubFile(Path(path), declared)
        if declared is not None and _GIT_SHA1.fullmatch(declared):  # a small file that git itself holds
            content = found.path.read_bytes()
            actual = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            if actual != declared:
                self.discard(found)
                raise _wrong_hash(file, declared, actual)
        return found

    def discard(self, file: HubFile) -> None:
        """Remove a wrong file from the hub's cache, so that the next download fetches it again."""
        for path in (os.path.realpath(file.path), os.fspath(file.path)):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise HubError(
                    f"a wrong file stays in the hub's cache: {path}",
                    found=error.strerror,
                    hint="Remove it by hand.",
                ) from None

    def discard_wrong(self, files: Sequence[HubFile]) -> None:
        """Remove those of ``files`` that are not what the hub declared, or for which it declared nothing."""
        for file in files:
            if file.declared is None or (file.sha256 is not None and hash_file(file.path)[0] != file.sha256):
                self.discard(file)

    def _check_redirect(
        self, hub: ModuleType, repo: str, file: str, revision: str | None
    ) -> Exception | None:
        """Refuse a hub that answers with an address of another kind (https to http, ftp, file).

        Returns the error when there is no hub at all: then only the cache is asked, since the library would
        go on trying for half a minute.
        """
        if hub.constants.is_offline_mode():
            return None  # the library knows
        url = hub.hf_hub_url(repo, file, revision=revision, endpoint=self.endpoint)
        try:
            location = hub.get_hf_file_metadata(url, library_name="rase").location
        except Exception as error:
            if _is_answer(error):
                raise
            from huggingface_hub.errors import HfHubHTTPError

            # A hub that is busy is asked again by the download itself.
            return None if isinstance(error, HfHubHTTPError) else error
        given, target = urlsplit(url).scheme, urlsplit(str(location)).scheme
        if target and target != given and (given, target) != ("http", "https"):
            raise HubError(
                f"the hub redirects {file!r} to an address of another kind", expected=f"{given}:",
                found=f"{target}:",
                hint="Check HF_ENDPOINT, or fetch the file by hand and use 'rase model import'.",
            )  # fmt: skip
        return None


def _library() -> ModuleType:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported
    import huggingface_hub.constants

    return huggingface_hub


def _is_answer(error: Exception) -> bool:
    """Whether the hub answered that it will not give the file (a retry or the cache would not help)."""
    from huggingface_hub import errors

    return isinstance(
        error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.RemoteEntryNotFoundError
    )


def _bar(progress: Progress | None, cancelled: CancelCheck | None) -> type[Any]:
    """A class with the parts of ``tqdm`` that the library uses, which reports to ``progress`` instead of
    drawing.
    """
    furthest = 0

    class Bar:
        def __init__(self, *_: object, total: int | None = None, initial: int = 0, **__: object) -> None:
            self.total, self.n = total, initial

        def update(self, count: float | None = 1) -> None:
            nonlocal furthest
            self.n += int(count or 0)
            if cancelled is not None and cancelled():
                raise Cancelled("the download", done=self.n, total=self.total)
            if (
                progress is not None and self.n > furthest
            ):  # two bars may run at once: bytes fetched, bytes put together
                furthest = self.n
                progress(self.n, int(self.total or 0))

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def __getattr__(self, name: str) -> Any:  # everything that only draws
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_, **__: None

    return Bar


def _wrong_hash(file: str, expected: str, found: str) -> HubError:
    return HubError(
        f"{file!r} is not what the hub declares", expected=f"hash {expected}", found=found,
        hint="It was removed from the cache: try again, or check HF_ENDPOINT and proxies.",
    )  # fmt: skip


def _explain(error: Exception, repo: str, file: str, unreachable: Exception | None) -> HubError:
    """The library's error as one line with a next step."""
    from huggingface_hub import errors

    what, hint = f"{file!r} of {repo!r} could not be fetched", _RETRY
    if isinstance(error, errors.GatedRepoError):
        what, hint = f"{repo!r} asks you to accept its terms", "Accept them on its page, then set HF_TOKEN."
    elif isinstance(error, errors.RepositoryNotFoundError):
        what = f"the hub has no repository {repo!r}, or it is private"
        hint = "Check the spelling; for a private repository set HF_TOKEN."
    elif isinstance(error, errors.RevisionNotFoundError):
        what, hint = f"{repo!r} has no such revision", "Leave the revision out, or check its spelling."
    elif isinstance(error, errors.LocalEntryNotFoundError):
        hint = (
            "Check the connection, HF_ENDPOINT and HF_HUB_OFFLINE (offline there is what was fetched before)."
        )
    elif isinstance(error, errors.EntryNotFoundError):
        what, hint = (
            f"{repo!r} has no file {file!r}",
            f"See the files of https://huggingface.co/{repo}/tree/main.",
        )
    elif isinstance(error, errors.HFValidationError):
        what, hint = f"{repo!r} is not a repository name", "Write it as OWNER/NAME."
    error = unreachable or error
    detail = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return HubError(what, found=detail[:300], hint=hint, repo=repo, file=file)
