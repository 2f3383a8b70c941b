"""The GPU that multiplies prompt matrices: one for the process, found once, given up when it fails."""

from __future__ import annotations

import importlib.util
import logging
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from rase import env
from rase.backends._wgpu_shaders import TILE, UNPACKED, shader
from rase.errors import BackendError

if TYPE_CHECKING:
    from rase.gguf.formats import Format, TensorInfo

__all__ = ["Gpu", "GpuFailed", "GpuMatrix", "Products", "give_up", "gpu", "status"]

log = logging.getLogger("rase.backends")

_CHECKED = 1e-6  # NMSE of the first product from what it must be
_LIMITS = ("max-storage-buffer-binding-size", "max-buffer-size")


class GpuFailed(BackendError):
    """The GPU was lost, or failed, while it was used."""


class GpuMatrix:
    """A matrix (outputs, depth) whose blocks are in the memory of the GPU."""

    def __init__(self, gpu: Gpu, info: TensorInfo) -> None:
        self.info, self.outputs, self.depth = info, *info.shape
        self.data = gpu.buffer(-(-info.nbytes // 4) * 4 + 4, "weights")
        self.shape = gpu.buffer(32, "shape")
        self.bound: Any = None  # to activations and results

    def write(self, gpu: Gpu, start: int, data: memoryview) -> None:
        """Store bytes of the file, from byte ``start`` of the tensor on: a multiple of 4."""
        padded = bytes(data) + bytes(-len(data) % 4)
        gpu.device.queue.write_buffer(self.data, start, padded)


class Gpu:
    """A device with its pipelines. Its methods raise ``GpuFailed`` for whatever goes wrong there."""

    def __init__(self, adapter: Any) -> None:
        import wgpu

        self._usage = wgpu.BufferUsage
        limits = {name: adapter.limits[name] for name in _LIMITS}
        self.device: Any = adapter.request_device_sync(required_limits=limits)
        self.name = str(adapter.info["device"] or adapter.info["description"])
        self.shares_memory = adapter.info["adapter_type"] != "DiscreteGPU"
        self.binding_bytes = int(self.device.limits[_LIMITS[0]])
        self._pipelines: dict[str, Any] = {}

    def buffer(self, nbytes: int, kind: str) -> Any:
        """Memory of the GPU for ``weights``, ``shape``, or ``rows``."""
        use = self._usage
        usage = use.COPY_DST | (use.UNIFORM if kind == "shape" else use.STORAGE | use.COPY_SRC)
        return self.device.create_buffer(size=nbytes, usage=usage)

    def settle(self) -> None:
        """Wait until what was written is there."""
        self.device.queue.submit([])
        self.device.queue.on_submitted_work_done_sync()

    def takes(self, info: TensorInfo) -> bool:
        """Whether it multiplies by this tensor: a matrix in a format with a shader, within one binding."""
        return len(info.shape) == 2 and info.format.name in UNPACKED and info.nbytes + 8 <= self.binding_bytes

    def pipeline(self, form: Format) -> Any:
        """The compiled shader of a format."""
        if form.name not in self._pipelines:
            code = shader(form.name, form.block_size, form.block_bytes)
            module = self.device.create_shader_module(code=code)
            self._pipelines[form.name] = self.device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"})  # fmt: skip
        return self._pipelines[form.name]


class Products:
    """Buffers for the products of at most ``max_rows`` rows with matrices that read the same rows."""

    def __init__(self, gpu: Gpu, max_rows: int, depth: int, outputs: int) -> None:
        """``depth`` is the longest row of activations, ``outputs`` the most that one call gives a row."""
        self.gpu = gpu
        self._x = gpu.buffer(4 * max_rows * depth, "rows")
        self._out = gpu.buffer(4 * max_rows * outputs, "rows")

    def run(self, x: Any, matrices: list[GpuMatrix]) -> list[Any]:
        """x · Wᵀ for each matrix: x float32 ``(rows, depth)`` -> float32 ``(rows, outputs)`` each.

        Raises ``GpuFailed``.
        """
        try:
            return self._run(x, matrices)
        except Exception as error:  # of another library: whatever it raises, this device is not to be used
            raise GpuFailed(f"GPU '{self.gpu.name}'", found=f"{type(error).__name__}: {error}") from error

    def _run(self, x: Any, matrices: list[GpuMatrix]) -> list[Any]:
        device, rows = self.gpu.device, len(x)
        device.queue.write_buffer(self._x, 0, x)
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        first = 0
        for matrix in matrices:
            form = matrix.info.format
            row_bytes = form.row_bytes(matrix.depth)
            shape = np.array([rows, matrix.outputs, matrix.depth, row_bytes, first, 0, 0, 0], np.uint32)
            device.queue.write_buffer(matrix.shape, 0, shape)
            pipeline = self.gpu.pipeline(form)
            work.set_pipeline(pipeline)
            work.set_bind_group(0, self._bind(pipeline, matrix))
            work.dispatch_workgroups(math.ceil(matrix.outputs / TILE), math.ceil(rows / TILE))
            first += rows * matrix.outputs
        work.end()
        device.queue.submit([encoder.finish()])
        found = np.frombuffer(device.queue.read_buffer(self._out, 0, 4 * first), np.float32)
        ends = np.cumsum([rows * matrix.outputs for matrix in matrices])
        parts = np.split(found, ends[:-1])
        return [part.reshape(rows, -1) for part in parts]

    def _bind(self, pipeline: Any, matrix: GpuMatrix) -> Any:
        if matrix.bound is None:
            buffers = (matrix.data, self._x, self._out, matrix.shape)
            entries = [{"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                       for index, buffer in enumerate(buffers)]  # fmt: skip
            matrix.bound = self.gpu.device.create_bind_group(
                layout=pipeline.get_bind_group_layout(0), entries=entries)  # fmt: skip
        return matrix.bound


class _State:
    """What became of the search."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: Gpu | None = None
        self.reason = "not looked for yet"
        self.searched = self.failed = False


_state = _State()


def gpu() -> tuple[Gpu | None, str]:
    """The GPU, or None and why not. Software adapters count only where RASE_GPU_SOFTWARE says so."""
    with _state.lock:
        if not _state.searched:
            _state.searched = True
            _state.found, _state.reason = _search()
            log.info("prompts on a GPU: %s", _state.reason)
        return _state.found, _state.reason


def give_up(error: BaseException) -> None:
    """Use the GPU no more in this process."""
    with _state.lock:
        _state.found, _state.failed, _state.reason = None, True, str(error)
    log.warning("the GPU failed; prompts are computed on the CPU from now on: %s", error)


def status() -> str:
    """``active: <adapter>``, ``fallback(runtime-failure)`` or ``inactive``."""
    found, _ = gpu()
    if found is not None:
        return f"active: {found.name}"
    return "fallback(runtime-failure)" if _state.failed else "inactive"


def _search() -> tuple[Gpu | None, str]:
    if importlib.util.find_spec("wgpu") is None:
        return None, "package wgpu is not installed: pip install 'rase-llm[gpu]'"
    import wgpu

    software = env.get("RASE_GPU_SOFTWARE")
    try:
        adapters = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        return None, f"no adapter: {error}"
    order = ["DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", *(["CPU"] if software else [])]
    usable = [adapter for adapter in adapters if adapter.info["adapter_type"] in order]
    reason = "no adapter" if not adapters else "software adapters only (RASE_GPU_SOFTWARE=1 allows them)"
    for adapter in sorted(usable, key=lambda one: order.index(one.info["adapter_type"])):
        try:
            found = Gpu(adapter)
            _check(found)
            return found, found.name
        except Exception as error:  # another adapter may work
            reason = f"{adapter.info['device']}: {type(error).__name__}: {error}"
    return None, reason


def _check(found: Gpu) -> None:
    """A first product with a known answer. Raises ``GpuFailed``."""
    from rase.gguf.dequantize import dequantize
    from rase.gguf.formats import TensorInfo, format_named

    form, rng = format_named("Q8_0"), np.random.default_rng(1)
    blocks = rng.integers(0, 256, (40 * 2, form.block_bytes), dtype=np.uint8)
    blocks[:, :2] = np.full(len(blocks), 0.01, "<f2").view(np.uint8).reshape(-1, 2)
    info = TensorInfo("check", (40, 64), form, 0, 0, blocks.nbytes)
    matrix, x = GpuMatrix(found, info), rng.normal(size=(5, 64)).astype(np.float32)
    matrix.write(found, 0, blocks.data.cast("B"))
    (rows,) = Products(found, 5, 64, 40).run(x, [matrix])
    right = x.astype(float) @ dequantize(form, blocks, info.shape).T.astype(float)
    if not ((rows - right) ** 2).sum() <= _CHECKED * (right**2).sum():
        raise GpuFailed(f"GPU '{found.name}'", found="wrong results")
