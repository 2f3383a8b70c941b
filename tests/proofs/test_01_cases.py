"""Proof 5 of list 01: every case that the list names has a test named after it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORE = (
    "TOK-1 TOK-3 BOS-1 BOS-3 BOS-5 TPL-3 TPL-7 TXT-1 STP-1 SMP-1 SMP-3 CTX-1 CTX-5 HTT-1 HTT-7 GGF-1 NUM-1 "
    "NUM-3 REG-3 SEC-1"
)
BESIDES = "REG-1 GGF-3 GGF-5 GGF-7 GGF-9 TPL-1 TPL-5 TXT-3 TXT-5 STP-3 SMP-5 SMP-7 SMP-9 HTT-3 HTT-5 HTT-9"
CASES = [*CORE.split(), *BESIDES.split()]

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def names() -> list[str]:
    folder = Path(__file__).parents[1] / "cases"
    trees = [ast.parse(path.read_text("utf-8")) for path in folder.rglob("test_*.py")]
    return [
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_case_has_a_test(names: list[str], case: str) -> None:
    prefix = f"test_{case.lower().replace('-', '_')}_"
    assert [name for name in names if name.startswith(prefix)], f"no function {prefix}... below tests/cases"


def test_the_count(names: list[str], figure) -> None:
    figure(f"{len(CASES)} cases, {len(names)} functions")
