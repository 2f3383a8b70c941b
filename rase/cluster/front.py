"""``Front``: what the application needs around it behind Serve's HTTP proxy."""

from __future__ import annotations

from typing import Any

from rase.server.errors import Refused, error_response
from rase.server.guard import OPEN, is_loopback

__all__ = ["Front"]

_ID = b"x-request-id"


class Front:
    """ASGI middleware: refuses strangers, and leaves the request's id to the proxy, which sends it, too.

    Where the proxy listens may be somebody else's choice (``serve start --http-host``). So a request that
    comes in on an address which other machines reach is refused unless ``open``: keys are asked for, or
    everybody is let in on purpose.
    """

    def __init__(self, app: Any, *, open: bool) -> None:
        self._app, self._open = app, open

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = (scope.get("server") or ("", 0))[0] or ""
        if not (self._open or is_loopback(address) or scope["path"] in OPEN):
            await error_response(_STRANGER)(scope, receive, send)
            return
        known = {value for name, value in scope["headers"] if name == _ID}

        async def send_once(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(k, v) for k, v in message["headers"] if k != _ID or v not in known]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_once)


_STRANGER = Refused(
    403, "api_key_required", "this server asks for no API key, so it answers its own machine only",
    hint="Whoever runs it sets api_key_file, or insecure to let everybody use it.")  # fmt: skip
