"""64-bit ARM: every variant, run by an emulator, repeats the bits of this machine's scalar kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rase.gguf.formats import format_named
from tests.kernels.arm import build
from tests.kernels.arm.records import (
    Records,
    attention_records,
    float16_records,
    gemm_records,
    linear_records,
    quantize_records,
    rotate_records,
    row_records,
)
from tests.kernels.support import FORMAT_NAMES

VARIANTS = [name for name in build.variant_flags("aarch64") if name]


def records(full: bool) -> Records:
    rng, all_records = np.random.default_rng(7), Records()
    for fmt in FORMAT_NAMES:
        block = format_named(fmt).block_size
        for rows, blocks, m in (
            [(19, 2, 5), (1, 1, 1)]
            if not full
            else [(19, 3, 9), (8, 1, 3), (16, 5, 2), (33, 2, 13), (1, 1, 1)]
        ):
            linear_records(all_records, fmt, rows, blocks * block if block > 1 else 13 * blocks, m, rng)
    for n in (1, 16, 33, 576) if not full else (*range(1, 34), 576, 2560):
        row_records(all_records, n, rng)
    float16_records(all_records, 1 << 16 if full else 1 << 12, rng)
    for block in (32, 256):
        quantize_records(all_records, block, rng)
    for depth, m in ((37, 17), (1, 1)) if not full else ((37, m) for m in range(1, 30)):
        gemm_records(all_records, depth, m, rng)
    for n_dims, neighbour in ((64, False), (20, True)):
        rotate_records(all_records, n_dims, neighbour, rng)
    for case in ((3, 250, 64, 0), (5, 600, 20, 300)):
        attention_records(all_records, *case, rng)
    attention_records(all_records, 2, 40, 32, 0, rng, soft_cap=3)
    for case in ((3, 250, 64, 0), (12, 300, 80, 40)):
        attention_records(all_records, *case, rng, kv=1)
    for case in ((17, 700, 80, 0), (20, 100, 64, 7), (1, 1000, 128, 0)) if full else ():
        attention_records(all_records, *case, rng)
    return all_records


def check(driver: Path, variant: str, full: bool, folder: Path) -> None:
    everything = records(full)
    everything.write(folder / "input")
    build.run(driver, variant, str(folder / "input"), str(folder / "output"))
    assert everything.differences((folder / "output").read_bytes()) == []


def driver(optimization: str) -> Path:
    why = build.missing_tools()
    if why:
        pytest.skip(why)
    return build.build(optimization)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", VARIANTS)
def test_arm_kernels_repeat_the_bits_of_this_machine(variant: str, tmp_path: Path) -> None:
    check(driver("-O1"), variant, False, tmp_path)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", VARIANTS)
def test_arm_kernels_as_shipped_repeat_the_bits_of_this_machine(variant: str, tmp_path: Path) -> None:
    """The wheel's optimization, more shapes."""
    check(driver("-O3"), variant, True, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cpu, lacking", [("cortex-a53", "FEAT_LSE"), ("neoverse-n1", "FEAT_I8MM"), ("max", "")]
)
def test_what_a_processor_lacks_is_detected(cpu: str, lacking: str) -> None:
    listed = dict(line.split(" ", 1) for line in build.run(driver("-O1"), "list", cpu=cpu).splitlines())
    assert list(listed) == VARIANTS
    expected = {
        "scalar": "",
        "neon": "",
        "dotprod": lacking if lacking != "FEAT_I8MM" else "",
        "i8mm": lacking,
    }
    assert listed == {name: expected[name] for name in VARIANTS}


def test_differences_are_found(tmp_path: Path) -> None:
    """The comparison itself: one changed bit, a missing end, too much."""
    few = Records()
    gemm_records(few, 5, 3, np.random.default_rng(0))
    rotate_records(few, 4, True, np.random.default_rng(0))
    right = b"".join(expected.tobytes() for _, expected in few._expected)
    assert few.differences(right) == []
    assert (
        "gemm 5 x 3: 1 of 48 differ, first 2"
        in few.differences(right[:8] + bytes([right[8] ^ 1]) + right[9:])[0]
    )
    assert "ends early" in few.differences(right[:-4])[-1]
    assert "too long" in few.differences(right + b"x")[-1]
