"""``create_app`` and ``application``: the routes, and the way of a request from bytes to a lane and back.

    GET  /health, /ready, …      see ``rase.server.status``
    GET  /v1/models              the registered models
    GET  /v1/models/{id}
    GET  /v1/ps                  the loaded models
    POST /v1/chat/completions    whole, or server-sent events with "stream": true
    POST /v1/completions         the same

Every path of ``/v1`` also works without it. The application needs no lifespan, so a host can mount it
anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rase import env
from rase.errors import InvalidRequest
from rase.server.access import facts
from rase.server.body import ClientGone, check_content_type, read_body
from rase.server.engines import Engines
from rase.server.errors import Refused, error_response
from rase.server.guard import Guard
from rase.server.host import HostWatch
from rase.server.job import Job
from rase.server.keys import Keys, keys_of_settings
from rase.server.openai import Call, model_of, read_chat, read_completion
from rase.server.prometheus import Answers
from rase.server.readiness import Readiness
from rase.server.replies import (
    ChatReply,
    CompletionReply,
    Reply,
    encode,
    loaded_object,
    model_object,
    usage,
)
from rase.server.runner import Runner
from rase.server.sse import JobStream
from rase.server.status import Status
from rase.server.turnstile import Turnstile

__all__ = ["application", "create_app"]

_SMALL = 32 << 10  # bytes that are parsed on the event loop: less work than handing them to a thread
CLIENT_CLOSED = 499  # the log's status of a request whose client left


def create_app(
    registry: Any = None,
    cache: Any = None,
    *,
    device: Any = "auto",
    queue_limit: int | None = None,
    allowed_hosts: Collection[str] | None = None,
    allowed_origins: Collection[str] | None = None,
    max_body: int | None = None,
    ping_s: float = 10.0,
    drain_s: float | None = None,
    request_s: float | None = None,
    api_keys: Collection[str] | None = None,
) -> Starlette:
    """Return an ASGI application that serves the models of ``registry``.

    ``registry`` is a ``ModelRegistry``, the folder of one, or None for the default store. ``cache`` is a
    ``SessionCache`` to share loaded models with the host, or None for the one of this process.
    ``queue_limit`` requests may wait per model. ``allowed_hosts`` are Host names beyond the loopback ones,
    ``allowed_origins`` the web origins that may call (none), ``api_keys`` those of which a client must send
    one. ``max_body`` is in bytes, the rest in seconds: between pings of a silent stream, for running requests
    when the server shuts down, and for any request until its answer ends. What is None is what
    ``rase.settings`` says.
    """
    from rase.session_cache import process_cache
    from rase.store import open_store

    if registry is None or isinstance(registry, (str, os.PathLike)):
        registry = open_store(registry)
    cache = process_cache() if cache is None else cache
    runner = Runner(registry, cache, device=device, queue_limit=queue_limit, request_s=request_s)
    return application(
        runner, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins, max_body=max_body,
        ping_s=ping_s, drain_s=drain_s, keys=None if api_keys is None else Keys(api_keys))  # fmt: skip


def application(
    engines: Engines,
    *,
    allowed_hosts: Collection[str] | None = None,
    allowed_origins: Collection[str] | None = None,
    max_body: int | None = None,
    ping_s: float = 10.0,
    drain_s: float | None = None,
    keys: Keys | None = None,
) -> Starlette:
    """The application over whatever runs the models; options are those of ``create_app``."""
    api = _Api(
        engines, max_body=env.get("RASE_MAX_BODY") if max_body is None else max_body, ping_s=ping_s,
        drain_s=env.get("RASE_DRAIN_TIMEOUT") if drain_s is None else drain_s,
    )  # fmt: skip

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            engines.close()
            await asyncio.to_thread(engines.join)

    readiness, answers = Readiness(engines), Answers()
    routes = Status(engines, readiness, answers).routes()
    for prefix in ("/v1", ""):
        routes += [
            Route(prefix + "/models", api.models),
            Route(prefix + "/models/{id:path}", api.model),
            Route(prefix + "/ps", api.loaded),
            Route(prefix + "/chat/completions", api.chat, methods=["POST"]),
            Route(prefix + "/completions", api.completion, methods=["POST"]),
        ]
    listeners: list[Callable[[Any, int, float], object]] = [answers.count]
    if env.get("RASE_OTEL"):
        from rase.server.tracing import span_writer

        listeners.append(span_writer())
    options: dict[str, Any] = {
        "hosts": env.get("RASE_ALLOW_HOST") if allowed_hosts is None else allowed_hosts,
        "origins": env.get("RASE_ALLOW_ORIGIN") if allowed_origins is None else allowed_origins,
        "keys": Keys(keys_of_settings()) if keys is None else keys, "listeners": listeners,
    }  # fmt: skip
    app = Starlette(
        routes=routes, middleware=[Middleware(Guard, **options)], lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )  # fmt: skip
    app.state.turnstile = Turnstile(Guard(app, **options), engines)
    app.router.redirect_slashes = False
    app.state.runner, app.state.readiness = engines, readiness
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in OpenAI's form."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return error_response(Refused(405, "method_not_allowed", "wrong method for this path", allow=allow))
    return error_response(Refused(404, "not_found", "there is no such path", hint="See /v1/models."))


class _Api:
    """The endpoints; one object per application."""

    def __init__(self, engines: Engines, *, max_body: int, ping_s: float, drain_s: float) -> None:
        self.engines, self.max_body, self.ping_s = engines, max_body, ping_s
        self._host = HostWatch(engines, drain_s)

    async def models(self, request: Request) -> Response:
        manifests = await self.engines.manifests()
        objects = await asyncio.to_thread(lambda: [model_object(manifest) for manifest in manifests])
        return _json(encode({"object": "list", "data": objects}))

    async def model(self, request: Request) -> Response:
        manifest = await self.engines.manifest(request.path_params["id"])
        return _json(encode(await asyncio.to_thread(model_object, manifest)))

    async def loaded(self, request: Request) -> Response:
        models = await self.engines.loaded()
        return _json(encode({"object": "list", "data": [loaded_object(model) for model in models]}))

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, read_chat, ChatReply)

    async def completion(self, request: Request) -> Response:
        return await self._generate(request, read_completion, CompletionReply)

    async def _generate(self, request: Request, read: Callable[[bytes], Call], form: type[Reply]) -> Response:
        check_content_type(request.headers)
        try:
            body = await read_body(request.headers, request.receive, self.max_body)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        known, job = facts(request.scope), None
        try:
            # A place first: a full queue refuses who comes before its request is read.
            if (named := model_of(body)) is not None:
                job = await self._admit(request, named)
            call = read(body) if len(body) <= _SMALL else await asyncio.to_thread(read, body)
            del body
            if job is None:
                job = await self._admit(request, await self._only_model())
            self.engines.submit(job, call.requests, stream=call.stream, timeout=call.timeout)
            started = await job.ready
            if call.keep_alive is not None:
                self.engines.keep(started.model, call.keep_alive)
            options = {"include_usage": call.include_usage, "logprobs": call.logprobs}
            reply = form(started.model, started.fingerprint, **options)
            n = call.requests[0].n
            if call.stream:
                known["stream"] = 1
                self._host.watch()
                done = job.done
                return JobStream(job, reply, n, ping_s=self.ping_s, over=lambda: _note(known, done))
            completions = await job.done
            job.close()
            _note(known, job.done)
            return _json(reply.whole(completions, n))
        except BaseException as error:
            if job is not None:
                job.cancel()
            if isinstance(error, ClientGone):
                return Response(status_code=CLIENT_CLOSED)
            raise

    async def _admit(self, request: Request, model: str) -> Job:
        facts(request.scope)["model"] = model
        job = await self.engines.admit(model)
        job.watch(request.receive)
        return job

    async def _only_model(self) -> str:
        """The one registered model, for requests that name none."""
        manifests = await self.engines.manifests()
        if len(manifests) != 1:
            raise InvalidRequest(
                "model is missing", param="model", expected="the id of a registered model",
                found=f"none, and {len(manifests)} models are registered", hint="GET /v1/models lists them.",
            )  # fmt: skip
        return str(manifests[0].id)


def _note(known: dict[str, Any], done: asyncio.Future[Any]) -> None:
    """Put the token counts of a finished request into its facts, and where its time went."""
    error = done.exception()
    if error is not None:
        known["error"] = getattr(error, "code", type(error).__name__)
        return
    counts = usage(done.result())
    known["prompt"], known["completion"] = counts["prompt_tokens"], counts["completion_tokens"]
    known["cached"] = counts["prompt_tokens_details"]["cached_tokens"]
    known["finish"] = ",".join(choice.finish_reason for c in done.result() for choice in c.choices)
    slowest = max(done.result(), key=lambda completion: completion.ttft_s + completion.decode_s)
    known["ended"] = time.time_ns()
    known["queue_s"] = max(0.0, slowest.ttft_s - slowest.prefill_s)
    known["prefill_s"], known["decode_s"] = slowest.prefill_s, slowest.decode_s


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
