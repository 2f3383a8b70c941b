"""How many threads a pass over the model gets, from what this process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from rase import env

__all__ = ["decode_threads", "physical_cores", "prefill_threads"]


def physical_cores(cpus: set[int] | None = None, sysfs: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores among ``cpus`` (default: this process's affinity), 1 to the control group's quota."""
    if cpus is None:
        cpus = (
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
        )
    cores = set()
    for cpu in cpus:
        try:
            siblings = (sysfs / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return max(1, min(len(cores), _quota(len(cores))))


def _quota(default: int, root: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole processors that the control group allows, rounded down: a larger team is stopped at barriers."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return default if limit == "max" else int(limit) // int(period)
    except (OSError, ValueError):
        return default


def decode_threads() -> int:
    """RASE_NUM_THREADS, else CANDLE_NUM_THREADS, else the physical cores (all but four from twelve up).

    Decode waits at barriers for the slowest core and is bound by memory: on many-core and hybrid processors
    the last cores cost more than they bring.
    """
    chosen = env.get("RASE_NUM_THREADS") or env.get("CANDLE_NUM_THREADS")
    if chosen:
        return int(chosen)
    cores = physical_cores()
    return cores - 4 if cores >= 12 else cores


def prefill_threads() -> int:
    """RASE_NUM_THREADS, else RAYON_NUM_THREADS, else the physical cores."""
    return int(env.get("RASE_NUM_THREADS") or env.get("RAYON_NUM_THREADS") or physical_cores())
