"""``Sampler``: logits to one token id, by rules that are fixed to the bit.

In this order: repetition penalty, frequency and presence penalties, ``logit_bias``, temperature, ``top_k``,
``top_p``, ``min_p``, the draw.

- Penalties count ids, once each. Repetition (prompt and answer): a positive logit is divided by it, any other
  is multiplied. Presence and frequency (answer only): the logit loses ``presence + frequency * times``. Both
  in double, rounded to float32 once.
- Greedy (temperature 0, or ``top_k`` 1) takes the best id after penalties and bias. Ties go to the lowest id.
- Otherwise weights are ``exp((logit - largest) / temperature)`` with the temperature as float32. ``top_k``
  keeps the k best ids; ``top_p`` the fewest best ids whose share of what is left reaches ``top_p`` (always
  one); ``min_p`` those with at least ``min_p`` times the best id's weight.
- The draw is one number that depends only on (seed, choice, position): ``uniform`` of the kernel,
  Philox4x32-10. Nothing is remembered between tokens, so a generation can be resumed, replayed or batched
  freely.
- NaN or an infinity of either sign in the row raises ``InvalidLogits``, in greedy too: a damaged weight can
  give a clean -inf, so -inf is no way to ban an id. ``logit_bias`` is.
- ``logprobs`` are those of the model's own distribution: before penalties, bias, temperature and filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from rase._kernels.sampler import History as _History
from rase._kernels.sampler import Row, RowSampler
from rase.engine.config import GenerationConfig
from rase.errors import InvalidLogits

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["History", "Row", "Sampled", "Sampler"]

_FAULTS = {-1: "NaN", -2: "infinity"}


class Sampled(NamedTuple):
    """A chosen id; with ``logprobs`` its natural log-probability and the best alternatives, best first."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class History(_History):
    """The ids of a sequence so far, as penalties count them: ``push`` each generated id.

    Ids outside 0..vocab_size-1 (padding rows of the output layer) are legal and count nowhere.
    """

    def __new__(cls, prompt: Sequence[int], vocab_size: int) -> Self:
        return super().__new__(cls, np.asarray(prompt, np.int32), vocab_size)


class Sampler:
    """Chooses the tokens of answer number ``choice`` to one request.

    ``vocab_size`` is the number of ids that may be chosen; logits beyond it are ignored. Raises
    ``InvalidGenerationConfig`` when ``config.logit_bias`` names an id beyond it. Not thread-safe.
    """

    def __init__(self, config: GenerationConfig, vocab_size: int, choice: int = 0) -> None:
        config.check_vocab(vocab_size)
        self._logprobs = config.logprobs
        self._row = RowSampler(
            n=vocab_size,
            top_k=min(config.top_k or vocab_size, vocab_size),
            temperature=float(np.float32(config.temperature)),
            top_p=config.top_p,
            min_p=config.min_p,
            repetition=config.repetition_penalty,
            presence=config.presence_penalty,
            frequency=config.frequency_penalty,
            seed=config.seed,
            choice=choice,
            greedy=config.greedy,
            bias_ids=np.array(list(config.logit_bias), np.int32),
            bias_values=np.array(list(config.logit_bias.values()), np.float64),
        )

    def sample(
        self, logits: ArrayLike, position: int, history: _History | None = None,
        peaks: NDArray[np.float32] | None = None,
    ) -> Sampled:  # fmt: skip
        """Choose the id at absolute ``position`` from float32 ``logits`` ``(vocab,)``, which stay unchanged.

        ``history`` is needed only when penalties are on; ``peaks`` are ``Program.peaks_of`` of the row.
        Raises ``InvalidLogits``.
        """
        return self.choose(Row(np.ascontiguousarray(logits, np.float32), peaks), position, history)

    def choose(self, row: Row, position: int, history: _History | None = None) -> Sampled:
        """``sample`` for a row of a program."""
        id = self._row.pick(row, position, history)
        if id < 0:
            raise InvalidLogits(
                f"the model gave {_FAULTS[id]} at position {position}",
                expected="finite logits",
                hint="The model file may be damaged: verify it, or try another quantization.",
                position=position,
            )
        if self._logprobs is None:
            return Sampled(id)
        logprob, top = self._row.logprobs(row, id, self._logprobs)
        return Sampled(id, logprob, tuple(top))
