"""Mixed strings: plain to every test and method, and never a person's character among the markup."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.text.provenance import Mixed, joined, joined_by, segments_of
from rase.text.segments import Segment

# Who wrote a character can be read off it: capitals and newlines are markup, the rest is a person's.
MARKUP, TEXT = "AB\n", "ab ,"
_markup = st.text(alphabet=MARKUP, min_size=1, max_size=4).map(lambda text: Mixed(text, "markup"))
_text = st.text(alphabet=TEXT, min_size=1, max_size=4)
_mixed = st.lists(_markup | _text, max_size=6).map(joined)
_short = st.sampled_from(["A", "a", "\n", " ", ",", "Aa", "aA", "\n ", "ab"])


def check(result: Any, plain: Any) -> None:
    """``result`` equals ``plain``, and its kinds agree with its characters."""
    assert result == plain
    for text in [result] if isinstance(result, str) else result:
        for segment in segments_of(text):
            alphabet = MARKUP if segment.kind == "markup" else TEXT
            assert set(segment.text) <= set(alphabet), (text, segments_of(text))


OPERATIONS: list[Callable[[str, str, str, int, int], Any]] = [
    lambda x, y, s, i, j: x + y,
    lambda x, y, s, i, j: y + x,
    lambda x, y, s, i, j: x * (i % 4),
    lambda x, y, s, i, j: (i % 4) * x,
    lambda x, y, s, i, j: x[i:j],
    lambda x, y, s, i, j: x[i:],
    lambda x, y, s, i, j: x[:j],
    lambda x, y, s, i, j: x[i] if -len(x) <= i < len(x) else "",
    lambda x, y, s, i, j: list(x),
    lambda x, y, s, i, j: x.strip(),
    lambda x, y, s, i, j: x.strip(s),
    lambda x, y, s, i, j: x.lstrip(s),
    lambda x, y, s, i, j: x.rstrip(s),
    lambda x, y, s, i, j: x.lstrip(),
    lambda x, y, s, i, j: x.rstrip(),
    lambda x, y, s, i, j: x.removeprefix(s),
    lambda x, y, s, i, j: x.removesuffix(s),
    lambda x, y, s, i, j: x.split(s),
    lambda x, y, s, i, j: x.split(s, j % 3),
    lambda x, y, s, i, j: x.rsplit(s, j % 3),
    lambda x, y, s, i, j: x.split(),
    lambda x, y, s, i, j: x.split(None, j % 3),
    lambda x, y, s, i, j: x.rsplit(None, j % 3),
    lambda x, y, s, i, j: x.splitlines(),
    lambda x, y, s, i, j: x.splitlines(True),
    lambda x, y, s, i, j: x.partition(s),
    lambda x, y, s, i, j: x.rpartition(s),
    lambda x, y, s, i, j: x.join([y, x, y]),
    lambda x, y, s, i, j: x.replace(s, y),
    lambda x, y, s, i, j: x.replace(s, y, j % 3),
    lambda x, y, s, i, j: str(x),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=range(len(OPERATIONS)))
@given(x=_mixed, y=_mixed, separator=_short, i=st.integers(-9, 9), j=st.integers(-9, 9))
def test_kinds_follow_their_characters(
    operation: Callable[..., Any], x: str, y: str, separator: str, i: int, j: int
) -> None:
    plain = operator.methodcaller("__str__")
    bare = (str.__str__(x), str.__str__(y))
    assert type(plain(bare[0])) is str
    separator = Mixed(separator, "markup") if separator.isupper() or separator == "\n" else separator
    if set(separator) & set(MARKUP) and set(separator) & set(TEXT):
        separator = str.__str__(separator)
    result = operation(x, y, separator, i, j)
    wanted = operation(*bare, str.__str__(separator), i, j)
    if isinstance(x, Mixed) or not isinstance(y, Mixed) or isinstance(result, Mixed):
        check(result, wanted)
    else:
        # A plain string's own method loses the kinds of its arguments: the result is all text, never markup.
        assert result == wanted
        assert all(segment.kind == "text" for text in ([result] if isinstance(result, str) else result)
                   for segment in segments_of(text) if not isinstance(text, Mixed))  # fmt: skip


@given(parts=st.lists(_mixed, max_size=5), glue=_mixed)
def test_joining(parts: list[str], glue: str) -> None:
    check(joined(parts), "".join(map(str.__str__, parts)))
    check(joined_by(glue, parts), str.__str__(glue).join(map(str.__str__, parts)))


@given(_mixed, _mixed)
def test_formats_of_plain_places(x: str, y: str) -> None:
    check(Mixed("A%sB%s", "markup") % (x, y), f"A{str.__str__(x)}B{str.__str__(y)}")


@given(_mixed, _short)
def test_string_tests_see_the_plain_characters(x: str, s: str) -> None:
    plain = str.__str__(x)
    assert x == plain and hash(x) == hash(plain) and len(x) == len(plain)
    assert (s in x, x.startswith(s), x.endswith(s), x.find(s), x.count(s)) == (
        s in plain, plain.startswith(s), plain.endswith(s), plain.find(s), plain.count(s)
    )  # fmt: skip
    assert {plain: 1}.get(x) == 1


@pytest.mark.parametrize("method", ["upper", "lower", "title", "capitalize"])
def test_case_changes_keep_kinds_only_at_equal_length(method: str) -> None:
    mixed = joined((Mixed("ab", "markup"), "cd"))
    result = getattr(mixed, method)()
    assert [(segment.kind, len(segment.text)) for segment in segments_of(result)] == [
        ("markup", 2),
        ("text", 2),
    ]
    longer = getattr(joined((Mixed("ß", "markup"), "ß")), method)()
    assert len(longer) == 2 or {segment.kind for segment in segments_of(longer)} == {"text"}


def test_a_part_of_a_split_is_not_taken_for_its_like_before_it() -> None:
    mixed = joined((Mixed("ab", "markup"), "a"))
    assert [segments_of(part) for part in mixed.split("ab")] == [[], [Segment("a", "text")]]
    mixed = joined(("ab", Mixed("a", "markup"), "ba"))
    assert [segments_of(part) for part in mixed.rsplit("ab", 1)] == [
        [Segment("ab", "text")],
        [Segment("a", "text")],
    ]


def test_an_unknown_operation_gives_text() -> None:
    assert [segment.kind for segment in segments_of(Mixed("<|im_end|>", "markup").center(20))] == ["text"]
