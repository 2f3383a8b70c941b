"""``SETTINGS``: everything that can be set, once: name, type, default, meaning.

The environment variable ``RASE_MAX_BATCH_SEQS`` is the key ``max_batch_seqs`` of a ``rase.toml`` and the
option ``--max-batch-seqs`` of the commands that take it. ``rase.env`` finds the value that counts. Keys of
the origin's serving stack keep their names; those that mean nothing here are accepted where they are true.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rase.duration import seconds

__all__ = ["SETTINGS", "Setting", "key_of", "option_of"]


@dataclass(frozen=True)
class Setting:
    """How the text of a setting becomes a value, and what it means."""

    parse: Callable[[str], Any]  # raises ValueError
    kind: str  # what a person may write, for messages and documentation
    default: Any
    meaning: str
    key: str | None = ""  # in files; "": the variable's name in lower case; None: not in files
    secret: bool = False  # never shown
    many: bool = False  # a list in files, and several texts with commas between elsewhere


def key_of(variable: str) -> str | None:
    """The key of a setting in a configuration file; None for variables of other programs."""
    key = SETTINGS[variable].key
    return variable.removeprefix("RASE_").lower() if key == "" else key


def option_of(variable: str) -> str:
    """The option of a setting on the command line."""
    return "--" + (key_of(variable) or variable.lower()).replace("_", "-")


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _whole(text: str, least: int = 0) -> int:
    number = int(text)
    if number < least:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    return _whole(text, 1)


def _limited(text: str) -> float:
    value = seconds(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(word) for word in _words(text)}))


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]i?)?B?", text.strip())
    if match is None:
        raise ValueError(text)
    number, unit = match.groups()
    factor = 1024 if unit and unit.endswith("i") else 1000
    return int(float(number) * factor ** (" kMGT".index(unit[0]) if unit else 0))


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return parse


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _keys(text: str) -> tuple[str, ...]:
    keys = _words(text)
    if not all(len(key) >= 8 and key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ValueError(text)
    return keys


def _only(*accepted: str) -> Callable[[str], Any]:
    """For what cannot be chosen here: the one value that is true passes, with no effect."""

    def parse(text: str) -> str:
        if text.strip() not in accepted:
            raise ValueError(text)
        return text.strip()

    return parse


_AT_LEAST_1 = "a whole number, at least 1"
_SIZE = "bytes, or a size such as 12GB"
_TIME = "seconds, or a duration such as 5m"
_LIMITED = "seconds above 0, or a duration such as 5m"

SETTINGS: dict[str, Setting] = {
    # The server
    "RASE_HOST": Setting(str, "an address or name of this machine", "127.0.0.1", "The address to listen on."),
    "RASE_PORT": Setting(_whole, "0 to 65535", 8080, "The port; 0 takes any free one."),
    "RASE_MODELS": Setting(
        _words, "ids of models", (), "Models that the server loads at its start, and keeps.", many=True),
    "RASE_DRAFT": Setting(
        str, "an id", None, "A small model with the same tokenizer that guesses for each of these."),
    "RASE_API_KEY": Setting(
        _keys, "keys of at least 8 visible ASCII characters", (), "Keys of which a client must send one; "
        "default: no key is asked for.", secret=True, many=True),
    "RASE_API_KEY_FILE": Setting(str, "a file with a key in each line", None, "More such keys."),
    "RASE_INSECURE": Setting(
        _flag, "0 or 1", False, "Let other machines reach a server that asks for no key."),
    "RASE_ALLOW_HOST": Setting(_words, "names", (), "Further names in the Host header.", many=True),
    "RASE_ALLOW_ORIGIN": Setting(_words, "origins (URLs)", (), "Web pages that may call.", many=True),
    "RASE_MAX_QUEUE": Setting(
        _whole, "a whole number", 32, "Requests that may wait for a model, beside those that run."),
    "RASE_MAX_BODY": Setting(_bytes, _SIZE, 8 << 20, "The largest request body."),
    "RASE_REQUEST_TIMEOUT": Setting(
        seconds, _TIME, None, "How long any request may take, to the end of its answer; default: no bound."),
    "RASE_DRAIN_TIMEOUT": Setting(
        seconds, _TIME, 10.0, "How long running requests may go on when the server is told to end."),
    "RASE_LOG_FORMAT": Setting(
        _choice("text", "json"), "text or json", "text", "How the server's log lines are written."),
    "RASE_OTEL": Setting(_flag, "0 or 1", False, "Send an OpenTelemetry span for each request (extra otel)."),
    # How many models
    "RASE_STORE": Setting(str, "a folder", None, "The model store; default: the user's data folder."),
    "RASE_DEVICE": Setting(str, "auto, or a device", "auto", "Where models run."),
    "RASE_KEEP_ALIVE": Setting(
        seconds, _TIME + "; negative: for ever", seconds("5m"),
        "How long `rase serve` keeps a model after its last use."),
    "RASE_MAX_LOADED_MODELS": Setting(
        _count, _AT_LEAST_1, None, "Models that are loaded together; the one that is idle for longest makes "
        "room. Default: any number."),
    "RASE_MEMORY_BUDGET": Setting(
        _bytes, _SIZE, None,
        "How much the weights of all loaded models may take together; default: what the machine has."),
    # What each of them may take
    "RASE_MAX_BATCH_TOKENS": Setting(
        _count, _AT_LEAST_1, 512, "Tokens that one step of a model computes at most."),
    "RASE_MAX_BATCH_SEQS": Setting(
        _count, _AT_LEAST_1, 64, "Sequences of a model that run at one time; others wait."),
    "RASE_CHUNKED_PREFILL_SIZE": Setting(
        _whole, "a whole number; 0 for no bound of its own", 0, "Prompt tokens of one step at most."),
    "RASE_MAX_MODEL_LEN": Setting(
        _count, _AT_LEAST_1, None, "The longest context of any model; default: what its manifest says."),
    "RASE_KV_CACHE": Setting(
        _bytes, _SIZE, None,
        "Memory of a model's KV cache; default: four whole contexts, within half of what is free."),
    "RASE_NUM_BLOCKS": Setting(
        _whole, "a whole number; 0 for what RASE_KV_CACHE says", 0, "Its size in pages of 32 tokens."),
    "RASE_KV": Setting(
        _choice("f16", "q8_0"), "f16 or q8_0", "f16",
        "How it holds keys and values: q8_0 takes 53 per cent of the memory, and rounds more."),
    "RASE_PREFIX_CACHING": Setting(
        _flag, "0 or 1", True, "Keep computed prefixes for later requests.", key="enable_prefix_caching"),
    "RASE_PREFIX_STORE": Setting(
        str, "a folder", None, "Where computed prompts are kept across restarts; default: nowhere."),
    "RASE_PREFIX_STORE_SIZE": Setting(_bytes, _SIZE, 8 * 10**9, "How much that folder may take."),
    "RASE_SPECULATION": Setting(_flag, "0 or 1", True, "Guess tokens by prompt lookup and verify them."),
    "RASE_IGNORE_EOS": Setting(
        _flag, "0 or 1", False, "Let answers go on behind end tokens, for requests that do not say."),
    # More than one machine
    "RASE_REPLICAS": Setting(_count, _AT_LEAST_1, 1, "Processes of a cluster that run each model."),
    "RASE_MIN_REPLICAS": Setting(
        _count, _AT_LEAST_1, None, "The fewest of them, where their number follows the load."),
    "RASE_MAX_REPLICAS": Setting(
        _count, _AT_LEAST_1, None, "The most of them, where their number follows the load."),
    "RASE_TARGET_ONGOING_REQUESTS": Setting(
        _count, _AT_LEAST_1, 8, "Requests of each, on average, beyond which another one is started."),
    "RASE_REPLICA_CPUS": Setting(
        _count, _AT_LEAST_1, None, "Processors that Ray keeps for each, and threads it computes with; "
        "default: an equal share of this machine's, and of a running cluster a whole machine's."),
    "RASE_ROUTER": Setting(
        _choice("prefix", "ray", "balanced"), "prefix, ray or balanced", "prefix",
        "Who gets a request: whoever knows the beginning of its prompt, the same by Ray's own router, or "
        "whoever has least to do."),
    "RASE_RAY_ADDRESS": Setting(
        str, "auto, or HOST:PORT", None, "A running Ray cluster; default: a Ray of its own on this machine."),
    # The machine
    "RASE_NUM_THREADS": Setting(
        _count, _AT_LEAST_1, None,
        "Threads for decode; default: the physical cores of this process (all but four from twelve up)."),
    "CANDLE_NUM_THREADS": Setting(
        _count, _AT_LEAST_1, None, "Threads for decode where RASE_NUM_THREADS is not set.", key=None),
    "RAYON_NUM_THREADS": Setting(_count, _AT_LEAST_1, None, "Threads for prefill.", key=None),
    "RASE_ISA": Setting(
        str, "an instruction set: scalar; x86: avx2, avxvnni, avx512, avx512vbmi, amx; ARM: neon, dotprod",
        None, "Force the kernels' instruction set."),
    "RASE_NUMERICS": Setting(
        _choice("fast", "portable"), "fast or portable", "fast",
        "Numerics class: 'portable' uses the integer path for prompts and answers on every machine."),
    "RASE_PREFILL": Setting(
        _choice("auto", "int8", "f32", "bf16"), "auto, int8, f32 or bf16", "auto",
        "Arithmetic for prompt tokens; 'auto' takes the fastest one that the class allows."),
    "RASE_BACKEND": Setting(
        str, "a backend's name", "cpu",
        "The backend that runs device cpu; 'reference' is the slow float64 oracle."),
    "RASE_GPU": Setting(
        _flag, "0 or 1", False,
        "Multiply the matrices of prompts on a GPU (extra gpu), beside the CPU for all else."),
    "RASE_GPU_SOFTWARE": Setting(
        _flag, "0 or 1", False, "Let that GPU be a program of the CPU, such as lavapipe: for tests."),
    "RASE_PROFILE": Setting(_flag, "0 or 1", False, "Count the time of each phase; read once per process."),
    # What other backends know
    "RASE_TORCH_WEIGHTS": Setting(
        _choice("packed", "bf16"), "packed or bf16", "packed",
        "Weights on an accelerator: as the file has them, or in bfloat16 (larger, unpacked once)."),
    "RASE_TENSOR_PARALLEL_SIZE": Setting(
        _count, _AT_LEAST_1, 1, "GPUs of this machine that share a model (device cuda)."),
    "RASE_TP_OPERATION_TIMEOUT_SECS": Setting(
        _limited, _LIMITED, 30.0, "How long one may wait for the others before the model is given up."),
    "RASE_TP_STARTUP_TIMEOUT_SECS": Setting(
        _limited, _LIMITED, 120.0, "How long their processes may take to start."),
    "RASE_CAPTURE_SIZES": Setting(
        _sizes, "whole numbers, at least 1", (1, 2, 4, 8, 16, 32, 64),
        "Batch sizes that CUDA graphs are captured for (device cuda); none: no graphs.", many=True),
    "RASE_MEM_FRACTION_STATIC": Setting(
        _only(), "nothing: no memory is reserved ahead; memory_budget and kv_cache bound it", None,
        "Share of a device's memory for weights and buffers."),
    "RASE_MTP_NUM_DRAFT_TOKENS": Setting(
        _only("0"), "0: these models bring no heads for drafts; see RASE_DRAFT", "0",
        "Drafts of such heads."),
}  # fmt: skip
