"""Builds of the peers for this machine, kept below the user's cache; made once, with pip alone.

    python -m bench.builds [avx512] [amx] [openvino]

``avx512`` and ``amx`` are llama.cpp (``llama-cpp-python``, ten minutes each on two cores); ``openvino`` is
OpenVINO GenAI from its wheels. gcc 12 drops the stores that fill llama.cpp's tile configuration, since the
intrinsic that reads it declares 8 bytes: without ``-fno-tree-dse -fno-dse`` the AMX build dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

__all__ = ["ensure", "folder", "openvino_python", "present", "python", "server_python"]

LLAMA_CPP_PYTHON = "0.3.36"
PACKAGES = ("numpy", "typing-extensions", "diskcache", "jinja2")
SERVER_PACKAGES = ("uvicorn", "fastapi", "pydantic-settings", "sse-starlette", "starlette-context")
OPENVINO_GENAI = "2026.4.1.0"
FLAGS = "-DGGML_OPENMP=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DGGML_CCACHE=OFF"
AVX512 = (
    "SSE42",
    "AVX",
    "AVX2",
    "FMA",
    "F16C",
    "BMI2",
    "AVX512",
    "AVX512_VBMI",
    "AVX512_VNNI",
    "AVX512_BF16",
)
BUILDS = {
    "avx512": ("-DGGML_NATIVE=OFF " + " ".join(f"-DGGML_{name}=ON" for name in AVX512), ""),
    "amx": ("-DGGML_NATIVE=ON", "-fno-tree-dse -fno-dse"),
}


def folder() -> Path:
    """Where everything is kept: RASE_BENCH_CACHE, else below the user's cache."""
    path = Path(os.environ.get("RASE_BENCH_CACHE") or user_cache_path("rase-bench"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def python() -> Path:
    """The interpreter that runs the builds of llama.cpp."""
    return folder() / "llamacpp-venv" / "bin" / "python"


def server_python() -> Path:
    """As ``python``, with what ``llama_cpp.server`` needs besides, installed by the first call."""
    with FileLock(str(folder() / "builds.lock")):
        if not python().exists():
            _venv(python(), *PACKAGES)
        if not (python().parent / "uvicorn").exists():
            _pip(python(), *SERVER_PACKAGES)
    return python()


def openvino_python() -> Path:
    """The interpreter that has OpenVINO GenAI."""
    return folder() / "openvino-venv" / "bin" / "python"


def present() -> list[tuple[str, Path]]:
    """The builds of llama.cpp that are there: (label, folder of the package)."""
    return [
        (name, _build(name)) for name in BUILDS if (_build(name) / "llama_cpp").is_dir() and python().exists()
    ]


def ensure(name: str) -> Path:
    """Make the peer ``name`` unless it is there; the folder of llama_cpp, or OpenVINO's interpreter.

    Raises ``subprocess.CalledProcessError`` when pip or the compiler fails; both say why on stderr.
    """
    with FileLock(str(folder() / "builds.lock")):
        if name == "openvino":
            if not openvino_python().exists():
                _venv(openvino_python(), f"openvino-genai=={OPENVINO_GENAI}", "numpy", "psutil")
            return openvino_python()
        if not python().exists():
            _venv(python(), *PACKAGES)
        target = _build(name)
        if not (target / "llama_cpp").is_dir():
            _compile(name, target)
        return target


def _build(name: str) -> Path:
    return folder() / f"llamacpp-{LLAMA_CPP_PYTHON}-{name}"


def _venv(interpreter: Path, *packages: str) -> None:
    root = interpreter.parents[1]
    part = root.with_name(root.name + ".part")
    print(f"making {root}", file=sys.stderr)
    venv.create(part, clear=True, with_pip=True)
    _pip(part / "bin" / "python", *packages)
    part.rename(root)  # scripts of it name the old place, its interpreter does not mind


def _compile(name: str, target: Path) -> None:
    options, compiler = BUILDS[name]
    part = target.with_name(target.name + ".part")
    environment = {**os.environ, "CMAKE_ARGS": f"{FLAGS} {options}"}
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    for variable in ("CFLAGS", "CXXFLAGS"):
        environment[variable] = f"{environment.get(variable, '')} {compiler}".strip()
    print(f"building llama.cpp for {name}: about ten minutes on two cores", file=sys.stderr, flush=True)
    source = ("--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--upgrade")
    _pip(python(), *source, "--target", str(part), f"llama-cpp-python=={LLAMA_CPP_PYTHON}", env=environment)
    part.rename(target)


def _pip(interpreter: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
    command = [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=env)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ["avx512", "amx"]:
        print(ensure(chosen))
