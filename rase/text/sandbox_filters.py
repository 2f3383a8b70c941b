"""The filters, tests and string methods that a chat template may use, each within the budget."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import filters
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.utils import pass_environment

from rase.text.budget import Budget, OverBudget, current
from rase.text.provenance import joined_by

__all__ = ["FILTERS", "TESTS", "call_method", "guarded", "repeat_bound"]

# jinja2's own that are safe within the budget: none of them pads, repeats, formats or reaches attributes.
_PLAIN = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select",
    "selectattr", "sort", "string", "title", "trim", "unique", "upper", "wordcount",
)  # fmt: skip

TESTS = (
    "boolean", "callable", "defined", "divisibleby", "eq", "equalto", "==", "even", "false", "float", "ge",
    ">=", "greaterthan", "gt", ">", "in", "integer", "iterable", "le", "<=", "lessthan", "lower", "lt",
    "<", "mapping", "ne", "!=", "none", "number", "odd", "sameas", "sequence", "string", "true",
    "undefined", "upper",
)  # fmt: skip


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its call and its result accounted for; a lazy result counts as it is used."""

    @wraps(function)  # also keeps jinja2's mark that says what to pass first
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step(
            1 + sum(len(value) // 256 for value in args if isinstance(value, (str, list, tuple, dict)))
        )
        result = function(*args, **kwargs)
        if isinstance(result, types.GeneratorType):
            return _counted(result)
        budget.value(result)
        return result

    return wrapper


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        current().step()
        yield item


def call_method(owner: Any, name: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call a listed method of a string or container, with its cost checked before it is paid."""
    budget = current()
    if not isinstance(owner, str):
        budget.step(1 + (len(owner) if name == "copy" else 0))
        return method(*args, **kwargs)
    budget.step(1 + len(owner) // 256)
    if name == "join":
        return _join(args[0], owner)
    if name == "replace":
        _replace_bound(budget, owner, *args[:2])
    elif name in ("split", "rsplit", "splitlines"):
        budget.step(len(getattr(str, name)(owner, *args, **kwargs)))
    result = method(*args, **kwargs)
    budget.value(result)
    return result


def repeat_bound(budget: Budget, left: Any, right: Any) -> None:
    """Account for ``left * right`` before it is made."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            budget.text(len(sequence) * max(0, count))
    for factor in (left, right):
        if isinstance(factor, int) and factor.bit_length() > 512:
            raise OverBudget("a number of more than 512 bits")


def _replace_bound(budget: Budget, text: str, old: str, new: str) -> None:
    count = text.count(old) if old else len(text) + 1
    budget.step(1 + count)
    budget.text(len(text) + count * len(new))


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        raise OverBudget("join with an attribute; use map before it")
    budget, parts, length = current(), [], 0
    for item in value:
        length += budget.value(item) + len(d)
        if length > 2**31:
            raise OverBudget("a text that long")
        parts.append(str(item))
    budget.text(sum(map(len, parts)) + len(d) * len(parts))
    return joined_by(str(d), parts)


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    _replace_bound(current(), text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    if size > 64:
        raise OverBudget("an indent of more than 64 characters")
    current().text(len(s) + (s.count("\n") + 1) * size)
    return filters.do_indent(s, width, first, blank)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it for templates: nothing escaped for HTML."""
    size = current().value(value)
    if indent is not None and (not isinstance(indent, int) or indent > 16 or size > 2**20):
        raise OverBudget("indented JSON of that size")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    current().text(len(text))
    return text


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > 32:
        raise OverBudget("rounding to more than 32 digits")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _sum(value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None or not isinstance(start, (int, float)):
        raise OverBudget("a sum of something else than numbers")
    return sum(_counted(value), start)


@pass_environment
def _safe(_: Any, value: Any) -> str:
    return str(value)  # nothing is escaped, so nothing needs the mark


FILTERS: dict[str, Callable[..., Any]] = {name: guarded(JINJA_FILTERS[name]) for name in _PLAIN}
FILTERS.update(
    indent=guarded(_indent), join=guarded(_join), replace=guarded(_replace), round=guarded(_round),
    safe=guarded(_safe), sum=guarded(_sum), tojson=guarded(_tojson),
)  # fmt: skip
