"""The HTTP server: OpenAI's dialect over the sessions of ``rase.session`` (extra ``server``).

``create_app`` builds an ASGI application that a host mounts in its own server; ``serve`` runs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rase.server.app import create_app
    from rase.server.serve import serve

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:  # lazy: importing the package must not import starlette and uvicorn
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module({"create_app": "rase.server.app", "serve": "rase.server.serve"}[name])
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("starlette", "uvicorn", "sse_starlette", "h11", "anyio"):
            raise
        from rase.errors import BackendUnavailable

        raise BackendUnavailable(
            f"the server needs the package '{error.name}', which is not installed",
            hint='Install it with: pip install "rase-llm[server]"',
        ) from None
    return getattr(module, name)
