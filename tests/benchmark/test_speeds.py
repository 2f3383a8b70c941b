"""What ``rase bench`` reports: costs from the graph, rates from times, limits from the same run."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from rase.backends.limits import Limits
from rase.benchmark import report as text
from rase.benchmark import roofline, speeds
from rase.benchmark.cost import Cost, cost_of
from rase.benchmark.speeds import Report, Speed, measure
from rase.errors import BackendUnavailable, ContextLengthExceeded, InvalidRequest, InvalidSetting
from rase.session import ModelSession
from rase.testing.tiny import TINY_LLAMA, ZOO
from tests.support.toys import tiny_llama


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> ModelSession:
    return ModelSession.load_file(tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "BUFFER", 1 << 24)


def example(limits: Limits | None) -> Report:
    cost = Cost(file_bytes=1200, token_bytes=1000, token_flop=5000, prompt_flop=4000)
    times = (Speed("prefill", 0, 100, (2e-6, 1e-6, 4e-6)), Speed("decode", 7, 10, (1e-6, 2e-6, 1e-6)))
    return Report("m", "llama", "cpu-9/f32/kv-f16", "fp_x", cost, limits, 0.5, 64, times)


LIMITS = Limits(20.0, {"float32": 400.0}, "float32", {"isa": "some", "decode_threads": 2})


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_reads_every_weight_and_one_row_of_an_embedding_of_its_own(tied: bool) -> None:
    tiny = TINY_LLAMA.but(tied=tied)
    cost = cost_of(tiny.graph(), tiny.source.tensors)
    everything = sum(len(raw) for raw in tiny.source.raw.values())
    embedding = tiny.source.tensors["token_embd.weight"].nbytes
    assert cost.file_bytes == everything
    assert cost.token_bytes == everything - (0 if tied else embedding - embedding // tiny.vocab)
    matrices = [i.shape for i in tiny.source.tensors.values() if len(i.shape) == 2 and "embd" not in i.name]
    output = 2 * tiny.vocab * tiny.dim
    assert cost.token_flop == sum(2 * rows * cols for rows, cols in matrices) + (output if tied else 0)
    assert cost.prompt_flop == cost.token_flop - output


def test_a_token_reads_only_the_experts_that_it_chooses() -> None:
    """2 of Mixtral's 5 here; one matrix per expert or one stack makes no difference."""
    tiny = ZOO["mixtral"]
    cost = cost_of(tiny.graph(), tiny.source.tensors)
    experts = [info for name, info in tiny.source.tensors.items() if "_exps" in name]
    idle = sum(info.nbytes for info in experts) * 3 // 5
    embedding = tiny.source.tensors["token_embd.weight"].nbytes
    assert cost.file_bytes - cost.token_bytes == idle + embedding - embedding // tiny.vocab
    dense = [i.shape for i in tiny.source.tensors.values() if len(i.shape) == 2 and "embd" not in i.name]
    met = sum(math.prod(shape) for shape in dense) + sum(2 * math.prod(info.shape[1:]) for info in experts)
    assert cost.token_flop == 2 * met


def test_rates_are_medians_beside_their_own_limit() -> None:
    found = example(LIMITS)
    prefill, decode = (found.rates(speed) for speed in found.speeds)
    assert prefill == pytest.approx({"tokens_per_s": 5e7, "gflop_per_s": 200.0, "peak_share": 0.5})
    assert decode == pytest.approx(
        {"tokens_per_s": 1e7, "gflop_per_s": 50.0, "gb_per_s": 10.0, "bandwidth_share": 0.5}
    )
    without = example(None)
    assert "bandwidth_share" not in without.rates(without.speeds[1])
    unknown = example(Limits(20.0, {"float32": 1.0}, "tiles", {}))
    assert "peak_share" not in unknown.rates(unknown.speeds[0])


def test_the_better_of_two_limits_counts_in_each_number() -> None:
    later = Limits(10.0, {"float32": 500.0}, "float32", {"isa": "other"})
    assert LIMITS.better(later) == Limits(20.0, {"float32": 500.0}, "float32", LIMITS.details)
    assert LIMITS.better(None) is LIMITS


def test_a_session_is_measured_as_asked_and_works_afterwards(session: ModelSession) -> None:
    before = session.decoder.prefill([5, 6, 7]).copy()
    said: list[str] = []
    found = measure(session, prompts=(40, 3), contexts=(9,), tokens=4, rounds=3, say=said.append)
    shapes = [(s.what, s.context, s.tokens, len(s.seconds)) for s in found.speeds]
    assert shapes == [("prefill", 0, 40, 3), ("prefill", 0, 3, 3), ("decode", 9, 4, 3)]
    assert all(second > 0 for speed in found.speeds for second in speed.seconds)
    assert found.limits is not None and found.limits.read_gb_per_s > 0.1
    assert found.limits.details["isa"] == session.decoder.program.isa
    assert said[1] == "prefill of 40 tokens, 3 rounds"
    assert (session.decoder.prefill([5, 6, 7]) == before).all()


@pytest.mark.parametrize("counts", [{"rounds": 0}, {"tokens": 0}, {"prompts": (0,)}, {"contexts": (5, -1)}])
def test_counts_below_one_are_refused(session: ModelSession, counts: dict) -> None:
    with pytest.raises(InvalidSetting, match="expected at least 1"):
        measure(session, **counts)


def test_a_context_that_the_model_lacks_is_refused_before_any_work(session: ModelSession) -> None:
    said: list[str] = []
    with pytest.raises(ContextLengthExceeded):
        measure(session, contexts=(session.context_length - 3,), tokens=4, say=said.append)
    assert not said


def test_the_text_for_people() -> None:
    shown = list(text.lines(example(LIMITS)))
    assert "         a token reads 0.00 GB, takes 0.00 GFLOP" in shown
    row = next(line for line in shown if line.startswith("decode at 7"))
    assert row.split()[3:] == ["10000000.0", "5000000.0", "10000000.0", "10.0", "50%", "50"]
    assert next(line for line in shown if line.startswith("prefill 100")).endswith("50%")


@pytest.mark.parametrize("kind", ["svg", "PNG"])
def test_the_picture_names_what_was_measured(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"roof.{kind}"
    roofline.check(path)
    roofline.draw(example(LIMITS), path)
    data = path.read_bytes()
    if kind == "svg":
        for words in ("decode at 7: 10000000.0 tok/s", "prefill 100", "memory 20.0 GB/s", "float32 400 "):
            assert words.encode() in data, words
    assert len(data) > 5000


def test_a_picture_that_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"a picture of kind 'xyz'.*png"):
        roofline.check(tmp_path / "roof.xyz")
    with pytest.raises(InvalidRequest, match="expected a folder"):
        roofline.check(tmp_path / "absent" / "roof.png")
    with pytest.raises(InvalidRequest, match="can measure the machine's limits"):
        roofline.draw(example(None), tmp_path / "roof.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendUnavailable, match=r'pip install "rase-llm\[plot\]"'):
        roofline.check(tmp_path / "roof.png")
