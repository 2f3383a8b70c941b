"""The module functions: names, signatures and defaults of the manual, and what they do."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import rase
from rase import api
from rase.errors import (
    BackendUnavailable,
    IntegrityMismatch,
    InvalidModelId,
    ModelNotFound,
    UnsupportedArchitecture,
)
from tests.support import toys
from tests.support.gguf_build import write_gguf

SAMPLING = {
    "max_tokens": 256,
    "temperature": 0.7,
    "top_k": 40,
    "seed": 0,
    "stop_tokens": (),
    "device": "auto",
}
REGISTER = {"kind": "generator", "architecture": None, "context_length": None, "chat_template": None}
NEEDED = inspect.Parameter.empty
SIGNATURES = {
    "pull_model": {"store": NEEDED, "repo": NEEDED, "file": NEEDED, "id": NEEDED} | REGISTER,
    "import_model": {"store": NEEDED, "path": NEEDED, "id": NEEDED} | REGISTER,
    "attach_tokenizer": {"store": NEEDED, "id": NEEDED, "tokenizer_path": NEEDED},
    "list_models": {"store": NEEDED},
    "inspect_model": {"store": NEEDED, "id": NEEDED},
    "verify_model": {"store": NEEDED, "id": NEEDED},
    "unload_models": {},
    "generate_registered_gguf": {"store": NEEDED, "id": NEEDED, "prompt": NEEDED} | SAMPLING,
    "generate_chat_registered_gguf": {"store": NEEDED, "id": NEEDED, "messages": NEEDED} | SAMPLING,
    "generate_chat_stream_registered_gguf":
        {"store": NEEDED, "id": NEEDED, "messages": NEEDED, "on_delta": NEEDED} | SAMPLING,
    "generate_llama_gguf": {"weights_path": NEEDED, "tokenizer_path": NEEDED, "prompt": NEEDED} | SAMPLING,
    "profiling_snapshot": {"reset": True},
    "gpu_info": {},
    "probe_runtime": {"device": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_and_defaults(name: str) -> None:
    found = {key: value.default for key, value in inspect.signature(getattr(rase, name)).parameters.items()}
    assert list(found.items()) == list(SIGNATURES[name].items()), "names, order and defaults are the manual's"


def test_nothing_is_missing() -> None:
    assert set(SIGNATURES) == set(api.__all__)


@pytest.fixture
def store(tmp_path: Path, endless_path: Path):
    rase.import_model(str(tmp_path / "store"), str(endless_path), "m")
    yield tmp_path / "store"
    rase.unload_models()


HI = [{"role": "user", "content": "Hi"}]


def test_the_life_of_a_model(store: Path, endless_path: Path) -> None:
    rase.import_model(store, endless_path, "a-second", architecture="llama3", chat_template="chatml")
    assert rase.list_models(store) == ["a-second", "m"]
    text = rase.inspect_model(store, "m")
    assert 'id = "m"' in text and hashlib.sha256(endless_path.read_bytes()).hexdigest() in text
    assert rase.verify_model(store, "m").id == "m"
    with pytest.raises(ModelNotFound):
        rase.inspect_model(store, "zzz")
    with pytest.raises(InvalidModelId):
        rase.import_model(store, endless_path, "../x")


def test_a_changed_file_is_refused_by_verify_and_by_generation(tmp_path: Path) -> None:
    path = toys.chain(tmp_path, ["x", "y"])
    rase.import_model(tmp_path / "store", path, "m")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for call in (lambda: rase.verify_model(tmp_path / "store", "m"),
                 lambda: rase.generate_registered_gguf(tmp_path / "store", "m", "Hi")):  # fmt: skip
        with pytest.raises(IntegrityMismatch):
            call()


def test_generation(store: Path) -> None:
    assert rase.generate_registered_gguf(store, "m", "Hi ", 5, 0.0) == "abcab"
    assert rase.generate_chat_registered_gguf(store, "m", HI, max_tokens=5, temperature=0.0) == "abcab"
    assert (
        rase.generate_chat_registered_gguf(store, "m", HI, max_tokens=4, temperature=0.0, top_k=None)
        == "abca"
    )
    session = rase.ModelSession.load(rase.ModelRegistry.open(store).get("m"))
    stop = session.tokenizer.token_to_id("c")
    assert rase.generate_registered_gguf(store, "m", "Hi ", temperature=0.0, stop_tokens=[stop]) == "ab"


def test_streaming_to_a_callback(store: Path) -> None:
    deltas: list[str] = []
    options = {"max_tokens": 5, "temperature": 0.0}
    assert rase.generate_chat_stream_registered_gguf(store, "m", HI, deltas.append, **options) == "abcab"
    assert "".join(deltas) == "abcab" and all(deltas)
    stopped = rase.generate_chat_stream_registered_gguf(store, "m", HI, lambda delta: delta != "c", **options)
    assert stopped == "abc", "the text so far, with the piece that was answered by False"


def test_a_file_without_a_store(tmp_path: Path, endless_path: Path) -> None:
    tokenizer = toys.toy_bpe().write_json(tmp_path)
    assert rase.generate_llama_gguf(endless_path, tokenizer, "Hi ", 4, 0.0) == "abca"
    assert rase.generate_llama_gguf(str(endless_path), None, "Hi ", 4, 0.0) == "abca"
    with pytest.raises(rase.EngineError):
        rase.generate_llama_gguf(toys.tiny_qwen3(tmp_path), None, "Hi")


def test_decoders_from_files(tmp_path: Path, endless_path: Path) -> None:
    greedy = rase.GenerationConfig(temperature=0.0, max_tokens=3)
    for decoder in (
        rase.LlamaGgufDecoder.load(endless_path),
        rase.load_gguf_decoder("llama3", endless_path, "cpu"),
        rase.load_gguf_decoder("mistral", str(endless_path), rase.RuntimeDevice.select("cpu")),
    ):
        assert isinstance(decoder, rase.TokenDecoder) and decoder.eos_token() is not None
        assert rase.generate(decoder, [1, 2], greedy).tokens == [ord("a"), ord("b"), ord("c")]
    assert rase.Qwen3GgufDecoder.load(toys.tiny_qwen3(tmp_path)).prefill([1]).ndim == 1
    for wrong in ("qwen3", "qwen2", "phi", "nonsense", ""):
        with pytest.raises(UnsupportedArchitecture):
            rase.load_gguf_decoder(wrong, endless_path)
    with pytest.raises(UnsupportedArchitecture):
        rase.Qwen3GgufDecoder.load(endless_path)


def test_the_machine() -> None:
    assert rase.gpu_info() == "inactive"
    assert rase.probe_runtime() == rase.probe_runtime("cpu") == "cpu"
    with pytest.raises(BackendUnavailable):
        rase.probe_runtime("cuda")
    assert json.loads(rase.profiling_snapshot())["gemm_gpu_calls"] == 0


def test_the_module_functions_share_loaded_models_with_load(store: Path) -> None:
    rase.generate_registered_gguf(store, "m", "Hi", 1)
    model = rase.load("m", store)
    from rase.session_cache import process_cache

    assert process_cache().sessions() == [model.session]
    rase.unload_models()
    assert process_cache().sessions() == []


def test_every_public_store_refuses_at_registration_what_cannot_run(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "odd.gguf",
        {"general.architecture": "phi", "phi.context_length": 8},
        {"t": np.ones((1, 4))},
    )
    store = tmp_path / "store"
    with pytest.raises(UnsupportedArchitecture):
        rase.ModelRegistry.open(store).import_local("odd", path)
    with pytest.raises(UnsupportedArchitecture):
        rase.import_model(store, path, "odd")
    assert rase.list_models(store) == []
