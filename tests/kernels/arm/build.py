"""The driver of this folder for 64-bit ARM: cross-compiled with the wheel's flags, kept, run by qemu."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from tests.conftest import cache_dir

KERNELS = Path(__file__).parents[3] / "rase" / "_kernels"
COMPILER, EMULATORS = "aarch64-linux-gnu-gcc", ("qemu-aarch64-static", "qemu-aarch64")
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"


def missing_tools() -> str | None:
    """Why nothing can be tested here, or None."""
    if shutil.which(COMPILER) is None or not any(map(shutil.which, EMULATORS)):
        return f"needs the cross compiler and the emulator of Debian: apt-get install {PACKAGES}"
    return None


def variant_flags(processor: str) -> dict[str, list[str]]:
    """Each variant's flags in CMakeLists.txt on ``processor`` ("x86_64" or "aarch64"); "" is the baseline."""
    text = (KERNELS / "CMakeLists.txt").read_text("utf-8")
    common = re.search(r"add_compile_options\((.*)\)", text)
    branch = re.search(rf'MATCHES "[^"]*{processor}[^"]*"\)(.*?)\nelse', text, re.DOTALL)
    tight = re.search(r"set\(tight (-.*)\)", text)
    assert common and branch and tight, "CMakeLists.txt has another form"
    values = {name: words.split() for name, words in re.findall(r"set\((\w+) (.*)\)", branch[1])}
    base = ["-std=gnu11", *common[1].split(), *values["baseline"]]
    flags = {name: [word for word in values[f"flags_{name}"] if word != '""'] for name in values["variants"]}
    return {"": base, **{name: [*base, *tight[1].split(), *words] for name, words in flags.items()}}


def stubs(*linked: str) -> str:
    """C source of empty tables for the variants that dispatch.c names and a program leaves out, all but
    ``linked``."""
    named = re.findall(r"&rase_(kernels|tiles)_(\w+)", (KERNELS / "dispatch.c").read_text("utf-8"))
    assert len(named) > len(linked) and {*linked} <= {name for _, name in named}, named
    empty = [f"const rase_{kind} rase_{kind}_{name};" for kind, name in named if name not in linked]
    return "\n".join(['#include "kernels.h"', *empty, ""])


def build(optimization: str) -> Path:
    """The driver with every ARM variant; ``optimization`` takes the place of -O3, which changes no bit."""
    flags = variant_flags("aarch64")
    sources = {f"simd/{name}.c" if name else "dispatch.c": words for name, words in flags.items()}
    digest = hashlib.sha256(repr((optimization, sources)).encode())
    for path in sorted([*KERNELS.rglob("*.h"), *KERNELS.rglob("*.c"), Path(__file__).with_name("driver.c")]):
        digest.update(path.read_bytes())
    target = cache_dir() / f"arm-driver{optimization}"
    stamp = target.with_suffix(".sha256")
    with FileLock(f"{target}.lock"):
        if not (stamp.exists() and stamp.read_text() == digest.hexdigest()):
            _compile(sources, optimization, target)
            stamp.write_text(digest.hexdigest())
    return target


def _compile(sources: dict[str, list[str]], optimization: str, target: Path) -> None:
    launcher = os.environ.get("CMAKE_C_COMPILER_LAUNCHER", "").split()
    folder = target.with_suffix(".objects")
    folder.mkdir(exist_ok=True)

    def compile_one(source: Path, flags: list[str]) -> Path:
        out = folder / f"{source.stem}.o"
        command = [
            *launcher,
            COMPILER,
            *flags,
            optimization,
            "-Werror",
            f"-I{KERNELS}",
            "-c",
            str(source),
            "-o",
            str(out),
        ]
        subprocess.run(command, check=True, timeout=600)
        return out

    jobs = [(KERNELS / name, flags) for name, flags in sources.items()]
    jobs.append((Path(__file__).with_name("driver.c"), sources["dispatch.c"]))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: compile_one(*job), jobs))
    subprocess.run([COMPILER, "-static", *map(str, objects), "-o", str(target)], check=True, timeout=120)


def run(driver: Path, *arguments: str, cpu: str = "max") -> str:
    """The driver's output on an emulated processor."""
    emulator = next(name for name in map(shutil.which, EMULATORS) if name)
    command = [emulator, "-cpu", cpu, str(driver), *arguments]
    return subprocess.run(command, check=True, timeout=600, capture_output=True, text=True).stdout
