"""Backends by name: modules of the package, entry points, and what is said when one is not there."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

import rase.backends
from rase.backends import get_backend, names
from rase.backends.base import Backend
from rase.backends.reference import ReferenceBackend
from rase.errors import BackendUnavailable


def entry_points(monkeypatch, *entries):
    def found(group):
        assert group == "rase.backends"
        return [EntryPoint(name, value, group) for name, value in entries]

    monkeypatch.setattr("importlib.metadata.entry_points", found)


def test_the_reference_backend_is_always_there():
    assert "reference" in names()
    backend = get_backend("reference")
    assert isinstance(backend, ReferenceBackend) and backend.name == "reference"
    assert backend.available()[0] is True


def test_modules_that_are_not_backends_are_not_listed():
    assert not {"base", "check"} & set(names())


def test_every_backend_of_the_package_names_itself():
    for name in names():
        assert get_backend(name).name == name


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(BackendUnavailable, match=r"unknown backend 'gpu': expected one of .*reference"):
        get_backend("gpu")


def test_a_package_adds_a_backend_by_an_entry_point(monkeypatch):
    entry_points(monkeypatch, ("other", "rase.backends.reference:ReferenceBackend"))
    assert "other" in names() and isinstance(get_backend("other"), Backend)


def test_an_entry_point_cannot_replace_a_backend_of_the_package(monkeypatch):
    entry_points(monkeypatch, ("reference", "no.such.module:Backend"))
    assert names().count("reference") == 1 and isinstance(get_backend("reference"), ReferenceBackend)


def test_an_entry_point_that_fails_is_named(monkeypatch):
    entry_points(monkeypatch, ("other", "no.such.module:Backend"))
    with pytest.raises(BackendUnavailable, match=r"'other' \(no\.such\..*ModuleNotFoundError"):
        get_backend("other")


def test_a_new_backend_is_one_new_file_and_a_missing_part_of_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "fresh.py").write_text("from rase.backends.reference import ReferenceBackend as BACKEND\n")
    (tmp_path / "stale.py").write_text("import no_such_module_for_rase\n")
    monkeypatch.setattr(rase.backends, "__path__", [*rase.backends.__path__, str(tmp_path)])
    try:
        assert {"fresh", "stale"} <= set(names())
        assert isinstance(get_backend("fresh"), ReferenceBackend)
        with pytest.raises(BackendUnavailable, match=r"'stale' cannot be loaded: .*no_such_module"):
            get_backend("stale")
    finally:
        sys.modules.pop("rase.backends.fresh", None)


def test_importing_the_contract_loads_no_numpy():
    import subprocess

    code = "import sys, rase.backends.base, rase.models; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
