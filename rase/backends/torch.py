"""The torch backend: the whole graph on CUDA, MPS, XPU, or torch's CPU device (extra ``torch``).

Weights stay on the device in the form of the file and are unpacked where they are used, or are kept in
bfloat16 (``RASE_TORCH_WEIGHTS=bf16``). K and V are float16 in pages. Generated tokens are computed in
float32; prompt tokens too on the CPU device, elsewhere in bfloat16 unless ``prefill`` says otherwise. Results
are close to the reference (rule R9), not bit for bit the same in every company. What a combination does not
support is refused by name before weights are read. Importing this module does not import torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rase import env
from rase.backends._stacks import file_names, weight_infos
from rase.backends.base import Backend, CompileOptions, MemoryEstimate, Program, WeightSource, most_pages
from rase.errors import BackendUnavailable, InvalidSetting, UnsupportedArchitecture, UnsupportedFormat

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["BACKEND", "DEVICES", "TorchBackend", "grain"]

DEVICES = {"cpu": "cpu", "cuda": "cuda", "metal": "mps", "xpu": "xpu"}  # ours -> torch's
_READ = 16 << 20  # bytes of a tensor that are copied in one piece, about


class TorchBackend(Backend):
    """``device`` is one of ``DEVICES``."""

    name = "torch"
    numerics = ("fast",)
    parallel = True

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.weights: str = env.get("RASE_TORCH_WEIGHTS")

    def on(self, device: str) -> Backend:
        return TorchBackend(device)

    def available(self) -> tuple[bool, str]:
        if importlib.util.find_spec("torch") is None:
            return False, "package torch is not installed: pip install 'rase-llm[torch]'"
        import torch

        kind = DEVICES[self.device]
        if kind == "cpu":
            return True, f"torch {torch.__version__}, its CPU device"
        if kind == "mps":
            return torch.backends.mps.is_available(), f"torch {torch.__version__}, Metal"
        module: Any = getattr(torch, kind)
        if not module.is_available():
            return False, f"torch {torch.__version__} finds no {kind} device"
        return True, f"torch {torch.__version__}, {module.get_device_name()}"

    def free_memory(self) -> int | None:
        if self.device != "cuda":
            return None
        import torch

        return int(torch.cuda.mem_get_info()[0])

    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        infos = self._check(graph, tensors, options)
        from rase.backends._torch_formats import CHUNK
        from rase.backends._torch_program import page_bytes

        widest = max(value.dim for value in graph.values)
        activations = 16 * widest * options.max_batch_tokens  # four float32 values of a step at one time
        return MemoryEstimate(
            weights=sum(self._resident(info) for info in infos.values()),
            pages=tuple(page_bytes(group) for group in graph.caches),
            scratch=activations + 12 * CHUNK,  # unpacked, and what unpacking takes
            grain=max((grain(tensors[name]) for name in file_names(graph)), default=1),
            most=most_pages(graph),
        )  # fmt: skip

    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        infos = self._check(graph, weights.tensors, options)
        if (world := env.get("RASE_TENSOR_PARALLEL_SIZE")) > 1:
            from rase.backends._torch_parallel import load_parallel

            return load_parallel(self, graph, infos, weights, options, world)
        from rase.backends._torch_load import load

        return load(self, graph, infos, weights, options)

    def prompt(self, options: CompileOptions) -> str:
        """The arithmetic of prompt tokens: 'f32' or 'bf16'."""
        if options.prefill in ("f32", "bf16"):
            return options.prefill
        return "f32" if self.device == "cpu" else "bf16"

    def _check(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> dict[str, TensorInfo]:
        """What this backend does not run is refused here; else the graph's weights as one each."""
        usable, reason = self.available()
        if not usable:
            raise BackendUnavailable("backend 'torch'", found=reason)
        from rase.backends._torch_formats import UNPACKED
        from rase.backends._torch_ops import OPS

        if options.numerics == "portable" or options.prefill == "int8":
            raise InvalidSetting(
                "backend 'torch' has no integer path",
                expected="numerics 'fast', prefill 'auto', 'f32' or 'bf16'",
                found=f"numerics '{options.numerics}', prefill '{options.prefill}'",
                hint="Use device 'cpu', or unset RASE_NUMERICS and RASE_PREFILL.",
            )  # fmt: skip
        if options.kv != "f16":
            raise InvalidSetting(
                "backend 'torch' holds keys and values in float16", expected="'f16'", found=repr(options.kv),
                hint="Unset RASE_KV, or use device 'cpu'.",
            )  # fmt: skip
        for op in graph.ops:
            if type(op) not in OPS:
                raise UnsupportedArchitecture(
                    f"torch has no op {type(op).__name__} of '{graph.architecture}'")  # fmt: skip
        infos = weight_infos(graph, tensors)
        for name, info in infos.items():
            if len(info.shape) > 1 and self.weights == "packed" and info.format.name not in UNPACKED:
                raise UnsupportedFormat(
                    f"tensor '{name}' has format {info.format.name}, which torch does not unpack",
                    expected="one of " + ", ".join(UNPACKED),
                    hint="Set RASE_TORCH_WEIGHTS=bf16, or use device 'cpu'.",
                )  # fmt: skip
        return infos

    def _resident(self, info: TensorInfo) -> int:
        elements = info.nbytes // info.format.block_bytes * info.format.block_size
        if len(info.shape) == 1:
            return 4 * elements
        return info.nbytes if self.weights == "packed" else 2 * elements


def grain(info: TensorInfo) -> int:
    """Bytes of a tensor that come in one piece: some rows of a matrix, a vector whole."""
    if len(info.shape) == 1:
        return info.nbytes
    row = info.format.row_bytes(info.shape[-1])
    return min(info.nbytes, max(1, _READ // row) * row)


BACKEND = TorchBackend
