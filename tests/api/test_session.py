"""Loading a session: hashes, manifests that contradict their file, memory, tokenizers, fingerprints, fork."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import rase
from rase import loading
from rase.completion import Piece, TextRequest, prepare, run
from rase.device import DevicePreference, RuntimeDevice
from rase.engine.config import GenerationConfig
from rase.errors import (
    BackendError,
    BackendUnavailable,
    Cancelled,
    CorruptModelFile,
    EngineError,
    InsufficientMemory,
    IntegrityMismatch,
    InvalidRequest,
    InvalidSetting,
    ManifestError,
    ModelFileNotFound,
    TokenizerError,
    UnsupportedFormat,
)  # fmt: skip
from rase.registry import ModelKind, ModelManifest
from rase.session import ModelSession
from rase.store import open_store
from tests.support import toys
from tests.support.processes import in_child

GREEDY = GenerationConfig(temperature=0.0, max_tokens=8)


def answer(session: ModelSession) -> list[int]:
    return run(session, prepare(session, TextRequest(prompt="Hi", config=GREEDY))).choices[0].token_ids


@pytest.fixture
def store(tmp_path: Path):
    return open_store(tmp_path / "store")


@pytest.fixture
def manifest(store, tiny_path: Path, tmp_path: Path) -> ModelManifest:
    copy = shutil.copy(tiny_path, tmp_path / "model.gguf")
    return store.import_local("m", copy).manifest


def test_a_registered_model_answers_like_its_file(manifest: ModelManifest, tiny: ModelSession) -> None:
    session = ModelSession.load(manifest)
    assert answer(session) == answer(tiny)
    assert session.id == "m" and session.manifest == manifest and session.device.name == "cpu"
    assert session.eos_token in session.end_tokens
    assert session.context_length == 1024


def test_a_file_without_a_store_gets_a_manifest_of_what_was_read(tiny: ModelSession, tiny_path: Path) -> None:
    assert tiny.manifest.sha256 == hashlib.sha256(tiny_path.read_bytes()).hexdigest()
    assert tiny.id == "tiny-api"


def test_progress_counts_every_byte_once(manifest: ModelManifest) -> None:
    seen: list[tuple[int, int]] = []
    ModelSession.load(manifest, progress=lambda done, total: seen.append((done, total)))
    size = os.path.getsize(manifest.weights)
    assert seen[-1] == (size, size) and seen == sorted(seen)


@pytest.mark.parametrize("place", ["first tensor", "last byte", "padding or header"])
def test_one_changed_bit_is_refused(manifest: ModelManifest, place: str) -> None:
    path = Path(manifest.weights)
    data = bytearray(path.read_bytes())
    offset = {"first tensor": len(data) // 2, "last byte": len(data) - 1, "padding or header": 40}[place]
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        (IntegrityMismatch, CorruptModelFile) if place == "padding or header" else IntegrityMismatch
    ):
        ModelSession.load(manifest)


def test_the_mismatch_names_both_hashes_and_the_file(manifest: ModelManifest) -> None:
    wrong = replace(manifest, sha256="0" * 64)
    with pytest.raises(IntegrityMismatch) as caught:
        ModelSession.load(wrong)
    assert (caught.value.expected, caught.value.actual) == ("0" * 64, manifest.sha256)
    assert caught.value.path == manifest.weights


@pytest.mark.parametrize(
    "change", [{"architecture": "qwen3"}, {"context_length": 10**6}], ids=["architecture", "context length"]
)
def test_a_manifest_that_contradicts_its_file_is_refused(manifest: ModelManifest, change) -> None:
    with pytest.raises(ManifestError):
        ModelSession.load(replace(manifest, **change))


def test_a_shorter_context_is_a_choice(manifest: ModelManifest) -> None:
    assert ModelSession.load(replace(manifest, context_length=64)).context_length == 64


def test_other_kinds_and_formats_do_not_run(manifest: ModelManifest) -> None:
    with pytest.raises(UnsupportedFormat):
        ModelSession.load(replace(manifest, format="safetensors"))
    with pytest.raises(InvalidRequest):
        ModelSession.load(replace(manifest, kind=ModelKind.EMBEDDING))


def test_a_missing_file(manifest: ModelManifest) -> None:
    os.unlink(manifest.weights)
    with pytest.raises(ModelFileNotFound):
        ModelSession.load(manifest)


def test_a_file_that_is_cut_while_registered(manifest: ModelManifest) -> None:
    os.truncate(manifest.weights, os.path.getsize(manifest.weights) - 100)
    with pytest.raises(CorruptModelFile):
        ModelSession.load(manifest)


def test_a_file_that_is_removed_while_it_is_read(tiny_path: Path, tmp_path: Path) -> None:
    """It stays open, so that all of it was read and hashed: nothing looks at the name again."""
    path = tmp_path / "gone.gguf"
    path.write_bytes(tiny_path.read_bytes())
    session = ModelSession.load_file(path, progress=lambda done, total: path.unlink(missing_ok=True))
    assert not path.exists() and session.manifest.weights == str(path)


def test_what_does_not_fit_is_refused_before_a_tensor_is_read(manifest: ModelManifest, monkeypatch) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 10_000)
    read: list[int] = []
    with pytest.raises(InsufficientMemory) as caught:
        ModelSession.load(manifest, progress=lambda done, total: read.append(done))
    assert caught.value.available == 10_000
    assert caught.value.needed > os.path.getsize(manifest.weights) // 2
    assert read == [], "nothing may be read of a model that does not fit"


def test_the_kv_budget_follows_the_memory_that_is_left(manifest: ModelManifest, monkeypatch) -> None:
    roomy = ModelSession.load(manifest)
    (page,) = roomy.decoder.program.page_bytes
    assert roomy.decoder.pool.capacity == (4 * 1024 // 32,), "four whole contexts fit"
    with pytest.raises(InsufficientMemory) as caught:
        monkeypatch.setattr(loading, "available_memory", lambda: 0)
        ModelSession.load(manifest)
    monkeypatch.setattr(loading, "available_memory", lambda: caught.value.needed + 2 * page)
    tight = ModelSession.load(manifest)
    assert 1 <= tight.decoder.pool.capacity[0] < roomy.decoder.pool.capacity[0]
    long = [1] * ((tight.decoder.pool.capacity[0] + 1) * 32)
    with pytest.raises(InsufficientMemory):
        prepare(tight, TextRequest(prompt=long))
    assert answer(tight) == answer(roomy)


def test_a_load_can_be_cancelled(manifest: ModelManifest) -> None:
    with pytest.raises(Cancelled):
        ModelSession.load(manifest, cancelled=lambda: True)
    assert answer(ModelSession.load(manifest))


def test_an_attached_tokenizer_is_used_and_hashed(store, tmp_path: Path, folder: Path) -> None:
    toy = toys.toy_bpe()
    store.import_local("t", toys.chain(tmp_path, ["x", "y"], tokenizer=toy))
    path = toy.write_json(tmp_path)
    manifest = store.attach_tokenizer("t", path)
    session = ModelSession.load(manifest)
    done = run(session, prepare(session, TextRequest(prompt="Hi", config=GREEDY)))
    assert (done.text, done.choices[0].finish_reason) == ("xy", "stop")
    Path(path).write_bytes(Path(path).read_bytes() + b" ")
    with pytest.raises(IntegrityMismatch) as caught:
        ModelSession.load(manifest)
    assert caught.value.path == str(path)
    os.unlink(path)
    with pytest.raises(ModelFileNotFound):
        ModelSession.load(manifest)


def test_a_pipe_in_the_place_of_a_tokenizer_is_refused_and_not_waited_for(
    manifest: ModelManifest, tmp_path: Path
) -> None:
    pipe = tmp_path / "tokenizer.json"
    os.mkfifo(pipe)
    with pytest.raises(EngineError, match="tokenizer"):
        ModelSession.load(replace(manifest, tokenizer=str(pipe), tokenizer_sha256="0" * 64))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    large = toys.toy_bpe([f"word{index}" for index in range(80)]).write_json(tmp_path, "large.json")
    model = toys.chain(tmp_path, ["x", "y"], tokenizer=toys.toy_bpe())
    with pytest.raises((ManifestError, TokenizerError)):
        ModelSession.load_file(model, tokenizer=large)


def test_the_fingerprint_names_what_decides_the_bits(manifest: ModelManifest, tiny: ModelSession) -> None:
    session = ModelSession.load(manifest)
    assert session.fingerprint == ModelSession.load(manifest).fingerprint == tiny.fingerprint
    assert session.fingerprint.startswith("fp_") and len(session.fingerprint) == 15
    changed = {
        ModelSession.load(replace(manifest, context_length=64)).fingerprint,
        ModelSession.load(replace(manifest, chat_template="llama3")).fingerprint,
        ModelSession.load(manifest, kv="q8_0").fingerprint,
        session.fingerprint,
    }
    assert len(changed) == 4


def test_a_smaller_cache_is_chosen_by_argument_or_environment(
    manifest: ModelManifest, tiny_path: Path, monkeypatch
) -> None:
    pages = ModelSession.load(manifest).scheduler.program.page_bytes
    chosen = ModelSession.load(manifest, kv="q8_0")
    with rase.load(tiny_path, kv="q8_0") as model:
        assert model.session.fingerprint == chosen.fingerprint
    monkeypatch.setenv("RASE_KV", "q8_0")
    loaded = ModelSession.load(manifest)
    assert loaded.fingerprint == chosen.fingerprint
    assert loaded.scheduler.program.page_bytes < pages
    assert ModelSession.load(manifest, kv="f16").scheduler.program.page_bytes == pages
    with pytest.raises(InvalidSetting, match="f16, q8_0"):
        ModelSession.load(manifest, kv="q4_0")
    monkeypatch.setenv("RASE_KV", "q4_0")
    with pytest.raises(InvalidSetting, match="RASE_KV"):
        ModelSession.load(manifest)


def test_devices() -> None:
    assert RuntimeDevice.select("auto").name == RuntimeDevice.select(DevicePreference.Cpu).name == "cpu"
    assert not RuntimeDevice.select().is_accelerated()
    for absent in ("cuda", DevicePreference.Metal):
        with pytest.raises(BackendUnavailable):
            RuntimeDevice.select(absent)
    with pytest.raises(InvalidRequest) as caught:
        RuntimeDevice.select("tpu")
    assert caught.value.param == "device"
    RuntimeDevice.select("auto").smoke_test()


def test_the_smoke_test_notices_wrong_numbers(monkeypatch) -> None:
    device = RuntimeDevice.select()
    backend = device.backend()
    real = type(backend).compile

    def wrong(self, graph, weights, options):
        program = real(self, graph, weights, options)
        run = program.run
        program.run = lambda batch: run(batch) * 1.0001
        return program

    monkeypatch.setattr(type(backend), "compile", wrong)
    with pytest.raises(BackendError):
        device.smoke_test()


def test_the_memory_is_freed_with_the_last_user(manifest: ModelManifest, monkeypatch) -> None:
    session = ModelSession.load(manifest)
    closed: list[bool] = []
    program = session.decoder.program
    real = type(program).close

    def close(one: object) -> None:  # those of earlier tests may be collected meanwhile
        if one is program:
            closed.append(True)
        real(one)

    monkeypatch.setattr(type(program), "close", close)
    answer(session)
    decoder, thread = session.decoder, session.scheduler._thread
    del session
    assert not closed, "the decoder is still in use"
    del decoder
    thread.join(10)
    assert closed == [True]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # fork in a process with threads: what is tested here
def test_a_session_from_before_a_fork_raises_in_the_child_and_works_in_the_parent(manifest) -> None:
    session = ModelSession.load(manifest)
    expected = answer(session)

    def child() -> str:
        try:
            answer(session)
        except EngineError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    said = in_child(child)
    assert said.startswith("BackendError") and "fork" in said
    assert answer(session) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_can_load_the_model_itself(manifest) -> None:
    expected = answer(ModelSession.load(manifest))
    assert in_child(lambda: str(answer(ModelSession.load(manifest)))) == str(expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_during_a_generation_of_another_thread(manifest) -> None:
    session = ModelSession.load(manifest)
    expected = answer(session)
    inside, go = threading.Event(), threading.Event()
    found: list[list[int]] = []

    def hold(piece: Piece) -> None:
        inside.set()
        go.wait(10)

    def generate() -> None:
        request = TextRequest(prompt="Hi", config=GREEDY)
        found.append(run(session, prepare(session, request), hold).choices[0].token_ids)

    thread = threading.Thread(target=generate)
    thread.start()
    assert inside.wait(10)
    said = in_child(lambda: str(answer(session)))
    own = in_child(lambda: str(answer(ModelSession.load(manifest))))
    go.set()
    thread.join(10)
    assert said.startswith("BackendError") and own == str(expected)
    assert found == [expected]
