"""One answer on stdout, piece by piece, which Ctrl-C ends at the next token."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from rase.cli.common import print_json
from rase.cli.errors import INTERRUPTED

if TYPE_CHECKING:
    from rase.completion import ChatMessage, Completion, Piece
    from rase.session import ModelSession

__all__ = ["Asker", "Interrupt", "stats_line"]

# Control characters of an answer could move the cursor or write into the title of the window.
_NO_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Interrupt:
    """While active, the first Ctrl-C sets ``hit`` and the second raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.hit = False

    def __call__(self) -> bool:
        return self.hit

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # as in a shell's background job
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            raise KeyboardInterrupt
        self.hit = True


class Asker:
    """A session with the options of the command line. ``session`` is set when the model is loaded."""

    session: ModelSession

    def __init__(
        self, config: dict[str, Any], stop: Sequence[str], device: str, thinking: bool | None = None
    ) -> None:
        from rase.completion import GenerationConfig, normalise_stop
        from rase.device import RuntimeDevice

        self.config, self.stop = GenerationConfig(**config), normalise_stop(list(stop))
        self.hints = {"enable_thinking": thinking}  # for the model's own template
        RuntimeDevice.select(device)

    def ask(
        self, messages: Sequence[ChatMessage] | None, prompt: str | None = None, show: bool = True
    ) -> Completion:
        """Generate, writing to stdout as the text comes. The finish reason is "cancelled" after a Ctrl-C."""
        from rase import completion

        request = completion.TextRequest(
            messages=messages, prompt=prompt, config=self.config, stop=self.stop, template_hints=self.hints
        )
        prepared = completion.prepare(self.session, request)
        with Interrupt() as interrupt:
            done = completion.run(self.session, prepared, _write if show else None, interrupt)
        if show and not done.text.endswith("\n"):
            click.echo()
        return done

    def once(self, text: str, system: str | None, *, raw: bool, stats: bool, as_json: bool) -> int:
        """Answer one question and return the exit code."""
        from rase.completion import ChatMessage

        messages = [ChatMessage("system", system)] if system else []
        messages.append(ChatMessage("user", text))
        done = self.ask(None if raw else messages, text if raw else None, show=not as_json)
        if as_json:
            print_json(_facts(done))
        if stats:
            click.echo(stats_line(done), err=True)
        return INTERRUPTED if done.choices[0].finish_reason == "cancelled" else 0


def stats_line(done: Completion) -> str:
    """Tokens and speeds of one answer, for a person."""
    speed = done.prompt_tokens / done.prefill_s if done.prefill_s > 0 else 0.0
    return (
        f"prompt {done.prompt_tokens} tokens, {speed:.1f} tokens/s · answer {done.completion_tokens} tokens, "
        f"{done.tokens_per_second:.1f} tokens/s · first token after {done.ttft_s:.2f} s"
    )


def _write(piece: Piece) -> None:
    if not piece.text:
        return
    text = piece.text.translate(_NO_CONTROLS) if sys.stdout.isatty() else piece.text
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _facts(done: Completion) -> dict[str, Any]:
    return {
        "model": done.model, "text": done.text, "finish_reason": done.choices[0].finish_reason,
        "prompt_tokens": done.prompt_tokens, "completion_tokens": done.completion_tokens,
        "ttft_s": done.ttft_s, "prefill_s": done.prefill_s, "decode_s": done.decode_s,
        "tokens_per_second": done.tokens_per_second, "fingerprint": done.fingerprint,
    }  # fmt: skip
