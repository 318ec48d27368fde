"""A relay between a client and a server on loopback that can stop answering."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Any


class Relay:
    """Forwards connections to a port; once silent, it takes connections and answers nothing."""

    def __init__(self, port: int) -> None:
        self._upstream, self._silent = port, False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self.port: int = self._listener.getsockname()[1]

    def url(self, url: str, **parameters: object) -> str:
        """Return a URL of the server as one of the relay, with more parameters."""
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return url.replace(f":{self._upstream}/", f":{self.port}/") + more

    def silence(self) -> None:
        """Answer nothing more; connections stay open."""
        self._silent = True
        self._waker.send(b"x")

    def answer(self) -> None:
        """Forward new connections again; close those that got no answer."""
        self._silent = False
        self._waker.send(b"x")

    def __enter__(self) -> Relay:
        for each in (self._listener, self._woken):
            self._selector.register(each, selectors.EVENT_READ, None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.close()
        self._thread.join()
        for each in (self._listener, self._woken, *self._open):
            each.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                source: Any = key.fileobj
                if source is self._woken:
                    if not self._woken.recv(64):
                        return
                    self._change()
                elif source is self._listener:
                    self._accept()
                else:
                    self._forward(source, key.data)

    def _change(self) -> None:
        """Stop reading what is connected, or close it."""
        for each in self._open:
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            if not self._silent:
                each.close()
        if not self._silent:
            self._open.clear()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._open.append(client)
        if not self._silent:
            server = socket.create_connection(("127.0.0.1", self._upstream))
            self._open.append(server)
            self._selector.register(client, selectors.EVENT_READ, server)
            self._selector.register(server, selectors.EVENT_READ, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        if source.fileno() < 0 or self._silent:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(1 << 16)
            target.sendall(data)
        if not data:
            for each in (source, target):
                self._selector.unregister(each)
                self._open.remove(each)
                each.close()
