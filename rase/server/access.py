"""Log lines: one per request, escaped and cut, as text or JSON; never a prompt, an answer or a key.

An error is named by its class and its places; what it says may quote a prompt.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from typing import Any

from rase.errors import BackendError, EngineError, InvalidLogits

__all__ = [
    "LOGGER", "JsonFormatter", "SingleLineFormatter", "facts", "log_failure", "log_request", "quoted",
    "set_up_logging",
]  # fmt: skip

LOGGER = logging.getLogger("rase.server")

_KEY = "rase.log"  # where handlers leave facts for the line, in the ASGI scope
_FACTS = ("model", "stream", "prompt", "cached", "completion", "finish", "error")


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(value: object, limit: int = 80) -> str:
    """``value`` in double quotes, cut to ``limit`` characters, with every unprintable one escaped."""
    text = str(value)
    cut = text[:limit]
    safe = _printable(cut.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{safe}"' + (f"+{len(text) - limit}" if len(text) > limit else "")


class _Places(logging.Formatter):
    """Names an exception by its class and where it was raised, on one line, without what it says."""

    def formatException(self, ei: Any) -> str:
        kind, _, trace = ei
        return f"{getattr(kind, '__name__', kind)} in {_places(trace)}"


class SingleLineFormatter(_Places):
    """Keeps one record on one line, whoever logs it: control characters are escaped at the very end."""

    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


class JsonFormatter(_Places):
    """One JSON object a line, in ASCII: ``time``, ``level``, ``event``, and the facts or a ``message``."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        if isinstance(record.msg, _Request):
            line |= {"event": "request", **record.msg.fields}
        else:
            line |= {"event": "message", "logger": record.name, "message": record.getMessage()[:2000]}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Request:
    """The message of a finished request: fields, which read as text for whoever wants text."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        known = self.fields
        facts = "".join(
            f" {name}={int(value) if isinstance(value, int) else quoted(value)}"
            for name in _FACTS
            if (value := known.get(name)) is not None
        )
        return (
            f"{known['client']} {quoted(known['method'], 16)} {quoted(known['path'], 120)} {known['status']} "
            f"{known['seconds']:.3f}s{facts} agent={quoted(known['agent'], 60)} id={known['id']}"
        )


def facts(scope: Any) -> dict[str, Any]:
    """The facts of a request that its log line will show (id, model, token counts, error code)."""
    return scope.setdefault(_KEY, {})  # type: ignore[no-any-return]


def log_request(scope: Any, status: int, seconds: float) -> None:
    """Write the line of one finished request."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    host, port = scope.get("client") or ("-", 0)
    agent = next((v for k, v in scope["headers"] if k == b"user-agent"), b"").decode("latin-1")
    known = facts(scope)
    fields = {
        "id": known.get("id", "-"), "client": f"{host}:{port}", "method": scope["method"][:16],
        "path": scope.get("path", "")[:500], "status": status, "seconds": round(seconds, 6),
        **{name: _cut(known[name]) for name in _FACTS if name in known}, "agent": agent[:200],
    }  # fmt: skip
    LOGGER.info(_Request(fields))


def _cut(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)[:200]


def log_failure(error: BaseException) -> None:
    """Log an error that nobody expected: its class and places, not its text, which may quote a prompt."""
    if isinstance(error, EngineError) and type(error) not in (EngineError, BackendError, InvalidLogits):
        return  # the request's own line names its code
    LOGGER.error("internal error: %s in %s", type(error).__name__, _places(error.__traceback__))


def _places(trace: Any) -> str:
    frames = traceback.extract_tb(trace)[-4:]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return places or "an unknown place"


def set_up_logging(stream: Any, form: str) -> None:
    """Write what rase and uvicorn log to ``stream``, as ``text`` or ``json``, unless the process does so."""
    package, server = logging.getLogger("rase"), logging.getLogger("uvicorn.error")
    if package.handlers or LOGGER.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(stream)
    text = SingleLineFormatter("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    for logger in (package, server):
        logger.addHandler(handler)
        logger.propagate = False
    package.setLevel(logging.INFO)
