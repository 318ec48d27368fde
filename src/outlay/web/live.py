"""Pages that change while they are open: one stream for each, made once for all who look at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from outlay.web.books import PERIOD_NS
from outlay.web.page import PageQuery

Make = Callable[[PageQuery, object], Awaitable[tuple[object, str | None]]]
"""Makes a page anew unless its stamp is the given one; returns its stamp, and its HTML or None."""

_TICK_S: Final = PERIOD_NS / 1e9
_AT_LEAST_EVERY: Final = 7
"""Looks after which a page is made again though nothing was recorded: time goes on by itself."""
_ALIVE: Final = ": still here\n\n"


@dataclass(slots=True)
class _Channel:
    """One address that somebody looks at."""

    readers: set[asyncio.Queue[str]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    last: str = ""


class LivePages:
    """Makes every page that is open again, no more often than a run is looked at."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._channels: dict[PageQuery, _Channel] = {}
        self._closing = False

    @property
    def streams(self) -> int:
        """How many pages are open."""
        return sum(len(channel.readers) for channel in self._channels.values())

    def close(self) -> None:
        """End all streams, so that the server can."""
        self._closing = True
        for channel in self._channels.values():
            for reader in channel.readers:
                reader.put_nowait("")

    async def stream(self, ask: PageQuery) -> AsyncIterator[str]:
        """Yield a page as server-sent events whenever it changes, until the reader goes."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        channel = self._channels.setdefault(ask, _Channel())
        channel.readers.add(queue)
        if channel.task is None:
            channel.task = asyncio.create_task(self._follow(ask, channel))
        elif channel.last:
            queue.put_nowait(channel.last)
        try:
            yield _ALIVE
            while not self._closing:
                while queue.qsize() > 1:  # A slow reader gets the newest page alone.
                    queue.get_nowait()
                text = await queue.get()
                if text:
                    yield text
        finally:
            channel.readers.discard(queue)
            if not channel.readers and channel.task is not None:
                channel.task.cancel()
                self._channels.pop(ask, None)

    async def _follow(self, ask: PageQuery, channel: _Channel) -> None:
        stamp: object = None
        looks = 0
        while channel.readers and not self._closing:
            looks += 1
            is_due = looks % _AT_LEAST_EVERY == 0
            stamp, made = await self._make(ask, None if is_due else stamp)
            text = channel.last if made is None else _event(made)
            if text != channel.last:
                channel.last = text
                for reader in channel.readers:
                    reader.put_nowait(text)
            elif is_due:
                for reader in channel.readers:
                    reader.put_nowait(_ALIVE)
            await asyncio.sleep(_TICK_S)


def _event(text: str) -> str:
    """Return HTML as one server-sent event."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"{lines}\n"
