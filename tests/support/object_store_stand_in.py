"""A stand-in for an object store: PUT, GET and listings over HTTP on loopback.

Objects appear whole or not at all, as those of S3 do; fsspec reaches it as ``http://``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fsspec.asyn import get_loop

import leftovers


class ObjectStoreStandIn(ThreadingHTTPServer):
    """Objects by path, and the requests that it got.

    Attributes:
        is_write_only: Whether listings and GET are refused, as to credentials of a node.
        is_down: Whether every request is refused.
        to_cut: How many of the next uploads lose their connection in the middle.
    """

    daemon_threads = False
    block_on_close = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.host = host
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.is_write_only = self.is_down = False
        self.to_cut = 0

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/books"

    def asked(self, method: str) -> list[str]:
        """Return the paths of the requests with a method."""
        return [path for each, path in self.requests if each == method]


class _Handler(BaseHTTPRequestHandler):
    server: ObjectStoreStandIn
    timeout = 60

    def do_PUT(self) -> None:
        self.server.requests.append(("PUT", self.path))
        length = int(self.headers["Content-Length"])
        if self.server.to_cut:
            self.server.to_cut -= 1
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        content = self.rfile.read(length)
        if self.server.is_down:
            self._answer(503)
        elif len(content) == length:
            self.server.objects[self.path] = content
            self._answer(201)

    def do_GET(self) -> None:
        self.server.requests.append(("GET", self.path))
        if self.server.is_down or self.server.is_write_only:
            self._answer(503 if self.server.is_down else 403)
        elif self.path in self.server.objects:
            self._answer(200, self.server.objects[self.path], "application/octet-stream")
        else:
            self._list(self.path.rstrip("/") + "/")

    def _list(self, prefix: str) -> None:
        below = [path[len(prefix) :] for path in self.server.objects if path.startswith(prefix)]
        names = {name.partition("/")[0] + "/" * ("/" in name) for name in below}
        links = "".join(f'<a href="{prefix}{name}">{name}</a>\n' for name in sorted(names))
        self._answer(200 if names else 404, links.encode())

    def do_HEAD(self) -> None:
        self.server.requests.append(("HEAD", self.path))
        self._answer(403)

    def _answer(self, status: int, content: bytes = b"", kind: str = "text/html") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def object_store(host: str = "127.0.0.1") -> Iterator[ObjectStoreStandIn]:
    """A store that serves at an address of this machine until the end of the block."""
    with leftovers.wider():
        get_loop()  # A thread of fsspec, which serves all later requests of this process.
    with ObjectStoreStandIn(host) as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
