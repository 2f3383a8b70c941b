"""Render the templates of ../families with transformers, which sets up jinja2 by its own code.

In the environment of make_goldens.py, from the root of the repository:

    python -m tests.text.goldens.make_families [--compare]

Made with transformers 5.24.0. A chat that a template refuses is recorded as null.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from tests.text.families import CHATS, FAMILIES, OPTIONS, SPECIAL, source

TARGET = Path(__file__).resolve().parent / "families.json"


def rendered() -> dict[str, dict[str, str | None]]:
    """By family, and by chat and options, what the template gives."""
    found: dict[str, dict[str, str | None]] = {}
    for family in FAMILIES:
        found[family] = {}
        for chat, messages in CHATS.items():
            for name, options in OPTIONS.items():
                variables = {"add_generation_prompt": True, **SPECIAL, **options}
                try:
                    texts, _ = render_jinja_template([messages], chat_template=source(family), **variables)
                    found[family][f"{chat}, {name}"] = texts[0]
                except Exception:  # of jinja2, by raise_exception
                    found[family][f"{chat}, {name}"] = None
    return found


def main(words: list[str]) -> None:
    found = rendered()
    if "--compare" in words:
        if json.loads(TARGET.read_text()) != found:
            raise SystemExit("the committed renderings differ")
    else:
        TARGET.write_text(json.dumps(found, ensure_ascii=True, indent=0) + "\n")
    refused = sum(list(texts.values()).count(None) for texts in found.values())
    print(f"{sum(map(len, found.values()))} renderings, {refused} refused")


if __name__ == "__main__":
    main(sys.argv[1:])
