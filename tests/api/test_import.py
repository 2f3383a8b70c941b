"""``import rase``: its budget, its names, and what it says when the kernels are not built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rase
from tests.support import toys

HEAVY = (
    "numpy", "tokenizers", "huggingface_hub", "jinja2", "msgspec", "starlette", "uvicorn", "click", "rich",
    "psutil", "rase._kernels", "rase.server", "rase.cli", "rase.engine", "rase.text",
)  # fmt: skip


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing_heavy() -> None:
    found = python(f"import rase, sys; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert found == "[]"


def test_importing_takes_at_most_30_ms() -> None:
    """Processor time, best of five: what other processes of the machine do must not decide."""
    code = "import time; start = time.process_time(); import rase; print(time.process_time() - start)"
    best = min(float(python(code)) for _ in range(5))
    assert best < 0.030, f"{best * 1000:.1f} ms"


@pytest.mark.parametrize("name", sorted(set(rase.__all__) - {"__version__"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(rase, name).__name__ == name
    assert name in dir(rase)


def test_every_kind_of_error_is_public() -> None:
    from rase import errors

    assert set(errors.__all__) <= set(rase.__all__)


def test_the_names_that_type_checkers_see_are_those_that_exist() -> None:
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(rase))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    from rase import errors

    assert (seen - {None}) | set(errors.__all__) == set(rase.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        rase.nonsense  # noqa: B018
    assert not hasattr(rase, "numpy")


def test_star_import_brings_the_public_names() -> None:
    assert python("from rase import *; print(load.__name__, EngineError.__name__)") == "load EngineError"


@pytest.mark.parametrize("call", ["rase.probe_runtime()", "rase.load('model.gguf')"])
def test_missing_kernels_are_explained(tmp_path: Path, call: str) -> None:
    toys.chain(tmp_path, ["x", "y"], name="model")
    code = f"""
import os, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("rase._kernels."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import rase
os.chdir({str(tmp_path)!r})
try:
    {call}
except rase.EngineError as error:
    print(type(error).__name__, error)
"""
    said = python(code)
    assert said.startswith("BackendUnavailable") and "pip install" in said, said
