"""Render the templates of ../families with transformers, which sets up jinja2 by its own code.

In the environment of make_goldens.py, from the root of the repository:

    python -m tests.text.goldens.make_families [--compare]
    python -m tests.text.goldens.make_families FOLDER FILE     those of another folder, into another file

Made with transformers 5.24.0. A chat that a template refuses is recorded as null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from tests.text.families import CHATS, FAMILIES, OPTIONS, SPECIAL, source

TARGET = Path(__file__).resolve().parent / "families.json"


def rendered(sources: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """By the name of a template, and by chat and options, what it gives."""
    found: dict[str, dict[str, str | None]] = {}
    for family, text in sources.items():
        found[family] = {}
        for chat, messages in CHATS.items():
            for name, options in OPTIONS.items():
                variables = {"add_generation_prompt": True, **SPECIAL, **options}
                try:
                    texts, _ = render_jinja_template([messages], chat_template=text, **variables)
                    found[family][f"{chat}, {name}"] = texts[0]
                except Exception:  # of jinja2, by raise_exception
                    found[family][f"{chat}, {name}"] = None
    return found


def main(words: list[str]) -> None:
    if len(words) == 2:
        paths = sorted(Path(words[0]).glob("*.jinja"))
        found = rendered({path.stem: path.read_text(encoding="utf-8") for path in paths})
        Path(words[1]).write_text(json.dumps(found))
        return
    found = rendered({family: source(family) for family in FAMILIES})
    if "--compare" in words:
        if json.loads(TARGET.read_text()) != found:
            raise SystemExit("the committed renderings differ")
    else:
        TARGET.write_text(json.dumps(found, ensure_ascii=True, indent=0) + "\n")
    refused = sum(list(texts.values()).count(None) for texts in found.values())
    print(f"{sum(map(len, found.values()))} renderings, {refused} refused")


if __name__ == "__main__":
    main(sys.argv[1:])
