"""Limits of the web server: connections, the time a request may take, and repeated log lines.

uvicorn has none that a half-sent request reaches: such connections would stay open until no file
descriptor is left. Who may send requests is decided in ``access``.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How much the server does at once.

    Attributes:
        waiting: Connections that owe a request; beyond that, the oldest is closed.
        requests: Requests that are being answered; others get status 503.
        streams: Live pages among them; others get status 503.
        accepted: Connections accepted in one turn of the event loop: a quarter of ``waiting``, so
            that a request that came with its connection is read before others displace it.
        patience_s: Time to send a request, or to read any of a response.
    """

    waiting: int = 128
    requests: int = 128
    streams: int = 64
    accepted: int = 32
    patience_s: float = 10.0


_FILES: Final = 432
"""Open files for the default limits: two thirds for connections, one for the books."""


def limits_within(files: int) -> ServerLimits:
    """Return the limits of a process that may have this many open files."""
    most = ServerLimits()

    def share(count: int) -> int:
        return min(count, max(1, count * files // _FILES))

    return ServerLimits(
        waiting=share(most.waiting), requests=share(most.requests), streams=share(most.streams),
        accepted=share(most.accepted),
    )  # fmt: skip


def limits_here() -> ServerLimits:
    """Return the limits of this process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ServerLimits() if files == resource.RLIM_INFINITY else limits_within(files)


# Connections


class _LimitedProtocol(H11Protocol):
    """HTTP on one connection, which is closed if the client does not send or read."""

    def __init__(
        self, limits: ServerLimits, waiting: dict[_LimitedProtocol, None], **given: Any
    ) -> None:
        super().__init__(**given)
        self._limits = limits
        self._waiting = waiting
        self._awaited = ""
        self._timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._update()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    def _update(self) -> None:
        """Set what is awaited of the client; part of a request does not restart the timer."""
        awaited = self._what_is_awaited()
        if awaited == self._awaited:
            return
        self._awaited = awaited
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if awaited:
            self._start_timer()
        if awaited == "request":
            self._waiting[self] = None
            while len(self._waiting) > self._limits.waiting:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.transport.abort()

    def _what_is_awaited(self) -> str:
        if self not in self.connections:  # It is closed.
            return ""
        if getattr(self.cycle, "response_complete", True):  # There was no request, or it is over.
            return "request"
        return "reading" if self.flow.write_paused else ""

    def _start_timer(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._limits.patience_s, self._close_if_stalled)

    def _close_if_stalled(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._unread_bytes:
            self._start_timer()  # A slow client, which reads.
        else:
            self.transport.abort()


def limited_protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return what makes the protocol of each connection of one server."""
    return cast("type[asyncio.Protocol]", partial(_LimitedProtocol, limits, {}))


class RequestLimit:
    """Answers at most so many requests at once; others get status 503 and the given text."""

    def __init__(self, app: ASGIApp, most: int, text: str) -> None:
        self._app = app
        self._free = most
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if not self._free:
            refusal = PlainTextResponse(self._text + "\n", 503, {"retry-after": "10"})
            await refusal(scope, receive, send)
            return
        self._free -= 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._free += 1


# The log

_FIRST: Final = 3
_LOGGERS: Final = ("uvicorn.error", "asyncio")


class _Repetitions(logging.Filter):
    """Passes the first lines of each kind, then every tenfold one, with the count."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[object] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = _kind_of(record)
        self._counts[kind] += 1
        count = self._counts[kind]
        if count <= _FIRST:
            return True
        record.msg, record.args = f"{record.getMessage()} ({count:,} times so far)", None
        return str(count).rstrip("0") == "1"


def _kind_of(record: logging.LogRecord) -> object:
    """Return the template of a message; of an exception, its type and the line that raised it."""
    raised, _, trace = record.exc_info or (None, None, None)
    if raised is None:
        return record.msg
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return raised, trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


@contextmanager
def repetitions_counted() -> Iterator[None]:
    """Count repeated lines of the server's log, instead of writing them all."""
    found = _Repetitions()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(found)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(found)
