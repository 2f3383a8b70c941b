"""The table of `tokenizer.ggml.pre` names: how text is cut before byte-level BPE sees it.

Each row was taken from the tokenizer.json of the models that the name stands for, and compared with the
public converters (llama.cpp `src/llama-vocab.cpp`, transformers `integrations/gguf`). A name that is not
here is refused: a guess would give other token ids than the model was trained on, without any sign of it.
"default" is such a name: converters write it for models that they do not know. One row follows another
source: "pixtral" cuts as Mistral's own tekken.json says, since the tokenizer.json of that model has a pattern
that transformers calls incorrect (`_patch_mistral_regex`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rase.errors import TokenizerError

__all__ = ["DIGITS", "PRE_TOKENIZERS", "PreTokenizer", "lookup"]

DIGITS = r"\p{N}"  # isolates every digit: the library's own step, which knows a few more than this class


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text: each pattern in turn isolates its matches inside the parts of the one before."""

    splits: tuple[str, ...]  # Oniguruma syntax, as in tokenizer.json; or DIGITS
    gpt2_split: bool = False  # finally cut as GPT-2 does (the library's own pattern)
    nfc: bool = False  # the tokenizer.json of these models normalises to NFC; GGUF has no key for that
    ignore_merges: bool = False  # a part that is a token as a whole is taken as it is
    add_bos: bool = False  # default when the file has no add_bos_token
    add_sep: bool = False  # default when the file has no add_sep_token: encoders put it after a text

    def normalizer(self) -> Any:
        """The `tokenizers` normalizer, or None."""
        from tokenizers import normalizers

        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        """The `tokenizers` pre-tokenizer."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [
            pre_tokenizers.Digits(individual_digits=True)
            if pattern is DIGITS
            else pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in self.splits
        ]
        return pre_tokenizers.Sequence(
            [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_split)]
        )


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"

# cl100k with digits in groups of three (Llama 3) or one by one (Qwen 2)
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
# o200k: words are cut where small letters meet capitals
_TEKKEN = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
_GPT4O = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
)

_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+")
# Letters of scripts with capitals, as the tokenizer.json spells them. The range :-~ of the pattern after them
# has a to z, too, and so cuts a word once more before its other letters.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇ"
    "Ꞌ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+",
)  # fmt: skip
_SUPERBPE = (r"\p{N}+", r"(?=(?:\d{3})+(?!\d))")  # digits by three, from the right; words are not cut
_SEED_CODER = (
    rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MINICPM5 = (
    r"\p{N}{1,3}",
    rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",
)
_VIKING = (r" ?[^(\s|.,!?…。，、।۔،)]+",)

_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_qwen2 = PreTokenizer((_QWEN2,), nfc=True)
_gpt2 = PreTokenizer((), gpt2_split=True)
_gpt2_digits = PreTokenizer((DIGITS,), gpt2_split=True)
_gpt4o = PreTokenizer((_GPT4O,))
_tekken = PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "falcon3": _llama3,
    "lfm2": _llama3,
    "midm-2.0": _llama3,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "minicpm5": PreTokenizer(_MINICPM5, ignore_merges=True),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "megrez": _qwen2,
    "kormo": _qwen2,
    "f2llmv2": _qwen2,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": _tekken,
    "pixtral": _tekken,
    "gpt-4o": _gpt4o,
    "llama4": _gpt4o,
    "kanana2": _gpt4o,
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "a.x-4.0": _gpt2,
    "mellum": _gpt2,
    "trillion": _gpt2,
    "granite-docling": _gpt2,
    "olmo": PreTokenizer((), gpt2_split=True, nfc=True),
    "roberta-bpe": PreTokenizer((), gpt2_split=True, add_sep=True),
    "smollm": _gpt2_digits,
    "starcoder": _gpt2_digits,
    "refact": _gpt2_digits,
    "minerva-7b": _gpt2_digits,
    "viking": PreTokenizer((*_VIKING, DIGITS)),
    "superbpe": PreTokenizer(_SUPERBPE),
    "deepseek-llm": PreTokenizer((*_DEEPSEEK_LLM, DIGITS)),
    "deepseek-coder": PreTokenizer((*_DEEPSEEK_CODER, DIGITS)),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
}


def lookup(name: object) -> PreTokenizer:
    """The row for a file's ``tokenizer.ggml.pre``. Raises ``TokenizerError`` for a name that is not known."""
    row = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if row is None:
        found = "no such key" if name is None else repr(name)
        if isinstance(name, str) and name == "default":
            found += ", which converters write for a model that they do not know"
        raise TokenizerError(
            "the pre-tokenizer of this file (tokenizer.ggml.pre) is not known: text could be cut wrongly",
            expected="one of " + ", ".join(sorted(PRE_TOKENIZERS)),
            found=found,
            hint="Attach the model's own: rase model attach-tokenizer ID --tokenizer tokenizer.json",
            pre=name,
        )
    return row
