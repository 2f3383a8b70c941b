"""Dispatch chooses the variant that suits each of many processors; every list of variants has them all."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rase._kernels import kernels
from rase.settings import SETTINGS
from tests.kernels.arm import build

# In place of the processor and the operating system: they have what the environment variable FEATURES names.
SIMULATED = """
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int has(const char *feature) {
    char all[1024], one[64];
    snprintf(all, sizeof all, " %s ", getenv("FEATURES"));
    snprintf(one, sizeof one, " %s ", feature);
    return strstr(all, one) != NULL;
}
static int leaf(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    *a = *b = *c = *d = 0;
    if (leaf == 7 && part == 1) *a = (unsigned)has("avxvnni") << 4;
    if (leaf == 7 && part == 0) *d = (unsigned)has("amx_tile") << 24 | (unsigned)has("amx_bf16") << 22;
    return leaf == 7;
}
#define __builtin_cpu_init() ((void)0)
#define __builtin_cpu_supports(feature) has(feature)
#define __get_cpuid_count leaf
#define syscall(...) (has("refused") ? -1L : 0L)
"""
PROGRAM = """
#include <stdio.h>
#include "dispatch.h"
int main(void) {
    for (int i = 0; i < rase_variant_count(); i++) {
        const char *missing = rase_variant_missing(i);
        printf("%s %s\\n", rase_variant_name(i), missing ? missing : "");
    }
    return 0;
}
"""

AVX2 = {"avx2", "fma", "f16c"}
SKYLAKE = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
CASCADE_LAKE = SKYLAKE | {"avx512vnni"}
ICE_LAKE = CASCADE_LAKE | {"avx512vbmi", "gfni"}
ZEN_4 = ICE_LAKE | {"avx512bf16"}
SAPPHIRE_RAPIDS = ZEN_4 | {"avxvnni", "amx_tile", "amx_bf16"}
# What dispatch asks of them, and what it chooses; the compiler's names of those that it knows.
PROCESSORS = {
    "nehalem": (set(), "scalar"),
    "haswell": (AVX2, "avx2"),
    "znver3": (AVX2, "avx2"),
    "alderlake": (AVX2 | {"avxvnni", "gfni"}, "avxvnni"),
    "knl": (AVX2 | {"avx512f"}, "avx2"),
    "skylake-avx512": (SKYLAKE, "avx2"),
    "cannonlake": (SKYLAKE | {"avx512vbmi"}, "avx2"),
    "cascadelake": (CASCADE_LAKE, "avx512"),
    "cooperlake": (CASCADE_LAKE | {"avx512bf16"}, "avx512"),
    "icelake-server": (ICE_LAKE, "avx512vbmi"),
    "tigerlake": (ICE_LAKE, "avx512vbmi"),
    "rocketlake": (ICE_LAKE, "avx512vbmi"),
    "znver4": (ZEN_4, "avx512vbmi"),
    "znver5": (ZEN_4 | {"avxvnni"}, "avx512vbmi"),
    "sapphirerapids": (SAPPHIRE_RAPIDS, "amx"),
}
# Hypervisors hide features, operating systems refuse tiles.
CURTAILED = {
    "without GFNI": (ICE_LAKE - {"gfni"}, "avx512", "GFNI"),
    "without VBMI": (ICE_LAKE - {"avx512vbmi"}, "avx512", "AVX512_VBMI"),
    "AMX without GFNI": (SAPPHIRE_RAPIDS - {"gfni"}, "avx512", "GFNI"),
    "AMX without bf16": (SAPPHIRE_RAPIDS - {"amx_bf16"}, "avx512vbmi", "AMX with bf16"),
    "AMX refused": (SAPPHIRE_RAPIDS | {"refused"}, "avx512vbmi", "permission to use AMX"),
}

simulated = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("gcc"),
    reason="needs gcc on x86-64 Linux",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dispatch.c as it is, beside empty tables, on a processor that is an environment variable."""
    folder = tmp_path_factory.mktemp("dispatch")
    (folder / "simulated.h").write_text(SIMULATED)
    (folder / "program.c").write_text(PROGRAM + build.stubs())
    out = folder / "program"
    sources = [
        str(folder / "program.c"),
        "-include",
        str(folder / "simulated.h"),
        str(build.KERNELS / "dispatch.c"),
    ]
    flags = [*build.variant_flags("x86_64")[""], "-O0", "-Wno-unused-function", "-Werror"]
    subprocess.run(["gcc", *flags, f"-I{build.KERNELS}", *sources, "-o", str(out)], check=True, timeout=100)
    return out


def missing_there(program: Path, features: set[str]) -> dict[str, str]:
    """What each variant lacks on a processor with ``features``, weakest variant first."""
    environment = {**os.environ, "FEATURES": " ".join(sorted(features))}
    done = subprocess.run([program], env=environment, check=True, capture_output=True, text=True, timeout=20)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def chosen(missing: dict[str, str]) -> str:
    return [name for name, feature in missing.items() if not feature][-1]


@simulated
@pytest.mark.parametrize("processor", PROCESSORS)
def test_each_processor_gets_the_variant_that_suits_it(program: Path, processor: str) -> None:
    features, variant = PROCESSORS[processor]
    assert chosen(missing_there(program, features)) == variant


@simulated
@pytest.mark.parametrize("case", CURTAILED)
def test_what_is_hidden_or_refused_is_named_and_not_used(program: Path, case: str) -> None:
    features, variant, why = CURTAILED[case]
    missing = missing_there(program, features)
    assert chosen(missing) == variant
    assert why in missing[list(missing)[list(missing).index(variant) + 1]]


@simulated
def test_the_processors_have_what_the_compiler_says() -> None:
    known = 0
    for processor, (features, _) in PROCESSORS.items():
        command = ["gcc", f"-march={processor}", "-dM", "-E", "-x", "c", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode == 0:
            known += 1
            macros = {
                name.lower() for name in re.findall(r"^#define __(\w+)__ 1$", done.stdout, re.MULTILINE)
            }
            assert macros & SAPPHIRE_RAPIDS == features, processor
    assert known > 5, "of these names this compiler knows hardly one"


def test_every_list_has_every_variant() -> None:
    files = {path.stem for path in (build.KERNELS / "simd").glob("*.c")}
    x86, arm = ([name for name in build.variant_flags(which) if name] for which in ("x86_64", "aarch64"))
    assert {*x86, *arm} == files, "CMakeLists.txt"
    table = re.findall(
        r'^ +\{"(\w+)", &rase_kernels_(\w+),', (build.KERNELS / "dispatch.c").read_text("utf-8"), re.M
    )
    assert [name for name, _ in table] == [*x86, *arm[1:]] and all(a == b for a, b in table), "dispatch.c"
    assert [name for name, _ in kernels.variants()] in (x86, arm, ["scalar"]), "this build"
    readme = (build.KERNELS.parents[1] / "README.md").read_text("utf-8")
    assert files <= {*re.findall(r"\w+", SETTINGS["RASE_ISA"].kind)}, "settings.py"
    assert files <= {*re.findall(r"`(\w+)`", readme)}, "README.md"
