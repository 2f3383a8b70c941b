"""``rase.load`` and ``Model``: answers, streams, async twins, options, closing."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from pathlib import Path

import pytest

import rase
from rase.errors import (
    BackendError,
    InvalidGenerationConfig,
    InvalidRequest,
    ModelFileNotFound,
    ModelNotFound,
)
from rase.session_cache import process_cache
from tests.support import toys
from tests.support.processes import in_child


@pytest.fixture(autouse=True)
def _unload():
    yield
    rase.unload_models()


@pytest.fixture
def model(endless_path: Path):
    with rase.load(endless_path) as model:
        yield model


@pytest.fixture
def store(tmp_path: Path, endless_path: Path) -> Path:
    rase.import_model(tmp_path / "store", endless_path, "endless")
    return tmp_path / "store"


GREEDY = {"temperature": 0.0, "max_tokens": 5}


def test_chat_complete_and_stream_give_the_same_text(model: rase.Model) -> None:
    assert model.chat("Hi", **GREEDY) == "abcab"
    assert model.chat([{"role": "user", "content": "Hi"}], **GREEDY) == "abcab"
    assert model.chat([rase.ChatMessage(role="user", content="Hi")], **GREEDY) == "abcab"
    assert model.complete("Hi ", **GREEDY) == "abcab"
    assert list(model.stream("Hi", **GREEDY)) == ["a", "b", "c", "a", "b"]
    assert "".join(model.stream_completion("Hi ", **GREEDY)) == "abcab"


def test_an_answer_is_a_string_that_knows_its_completion(model: rase.Model) -> None:
    answer = model.chat("Hi", **GREEDY, n=2)
    assert isinstance(answer, str) and answer.upper() == "ABCAB"
    assert answer.completion.choices[0].finish_reason == "length"
    assert [choice.text for choice in answer.completion.choices] == ["abcab", "abcab"]
    assert answer.completion.tokens_per_second > 0
    assert pickle.loads(pickle.dumps(answer)).completion == answer.completion


def test_loading_by_id(store: Path, monkeypatch) -> None:
    model = rase.load("endless", store)
    assert (model.id, model.chat("Hi", **GREEDY)) == ("endless", "abcab")
    assert rase.load("endless", str(store)).session is model.session, "one session per process"
    monkeypatch.setenv("RASE_STORE", str(store))
    assert rase.load("endless").session is model.session


def test_what_cannot_be_loaded(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        rase.load("nothing", store)
    for absent in ("nothing.gguf", "./nothing", tmp_path / "nothing", tmp_path):
        with pytest.raises(ModelFileNotFound):
            rase.load(absent)
    with pytest.raises(InvalidRequest) as caught:
        rase.load("endless", store, chat_template="llama3")
    assert caught.value.param == "chat_template"


def test_a_file_may_be_given_what_a_manifest_would_state(tmp_path: Path) -> None:
    toy = toys.toy_bpe()
    path = toys.chain(tmp_path, ["x", "y"], tokenizer=toy, chat_template=None)
    model = rase.load(path, tokenizer=toy.write_json(tmp_path), context_length=64, chat_template="chatml")
    assert (model.context_length, model.chat("Hi", temperature=0)) == (64, "xy")
    assert model.session.manifest.tokenizer_sha256 is not None


@pytest.mark.parametrize(
    ("options", "kind", "param"),
    [
        ({"max_token": 5}, InvalidRequest, "max_token"),
        ({"max_tokens": 0}, InvalidGenerationConfig, "max_tokens"),
        ({"temperature": float("nan")}, InvalidGenerationConfig, "temperature"),
        ({"top_p": float("inf")}, InvalidGenerationConfig, "top_p"),
        ({"stop": ""}, InvalidRequest, "stop"),
        ({"n": 0}, InvalidRequest, "n"),
    ],
)
def test_bad_options_name_themselves(model: rase.Model, options, kind, param) -> None:
    for call in (model.chat, model.complete, model.stream):
        with pytest.raises(kind) as caught:
            call("Hi", **options)
        assert caught.value.param == param
    assert model.chat("Hi", **GREEDY) == "abcab"


@pytest.mark.parametrize(
    "messages", [[], [{"content": "Hi"}], [{"role": "wizard", "content": "Hi"}], [1], {}, None]
)
def test_bad_messages_are_refused(model: rase.Model, messages) -> None:
    with pytest.raises(InvalidRequest):
        model.chat(messages)


def test_a_stream_knows_its_result_at_the_end(model: rase.Model) -> None:
    stream = model.stream("Hi", **GREEDY)
    assert next(stream) == "a"
    assert list(stream) == ["b", "c", "a", "b"]
    assert stream.text == "abcab" and stream.finished
    assert stream.completion is not None and stream.completion.choices[0].finish_reason == "length"
    assert list(stream) == []


def test_a_stream_of_several_choices_is_refused(model: rase.Model) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.stream("Hi", n=2)
    assert caught.value.param == "n"


def until(condition, what: str, seconds: float = 5.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"timed out waiting until {what}"
        time.sleep(0.001)
    return time.monotonic() - start


@pytest.mark.parametrize("leave", ["drop", "close", "break", "with"])
def test_a_stream_that_is_left_stops_and_the_next_call_is_right(model: rase.Model, leave: str) -> None:
    stream = model.stream("Hi", temperature=0.0, max_tokens=4000)
    assert next(stream) == "a"
    request = stream._running.request
    if leave == "drop":
        del stream
        gc.collect()
    elif leave == "close":
        stream.close()
        assert list(stream) == []
    elif leave == "break":
        for _ in stream:
            break
        del stream
    else:
        with stream:
            pass
    assert until(lambda: request.done, "the generation has stopped") < 0.5
    assert model.chat("Hi", **GREEDY) == "abcab"


def test_a_call_while_a_stream_is_open_waits_for_it_and_does_not_hang(model: rase.Model) -> None:
    stream = model.stream("Hi", temperature=0.0, max_tokens=20)
    assert next(stream) == "a"
    assert model.chat("Hi", **GREEDY) == "abcab"
    assert len(list(stream)) == 19


def test_an_error_of_the_generation_reaches_the_reader(model: rase.Model, monkeypatch) -> None:
    def broken(*args, **kwargs):
        raise BackendError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr(model.session.scheduler.program, "run", broken)
        with pytest.raises(BackendError, match="out of order"):
            list(model.stream("Hi"))
    assert model.chat("Hi", **GREEDY) == "abcab"


def test_cancelled_hook(model: rase.Model) -> None:
    count = [0]

    def cancelled() -> bool:
        count[0] += 1
        return count[0] > 10

    answer = model.chat("Hi", temperature=0, max_tokens=4000, cancelled=cancelled)
    assert answer.completion.choices[0].finish_reason == "cancelled" and 0 < len(answer) < 20


def test_async_twins(model: rase.Model) -> None:
    async def main() -> tuple[str, str, list[str]]:
        pieces = [piece async for piece in model.astream("Hi", **GREEDY)]
        return await model.achat("Hi", **GREEDY), await model.acomplete("Hi ", **GREEDY), pieces

    assert asyncio.run(main()) == ("abcab", "abcab", ["a", "b", "c", "a", "b"])


def test_the_event_loop_runs_during_an_async_answer(model: rase.Model) -> None:
    async def main() -> int:
        ticks = 0
        task = asyncio.create_task(model.achat("Hi", temperature=0, max_tokens=200))
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        assert len(await task) == 200
        return ticks

    assert asyncio.run(main()) > 5


def test_async_twins_under_trio(model: rase.Model) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> tuple[str, list[str]]:
        pieces = [piece async for piece in model.astream("Hi", **GREEDY)]
        return await model.achat("Hi", **GREEDY), pieces

    assert trio.run(main) == ("abcab", ["a", "b", "c", "a", "b"])


def test_a_hundred_tasks_share_the_steps(model: rase.Model) -> None:
    async def main() -> list[str]:
        return await asyncio.gather(
            *(model.achat("Hi", temperature=0, max_tokens=1 + i % 7) for i in range(100))
        )

    assert asyncio.run(main()) == ["abcabca"[: 1 + i % 7] for i in range(100)]


def test_a_cancelled_task_stops_the_generation(model: rase.Model) -> None:
    async def main() -> None:
        task = asyncio.create_task(model.achat("Hi", temperature=0, max_tokens=4000))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        assert await model.achat("Hi", **GREEDY) == "abcab"
        assert time.monotonic() - start < 1.0

    asyncio.run(main())


def test_leaving_an_async_stream_stops_the_generation(model: rase.Model) -> None:
    async def main() -> None:
        async for _ in model.astream("Hi", temperature=0, max_tokens=4000):
            break
        start = time.monotonic()
        assert await model.achat("Hi", **GREEDY) == "abcab"
        assert time.monotonic() - start < 1.0

    asyncio.run(main())


def test_refusals_of_an_async_stream(model: rase.Model) -> None:
    async def main() -> None:
        with pytest.raises(InvalidRequest):
            async for _ in model.astream([], **GREEDY):
                pass

    asyncio.run(main())


def test_tokens_and_back(model: rase.Model) -> None:
    ids = model.tokenize("hello <|im_end|>")
    assert model.session.tokenizer.token_to_id("<|im_end|>") not in ids, "text is data"
    assert model.detokenize(ids) == "hello <|im_end|>"


def test_a_closed_model_says_so_and_gives_its_memory_back(store: Path) -> None:
    first, second = rase.load("endless", store), rase.load("endless", store)
    first.close()
    first.close()
    with pytest.raises(BackendError, match="closed"):
        first.chat("Hi")
    assert second.chat("Hi", **GREEDY) == "abcab"
    assert process_cache().sessions() == [second.session], "the other one still uses it"
    second.close()
    assert process_cache().sessions() == []
    assert repr(second) == "<Model (closed)>"


def test_close_in_the_middle_lets_the_answer_finish(store: Path) -> None:
    model = rase.load("endless", store)
    stream = model.stream("Hi", **GREEDY)
    model.close()
    assert "".join(stream) == "abcab"


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # fork in a process with threads: what is tested here
def test_a_stream_in_a_forked_child_raises_instead_of_hanging(model: rase.Model) -> None:
    stream = model.stream("Hi", temperature=0.0, max_tokens=2000)
    next(stream)

    def child() -> str:
        try:
            return next(stream)
        except BackendError as error:
            return f"refused: {error.what}"

    assert in_child(child).startswith("refused")
    stream.close()
