"""The environment that runs a model file's own chat template: no way out, no way to take the machine down.

Built on jinja2's immutable sandbox, set up as transformers sets it up. Beyond that: every operation is
counted (`budget`), only listed filters, tests, functions and methods exist, and what the template itself
writes is marked as markup (`provenance`), so that nothing else can become a control token.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable, Iterator, Sized
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from rase.text.budget import OverBudget, current
from rase.text.provenance import Mixed, joined
from rase.text.sandbox_compiler import IgnoreGeneration, SandboxGenerator
from rase.text.sandbox_filters import FILTERS, TESTS, call_method, guarded, repeat_bound

__all__ = ["TemplateEnvironment", "environment"]

_STR_METHODS = frozenset(
    [
        "lower",
        "upper",
        "title",
        "capitalize",
        "casefold",
        "swapcase",
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "replace",
        "join",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "find",
        "rfind",
        "index",
        "rindex",
        "count",
        "isdigit",
        "isalpha",
        "isalnum",
        "isspace",
        "isupper",
        "islower",
        "istitle",
        "isnumeric",
        "isdecimal",
        "isidentifier",
        "isascii",
    ]
)
_METHODS: dict[type, frozenset[str]] = {
    str: _STR_METHODS,
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
    LoopContext: frozenset({"cycle", "changed"}),
}


class _Rounds:
    """What a ``for`` runs over: counts every round."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        step = current().step
        for item in self._items:
            step()
            yield item

    def __len__(self) -> int:
        if isinstance(self._items, Sized):
            return len(self._items)
        raise TypeError("no length")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """See the module. One instance serves all threads; the budget belongs to the rendering thread."""

    code_generator_class = SandboxGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[IgnoreGeneration, loopcontrols],
            autoescape=False,
            optimized=False,
            finalize=self._finalize,
            cache_size=0,
        )
        self.filters = dict(FILTERS)
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: guarded(tests[name]) for name in TESTS}
        self.globals = {
            "range": safe_range,
            "dict": _make_dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self._functions = {safe_range, _make_dict, Namespace, _raise_exception, _strftime_now}

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Call(nodes.EnvironmentAttribute("rounds"), [loop.iter], [], None, None)
        return super()._generate(source, name, filename, defer_init)

    # What generated code calls.

    @staticmethod
    @lru_cache(maxsize=4096)
    def markup(text: str) -> Mixed:
        """A string of the template itself."""
        return Mixed(text, "markup")

    @staticmethod
    def rounds(items: Iterable[Any]) -> _Rounds:
        """The rounds of a ``for``."""
        return _Rounds(items)

    @staticmethod
    def counted() -> bool:
        """One comparison."""
        current().step()
        return True

    @staticmethod
    def weighed(value: Any) -> Any:
        """A container that the template wrote down."""
        current().value(value)
        return value

    @staticmethod
    def sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``value[start:stop:step]``."""
        if isinstance(value, Undefined):
            return value[start:stop:step]
        current().step(1 + (len(value) // 256 if isinstance(value, Sized) else 0))
        return value[start:stop:step]

    def concatenated(self, parts: Iterable[Any]) -> str:
        """The ``~`` operator."""
        budget = current()
        for part in (parts := tuple(parts)):
            budget.value(part)
        return self.concat(str(part) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Join what a macro, a block or ``set`` collected."""
        parts = list(parts)
        current().text(sum(map(len, parts)))
        return joined(parts)

    @staticmethod
    def _finalize(value: Any) -> Any:
        current().value(value)
        return value

    def call_binop(self, context: Context, operator_: str, left: Any, right: Any) -> Any:
        budget = current()
        match operator_:
            case "*":
                repeat_bound(budget, left, right)
            case "+":
                budget.text(
                    sum(len(side) if isinstance(side, (str, list, tuple)) else 1 for side in (left, right))
                )
            case "**":
                if abs(right) > 64 or (isinstance(left, int) and left.bit_length() > 64):
                    raise OverBudget("a power of that size")
            case "%" if isinstance(left, str):
                budget.value(right)
                if "%" in left.replace("%s", "").replace("%d", ""):
                    raise SecurityError("string formats other than %s and %d are not allowed")
                left = left if isinstance(left, Mixed) else Mixed(left, "text")
        result = _BINOPS[operator_](left, right)
        budget.value(result)
        return result

    # What a template may reach and call.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not isinstance(obj, (types.FunctionType, type))

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Also where there is no such attribute: a template has no business there.
        if attribute.startswith("_"):
            self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"access to the attribute {str(attribute)!r} is not allowed")

    def wrap_str_format(self, value: Any) -> None:
        if getattr(value, "__name__", "") in ("format", "format_map") and isinstance(
            value, (types.MethodType, types.BuiltinMethodType)
        ):
            raise SecurityError("str.format is not allowed")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        if __obj is TemplateEnvironment.rounds:
            return _Rounds(*args)
        if isinstance(__obj, LoopContext):
            return __obj(_Rounds(args[0]))
        if isinstance(__obj, Macro):
            return __context.call(__obj, *args, **kwargs)
        kwargs.pop("_loop_vars", None)  # generated code passes these to functions that want the context
        kwargs.pop("_block_vars", None)
        if isinstance(__obj, Undefined):
            return __obj(*args, **kwargs)  # raises its own message
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(__obj, (types.MethodType, types.BuiltinMethodType)) and owner is not None:
            for kind, allowed in _METHODS.items():
                if isinstance(owner, kind) and name in allowed:
                    return call_method(owner, name, __obj, args, kwargs)
        elif __obj in __self._functions:
            result = __obj(*args, **kwargs)
            if not isinstance(result, range):
                budget.value(result)
            return result
        raise SecurityError(f"calling {str(name)[:40] or 'this object'!r} is not allowed")


_BINOPS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(str.__str__(str(message)))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 64:
        raise OverBudget("a date format of more than 64 characters")
    return datetime.now().strftime(str(pattern))


@lru_cache(maxsize=1)
def environment() -> TemplateEnvironment:
    """The one environment of the process."""
    return TemplateEnvironment()
