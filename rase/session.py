"""``ModelSession``: one loaded model; the only place that composes decoder, tokenizer, template, hashes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import rase
from rase import env, metrics
from rase.device import DevicePreference, RuntimeDevice
from rase.errors import InvalidRequest
from rase.loaded import manifest_of, tokenizer_of
from rase.loading import Kind, LoadedProgram, Progress, close_with, load_program
from rase.session_base import Session
from rase.session_cache import SessionCache

if TYPE_CHECKING:
    from rase.embedding import EmbeddingSession
    from rase.engine.decoder import ProgramDecoder
    from rase.engine.drafts import DraftProposer
    from rase.engine.scheduler import Scheduler
    from rase.registry.manifest import ModelManifest
    from rase.text.chat import ChatTemplate
    from rase.text.tokenizer import LocalTokenizer

__all__ = ["ModelSession", "SessionCache", "load_file"]


class ModelSession(Session):
    """A loaded model that generates. Any number of threads may use it at once: their requests run together.

    Besides what every ``Session`` has:

    ====================  ============================================================================
    ``scheduler``         runs all requests of the model
    ``drafts``            makes the proposer of drafts for a choice, or None: no speculation
    ``draft``             the small model that guesses for this one, see ``use_draft``
    ``decoder``           a ``ProgramDecoder`` (prefill, decode, truncate) for one user at a time
    ``eos_token``         the end token that the file declares, or None
    ``end_tokens``        all ids that end an answer: end of sequence, of turn, of message
    ``chat_template``     by the selection rule, or None: chat requests are refused
    ====================  ============================================================================
    """

    kind = "generator"

    def __init__(
        self, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram,
        tokenizer: LocalTokenizer, chat_template: ChatTemplate | None,
    ) -> None:  # fmt: skip
        from rase.engine.decoder import ProgramDecoder
        from rase.engine.measure import Measure
        from rase.engine.scheduler import Scheduler, limits_from_env
        from rase.engine.speculation import PromptLookup

        super().__init__(
            manifest, device, loaded, tokenizer, context_length=loaded.program.graph.context_length,
            variant=chat_template.name if chat_template else None)  # fmt: skip
        self.chat_template = chat_template
        self.eos_token: int | None = tokenizer.eos_id
        self.end_tokens: frozenset[int] = tokenizer.end_ids
        self.scheduler: Scheduler = Scheduler(
            loaded.program, loaded.pool, vocab_size=tokenizer.vocab_size, limits=limits_from_env(),
            observer=Measure(metrics.of(manifest.id)), name=f"model '{manifest.id}'")  # fmt: skip
        self.drafts: Callable[[], DraftProposer] | None = (
            PromptLookup if env.get("RASE_SPECULATION") else None
        )
        self.draft: ModelSession | None = None
        self.decoder: ProgramDecoder = ProgramDecoder(self.scheduler, self.eos_token)
        self.generations: weakref.WeakSet[Any] = weakref.WeakSet()  # each a ``Running`` that has an owner
        close_with(self.scheduler, loaded.program)
        if folder := env.get("RASE_PREFIX_STORE"):
            self.keep_prefixes(folder)

    def keep_prefixes(self, folder: str | os.PathLike[str], size: int | None = None) -> None:
        """Keep what is computed of prompts in ``folder`` as well, so that a restart need not do it again.

        ``size`` is the most bytes that the folder may take, None what RASE_PREFIX_STORE_SIZE says. What lies
        there is checked and never trusted. Whoever reads it learns of the prompts. Raises ``InvalidSetting``.
        """
        from rase.engine.page_files import PageFiles

        files = PageFiles(folder, env.get("RASE_PREFIX_STORE_SIZE") if size is None else size)
        facts = (
            self.manifest.sha256, self.scheduler.program.graph.architecture, self.context_length,
            rase.__version__,
        )  # fmt: skip
        self.scheduler.keep_prefixes(files, facts)

    def use_draft(self, draft: ModelSession) -> None:
        """Let the small model ``draft`` guess tokens for this one, in place of prompt lookup.

        No answer changes, only how fast it comes. ``draft`` stays loaded as long as this session. Raises
        ``InvalidRequest`` for this model itself, or one whose ids stand for other tokens.
        """
        from rase.engine.draft_model import DraftModel

        if draft is self or not self.tokenizer.same_tokens(draft.tokenizer):
            raise InvalidRequest(
                f"model '{draft.id}' cannot guess for '{self.id}'", param="draft",
                expected="another model with the same tokenizer",
                found="the model itself" if draft is self else f"{draft.tokenizer.vocab_size} other tokens",
            )  # fmt: skip
        draft.holders.add(self)
        self.drafts = lambda: DraftModel(draft.scheduler)
        self.draft = draft

    @classmethod
    def load_file(
        cls,
        path: str | os.PathLike[str],
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        architecture: str | None = None,
        context_length: int | None = None,
        chat_template: str | None = None,
        kv: str | None = None,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> ModelSession:
        """``load_file`` for a file of a model that generates text."""
        session = load_file(
            path, device, tokenizer=tokenizer, architecture=architecture, context_length=context_length,
            chat_template=chat_template, kind="generator", kv=kv, progress=progress, cancelled=cancelled,
        )  # fmt: skip
        assert isinstance(session, ModelSession)
        return session

    @classmethod
    def compose(cls, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram) -> Self:
        from rase.text.select import choose_template

        template = choose_template(manifest.chat_template, loaded.metadata, loaded.architecture.chat_template)
        return cls(manifest, device, loaded, tokenizer_of(manifest, loaded), template)

    @property
    def active(self) -> int:
        """Number of generations that wait, run, or are being read."""
        return sum(generation.active for generation in list(self.generations))


def load_file(
    path: str | os.PathLike[str],
    device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    architecture: str | None = None,
    context_length: int | None = None,
    chat_template: str | None = None,
    kind: Kind | None = None,
    kv: str | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ModelSession | EmbeddingSession:
    """Load a GGUF file without a store: the manifest is made of the hashes of what was read.

    ``kind`` None is what the file is for, ``kv`` None what RASE_KV says. Raises what ``ModelSession.load``
    raises, but ``IntegrityMismatch``: nothing states what the hashes should be.
    """
    from rase.embedding import EmbeddingSession

    chosen = RuntimeDevice.select(device)
    loaded = load_program(
        path, chosen, architecture=architecture, context_length=context_length, kind=kind, kv=kv,
        progress=progress, cancelled=cancelled)  # fmt: skip
    try:
        manifest = manifest_of(
            loaded, tokenizer=tokenizer, architecture=architecture, context_length=context_length,
            chat_template=chat_template)  # fmt: skip
        if loaded.kind == "embedding":
            return EmbeddingSession.compose(manifest, chosen, loaded)
        return ModelSession.compose(manifest, chosen, loaded)
    except BaseException:
        loaded.program.close()
        raise
