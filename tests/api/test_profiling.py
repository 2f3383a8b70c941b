"""RASE_PROFILE: off by default, read once, snapshots that bound a window."""

from __future__ import annotations

import json

import pytest

from rase import profiling


@pytest.fixture
def fresh(monkeypatch):
    """Counters at zero and the switch unread, before and after."""
    profiling.enabled.cache_clear()
    profiling.snapshot(reset=True)
    yield monkeypatch
    profiling.snapshot(reset=True)
    profiling.enabled.cache_clear()


def test_nothing_is_counted_when_off(fresh) -> None:
    fresh.delenv("RASE_PROFILE", raising=False)
    profiling.add("decode_steps", 3)
    assert json.loads(profiling.profiling_snapshot())["decode_steps"] == 0


def test_counts_add_up_and_reset_bounds_a_window(fresh) -> None:
    fresh.setenv("RASE_PROFILE", "1")
    profiling.add("decode_steps", 3)
    profiling.add("decode_steps", 4)
    assert json.loads(profiling.profiling_snapshot(reset=False))["decode_steps"] == 7
    assert json.loads(profiling.profiling_snapshot(reset=True))["decode_steps"] == 7
    assert json.loads(profiling.profiling_snapshot())["decode_steps"] == 0


def test_the_switch_is_read_once(fresh) -> None:
    fresh.setenv("RASE_PROFILE", "1")
    profiling.add("prefill_calls", 1)
    fresh.setenv("RASE_PROFILE", "0")
    profiling.add("prefill_calls", 1)
    assert profiling.snapshot()["prefill_calls"] == 2


def test_a_misspelt_counter_is_an_error(fresh) -> None:
    fresh.setenv("RASE_PROFILE", "1")
    with pytest.raises(KeyError):
        profiling.add("prefil_calls", 1)


def test_every_counter_of_the_manual_is_present() -> None:
    assert set(json.loads(profiling.profiling_snapshot())) == {
        "prefill_calls", "prefill_tokens", "prefill_forward_ns", "gemm_dequant_ns", "gemm_matmul_ns",
        "gemm_gpu_ns", "gemm_gpu_calls", "attn_blocked_ns", "attn_flash_ns", "decode_steps",
        "decode_forward_ns", "decode_matvec_ns", "decode_attn_ns",
    }  # fmt: skip
