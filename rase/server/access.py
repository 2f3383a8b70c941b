"""One log line per request: escaped and cut values, never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from rase.errors import BackendError, EngineError, InvalidLogits

__all__ = ["LOGGER", "SingleLineFormatter", "facts", "log_failure", "log_request", "quoted"]

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


class SingleLineFormatter(logging.Formatter):
    """Keeps one record on one line, whoever logs it: control characters are escaped at the very end."""

    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


def facts(scope: Any) -> dict[str, Any]:
    """The facts of a request that its log line will show (model, token counts, error code)."""
    return scope.setdefault(_KEY, {})  # type: ignore[no-any-return]


def log_request(scope: Any, status: int, seconds: float) -> None:
    """Write the line of one finished request."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    client = scope.get("client") or ("-", 0)
    agent = next((v for k, v in scope["headers"] if k == b"user-agent"), b"").decode("latin-1")
    known = facts(scope)
    extra = []
    for name in _FACTS:
        if name in known:
            value = known[name]
            extra.append(f" {name}={value if isinstance(value, int) else quoted(value)}")
    LOGGER.info(
        "%s:%s %s %s %d %.3fs%s agent=%s", client[0], client[1], quoted(scope["method"], 16),
        quoted(scope.get("path", ""), 120), status, seconds, "".join(extra), quoted(agent, 60),
    )  # fmt: skip


def log_failure(error: BaseException) -> None:
    """Log an error that nobody expected: its class and places, not its text, which may quote a prompt."""
    if isinstance(error, EngineError) and type(error) not in (EngineError, BackendError, InvalidLogits):
        return  # the request's own line names its code
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    LOGGER.error("internal error: %s in %s", type(error).__name__, places or "an unknown place")
