"""The house keeps its shape: imports point downwards, upper floors name no lower part, files are small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rase import backends, models

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rase"

# Modules directly under rase/ and the floor that they belong to; a folder is its own floor.
FLOORS = {
    "__init__": "public", "__main__": "cli",
    "api": "api", "model": "api", "streaming": "api",
    "completion": "completion",
    "answers": "completion", "running": "completion",
    "session": "session", "session_cache": "session", "loading": "session",
    "store": "session", "card": "session", "embedding": "session", "loaded": "session",
    "session_base": "session", "selfcheck": "session",
    "decoders": "session", "device": "session", "memory": "session", "probe": "session",
    "errors": "free", "env": "free", "profiling": "free", "metrics": "free", "bell": "free",
    "duration": "free", "settings": "free", "configfile": "free",
}  # fmt: skip

# What each floor may import besides itself and the free modules; "engine.config" allows that one module.
# The configuration of a generation and the messages of a chat are the values that callers hand in.
VALUES = {"engine.config", "engine.generation", "text.messages"}
ARROWS: dict[str, set[str]] = {
    "public": {"api", "completion", "session", "registry", "text.chat", "text.tokenizer", *VALUES},
    "cli": {"cluster", "server", "session", "completion", "registry", "api", "benchmark", "convert", *VALUES},
    "benchmark": {"session", "graph", "gguf", "models.files", "backends.base", "backends.limits"},
    "cluster": {"server", "session", "completion", "api", "registry", *VALUES},
    "server": {"session", "completion", "registry", *VALUES},
    "api": {"completion", "session", "registry", *VALUES},
    "completion": {"session", "engine", "text"},
    "session": {"engine", "text", "models", "graph", "backends", "gguf", "safetensors", "registry"},
    "testing": {"backends", "graph", "models", "gguf"},
    "convert": {"models.files", "gguf", "text", "_kernels", "registry.files"},
    "registry": {"gguf", "safetensors", "text"},
    "text": {"gguf"},
    "engine": {"backends.base", "_kernels"},
    "models": {"graph", "gguf", "checkpoint", "safetensors"},
    "checkpoint": {"gguf", "safetensors", "_kernels"},
    "safetensors": {"gguf"},
    "backends": {"graph", "gguf.formats", "gguf.dequantize", "_kernels"},
    "graph": set(),
    "gguf": set(),
    "_kernels": set(),
    "free": set(),
}

SOURCES = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")])


def floor_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else FLOORS.get(path.stem, f"unknown module {path.stem}")


def module_of(dotted: str) -> str:
    """The module part of a dotted name below rase: engine.config.X -> engine.config, __version__ -> ""."""
    parts = dotted.split(".")
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.is_dir() or path.with_suffix(".py").exists() or path.with_suffix(".pyx").exists():
            return ".".join(parts)
        parts.pop()
    return "" if dotted in ("", "__version__") else dotted


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module below rase) of every import, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("."):
                yield node.lineno, "a relative import"
            elif name == "rase" or name.startswith("rase."):
                yield node.lineno, module_of(name.removeprefix("rase").removeprefix("."))


def allowed(floor: str, module: str) -> bool:
    target = module.split(".")[0]
    target = FLOORS.get(target, target)
    if not module or target in ("free", floor):  # "" is the package itself: its version
        return True
    return target in ARROWS[floor] or any(
        module == arrow or module.startswith(f"{arrow}.") for arrow in ARROWS[floor]
    )


def test_every_module_stands_on_a_known_floor():
    unknown = [str(path.relative_to(ROOT)) for path in SOURCES if floor_of(path) not in ARROWS]
    assert not unknown, f"no floor for {unknown}: add it to FLOORS or ARROWS of this test, on purpose"


def test_imports_point_downwards_only():
    wrong = []
    for path in SOURCES:
        floor = floor_of(path)
        for line, module in imported(ast.parse(path.read_text("utf-8"))):
            if not allowed(floor, module):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {floor} may not import {module}")
    assert not wrong, "\n".join(wrong)


def test_kernels_import_nothing_of_the_package():
    pattern = re.compile(r"^\s*(?:from|import|cimport)\s+(rase(?:\.[\w.]+)?)", re.M)
    wrong = []
    for path in CYTHON:
        for module in pattern.findall(path.read_text("utf-8")):
            if module != "rase._kernels" and not module.startswith(("rase._kernels.", "rase.errors")):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_comparison_sees_a_wrong_arrow():
    """The test of the test: wrong imports in all their spellings are found, right ones are not."""
    text = "import rase.server.app\nfrom rase import server\nfrom rase.session import ModelSession\n"
    found = [
        module for _, module in imported(ast.parse(text + "from . import x\nfrom rase import __version__\n"))
    ]
    assert found[:3] == ["server.app", "server", "session"] and found[3:] == ["a relative import", ""]
    assert not any(allowed("engine", module) for module in found[:4]) and allowed("engine", "")
    assert allowed("engine", "backends.base") and not allowed("engine", "backends.reference")
    assert allowed("backends", "gguf.formats") and not allowed("backends", "gguf.reader")


@pytest.mark.parametrize("floor", ["server", "cli"])
def test_upper_floors_name_no_architecture_backend_or_kernel(floor):
    devices = {"cpu"}  # a word of users for a device, as well as a backend's name
    isas = {path.stem for path in (PACKAGE / "_kernels/simd").glob("*.c")}
    assert {"scalar", "avx512vbmi", "amx"} <= isas
    names = {*models.names(), *backends.names(), *isas} - devices
    wrong = []
    for path in SOURCES:
        if floor_of(path) != floor:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            word = node.value if isinstance(node, ast.Constant) else None
            if isinstance(word, str) and word.lower() in names:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {word!r}")
    assert not wrong, "\n".join(wrong)


def test_architecture_files_name_no_format_or_device():
    formats = re.compile(r"\b(?:F32|F16|BF16|Q\d_[0-9K]|cpu|gpu|cuda|avx\w*|amx|neon|numpy)\b", re.I)
    for path in sorted((PACKAGE / "models").glob("*.py")):
        if path.stem in ("__init__", "config", "keys"):
            continue
        text = path.read_text("utf-8")
        assert not formats.findall(text), f"{path.name} names {formats.findall(text)}"
        assert len(text.splitlines()) <= 120, f"{path.name} is longer than a paper's method section"


def test_files_stay_small():
    budgets = {".py": 400, ".pyx": 400, ".pxd": 400, ".h": 400, ".c": 400}
    too_long = []
    for folder in (PACKAGE, ROOT / "tests", ROOT / "bench"):
        for path in folder.rglob("*") if folder.is_dir() else ():
            if path.suffix in budgets and "__pycache__" not in path.parts:
                lines = path.read_bytes().count(b"\n")
                if lines > budgets[path.suffix]:
                    too_long.append(f"{path.relative_to(ROOT)}: {lines} lines, budget {budgets[path.suffix]}")
    assert not too_long, "\n".join(too_long)


def test_every_module_says_its_job_first():
    for path in SOURCES:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        assert docstring and len(docstring.splitlines()[0]) > 10, f"{path.relative_to(ROOT)} has no docstring"
