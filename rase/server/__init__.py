"""The HTTP server: OpenAI's dialect over the sessions of ``rase.session`` (extra ``server``).

``create_app`` builds an ASGI application that a host mounts in its own server; ``rase.server.serve.serve``
runs one. Importing this package without the extra raises ``BackendUnavailable``, which says what to install.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rase.errors import BackendUnavailable

if TYPE_CHECKING:
    from rase.server.app import create_app

__all__ = ["create_app"]

for _name in ("starlette", "uvicorn"):
    if find_spec(_name) is None:
        raise BackendUnavailable(
            "the server",
            expected=f"the package '{_name}'",
            found="it is not installed",
            hint='Install it with: pip install "rase-llm[server]"',
        )


def __getattr__(name: str) -> Any:  # lazy: importing the package must not import starlette and uvicorn
    if name == "create_app":
        from rase.server.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
