"""``rase.load(...)`` and ``Model``: the interface for people, over sessions and the completion pipeline."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from rase.bell import Bell
from rase.device import DevicePreference
from rase.errors import BackendError, InvalidRequest, ModelFileNotFound
from rase.session_cache import process_cache
from rase.store import open_store
from rase.streaming import Stream, finished, in_thread

if TYPE_CHECKING:
    import numpy as np

    from rase.completion import Completion, TextRequest
    from rase.embedding import EmbeddingSession
    from rase.loading import Progress
    from rase.session import ModelSession
    from rase.text.messages import ChatMessage

    Messages = str | Sequence[Mapping[str, Any] | ChatMessage]

__all__ = ["Answer", "Model", "Options", "load", "request_of"]

_Session = TypeVar("_Session")
_VARIABLES = ("enable_thinking", "reasoning_effort", "tools", "documents")  # of chat templates


class Options(TypedDict, total=False):
    """Options of one generation, all optional: the fields of ``GenerationConfig`` and of ``TextRequest``.

    ``enable_thinking``, ``reasoning_effort``, ``tools`` and ``documents`` are variables of the model's own
    chat template, as is anything in ``template_kwargs``. ``split_reasoning`` keeps what stands in thinking
    tags out of the text: it is the ``reasoning`` of the answer's choice.
    """

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    stop_tokens: Sequence[int]
    stop: str | Sequence[str] | None
    n: int
    template_kwargs: Mapping[str, Any]
    enable_thinking: bool
    reasoning_effort: str
    tools: Sequence[Mapping[str, Any]]
    documents: Sequence[Mapping[str, Any]]
    split_reasoning: bool


class Answer(str):
    """The text of an answer: a plain ``str`` that also knows its ``completion`` (choices, usage, timings)."""

    completion: Completion

    def __new__(cls, completion: Completion) -> Self:
        answer = super().__new__(cls, completion.text)
        answer.completion = completion
        return answer

    def __reduce__(self) -> tuple[Any, ...]:
        return Answer, (self.completion,)


def load(
    id_or_path: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    device: DevicePreference | str = "auto",
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    architecture: str | None = None,
    context_length: int | None = None,
    chat_template: str | None = None,
    draft: str | os.PathLike[str] | None = None,
    kv: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a registered model by id, or a ``.gguf`` file or a safetensors folder by its path.

    An id is looked up in ``store`` (default: ``RASE_STORE``, else the user's data folder), verified, and
    loaded once per process: two ``Model`` objects share one session. A path (a ``Path``, or text that ends in
    ``.gguf`` or holds a ``/``) needs no store; ``tokenizer``, ``architecture``, ``context_length`` and
    ``chat_template`` then take the place of a manifest.

    ``draft`` is a small model with the same tokenizer, by id or path, that guesses tokens for this one: the
    answers are the same, and come sooner where its guesses are good. ``kv="q8_0"`` lets the KV cache take
    53 per cent of the memory; answers are then those of another numerics class. None is what RASE_KV says.

    Raises what ``ModelSession.load`` raises, ``ModelNotFound``, and ``InvalidRequest`` for an option of a
    file that is given with an id, or a ``draft`` that cannot guess for this model.
    """
    if draft is not None:
        model = load(
            id_or_path, store, device, tokenizer=tokenizer, architecture=architecture,
            context_length=context_length, chat_template=chat_template, kv=kv, progress=progress)  # fmt: skip
        model.session.use_draft(load(draft, store, device, kv=kv).session)
        return model
    from rase.registry.inputs import path_text
    from rase.session import load_file

    given = {
        "tokenizer": tokenizer, "architecture": architecture, "context_length": context_length,
        "chat_template": chat_template}  # fmt: skip
    text = path_text(id_or_path, "model")
    if not isinstance(id_or_path, str) or text.endswith(".gguf") or os.sep in text:
        if not Path(text).exists():
            raise ModelFileNotFound(f"'{text}'", expected="a model", found="none", hint="Check the path.")
        return Model(load_file(text, device, kv=kv, progress=progress, **given))  # type: ignore[arg-type]
    for name, value in given.items():
        if value is not None:
            raise InvalidRequest(
                name, expected="no value with a registered model", found=repr(value), param=name,
                hint="The manifest states it: register the model again to change it.")  # fmt: skip
    registry, cache = open_store(store), process_cache()
    if registry.get(text).kind == "embedding":
        return Model(cache.get_or_load_embedding(registry, text, device, progress))
    return Model(cache.get_or_load(registry, text, device, progress, kv=kv))


class Model:
    """A loaded model. Calls from several threads run together, those of one moment in one pass.

    ``chat`` and ``complete`` return an ``Answer``; ``stream`` yields pieces of text; ``achat``, ``acomplete``
    and ``astream`` do the same without blocking the event loop. Options are those of ``Options``;
    ``cancelled`` is a function that ends the generation by returning True. An embedding model has ``embed``.
    """

    def __init__(self, session: ModelSession | EmbeddingSession) -> None:
        self._session: ModelSession | EmbeddingSession | None = session
        session.holders.add(self)

    @property
    def session(self) -> ModelSession:
        """The session of a model that generates text.

        Raises ``BackendError`` after ``close``, and ``InvalidRequest`` for an embedding model.
        """
        from rase.session import ModelSession

        return _of_kind(self._open, ModelSession, "generator")

    @property
    def embedder(self) -> EmbeddingSession:
        """The session of an embedding model. Raises ``BackendError`` and ``InvalidRequest``."""
        from rase.embedding import EmbeddingSession

        return _of_kind(self._open, EmbeddingSession, "embedding")

    @property
    def _open(self) -> ModelSession | EmbeddingSession:
        if self._session is None:
            raise BackendError("this model is closed", hint="Load it again.")
        return self._session

    @property
    def id(self) -> str:
        """The id in the store, or the name of the file."""
        return self._open.id

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together, or of one text that is embedded."""
        return self._open.context_length

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], *, dimensions: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:  # fmt: skip
        """Vectors ``(texts, dim)``, float32, each of length 1, of texts or lists of token ids.

        A single string counts as one text. ``dimensions`` keeps the first elements of each. Raises
        ``InvalidRequest`` (a model that generates text, an input that is not valid),
        ``ContextLengthExceeded`` before anything is computed, ``Cancelled``.
        """
        return self.embedder.embed(texts, dimensions, cancelled).vectors

    def chat(
        self, messages: Messages, *,
        cancelled: Callable[[], bool] | None = None, **options: Unpack[Options],
    ) -> Answer:  # fmt: skip
        """Answer ``messages`` (a string is one user message) through the model's chat template."""
        return self._run(_chat(messages, options), cancelled)

    def complete(
        self, prompt: str | Sequence[int], *, cancelled: Callable[[], bool] | None = None,
        **options: Unpack[Options],
    ) -> Answer:  # fmt: skip
        """Continue ``prompt``, text or token ids, as it is: no template."""
        return self._run(_raw(prompt, options), cancelled)

    def stream(self, messages: Messages, **options: Unpack[Options]) -> Stream:
        """Answer ``messages`` piece by piece: ``for text in model.stream(...)``.

        Refusals are raised here, not at the first piece. Generation runs ahead of the reader; dropping or
        closing the iterator stops it at the next token. ``completion`` is set at the end.
        """
        return self._stream(_chat(messages, options))

    def stream_completion(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Stream:
        """As ``stream``, for a raw ``prompt``."""
        return self._stream(_raw(prompt, options))

    async def achat(self, messages: Messages, **options: Unpack[Options]) -> Answer:
        """``chat`` without blocking the event loop; cancelling the task stops the generation."""
        return await self._arun(_chat(messages, options))

    async def acomplete(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Answer:
        """``complete`` without blocking the event loop; cancelling the task stops the generation."""
        return await self._arun(_raw(prompt, options))

    async def aembed(
        self, texts: str | Sequence[str | Sequence[int]], *, dimensions: int | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """``embed`` without blocking the event loop; cancelling the task stops it at the next step."""
        left = threading.Event()
        try:
            return await in_thread(lambda: self.embed(texts, dimensions=dimensions, cancelled=left.is_set))
        finally:
            left.set()

    async def astream(self, messages: Messages, **options: Unpack[Options]) -> AsyncIterator[str]:
        """``stream`` as an asynchronous iterator; leaving it stops the generation."""
        request, bell = _chat(messages, options), Bell()
        stream = await in_thread(lambda: self._stream(request, bell.ring))
        try:
            while True:
                ended = stream.ended  # before looking: what came until then is there
                for text in stream.available():
                    yield text
                if ended:
                    stream.result()
                    return
                await bell.wait()
        finally:
            stream.close()

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of ``text``; nothing in it is taken for a control token."""
        if not isinstance(text, str):
            raise InvalidRequest("text", expected="a string", found=type(text).__name__, param="text")
        return self.session.tokenizer.encode(text, add_special_tokens, parse_special=False)

    def detokenize(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``."""
        try:
            if isinstance(ids, (str, bytes)) or any(isinstance(id, bool) for id in ids):
                raise TypeError
            given = [operator.index(id) for id in ids]
        except TypeError:
            raise InvalidRequest("ids", expected="token ids", found=f"{ids!r:.60}", param="ids") from None
        return self.session.tokenizer.decode(given, skip_special_tokens)

    def close(self) -> None:
        """Let the model go. Its memory is freed when no other ``Model`` and no running generation uses it."""
        session, self._session = self._session, None
        if session is not None:
            session.holders.discard(self)
            if not session.holders:
                process_cache().discard(session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self._session.id if self._session else '(closed)'}>"

    def _run(self, request: TextRequest, cancelled: Callable[[], bool] | None) -> Answer:
        from rase import completion

        session = self.session
        return Answer(completion.run(session, completion.prepare(session, request), None, cancelled))

    def _stream(self, request: TextRequest, on_event: Callable[[], object] | None = None) -> Stream:
        from rase import completion

        session = self.session
        prepared = completion.prepare(session, request)
        if prepared.n != 1:
            raise InvalidRequest("n", expected="1 for a stream", found=prepared.n, param="n")
        return Stream(session, prepared, on_event)

    async def _arun(self, request: TextRequest) -> Answer:
        from rase import completion

        session = self.session
        prepared = await in_thread(lambda: completion.prepare(session, request))
        return Answer(await finished(session, prepared))


def _of_kind(session: Any, wanted: type[_Session], kind: str) -> _Session:
    from rase.loaded import check_runs
    from rase.registry import ModelKind

    check_runs(session.manifest, ModelKind(kind))
    assert isinstance(session, wanted)
    return session


def _chat(messages: Any, options: Options) -> TextRequest:
    from rase.text.messages import ChatMessage, parse_messages

    if isinstance(messages, str):
        return request_of(options, messages=[ChatMessage("user", messages)])
    return request_of(options, messages=parse_messages(messages))


def _raw(prompt: str | Sequence[int], options: Options) -> TextRequest:
    return request_of(options, prompt=prompt)


def request_of(options: Options, **what: Any) -> TextRequest:
    """The request with these options; ``what`` is messages or a prompt. Raises ``InvalidRequest``."""
    from rase.completion import TextRequest, normalise_stop
    from rase.engine.config import GenerationConfig

    given = dict(options)
    for name in given:
        if name not in Options.__annotations__:
            raise InvalidRequest(
                f"unknown option '{name}'", expected="one of " + ", ".join(sorted(Options.__annotations__)),
                param=name)  # fmt: skip
    for name in ("n", "template_kwargs", "split_reasoning"):
        if name in given:
            what[name] = given.pop(name)
    variables = {name: given.pop(name) for name in _VARIABLES if name in given}
    if variables and isinstance(what.get("template_kwargs", {}), Mapping):
        what["template_kwargs"] = {**what.get("template_kwargs", {}), **variables}
    what["stop"] = normalise_stop(given.pop("stop", None))
    return TextRequest(config=GenerationConfig(**given), **what)  # type: ignore[arg-type]
