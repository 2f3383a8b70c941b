"""Which device a preference means, by machines that are made up; an absent one is an error with its name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rase
from rase import device
from rase.backends import get_backend
from rase.device import DevicePreference, RuntimeDevice
from rase.errors import BackendUnavailable, InvalidSetting
from rase.loading import load_program


class Machine:
    """A machine with ``present`` accelerators; ``asked`` are those whose driver was loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *present: str, driver: bool = True) -> None:
        self.asked: list[str] = []
        machine = self

        class Driver:
            def on(self, name: str) -> Any:
                def available() -> tuple[bool, str]:
                    machine.asked.append(name)
                    return name in present, f"the {name} of this machine"

                return SimpleNamespace(available=available)

        def backend(name: str) -> Any:
            return Driver() if name == "torch" else get_backend(name)

        spec = importlib.util.find_spec
        monkeypatch.setattr("rase.backends.get_backend", backend)
        monkeypatch.setattr(device, "_CUDA_NODES", ("/" if "cuda" in present else "/absent",))
        monkeypatch.setattr(sys, "platform", "darwin" if "metal" in present else "linux")
        monkeypatch.setattr("platform.machine", lambda: "arm64")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: driver or None if name == "torch" else spec(name)
        )


@pytest.mark.parametrize(
    ("present", "chosen"),
    [(("cuda", "metal"), "cuda"), (("cuda",), "cuda"), (("metal",), "metal"), (("xpu",), "cpu"), ((), "cpu")],
)
def test_auto_is_cuda_then_metal_then_the_cpu(monkeypatch, present, chosen):
    Machine(monkeypatch, *present)
    found = RuntimeDevice.select("auto")
    assert found.name == chosen and found.is_accelerated() == (chosen != "cpu")


def test_auto_asks_no_driver_where_nothing_speaks_for_a_device(monkeypatch):
    """A CUDA driver is a large package: it is not imported to learn that there is no GPU."""
    machine = Machine(monkeypatch)
    assert RuntimeDevice.select().name == "cpu" and machine.asked == []
    machine = Machine(monkeypatch, "cuda", driver=False)
    assert RuntimeDevice.select().name == "cpu" and machine.asked == []


def test_auto_takes_the_cpu_where_a_device_does_not_work(monkeypatch):
    machine = Machine(monkeypatch)
    monkeypatch.setattr(device, "_CUDA_NODES", ("/",))
    assert RuntimeDevice.select().name == "cpu" and machine.asked == ["cuda"]


@pytest.mark.parametrize("name", ["cuda", "metal", "xpu"])
def test_a_device_asked_for_by_name_is_there_or_an_error(monkeypatch, name):
    Machine(monkeypatch, name)
    assert RuntimeDevice.select(name) == RuntimeDevice(name, "torch")
    Machine(monkeypatch)
    with pytest.raises(BackendUnavailable, match=f"device '{name}'.*found the {name} of this machine"):
        RuntimeDevice.select(DevicePreference(name))


def test_offload_belongs_to_the_cpu_device_and_is_asked_for(monkeypatch):
    assert RuntimeDevice.select("cpu").backend_name == "cpu" and rase.gpu_info() == "inactive"
    monkeypatch.setenv("RASE_GPU", "1")
    chosen = RuntimeDevice.select("cpu")
    assert chosen.backend_name == "wgpu" and not chosen.is_accelerated()
    monkeypatch.setenv("RASE_BACKEND", "reference")  # whoever names a backend gets it
    assert RuntimeDevice.select("cpu").backend_name == "reference"


def test_tensor_parallelism_on_the_cpu_is_refused_before_a_file_is_read(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("RASE_TENSOR_PARALLEL_SIZE", "2")
    with pytest.raises(InvalidSetting, match=r"tensor_parallel_size on device 'cpu'.*found 2"):
        load_program(tmp_path / "absent.gguf", RuntimeDevice.select("cpu"))
