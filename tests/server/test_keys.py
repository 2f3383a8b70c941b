"""API keys: which headers bring one, where they come from, and what needs one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from rase.errors import InvalidSetting
from rase.server.keys import Keys, keys_of_settings
from rase.server.serve import serve
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running

WORDS = ["one ", "two "]
KEY, OTHER = "key-number-1", "key-number-2"


def chain(folder: Path, **options: Any) -> Path:
    return toys.chain(folder, WORDS, tokenizer=toys.toy_bpe(pieces=WORDS), **options)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("locked")
    with running(folder, {"chain": chain(folder)}, api_keys=(KEY, OTHER)) as server:
        yield server


@pytest.mark.parametrize(("headers", "status"), [
    ({"Authorization": f"Bearer {KEY}"}, 200), ({"authorization": f"bearer  {OTHER}"}, 200),
    ({"X-API-Key": KEY}, 200), ({"Api-Key": OTHER}, 200), ({}, 401), ({"Authorization": KEY}, 401),
    ({"Authorization": f"Basic {KEY}"}, 401), ({"Authorization": "Bearer "}, 401),
    ({"Authorization": f"Bearer {KEY}x"}, 401), ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
    ({"X-API-Key": f"{KEY},{OTHER}"}, 401), ({"X-API-Key": "\xe9" * 9}, 401),
])  # fmt: skip
def test_keys(locked: RunningServer, headers: dict[str, str], status: int) -> None:
    for path in ("/v1/models", "/models", "/metrics", "/metrics/system", "/version", "/v1/ps"):
        answer = locked.get(path, headers)
        assert answer.status == status, path
    if status == 401:
        assert answer.error["code"] == "invalid_api_key" and answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-should-retry"] == "false"
        assert locked.get("/no/such/path", headers).status == 401, "a stranger learns of no path"
    for path in ("/health", "/healthz", "/ready"):
        assert locked.get(path, headers).status == 200


def test_a_stock_client_with_and_without_the_key(locked: RunningServer) -> None:
    base = locked.url + "/v1"
    with openai.OpenAI(base_url=base, api_key=OTHER) as client:
        assert client.chat.completions.create(**chat_body("chain")).choices[0].message.content == "one two "
    client = openai.OpenAI(base_url=base, api_key="wrong-key")
    with client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert not [line for line in locked.log if KEY in line or OTHER in line or "wrong-key" in line]


def test_all_keys_are_compared_whatever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = __import__("hmac").compare_digest
    monkeypatch.setattr(
        "rase.server.keys.hmac.compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1]
    )
    keys = Keys([KEY, OTHER])
    for header in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": "wrong"}, {}):
        compared.clear()
        keys.admit(header)
        assert len(compared) == 6 and all(len(a) == len(b) == 32 for a, b in compared)
    assert not Keys() and Keys([KEY])


def test_keys_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# of the team\n\n  {KEY}  \n{OTHER}\n")
    monkeypatch.setenv("RASE_API_KEY_FILE", str(path))
    monkeypatch.setenv("RASE_API_KEY", "a-third-key")
    assert keys_of_settings() == ("a-third-key", KEY, OTHER)
    monkeypatch.setenv("RASE_API_KEY", "")
    for text, words in (
        ("good-key-1\nshort\n", "line 2"),
        ("", "none"),
        ("two,keys-in-one-line\n", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidSetting, match=words) as caught:
            keys_of_settings()
        assert "short" not in str(caught.value) and "keys-in" not in str(caught.value)
    path.unlink()
    with pytest.raises(InvalidSetting, match="No such file"):
        keys_of_settings()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_key(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidSetting, match="API keys") as caught:
        serve(tmp_path / "store", host=host, port=0)
    assert "--insecure" in str(caught.value)


@pytest.mark.parametrize("options", [{"insecure": True}, {"api_keys": (KEY,)}])
def test_unless_it_is_forced_or_has_keys(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Enough(Exception):
        pass

    def stop(url: str) -> None:
        raise Enough

    with pytest.raises(Enough):
        serve(tmp_path / "store", host="0.0.0.0", port=0, on_ready=stop, **options)
    said = capsys.readouterr().err
    assert ("anyone who does can use the models" in said) == ("insecure" in options)
    assert KEY not in said and "No model is registered yet" in said


def test_a_mounted_application_asks_for_them_as_well(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    from rase.server.app import create_app

    host = Starlette(routes=[Mount("/llm", create_app(tmp_path / "store", api_keys=(KEY,)))])
    client = TestClient(host, base_url="http://127.0.0.1")
    assert client.get("/llm/health").status_code == 200
    assert client.get("/llm/ready").status_code == 200
    assert client.get("/llm/v1/models").status_code == 401
    assert client.get("/llm/metrics").status_code == 401
    assert client.get("/llm/v1/models", headers={"X-API-Key": KEY}).status_code == 200
