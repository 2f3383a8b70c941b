"""Devices: which backend runs a model, chosen by preference and proved by a real operation.

This is the one place that decides. ``Auto`` takes the best device that is present: CUDA, else Metal, else the
CPU. A device asked for by name that is absent is an error, never a silent fallback.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from rase import env
from rase.errors import BackendError, BackendUnavailable, InvalidRequest

if TYPE_CHECKING:
    from rase.backends.base import Backend

__all__ = ["DevicePreference", "RuntimeDevice", "gpu_info"]

_DRIVER = "torch"  # the backend of accelerators
_OFFLOAD = "wgpu"  # the one that takes prompt matrices from the CPU's to a GPU
# What a machine with such a device has, so that auto need not import a large package to find none.
_CUDA_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


class DevicePreference(Enum):
    """What the caller asks for; ``parse`` also takes the lower-case words."""

    Auto = "auto"
    Cpu = "cpu"
    Cuda = "cuda"
    Metal = "metal"
    Xpu = "xpu"

    @classmethod
    def parse(cls, value: DevicePreference | str) -> DevicePreference:
        """Return the preference that ``value`` names. Raises ``InvalidRequest`` for an unknown word."""
        if isinstance(value, cls):
            return value
        try:
            return cls(str(value).lower())
        except ValueError:
            names = "one of " + ", ".join(member.value for member in cls)
            raise InvalidRequest("device", expected=names, found=repr(value), param="device") from None


@dataclass(frozen=True)
class RuntimeDevice:
    """A device that is present, with the name of the backend that drives it."""

    name: str
    backend_name: str

    @classmethod
    def select(
        cls, preference: DevicePreference | RuntimeDevice | str = DevicePreference.Auto
    ) -> RuntimeDevice:
        """Choose the device for ``preference``.

        Raises ``BackendUnavailable`` when the device named is absent or its kernels cannot run here, and
        ``InvalidRequest`` for a word that names no device.
        """
        if isinstance(preference, RuntimeDevice):
            return preference
        wanted = DevicePreference.parse(preference)
        if wanted is DevicePreference.Auto:
            for found in (DevicePreference.Cuda, DevicePreference.Metal):
                if _likely(found) and _accelerator(found).available()[0]:
                    return cls(found.value, _DRIVER)
            wanted = DevicePreference.Cpu
        if wanted is DevicePreference.Cpu:
            chosen = env.get("RASE_BACKEND")
            return cls("cpu", _OFFLOAD if chosen == "cpu" and env.get("RASE_GPU") else chosen)
        present, reason = _accelerator(wanted).available()
        if not present:
            raise BackendUnavailable(
                f"device '{wanted.value}'", expected="one that is present, and its driver", found=reason,
                hint="Use device 'cpu' or 'auto'.")  # fmt: skip
        return cls(wanted.value, _DRIVER)

    def is_accelerated(self) -> bool:
        """Whether the device is something faster than the CPU."""
        return self.name != "cpu"

    def backend(self) -> Backend:
        """Return the backend. Raises ``BackendUnavailable`` with the reason when it cannot run here."""
        from rase.backends import get_backend

        backend = get_backend(self.backend_name).on(self.name)
        usable, reason = backend.available()
        if not usable:
            raise BackendUnavailable(f"backend '{self.backend_name}'", found=reason)
        return backend

    def smoke_test(self) -> None:
        """Run one token through a small graph (embedding, matrices, attention) whose answer is known.

        Raises ``BackendError`` when the logits are not exactly the expected ones.
        """
        from rase.backends.base import PROMPT, Batch, CompileOptions
        from rase.probe import expected_logits, probe_model

        graph, weights = probe_model()
        program = self.backend().compile(graph, weights, CompileOptions(max_batch_tokens=8))
        try:
            program.reserve_pages(1)
            found = program.run(Batch.of([2], 0, [0], PROMPT))[0].tolist()
        finally:
            program.close()
        expected = expected_logits(2)
        if found != expected:
            raise BackendError(f"smoke test of device '{self.name}'", expected=expected, found=found)

    def describe(self) -> dict[str, Any]:
        """Names of device and backend, and in ``detail`` the backend's own words on what it runs with."""
        detail = self.backend().available()[1]
        return {
            "device": self.name, "backend": self.backend_name, "accelerated": self.is_accelerated(),
            "detail": detail, "gpu": gpu_info(),
        }  # fmt: skip


def gpu_info() -> str:
    """What became of ``RASE_GPU=1``: ``active: <adapter>``, ``fallback(runtime-failure)`` or ``inactive``."""
    if not env.get("RASE_GPU"):
        return "inactive"
    from rase.backends import get_backend

    return get_backend(_OFFLOAD).offload_status()


def _accelerator(device: DevicePreference) -> Backend:
    from rase.backends import get_backend

    return get_backend(_DRIVER).on(device.value)


def _likely(device: DevicePreference) -> bool:
    """Whether it is worth to load the driver and ask it."""
    if importlib.util.find_spec(_DRIVER) is None:
        return False
    if device is DevicePreference.Metal:
        import platform

        return sys.platform == "darwin" and platform.machine() == "arm64"
    return sys.platform == "win32" or any(map(os.path.exists, _CUDA_NODES))
