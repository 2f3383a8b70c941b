"""Baseline objects hold no instruction above x86-64-v1 / armv8-a: old processors must reach the dispatch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rase._kernels
from tests.kernels.arm import build

# VEX and EVEX instructions begin with v; then SSE3, SSSE3, SSE4, popcnt, bmi, movbe, adx, aes, sha.
ABOVE_X86 = re.compile(
    r"^(v(?!err$|erw$).*|addsub.*|h(add|sub)p.|lddqu|mov(d|sh|sl)dup|pshufb|p?abs[bwd]|phadd.*|phsub.*|pmaddubsw|pmulhrsw|psign."
    r"|palignr|blend.*|pblend.*|dpp.|insertps|extractps|pmovs?zx.*|pmovsx.*|pmulld|pmuldq|p(min|max)(sb|sd|uw|ud)|ptest|round..|pcmp(eqq|gtq|.str.)"
    r"|packusdw|movntdqa|mpsadbw|phminposuw|pins[bdq]|pextr[bdq]|crc32.|popcnt|[lt]zcnt|andn|bextr|bl[sc].*|bzhi|mulx|pdep|pext"
    r"|(ror|sar|shl|shr)x|movbe|ad[co]x|aes.*|sha(1|256).*|pclmul.*|gf2p8.*)$"
)
# Dot products, half arithmetic, rounding multiplies, atomics, crc, SVE.
ABOVE_ARM = re.compile(
    r"^([su]dot|(s|u|us)mmla|bf.*mla.?|bfdot|f(add|mul|mla|sub)\s.*\.[48]h|sqrdml[as]h|(ld|st)(add|clr|eor|set|[su]max|[su]min).*|swp.*|cas.*"
    r"|crc32.*|whilel.|ptrue|[su]?rdvl|cnt[bhwd]|ld1(w|d|rqb))$"
)


def instructions(disassembly: str) -> set[str]:
    """The mnemonics of an objdump listing."""
    return set(
        re.findall(r"^ *[0-9a-f]+:\t(?:(?:lock|rep\w*|notrack|bnd) )*([a-z]\S*)", disassembly, re.MULTILINE)
    )


def disassembled(path: Path, objdump: str = "objdump") -> set[str]:
    if shutil.which(objdump) is None:
        pytest.skip(f"needs {objdump} (binutils)")
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    return instructions(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compiled(source: Path, flags: list[str], folder: Path) -> Path:
    out = folder / "object.o"
    subprocess.run(["gcc", *flags, "-O1", "-c", str(source), "-o", str(out)], check=True)
    return out


pytestmark = pytest.mark.timeout(600)  # compiles
x86 = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc")


@x86
@pytest.mark.parametrize("source", ["simd/scalar.c", "dispatch.c"])
def test_baseline_sources_compile_to_the_baseline(source: str, tmp_path: Path) -> None:
    flags = build.variant_flags("x86_64")
    assert [f for f in flags["scalar"] if f.startswith("-m")] == [f for f in flags[""] if f.startswith("-m")]
    found = disassembled(compiled(build.KERNELS / source, flags[""], tmp_path))
    assert {"ret", "call"} & found, "nothing was disassembled"
    assert sorted(filter(ABOVE_X86.match, found)) == []


@x86
def test_the_check_sees_vector_instructions(tmp_path: Path) -> None:
    source = tmp_path / "sum.c"
    source.write_text(
        "typedef float f8 __attribute__((vector_size(32)));\n"
        "void sum(f8 *x, const f8 *a) { *x = *x * *a + *a; }\n"
        "int ones(int n) { return __builtin_popcount(n); }\n"
    )
    found = disassembled(compiled(source, [*build.variant_flags("x86_64")["avx2"], "-mpopcnt"], tmp_path))
    assert {"vmulps", "vaddps", "popcnt"} <= set(filter(ABOVE_X86.match, found))


@x86
def test_compiled_modules_are_baseline() -> None:
    """All that is built, but for the one module that holds the variants."""
    modules = sorted(Path(p) for folder in rase._kernels.__path__ for p in Path(folder).glob("*.so"))
    assert any(path.name.startswith("program.") for path in modules)
    for path in modules:
        if not path.name.startswith("kernels."):
            assert sorted(filter(ABOVE_X86.match, disassembled(path))) == [], path.name


def test_arm_baseline_objects_are_armv8a() -> None:
    why = build.missing_tools()
    if why:
        pytest.skip(why)
    objects = build.build("-O1").with_suffix(".objects")
    objdump = "aarch64-linux-gnu-objdump"
    for name in ("scalar", "neon", "dispatch"):
        found = disassembled(objects / f"{name}.o", objdump)
        assert "ret" in found and sorted(filter(ABOVE_ARM.match, found)) == [], name
    assert "sdot" in set(filter(ABOVE_ARM.match, disassembled(objects / "dotprod.o", objdump)))
