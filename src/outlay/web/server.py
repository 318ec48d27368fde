"""The web server: views, routes, live updates, start and shutdown.

Pages are made in one thread. ``build_app`` takes further routes.
"""

from __future__ import annotations

import asyncio
import gc
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import FrameType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from outlay.errors import OutlayError
from outlay.escaping import html_text, json_text, terminal_text, write_csv
from outlay.export.live_runs import LiveRuns
from outlay.export.prometheus import CONTENT_TYPE, exposition
from outlay.report import html
from outlay.runs.run_poller import PERIOD_NS
from outlay.web import guard, metric_points, money, now, prices, runs
from outlay.web.access import Access, AccessMiddleware, ServerAddress
from outlay.web.book_reader import BookReader, UnknownRun
from outlay.web.limits import (
    RequestLimit,
    ServerLimits,
    limited_protocol,
    limits_here,
    repetitions_counted,
)
from outlay.web.page import Page, PageQuery, frame, inside
from outlay.web.spending import spent
from outlay.web.viewer import behind_proxies, user_of


class View(NamedTuple):
    """A page, and its stamp: a value that changes when the page would."""

    page: Callable[[PageQuery, BookReader], Page]
    stamp: Callable[[PageQuery, BookReader], object]


VIEWS: Final = {
    "/": View(now.now_page, now.now_stamp),
    "/now": View(now.now_page, now.now_stamp),
    "/money": View(money.money_page, money.money_stamp),
    "/spent": View(spent.spent_page, spent.spent_stamp),
    "/runs": View(runs.runs_page, runs.runs_stamp),
    "/compare": View(runs.compare_page, runs.compare_stamp),
    "/run/": View(runs.run_page, runs.run_stamp),
    "/points": View(metric_points.points_page, metric_points.points_stamp),
    "/sweeps": View(runs.sweeps_page, runs.sweeps_stamp),
    "/sweep/": View(runs.sweep_page, runs.sweep_stamp),
    "/guard": View(guard.guard_page, guard.guard_stamp),
    "/prices": View(prices.prices_page, prices.prices_stamp),
}
"""Views by path; a path that ends in a slash is followed by an id."""
_FORM_TYPES: Final = {".json": "application/json", ".csv": "text/csv; charset=utf-8"}
_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}
_ASSETS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "style.css": (("outlay.report", "style.css"), ("outlay.web", "assets/spending.css")),
    "live.js": (
        ("outlay.web", "assets/htmx.min.js"), ("outlay.web", "assets/hx-sse.min.js"),
        ("outlay.report", "page.js"), ("outlay.report", "reading.js"), ("outlay.web", "views.js"),
        ("outlay.web", "assets/keys.js"),
    ),
    "charts.css": (("outlay.web", "assets/uPlot.min.css"),),
    "charts.js": (("outlay.web", "assets/uPlot.iife.min.js"), ("outlay.web", "charts.js")),
}  # fmt: skip
"""Files by the packages that their parts are in.

The script of live pages is one, because htmx needs its extension when it first scans the page.
"""


_COMPRESSED: Final = [Middleware(GZipMiddleware, minimum_size=2_000, compresslevel=5)]
"""Of pages and assets, not of streams: these must not wait until there is enough to compress."""


# Live pages: server-sent events

Make = Callable[[PageQuery, object], Awaitable[tuple[object, str | None]]]
"""Returns a page's stamp, and its HTML, or None if the stamp equals the given one."""

_TICK_S: Final = PERIOD_NS / 1e9
_AT_LEAST_EVERY: Final = 7
"""Polls after which a page is made again with an unchanged stamp: durations and ages grow."""
_ALIVE: Final = ": still here\n\n"


@dataclass(slots=True)
class _Channel:
    """One address with its open streams."""

    readers: set[asyncio.Queue[str]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    last: str = ""


class LivePages:
    """Polls every open page and streams changes; one poll serves all readers of an address."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._channels: dict[PageQuery, _Channel] = {}
        self._closing = False

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(len(channel.readers) for channel in self._channels.values())

    def close(self) -> None:
        """End all streams, so that the server can shut down."""
        self._closing = True
        for channel in self._channels.values():
            for reader in channel.readers:
                reader.put_nowait("")

    async def stream(self, ask: PageQuery) -> AsyncIterator[str]:
        """Yield a page as server-sent events when it changes, until the client disconnects."""
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
                while queue.qsize() > 1:  # A slow reader gets only the newest page.
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
        polls = 0
        while channel.readers and not self._closing:
            polls += 1
            is_due = polls % _AT_LEAST_EVERY == 0
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
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"{lines}\n"


# The application


class WebServer:
    """Serves the pages; keeps the open readers between requests."""

    def __init__(self, books: BookReader, limits: ServerLimits | None = None) -> None:
        self.books = books
        self.limits = limits or limits_here()
        self.live = LivePages(self._make_again)
        # One thread: a RunView refers to an account that the next poll extends in place.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlay-web")

    def routes(self) -> list[BaseRoute]:
        """Return the routes of pages, assets, events and health."""
        most = self.limits.streams
        text = f"{most} live pages are open, which is the limit. Close some, then reload this one."
        streams = [Middleware(RequestLimit, most=most, text=text)]
        return [
            Route("/assets/{name}", _asset, middleware=_COMPRESSED),
            Route("/health.json", self._health),
            Route("/events{path:path}", self._events, middleware=streams),
            Route("/{path:path}", self._page, middleware=_COMPRESSED),
        ]

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _page(self, request: Request) -> Response:
        ask, form = _ask_of(request.url.path, request)
        if ask is None:
            return _missing("There is no such page.")
        try:
            user = user_of(request.scope)
            text = await self._in_thread(self._render, ask, form, user)
            return Response(text, media_type=_FORM_TYPES.get(form, "text/html"))
        except UnknownRun as error:
            return _missing(str(error))
        except (OutlayError, OSError) as error:
            said = self.books.people.text(str(error))
            return Response(_error_page(ask, said), 500, media_type="text/html")

    def _render(self, ask: PageQuery, form: str, user: str) -> str:
        page = _view_of(ask).page(ask, self.books)
        match form:
            case ".json":
                return json_text(msgspec.json.encode(self._shown(page), enc_hook=str).decode())
            case ".csv":
                stream = io.StringIO()
                write_csv(stream, page.columns, page.rows)
                return stream.getvalue()
            case _:
                return frame(page, ask, self.books.people.name(user))

    def _shown(self, page: Page) -> object:
        if not (people := self.books.people).hidden:
            return page.document
        return people.plain(msgspec.to_builtins(page.document, enc_hook=str))

    async def _health(self, request: Request) -> Response:
        """Return the number of open streams and of run readers in memory."""
        del request
        found = {"streams": self.live.streams, "readers": self.books.runs.open_readers}
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        ask, form = _ask_of(request.url.path.removeprefix("/events"), request)
        if ask is None or form:
            return _missing("There is no such page.")
        return StreamingResponse(self.live.stream(ask), media_type="text/event-stream")

    async def _make_again(self, ask: PageQuery, stamp: object) -> tuple[object, str | None]:
        try:
            found: tuple[object, str | None] = await self._in_thread(self._changed, ask, stamp)
        except (OutlayError, OSError) as error:
            return None, html.top("This cannot be shown", self.books.people.text(str(error)))
        return found

    def _changed(self, ask: PageQuery, stamp: object) -> tuple[object, str | None]:
        view = _view_of(ask)
        new = view.stamp(ask, self.books)
        is_same = stamp is not None and new == stamp
        return new, None if is_same else inside(view.page(ask, self.books))


def _ask_of(path: str, request: Request) -> tuple[PageQuery | None, str]:
    """Parse an address: the query and the form (".json", ".csv"); None for an unknown path."""
    query = tuple(request.query_params.multi_items())
    form = next((each for each in _FORM_TYPES if path.endswith(each)), "")
    plain = path.removesuffix(form) or "/"
    if (plain in VIEWS and not plain.endswith("/")) or plain == "/":
        return PageQuery(path=plain, query=query), form
    for prefix in VIEWS:
        if prefix != "/" and prefix.endswith("/") and plain.startswith(prefix):
            name = plain.removeprefix(prefix)
            return PageQuery(path=prefix + quote(name, safe=""), name=name, query=query), form
    return None, ""


def _view_of(ask: PageQuery) -> View:
    if ask.path in VIEWS:
        return VIEWS[ask.path]
    return VIEWS[ask.path[: ask.path.index("/", 1) + 1]]


def _missing(text: str) -> Response:
    return PlainTextResponse(f"{terminal_text(text)}\n", 404)


def _error_page(ask: PageQuery, text: str) -> str:
    parts = [html.section("What happened", f"<p>{html_text(text)}</p>")]
    return frame(Page(title="This cannot be shown", parts=parts, lives=False), ask)


@cache
def asset_text(name: str) -> str:
    """Return a style sheet or a script."""
    parts = ((files(package) / path).read_text(encoding="utf-8") for package, path in _ASSETS[name])
    return ("\n;\n" if name.endswith(".js") else "\n").join(parts)


def metrics_route(live: LiveRuns, user_shown: Callable[[str], str]) -> BaseRoute:
    """Return ``/metrics``: live runs and ceilings for Prometheus, with a bearer token."""

    async def metrics(request: Request) -> Response:
        del request
        reading = await asyncio.to_thread(live.read)
        return Response(exposition(reading, user_shown), media_type=CONTENT_TYPE)

    return Route("/metrics", metrics)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        return _missing("There is no such file.")
    return Response(asset_text(name), media_type=_TYPES[name[name.rindex(".") :]])


def build_app(web: WebServer, access: Access, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application; ``more`` routes take precedence."""
    busy = "The server is busy. Try again in a few seconds."
    middleware = [
        Middleware(AccessMiddleware, access=access),
        Middleware(RequestLimit, most=web.limits.requests, text=busy),
    ]
    return Starlette(routes=[*more, *web.routes()], middleware=middleware)


class _Uvicorn(uvicorn.Server):
    """Closes the streams first, so that Ctrl-C does not wait for them; lets connections queue."""

    def __init__(self, config: uvicorn.Config, live: LivePages) -> None:
        super().__init__(config)
        self._live = live

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_QUEUED)  # asyncio has one number for this and for what it accepts at once.

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._live.close()
        super().handle_exit(sig, frame)


_QUEUED: Final = 1024
"""Connections that the system holds until they are accepted."""


def serve(
    web: WebServer,
    place: ServerAddress,
    announce: Callable[[str], None],
    more: Sequence[BaseRoute] = (),
) -> None:
    """Serve until a signal; ``announce`` gets the address once it can be opened."""
    token, hosts = place.token(), place.hosts()
    gc.freeze()  # Modules stay: with 10,000 runs the collector took a third of a page's time.
    with place.listen() as listening:
        config = uvicorn.Config(
            behind_proxies(
                build_app(web, Access(token=token, hosts=hosts, users=place.users), more),
                place.users,
            ),
            http=limited_protocol(web.limits), loop="asyncio", backlog=web.limits.accepted,
            log_level="warning", access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1, server_header=False, date_header=False,
            proxy_headers=False,  # ``behind_proxies`` does it.
        )  # fmt: skip
        try:
            announce(place.url(listening, token))
            with repetitions_counted():
                _Uvicorn(config, web.live).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            if place.unix_socket is not None:
                place.unix_socket.unlink(missing_ok=True)
