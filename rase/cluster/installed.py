"""Importing this raises ``BackendUnavailable`` without the extra ``ray``, and says what to install."""

from __future__ import annotations

from importlib.util import find_spec

from rase.errors import BackendUnavailable

__all__: list[str] = []

for _name in ("ray", "starlette", "uvicorn", "prometheus_client"):
    if find_spec(_name) is None:
        raise BackendUnavailable(
            "a cluster", expected=f"the package '{_name}'", found="it is not installed",
            hint='Install it with: pip install "rase-llm[ray]"')  # fmt: skip
