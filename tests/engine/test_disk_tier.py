"""The disk tier: what it gives back is what was meant, whatever became of the files; or nothing at all."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rase.engine.disk_tier import DiskTier
from rase.engine.page_files import PageFiles
from rase.errors import InvalidSetting
from tests.engine.test_batching import Bench, prompt

LONG = 200  # tokens: six full pages


def bench_over(folder: Path, *, budget: int = 1 << 24, identity: str = "model", **options: object) -> Bench:
    """A batching that knows nothing but what lies in ``folder``."""
    bench = Bench(**options)
    assert bench.batching.tree is not None
    bench.batching.tree.disk = DiskTier(PageFiles(folder, budget), bench.program, [identity])
    return bench


def answer(bench: Bench, tokens: list[int], **config: object) -> int:
    """How many tokens of the prompt were found; the answer is checked."""
    asked = bench.add(tokens, **config)
    bench.finish()
    bench.check()
    bench.check_pages()
    assert bench.batching.tree.disk.flush(10)
    return asked.request.cached_tokens


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder with the pages of ``prompt(LONG)`` and of its answer."""
    assert answer(bench_over(tmp_path), prompt(LONG), max_tokens=70) == 0
    assert len(files(tmp_path)) == 8
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"))


def test_a_restart_computes_a_prompt_not_again(stored: Path) -> None:
    bench = bench_over(stored)
    assert answer(bench, prompt(LONG)) == 192 and answer(bench, prompt(LONG)[:100] + prompt(60, 5)) == 96
    assert bench.batching.tree.disk.restored == 6, "the second time they were in memory"


def test_a_page_that_was_evicted_comes_back(tmp_path: Path) -> None:
    bench = bench_over(tmp_path, pages=13)
    answer(bench, prompt(LONG))
    for seed in range(1, 6):
        answer(bench, prompt(LONG, seed))
    assert bench.seen.evictions and answer(bench, prompt(LONG)) == 192


@pytest.mark.parametrize("options", [
    {"identity": "another model"}, {"alike": False}, {"windows": (None, 40)}, {"page_bytes": 800},
])  # fmt: skip
def test_what_another_program_left_is_not_found(stored: Path, options: dict[str, object]) -> None:
    assert answer(bench_over(stored, **options), prompt(LONG)) == 0


def test_another_class_layout_or_version_is_another_program(stored: Path) -> None:
    program = Bench().program
    files = PageFiles(stored, 1 << 20)
    roots = {DiskTier(files, program, ["model"]).root, DiskTier(files, program, ["model", "1.2"]).root}
    program.page_layout = "avx2"
    roots.add(DiskTier(files, program, ["model"]).root)
    program.numerics_class = "recorder-2"
    roots.add(DiskTier(files, program, ["model"]).root)
    assert len(roots) == 4


@pytest.mark.parametrize("windows", [(None,), (40,), (None, 40)])
@pytest.mark.parametrize("alike", [True, False])
def test_roles_and_windows_hold_across_a_restart(
    tmp_path: Path, windows: tuple[int | None, ...], alike: bool
) -> None:
    first = bench_over(tmp_path, windows=windows, alike=alike)
    answer(first, prompt(70), max_tokens=80)
    turn = prompt(70) + first.asked[0].tokens[0] + prompt(10, 3)
    again = bench_over(tmp_path, windows=windows, alike=alike)
    assert answer(again, turn) == (128 if alike else 64), "an answer in a prompt is a prompt's only if alike"


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def grow(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * rng.choice((1, 1 << 20)))


def swap(path: Path, rng: random.Random) -> None:
    shutil.copy(rng.choice([other for other in files(path.parent) if other != path]), path)


def vanish(path: Path, rng: random.Random) -> None:
    path.unlink()


def link(path: Path, rng: random.Random) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [cut, flip, grow, swap, vanish, link, folder, pipe])
@pytest.mark.parametrize("when", ["before", "after"])
def test_damaged_files_are_files_that_are_not_there(
    stored: Path, damage: Callable[[Path, random.Random], None], when: str
) -> None:
    """``after``: when the process has already seen that they are there."""
    rng = random.Random(damage.__name__)
    for _ in range(6):
        bench = bench_over(stored) if when == "after" else None
        damage(rng.choice(files(stored)), rng)
        bench = bench or bench_over(stored)
        assert answer(bench, prompt(LONG)) in range(0, 193, 32)
        for path in files(stored):  # what cannot be replaced is cleared away
            if path.is_dir():
                path.rmdir()
        assert answer(bench_over(stored), prompt(LONG)) in range(0, 193, 32)
    assert answer(bench_over(stored), prompt(LONG)) == 192, "a file that was found damaged is written again"


def test_the_folder_stays_within_its_size_and_parents_outlive_children(tmp_path: Path) -> None:
    page = 768 + 64
    bench = bench_over(tmp_path, budget=20 * page)
    for seed in range(12):
        answer(bench, prompt(LONG, seed % 7))
        answer(bench, prompt(LONG, 50))  # whoever is asked again stays
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 20 * page
    keys = {path.name[:48] for path in files(tmp_path)}
    root = bench.batching.tree.disk.root
    assert all(path.name[49:97] in keys | {root} for path in files(tmp_path)), "nobody can reach an orphan"
    assert answer(bench_over(tmp_path, budget=20 * page), prompt(LONG, 50)) == 192


def test_a_budget_below_one_page_keeps_nothing(tmp_path: Path) -> None:
    answer(bench_over(tmp_path, budget=100), prompt(LONG))
    assert files(tmp_path) == []


def test_a_disk_that_is_full_costs_the_tier_and_nothing_else(
    stored: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    bench = bench_over(stored)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert answer(bench, prompt(LONG, 1)) == 0
    assert "No space left" in caplog.text and not list(stored.glob("*.tmp"))
    assert answer(bench, prompt(LONG)) == 192, "it is still read"
    assert len(files(stored)) == 8


def test_what_a_killed_process_left_half_written_is_cleared_away(stored: Path) -> None:
    fresh, old = stored / "a.tmp", stored / "b.tmp"
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    bench_over(stored)
    assert fresh.exists() and not old.exists(), "another process may be writing the fresh one"


def test_files_are_their_owners_alone(stored: Path, tmp_path: Path) -> None:
    assert all(path.stat().st_mode & 0o077 == 0 for path in files(stored))
    PageFiles(tmp_path / "new" / "store", 1)
    assert (tmp_path / "new" / "store").stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidSetting, match="the prefix store: expected a folder that can be written"):
        PageFiles(tmp_path / "file", 1)


def test_what_comes_faster_than_the_disk_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rase.engine.disk_tier.QUEUE_BYTES", 2 * 768)
    monkeypatch.setattr(PageFiles, "write", lambda *arguments: time.sleep(0.05))
    bench = bench_over(tmp_path)
    bench.add(prompt(LONG))
    bench.finish()
    assert len(bench.batching.tree.disk._waiting) <= 2
    assert bench.batching.tree.disk.flush(10)
