"""Bodies: size, speed, content type, encoding and nesting are checked before anything is parsed."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rase.errors import InvalidRequest
from rase.server.body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    ClientGone,
    check_content_type,
    checked_json,
    read_body,
)
from rase.server.errors import Refused

values = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\ax', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(v) for v in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(v) for v in value), default=0)
    return 0


def accepted(body: bytes) -> bool:
    try:
        checked_json(body)
    except InvalidRequest as error:
        assert "nested" in str(error) or "too many parts" in str(error)
        return False
    return True


@settings(max_examples=200)
@given(values, st.integers(0, 70))
def test_depth_is_counted_exactly(value: Any, wrap: int) -> None:
    for i in range(wrap):
        value = [value] if i % 2 else {"[": value}
    body = json.dumps([value] + [[]] * 70).encode()  # more than 64 brackets: the count alone must not decide
    assert accepted(body) == (depth(value) + 1 <= MAX_DEPTH)


@pytest.mark.parametrize(("body", "fine"), [
    (b"[" * 64 + b"]" * 64, True), (b"[" * 65 + b"]" * 65, False), (b'{"a":' * 65 + b"1" + b"}" * 65, False),
    (b"[" * 1000, False), (b'["' + b"[" * 100 + b'"]', True), (b'["' + b'\\"[' * 100 + b'"]', True),
    (b"[] " * 100, True), (b'["\\\\"' + b",[" * 64 + b"]" * 64 + b"]", False),
])  # fmt: skip
def test_depth_limit(body: bytes, fine: bool) -> None:
    assert accepted(body) is fine


@pytest.mark.parametrize("unit", [b"[],", b"[", b'"a",', b'\\"', b'{"":', b'"', b"]"])
def test_hostile_eight_megabytes_are_checked_in_time(unit: bytes) -> None:
    body = (b"[" + unit * (8 << 20))[: 8 << 20]
    start = time.perf_counter()
    accepted(body)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("spread", [1, 3000])
def test_the_number_of_fields_is_limited(spread: int) -> None:
    def body(count: int) -> bytes:
        return json.dumps({f"k{i}": {"a:": "b:" * spread} for i in range(count)}).encode()

    assert checked_json(body(512))
    with pytest.raises(InvalidRequest, match="too many fields"):
        checked_json(body(513))


@pytest.mark.parametrize("unit", [b"[]", b"{}", b'"[{\\"["', b'{"a":[1,2]}'])
def test_the_number_of_lists_and_objects_is_limited(unit: bytes) -> None:
    each = {b"[]": 1, b"{}": 1, b'{"a":[1,2]}': 2}.get(unit, 0)
    most = (MAX_CONTAINERS - 1) // each if each else MAX_CONTAINERS
    assert checked_json(b"[" + b",".join([unit] * most) + b"]")
    if each:
        start = time.perf_counter()
        with pytest.raises(InvalidRequest, match="too many parts"):
            checked_json(b"[" + b",".join([unit] * (most + 1)) + b"]")
        assert time.perf_counter() - start < 1.0


def test_characters_across_chunk_borders() -> None:
    for shift in range(4):
        body = b'"' + b"x" * shift + "😸한é".encode() * 60_000 + b'"'
        assert checked_json(body) == body
    with pytest.raises(InvalidRequest, match="UTF-8"):
        checked_json(b'"' + "😸".encode() * 100_000 + b"\xf0\x9f")


@pytest.mark.parametrize("bad", [b'"\xff\xfe"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xfe"])
def test_bad_utf8(bad: bytes) -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        checked_json(b'{"x":' + bad + b"}")


@pytest.mark.parametrize("value", [
    "application/json", "APPLICATION/JSON", "application/json; charset=utf-8",
    'application/json;charset="UTF-8"', "application/vnd.api+json",
])  # fmt: skip
def test_json_content_types(value: str) -> None:
    check_content_type({"content-type": value})


@pytest.mark.parametrize("headers", [
    {}, {"content-type": ""}, {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "application/json; charset=utf-16"}, {"content-type": "text/json+x"},
    {"content-type": "application/json", "content-encoding": "gzip"},
])  # fmt: skip
def test_other_content_types(headers: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        check_content_type(headers)
    assert caught.value.status == 415


def feed(*messages: Any) -> Any:
    """A receive function that gives ``messages`` and then waits for ever."""
    left = list(messages)

    async def receive() -> Any:
        if not left:
            await asyncio.sleep(3600)
        message = left.pop(0)
        if isinstance(message, bytes):
            return {"type": "http.request", "body": message, "more_body": bool(left)}
        await asyncio.sleep(message) if isinstance(message, float) else None
        return (
            message
            if isinstance(message, dict)
            else {"type": "http.request", "body": b"x", "more_body": True}
        )

    return receive


def read(receive: Any, headers: Any = None, **options: Any) -> bytes:
    return asyncio.run(read_body(headers or {}, receive, **options))


def test_a_body_in_pieces() -> None:
    assert read(feed(b"ab", b"", b"c")) == b"abc"


def test_a_body_that_is_too_large() -> None:
    for receive, headers in ((feed(b"x" * 6, b"x" * 6), {}), (feed(), {"content-length": "11"})):
        with pytest.raises(Refused) as caught:
            read(receive, headers, limit=10)
        assert caught.value.status == 413
    assert len(read(feed(b"x" * 10), {"content-length": "10"}, limit=10)) == 10


def test_a_body_that_stalls_or_trickles() -> None:
    for receive in (feed({"type": "http.request", "body": b"x", "more_body": True}), feed(*[0.05] * 100)):
        start = time.perf_counter()
        with pytest.raises(Refused) as caught:
            read(receive, idle_s=0.2)
        assert caught.value.status == 408 and caught.value.close
        assert time.perf_counter() - start < 2


def test_a_client_that_leaves() -> None:
    with pytest.raises(ClientGone):
        read(feed({"type": "http.disconnect"}))
