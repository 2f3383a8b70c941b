"""What becomes of each request field: honoured, refused, or ignored. This table is the whole rule.

``CHAT`` and ``COMPLETION`` map every field that known clients send. *Honoured* fields are the ones of the
structs in ``rase.server.openai``. A *refused* field is an error (400, naming it) unless its value asks for
nothing, such as ``"tools": []``. *Ignored* fields are accepted without effect, for the reason that is given.
A field in no table is ignored too, and its name is logged once per process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rase.server.access import LOGGER, quoted
from rase.server.errors import Refused

__all__ = ["CHAT", "COMPLETION", "Rule", "check_fields"]


@dataclass(frozen=True)
class Rule:
    """``kind``: honoured, refused or ignored. ``neutral`` tells which values of a refused field pass."""

    kind: str
    note: str
    neutral: Callable[[Any], bool] = lambda value: value is None


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value is None or any(type(value) is type(v) and value == v for v in values)


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _honoured(note: str) -> Rule:
    return Rule("honoured", note)


def _refused(note: str, neutral: Callable[[Any], bool] = _empty) -> Rule:
    return Rule("refused", note, neutral)


def _ignored(note: str) -> Rule:
    return Rule("ignored", note)


_COMMON: dict[str, Rule] = {
    "model": _honoured("a registered id; may be absent when exactly one model is registered"),
    "max_tokens": _honoured("default 256"),
    "temperature": _honoured("default 0.7; 0 is greedy"),
    "top_p": _honoured("default 1"),
    "top_k": _honoured("default 40; 0 and -1 are off"),
    "min_p": _honoured("default 0"),
    "frequency_penalty": _honoured("-2 to 2"),
    "presence_penalty": _honoured("-2 to 2"),
    "repetition_penalty": _honoured("default 1"),
    "repeat_penalty": _honoured("the same as repetition_penalty; not both with different values"),
    "seed": _honoured("0 to 2**64 - 1, default 0"),
    "stop": _honoured("a string, or a list of up to 16 strings of 1 to 4096 characters"),
    "stop_token_ids": _honoured("token ids that end the answer, besides the model's own"),
    "n": _honoured("1 to 16"),
    "logit_bias": _honoured("token ids as strings, to -100 … 100"),
    "logprobs": _honoured("chat: true or false; completions: 0 to 20 alternatives"),
    "stream": _honoured("server-sent events"),
    "keep_alive": _honoured("how long the model stays loaded after this: seconds or 5m; negative: for ever"),
    "timeout": _honoured("seconds, or 30s: how long the request may take; the server may allow less"),
    "stream_options": _honoured("include_usage; its other members are ignored"),
    "response_format": _refused("only plain text is produced", lambda v: v is None or v == {"type": "text"}),
    "grammar": _refused("answers cannot be constrained"),
    "json_schema": _refused("answers cannot be constrained"),
    "guided_json": _refused("answers cannot be constrained"),
    "guided_regex": _refused("answers cannot be constrained"),
    "guided_choice": _refused("answers cannot be constrained"),
    "guided_grammar": _refused("answers cannot be constrained"),
    "structured_outputs": _refused("answers cannot be constrained"),
    "typical_p": _refused("not implemented", _one_of(1, 1.0)),
    "ignore_eos": _honoured("go on behind the model's own end tokens; default false, or RASE_IGNORE_EOS"),
    "min_tokens": _refused("end tokens always end an answer", _one_of(0)),
    "skip_special_tokens": _refused("control tokens are never part of the text", _one_of(True)),
    "return_token_ids": _refused("token ids are not part of a reply", _one_of(False)),
    "user": _ignored("no accounts"),
    "metadata": _ignored("nothing is stored"),
    "store": _ignored("nothing is stored"),
    "service_tier": _ignored("there is one tier"),
    "priority": _ignored("first come, first served"),
    "safety_identifier": _ignored("no accounts"),
    "prompt_cache_key": _ignored("caches never change an answer"),
    "prompt_cache_retention": _ignored("caches never change an answer"),
    "cache_prompt": _ignored("caches never change an answer"),
    "cache_salt": _ignored("caches never change an answer"),
    "id_slot": _ignored("the server places requests itself"),
    "timings_per_token": _ignored("extra data of another server"),
    "return_progress": _ignored("extra data of another server"),
    "num_ctx": _ignored("the context length belongs to the manifest"),
    "ttl": _ignored("see keep_alive"),
}

CHAT: Mapping[str, Rule] = {
    **_COMMON,
    "messages": _honoured("system, developer (as system), user, assistant, tool; text or text parts"),
    "prompt": _honoured(
        "text, in place of messages: one user message; then stream is true, top_p 0.9 and max_tokens 128 "
        "unless they are given"
    ),
    "max_completion_tokens": _honoured("the same as max_tokens; the smaller one wins"),
    "top_logprobs": _honoured("0 to 20, with logprobs"),
    "chat_template_kwargs": _honoured("variables for the model's own chat template"),
    "tools": _refused("tools are not supported"),
    "tool_choice": _refused("tools are not supported", _one_of("none", "auto")),
    "functions": _refused("tools are not supported"),
    "function_call": _refused("tools are not supported", _one_of("none", "auto")),
    "modalities": _refused("only text is produced", _one_of(["text"])),
    "audio": _refused("only text is produced"),
    "add_generation_prompt": _refused("an answer always starts a new turn", _one_of(True)),
    "continue_final_message": _refused("a final assistant message is a closed turn", _one_of(False)),
    "parallel_tool_calls": _ignored("tools are not supported"),
    "reasoning_effort": _honoured(
        "a variable for the model's own template; none also clears enable_thinking"
    ),
    "enable_thinking": _honoured("a variable for the model's own template"),
    "documents": _honoured("a variable for the model's own template"),
    "reasoning": _ignored("see reasoning_effort and chat_template_kwargs"),
    "reasoning_format": _honoured("none (default): as it is; auto or deepseek: reasoning_content apart"),
    "verbosity": _ignored("a hint for other models"),
    "prediction": _ignored("a hint for speed"),
    "web_search_options": _ignored("nothing leaves this machine"),
    "moderation": _ignored("nothing leaves this machine"),
}

COMPLETION: Mapping[str, Rule] = {
    **_COMMON,
    "prompt": _honoured("a string, a list of token ids, or a list of up to 16 of either"),
    "suffix": _refused("text cannot be inserted before a suffix"),
    "echo": _refused("the prompt is not repeated in the answer", _one_of(False)),
    "best_of": _refused("every answer is returned: use n", _one_of(1)),
}

_logged: set[str] = set()
_logged_lock = threading.Lock()
_NEUTRAL_MAX = 256  # bytes of JSON: no value that asks for nothing is as long
_LOGGED_MAX = 256  # names that are remembered: a caller must not fill the memory or the log


def check_fields(body: Mapping[str, msgspec.Raw], table: Mapping[str, Rule]) -> None:
    """Apply ``table`` to the top level of a request; raises ``InvalidRequest`` for a refused field."""
    for name, raw in body.items():
        rule = table.get(name)
        if rule is None:
            _log_once(name)
        elif rule.kind == "refused" and not _is_neutral(rule, raw):
            raise Refused(400, "unsupported_parameter", f"'{name}' is not supported: {rule.note}", param=name)


def _is_neutral(rule: Rule, raw: msgspec.Raw) -> bool:
    """Whether a value asks for nothing; a long one always asks for something, and is not decoded."""
    return len(memoryview(raw)) <= _NEUTRAL_MAX and rule.neutral(msgspec.json.decode(raw))


def _log_once(name: str) -> None:
    short = name[:64]
    with _logged_lock:
        if short in _logged or len(_logged) >= _LOGGED_MAX:
            return
        _logged.add(short)
    LOGGER.warning("the request field %s is unknown and ignored", quoted(name, 64))
