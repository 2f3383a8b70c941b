"""PLT-1: the baseline kernels alone, as a C program, on an emulated processor with SSE2 and no more."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from rase.gguf.formats import format_named
from tests.conftest import cache_dir
from tests.kernels.arm import build
from tests.kernels.arm.records import (
    Records,
    attention_records,
    gemm_records,
    linear_records,
    quantize_records,
    rotate_records,
    row_records,
)
from tests.kernels.support import FORMAT_NAMES

SSE2 = "qemu64,-sse3,-ssse3,-cx16,-popcnt,-sse4a,-abm,-sse4.1,-sse4.2"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("gcc") or not shutil.which("qemu-x86_64-static"),
        reason="needs gcc and the emulator of Debian: apt-get install gcc qemu-user-static",
    ),
]


@pytest.fixture(scope="module")
def driver() -> Path:
    """The driver of the ARM tests, for this processor, with the scalar kernels only; made once."""
    flags = build.variant_flags("x86_64")
    sources = [
        build.KERNELS / "simd/scalar.c",
        build.KERNELS / "dispatch.c",
        Path(build.__file__).with_name("driver.c"),
    ]
    others = build.stubs("scalar")
    digest = hashlib.sha256(repr(flags).encode() + others.encode())
    for path in sorted([*build.KERNELS.rglob("*.h"), *sources]):
        digest.update(path.read_bytes())
    target = cache_dir() / "sse2-driver"
    stamp = target.with_suffix(".sha256")
    with FileLock(f"{target}.lock"):
        if not (stamp.exists() and stamp.read_text() == digest.hexdigest()):
            stubs = target.with_suffix(".stubs.c")
            stubs.write_text(others)
            command = ["gcc", *flags["scalar"], "-O1", f"-I{build.KERNELS}", "-static"]
            subprocess.run(
                [*command, *map(str, [*sources, stubs]), "-o", str(target)], check=True, timeout=500
            )
            stamp.write_text(digest.hexdigest())
    return target


def run(driver: Path, *arguments: str, cpu: str = SSE2) -> subprocess.CompletedProcess[str]:
    command = ["qemu-x86_64-static", "-cpu", cpu, str(driver), *arguments]
    return subprocess.run(command, timeout=500, capture_output=True, text=True)


def test_plt_1_the_baseline_kernels_run_on_sse2_with_the_bits_of_this_machine(
    driver: Path, tmp_path: Path
) -> None:
    rng, everything = np.random.default_rng(3), Records()
    for fmt in FORMAT_NAMES:
        block = format_named(fmt).block_size
        linear_records(everything, fmt, 19, 2 * block if block > 1 else 26, 5, rng)
    for n in (1, 33, 576):
        row_records(everything, n, rng)
    for block in (32, 256):
        quantize_records(everything, block, rng)
    gemm_records(everything, 37, 17, rng)
    for n_dims, neighbour in ((64, False), (20, True)):
        rotate_records(everything, n_dims, neighbour, rng)
    attention_records(everything, 3, 250, 64, 0, rng)
    everything.write(tmp_path / "input")
    done = run(driver, "scalar", str(tmp_path / "input"), str(tmp_path / "output"))
    assert done.returncode == 0, done.stderr
    assert everything.differences((tmp_path / "output").read_bytes()) == []


def test_plt_1_dispatch_says_what_an_sse2_processor_lacks(driver: Path) -> None:
    lines = dict(line.split(" ", 1) for line in run(driver, "list").stdout.splitlines())
    assert lines.pop("scalar") == ""
    assert lines and all(lines.values()), "something above SSE2 is offered"


def test_the_emulator_refuses_what_this_processor_lacks(tmp_path: Path) -> None:
    """The test of the test: SSSE3 and AVX end a program there with an illegal instruction."""
    source = tmp_path / "above.c"
    source.write_text(
        "#include <immintrin.h>\nint main(int n, char **v) {\n"
        "  __m128i x = _mm_set1_epi8((char)n), y = WHAT(x, x);\n"
        "  return _mm_cvtsi128_si32(y) == 12345;\n}\n"
    )
    for flag, what in (
        ("-mssse3", "_mm_shuffle_epi8"),
        ("-mavx", "_mm_add_epi8"),
        ("-msse2", "_mm_add_epi8"),
    ):
        program = tmp_path / flag
        subprocess.run(
            ["gcc", "-O1", flag, f"-DWHAT={what}", "-static", str(source), "-o", str(program)], check=True
        )
        assert (run(program).returncode == 0) == (flag == "-msse2"), flag
