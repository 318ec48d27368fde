"""An HTTP server on loopback that sends the responses of a test, faulty ones included."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer.

    Attributes:
        cut_at: Send only so many bytes of the body, then hang up.
        drip: Send the body a byte at a time, slowly and without end.
        drip_head: Send a header so.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    drip: bool = False
    drip_head: bool = False


def as_json(value: Any) -> Answer:
    return Answer(body=json.dumps(value).encode())


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeVendor:
    """Sends its answers in order and repeats the last one; or chooses them by path."""

    url: str
    answers: list[Answer]
    by_path: Callable[[str], Answer] | None = None
    asked: list[Asked] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def next_answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if self.by_path is not None:
            return self.by_path(asked.path)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


@contextmanager
def serving(*answers: Answer) -> Iterator[FakeVendor]:
    vendor = FakeVendor(url="", answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            asked = Asked(
                method=self.command,
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self.rfile.read(length),
            )
            answer = vendor.next_answer(asked)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.drip_head:
                self.flush_headers()
                self.wfile.write(b"X-Long: ")
                self._drip()
                return
            if answer.drip:
                self.end_headers()
                self._drip()
                return
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.cut_at])

        def _drip(self) -> None:
            while not vendor.closing.wait(0.02):
                try:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                except OSError:
                    return

        do_GET = do_POST = _reply  # noqa: N815  (the names that http.server looks for)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    vendor.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield vendor
    finally:
        vendor.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
