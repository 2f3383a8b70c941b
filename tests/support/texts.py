"""Generated strings of every Unicode class for comparing tokenizers; a seed always gives the same ones."""

from __future__ import annotations

import random
import sys
import unicodedata
from functools import cache

__all__ = ["PROSE", "generated_texts"]

PROSE = (
    "The quick brown fox doesn't jump over 12345 lazy dogs, it's asleep.\n\nShe'll say:"
    ' "I\'VE 3.14 apples"!\r\n',
    "def f(x):\n    return x ** 2  # comment\n\tif x:\n\t\tpass\n",
    "안녕하세요. 오늘은 2024년 1월 1일입니다. 日本語のテキスト、中文字符。",
    "Ça va? Größe, naïve, Ĳssel, ﬁne, Å Å Å, e\u0301 \u1e69 s\u0323\u0307",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี ชาวโลก",
    "👨‍👩‍👧‍👦 🏳️‍🌈 🇰🇷 ☕️ ❤️ 😸 \u200b\u200d\ufeff",
    "https://example.com/a?b=c&d=%20#e user@example.org C:\\path\\file.txt $100,000.00 50% (a[b]{c})",
)


@cache
def _classes() -> dict[str, list[str]]:
    """Every assigned or private character except surrogates, by general category."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != "Cs":
            found.setdefault(category, []).append(chr(code))
    return found


def generated_texts(count: int, seed: int = 0, specials: tuple[str, ...] = ()) -> list[str]:
    """``count`` strings: runs of one class, mixtures, pieces of prose, blanks and ``specials``."""
    random_ = random.Random(seed)
    classes = _classes()
    names = sorted(classes)
    everyday = "abc XYZ  \n\n\t\r\n0123456789 .,;:!?'\"-_()[]{}<>|/\\ 's 'RE 'll é ñ 한 中 あ"

    def piece() -> str:
        kind = random_.randrange(8 if specials else 7)
        length = random_.choice((1, 1, 2, 3, 5, 8, 17))
        if kind == 0:
            category = classes[random_.choice(names)]
            return "".join(random_.choice(category) for _ in range(length))
        if kind == 1:
            return "".join(random_.choice(classes[random_.choice(names)]) for _ in range(length))
        if kind == 2:
            return "".join(random_.choice(everyday) for _ in range(length))
        if kind == 3:
            text = random_.choice(PROSE)
            start = random_.randrange(len(text))
            return text[start : start + random_.randrange(1, 30)]
        if kind == 4:
            return random_.choice(" \n\t\r\u00a0\u3000\u2028") * length
        if kind == 5:
            return random_.choice("0a.Z한ßǅ\u0301") * length
        if kind == 6:
            return random_.choice((" ", "'", "\n", " '")) + random_.choice(
                ("s", "t", "RE", "Ve", "LL", "d", "m", "x")
            )
        return random_.choice(specials)

    return ["".join(piece() for _ in range(random_.randrange(1, 12))) for _ in range(count)]
