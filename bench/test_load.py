"""Loading of SmolLM2: seconds from a path to a session that can answer, hashing and packing included."""

from __future__ import annotations

from bench import measure
from rase.session import ModelSession

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_load(smollm2, several, benchmark):
    sessions: list[ModelSession] = []

    def load() -> None:
        sessions[:] = [ModelSession.load_file(smollm2)]

    seconds = several(load)
    assert sessions[0].manifest.sha256 == SHA256, "what was loaded is not what was hashed"
    found = {"seconds": seconds, "gb_per_s": smollm2.stat().st_size / seconds / 1e9}
    benchmark.extra_info.update(found)
    measure.report("load", {"seconds": seconds, "GB/s of the file": found["gb_per_s"]})
