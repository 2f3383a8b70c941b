"""The two files of a batch, in OpenAI's format: requests in, answers out, one JSON object a line.

Answers are appended as they come, a line in one write: a process that is killed at any moment leaves whole
lines and at most one torn one, which the next run cuts off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from rase.errors import InvalidRequest, StoreError
from rase.server.body import MAX_BODY

__all__ = ["URLS", "Answers", "Asked", "answer_line", "read_requests"]

URLS = ("/v1/chat/completions", "/v1/completions")
SYNC_S = 2.0  # how much work a loss of power may cost


class Asked(msgspec.Struct):
    """One line of the input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Response(msgspec.Struct):
    status_code: int


class _Done(msgspec.Struct):
    custom_id: str
    response: _Response


def read_requests(path: Path) -> Iterator[Asked]:
    """The requests of a file, in order. Blank lines are skipped.

    Raises ``InvalidRequest``, which names the line, for one that is no request of a batch or has the
    ``custom_id`` of an earlier one, and ``StoreError`` when the file cannot be read.
    """
    seen: set[str] = set()
    decoder = msgspec.json.Decoder(Asked)
    for number, line in _lines(path):
        try:
            asked = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _wrong(path, number, "custom_id, method, url and body in JSON", str(error)[:120]) from None
        if asked.method != "POST" or asked.url not in URLS:
            raise _wrong(path, number, "POST to " + " or ".join(URLS), f"{asked.method} {asked.url}"[:80])
        if asked.custom_id in seen:
            raise _wrong(path, number, "a custom_id of its own", repr(asked.custom_id[:80]))
        seen.add(asked.custom_id)
        yield asked


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_BODY + 1), b""), 1):
                if len(line) > MAX_BODY:
                    raise _wrong(path, number, f"at most {MAX_BODY} bytes", "a longer line")
                if text := line.strip():
                    yield number, text
    except OSError as error:
        raise StoreError(f"the file {path}", found=error.strerror) from None


def _wrong(path: Path, number: int, expected: str, found: str) -> InvalidRequest:
    return InvalidRequest(f"{path.name}, line {number}", expected=expected, found=found)


class Answers:
    """The output file, open for one run; ``finished`` are the custom_ids that it holds, ``failed`` of them
    with an error.

    Raises ``StoreError`` when it cannot be written or another run writes it, and ``InvalidRequest`` when it
    holds something else than answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.finished: set[str] = set()
        self.failed = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise StoreError(f"the file {path}", found=error.strerror) from None
        try:
            _lock(self._file, path)
            self._read()
        except BaseException:
            os.close(self._file)
            raise
        self._synced = time.monotonic()

    def _read(self) -> None:
        """Find what is there, and cut off a line that was not written to its end."""
        end = 0
        decoder = msgspec.json.Decoder(_Done)
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    done = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    raise _wrong(self._path, number, "an answer of a batch", "something else") from None
                if (name := done.custom_id) in self.finished:
                    raise _wrong(self._path, number, "one answer to each request", repr(name[:80]))
                self.finished.add(name)
                self.failed += done.response.status_code != 200
                end += len(line)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def add(self, line: bytes) -> None:
        """Append one answer, a line of JSON without its end."""
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self._file, data) :]
            if time.monotonic() - self._synced > SYNC_S:
                self._sync()
        except OSError as error:
            raise StoreError(f"the file {self._path}", found=error.strerror) from None

    def _sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sync()
        finally:
            os.close(self._file)


def _lock(file: int, path: Path) -> None:
    """Let no other run write the file, where the system has such locks; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        hint = "Wait for its end, or write to another file."
        raise StoreError(f"the file {path}", found="another batch writes it", hint=hint) from None


def answer_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """One answer in OpenAI's form; ``body`` is what the server would have answered."""
    line: dict[str, Any] = {
        "id": f"batch_req_{request_id}", "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)},
        "error": None,
    }  # fmt: skip
    return msgspec.json.encode(line)
