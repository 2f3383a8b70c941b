# ruff: noqa: E501 (messages are one line each)
"""The chats and variables that every family's template is rendered with; goldens/make_families.py does, too.

The templates in families/ were written for these tests: each follows the format of a public family, and uses
of Jinja what that family's own template uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "families"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

_PARAMETERS = {
    "type": "object", "properties": {"city": {"type": "string", "description": "Größe < 50"}}, "required": ["city"],
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "It's hot?", "parameters": _PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "time", "parameters": {"type": "object"}}},
]  # fmt: skip
_CALL = {
    "role": "assistant", "content": "",
    "tool_calls": [{"type": "function", "id": "abcdefghi",
                    "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5, None, True]}}}],
}  # fmt: skip
_USER = {"role": "user", "content": 'Hi & <b>hello</b>, "you"\n'}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [_USER],
    "system": [{"role": "system", "content": "Be brief."}, _USER],
    "turns": [_USER, {"role": "assistant", "content": " Hello 안녕 "}, {"role": "user", "content": "  again  "}],
    "answered": [{"role": "system", "content": "S"}, _USER, {"role": "assistant", "content": "done"}],
    "called": [
        {"role": "system", "content": "S"}, _USER, _CALL,
        {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 20}'},
    ],
    "thought": [
        _USER, {"role": "assistant", "content": "<think>\nfirst\n</think>\n\nA"}, {"role": "user", "content": "B"},
        {"role": "assistant", "content": "C", "reasoning_content": "second", "reasoning": "second",
         "thinking": "second"},
    ],
    "mode": [{"role": "system", "content": "Short. /no_think"}, _USER],
    "two systems": [{"role": "system", "content": "S"}, {"role": "system", "content": "T"}],
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "no thinking": {"enable_thinking": False},
    "thinking": {"enable_thinking": True},
    "effort": {"reasoning_effort": "high"},
    "documents": {"documents": [{"title": "t", "text": "one"}, {"title": "u", "text": "two <b>"}]},
    "closed": {"add_generation_prompt": False},
}


def source(family: str) -> str:
    """The text of one family's template."""
    return (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
