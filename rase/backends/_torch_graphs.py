"""CUDA graphs for steps that decode: one launch for the whole model, for the sizes of RASE_CAPTURE_SIZES.

A step of b sequences runs the captured graph of the next larger size; the rows beyond b write to the spare
page and are thrown away. Page tables are as wide as the next power of two of what the batch brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rase import env
from rase.backends._torch_step import Step
from rase.backends.base import GENERATED, Batch
from rase.graph import ops

if TYPE_CHECKING:
    from rase.backends._torch_program import TorchProgram
    from rase.graph.ops import Graph

__all__ = ["DecodeGraphs"]


class DecodeGraphs:
    """The captured steps of one program, made when they are first needed."""

    def __init__(self, program: TorchProgram) -> None:
        self.program = program
        self._sizes: tuple[int, ...] = env.get("RASE_CAPTURE_SIZES")
        self._captured: dict[tuple[int, int], tuple[Any, Step, Any]] = {}

    @staticmethod
    def serve(graph: Graph, device: Any) -> bool:
        """Whether steps of ``graph`` can be captured: no op of it may ask the host what to do next."""
        asks = (ops.Route, ops.CausalConv, ops.DeltaRule)
        return device.type == "cuda" and not graph.whole_input and not any(
            isinstance(op, asks) for op in graph.ops
        )  # fmt: skip

    def forget(self) -> None:
        """Storage has moved."""
        self._captured.clear()

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """The rows of a step in which each sequence decodes one token; None for any other."""
        n = len(batch.ids)
        size = next((size for size in self._sizes if size >= n), None)
        if size is None or self.program.group is not None or batch.roles.any():
            return None
        if len(np.unique(batch.sequences)) != n or len(batch.logits_rows) == 0:
            return None
        width = 1 << (batch.page_tables.shape[2] - 1).bit_length()
        padded = self._pad(batch, size, width)
        if (size, width) not in self._captured:
            self._captured[size, width] = self._capture(padded)
        captured, step, out = self._captured[size, width]
        fresh = Step(padded, self.program.graph, self.program.page_tokens, self.program.device)
        for name in ("ids", "positions", "slots"):
            getattr(step, name).copy_(getattr(fresh, name))
        for name in ("pages", "decode_tables"):
            for mine, theirs in zip(getattr(step, name), getattr(fresh, name), strict=True):
                mine.copy_(theirs)
        captured.replay()
        rows = out[torch.as_tensor(batch.logits_rows, dtype=torch.int64, device=out.device)]
        return np.asarray(rows.cpu().numpy(), np.float32)

    def _pad(self, batch: Batch, size: int, width: int) -> Batch:
        """The batch with ``size`` sequences that all want logits; those added stand in the spare page."""
        n, spare = len(batch.ids), self.program.reserved_pages
        tables = np.zeros((len(spare), size, width), np.int32)
        for group, page in enumerate(spare):
            tables[group] = page
            tables[group, :n, : batch.page_tables.shape[2]] = batch.page_tables[group, batch.sequences]
        more = size - n
        return Batch(
            ids=np.append(batch.ids, np.zeros(more, np.int32)),
            positions=np.append(batch.positions[0], np.zeros(more, np.int32))[None],
            sequences=np.arange(size, dtype=np.int32), page_tables=tables,
            roles=np.full(size, GENERATED, np.uint8), logits_rows=np.arange(size, dtype=np.int32),
        )  # fmt: skip

    def _capture(self, batch: Batch) -> tuple[Any, Step, Any]:
        program = self.program
        step = Step(batch, program.graph, program.page_tokens, program.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once outside, so that libraries have made their workspaces
            program.walk(step)
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = program.walk(step)
        return captured, step, out
