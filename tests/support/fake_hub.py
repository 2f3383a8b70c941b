"""A Hugging Face hub on the loopback interface, which a test can make misbehave."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


@dataclass
class HubEntry:
    """One file as the hub declares it, and how it is delivered."""

    content: bytes
    sha256: str = ""  # what the hub declares; "" stands for the truth
    size: int | None = None  # declared
    head_failures: int = 0  # answers 503 that often
    get_failures: int = 0
    cut_at: int | None = None  # the connection ends here, every time
    cuts: int = 1 << 30  # … that often
    location: str | None = None  # redirect
    hold: threading.Event | None = None  # half of the body is sent, the rest when the event is set
    half_sent: threading.Event = field(default_factory=threading.Event)
    git: bool = False  # a small file: the tag is git's SHA-1

    @property
    def tag(self) -> str:
        if self.git:
            return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()
        return self.sha256 or hashlib.sha256(self.content).hexdigest()


class FakeHub:
    """``files`` maps "owner/repo/path" to entries; ``requests`` lists (method, path, Range)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, HubEntry] = {}
        self.requests: list[tuple[str, str, str | None]] = []

    def bodies(self) -> int:
        return sum(method == "GET" for method, _, _ in self.requests)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bool) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        name = self.path.replace("/resolve/main/", "/").lstrip("/")
        entry = self.hub.files.get(name)
        if entry is None:
            return self.end(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        counter = "get_failures" if body else "head_failures"
        if getattr(entry, counter) > 0:
            setattr(entry, counter, getattr(entry, counter) - 1)
            return self.end(503, {})
        content, headers = (
            entry.content,
            {"X-Repo-Commit": COMMIT, "ETag": f'"{entry.tag}"', "Accept-Ranges": "bytes"},
        )
        if entry.location is not None:
            linked = {"X-Linked-Etag": f'"{entry.tag}"', "X-Linked-Size": str(len(content))}
            return self.end(302, {**headers, **linked, "Location": entry.location})
        status, start = 200, 0
        if (wanted := self.headers.get("Range")) and body:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(content) - 1}/{len(content)}"
        length = (entry.size if entry.size is not None else len(content)) - start
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return None
        if entry.cut_at is not None and entry.cuts > 0:
            entry.cuts -= 1
            self.wfile.write(content[start : entry.cut_at])
            self.close_connection = True
        elif entry.hold is not None:
            half = len(content) // 2
            self.wfile.write(content[start:half])
            self.wfile.flush()
            entry.half_sent.set()
            entry.hold.wait(20)
            self.wfile.write(content[half:])
        else:
            self.wfile.write(content[start:])
            self.close_connection = length != len(content) - start
        return None

    def end(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(key, value)
        self.end_headers()

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    handler = type("BoundHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave in the middle
    handler.hub = hub = FakeHub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        for entry in hub.files.values():
            if entry.hold is not None:
                entry.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
