"""``/v1/ps`` and ``keep_alive``: what is loaded, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from rase.session_cache import SessionCache
from tests.support import toys
from tests.support.http_server import running, wait_until


def test_what_is_loaded_is_listed_and_requests_say_how_long(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rase.session_cache.BUSY_SECONDS", 0.02)
    monkeypatch.setattr("rase.session_cache.GRACE_SECONDS", 0.02)
    models = {name: toys.chain(tmp_path, [name, "x"], name=name) for name in ("a", "b")}
    with running(tmp_path, models, cache=SessionCache(keep_alive=600)) as server:

        def loaded() -> dict[str, object]:
            answer = server.get("/v1/ps")
            assert answer.status == 200 and answer.json["object"] == "list"
            return {model["id"]: model for model in answer.json["data"]}

        assert loaded() == {}
        assert server.chat("a").text == "ax"
        assert server.chat("b", keep_alive="-1").text == "bx"
        first, second = loaded()["a"], loaded()["b"]
        assert first["expires_at"] == pytest.approx(first["used_at"] + 600, abs=2)
        assert second["expires_at"] is None
        assert set(first) == {
            "id", "object", "device", "weights", "context_length", "loaded_at", "used_at", "expires_at",
            "pinned", "active",
        }  # fmt: skip
        assert server.chat("b", keep_alive=0).text == "bx"
        wait_until(lambda: set(loaded()) == {"a"}, 10)
        assert server.chat("b", keep_alive="1h", stream=True).status == 200
        assert loaded()["b"]["expires_at"] == pytest.approx(loaded()["b"]["used_at"] + 3600, abs=2)


@pytest.mark.parametrize("bad", ["soon", "", True, [], {}, "1e9"])
def test_what_is_no_time_is_refused(server, bad) -> None:
    answer = server.chat("chain", keep_alive=bad)
    assert answer.status == 400 and answer.error["param"] == "keep_alive"
