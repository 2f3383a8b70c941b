"""Architectures by name: aliases, templates, refusals, and a new one by one new file."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import rase.models
from rase.backends.reference import ReferenceBackend
from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.models import build, names, resolve
from rase.testing.programs import run_chunks
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3


@pytest.mark.parametrize(
    ("alias", "name", "template"),
    [
        ("llama", "llama", "mistral"), ("llama2", "llama", "mistral"), ("llama3", "llama", "llama3"),
        ("mistral", "llama", "mistral"), ("mixtral", "llama", "mistral"), ("qwen3", "qwen3", "chatml"),
    ],
)  # fmt: skip
def test_names_and_aliases_with_their_chat_templates(alias, name, template):
    found = resolve(alias)
    assert (found.name, found.chat_template) == (name, template)
    assert found.module.__name__ == f"rase.models.{name}"


def test_names_lists_all():
    aliases = {"llama2", "llama3", "mistral", "mixtral"}
    own = {"bert", "gemma2", "gemma3", "granite", "llama", "nomic-bert", "olmo2", "phi3", "qwen2", "qwen3",
           "qwen3moe", "qwen35", "smollm3"}  # fmt: skip
    assert set(names()) == own | aliases


@pytest.mark.parametrize("name", ["phi", "phi2"])
def test_phi_says_why(name):
    with pytest.raises(UnsupportedArchitecture, match="fuse matrices and scale positions"):
        resolve(name)


def test_everything_else_lists_what_there_is():
    with pytest.raises(UnsupportedArchitecture, match="llama2, llama3, mistral, mixtral") as caught:
        resolve("falcon")
    assert caught.value.data["architecture"] == "falcon"
    with pytest.raises(UnsupportedArchitecture, match=r"Did you mean 'llama3'\?"):
        resolve("llama-3")


def test_a_name_from_a_hostile_file_is_cut():
    with pytest.raises(UnsupportedArchitecture) as caught:
        resolve("\n" * 10**6)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("alias", [None, "llama", "llama3", "mixtral"])
def test_the_manifest_may_say_an_alias(alias):
    assert TINY_LLAMA.graph(architecture=alias).architecture == "llama"


@pytest.mark.parametrize(("tiny", "alias"), [(TINY_LLAMA, "qwen3"), (TINY_QWEN3, "llama3")])
def test_a_manifest_that_contradicts_the_file_is_refused(tiny, alias):
    with pytest.raises(ManifestError, match=f"expected '{tiny.architecture}', found '{alias}'"):
        tiny.graph(architecture=alias)


@pytest.mark.parametrize("value", [None, 3, ["llama"]])
def test_a_file_without_an_architecture(value):
    metadata = {**TINY_LLAMA.metadata, "general.architecture": value}
    if value is None:
        del metadata["general.architecture"]
    with pytest.raises(CorruptModelFile, match=r"general\.architecture"):
        build(metadata, TINY_LLAMA.source.tensors)


MADE_UP = '''
"""Echo: embeds, normalizes, projects. It exists only in this test."""

NAMES = ("echo", "echo-large")
ALIASES = {"parrot": None}
CHAT_TEMPLATE = "chatml"


def build(cfg, g):
    h = g.embed("token_embd")
    x = g.rms_norm(h, "output_norm", cfg.norm_eps)
    g.logits(g.linear(x, "echo.mix", axes=("dim", "dim")), "output", tied="token_embd")
'''


def test_a_new_architecture_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(MADE_UP)
    monkeypatch.setattr(rase.models, "__path__", [*rase.models.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "rase.models.echo", raising=False)
    try:
        assert resolve("echo-large").chat_template == "chatml"
        assert (resolve("parrot").name, resolve("parrot").chat_template) == ("echo", None)
        tiny = TINY_LLAMA.but(architecture="echo-large", tied=True, n_layers=1)
        source = tiny.source
        kept = {"token_embd.weight", "output_norm.weight"}
        tensors = {name: info for name, info in source.tensors.items() if name in kept}
        tensors["echo.mix.weight"] = source.tensors["blk.0.attn_q.weight"]
        graph = build(tiny.metadata, tensors, architecture="parrot")
        assert graph.architecture == "echo-large" and set(graph.weights) == set(tensors)
        with pytest.raises(ManifestError, match="'echo-large', found 'echo'"):
            build(tiny.metadata, tensors, architecture="echo")

        arrays = source.floats()
        arrays["echo.mix.weight"] = arrays["blk.0.attn_q.weight"]
        from rase.backends.base import CompileOptions
        from rase.testing.weights import MemoryWeights

        program = ReferenceBackend().compile(graph, MemoryWeights(arrays), CompileOptions())
        program.reserve_pages(1)
        h = arrays["token_embd.weight"][5].astype(float)
        x = h / np.sqrt(np.mean(h**2) + tiny.eps) * arrays["output_norm.weight"]
        expected = arrays["token_embd.weight"] @ (arrays["echo.mix.weight"] @ x)
        np.testing.assert_allclose(run_chunks(program, [5])[0], expected, rtol=1e-5, atol=1e-6)
    finally:
        sys.modules.pop("rase.models.echo", None)


def test_an_architecture_file_with_an_error_says_so(tmp_path, monkeypatch):
    """A broken file is not reported as an unknown architecture."""
    (tmp_path / "broken.py").write_text("import no_such_module_for_rase\n")
    monkeypatch.setattr(rase.models, "__path__", [*rase.models.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="no_such_module_for_rase"):
        resolve("llama")
