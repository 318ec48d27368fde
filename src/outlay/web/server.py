"""The server: its routes, and how it begins and ends. Everything is read in one thread.

``VIEWS`` are its pages; whoever adds an endpoint hands its route to ``build_app``.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from outlay.errors import InvalidValue, OutlayError
from outlay.escaping import html_text, json_text, terminal_text, write_csv
from outlay.export.live_runs import LiveRuns
from outlay.export.prometheus import CONTENT_TYPE, exposition
from outlay.files import read_own
from outlay.report import html
from outlay.web import guard, money, now, reports, runs
from outlay.web.access import LOOPBACK, Access, AccessMiddleware, new_token
from outlay.web.books import BookReader, UnknownRun
from outlay.web.live import LivePages
from outlay.web.page import Page, PageQuery, frame, inside


class View(NamedTuple):
    """How a page is made, and what changes when it would be another."""

    page: Callable[[PageQuery, BookReader], Page]
    stamp: Callable[[PageQuery, BookReader], object]


VIEWS: Final = {
    "/": View(now.now_page, now.now_stamp),
    "/now": View(now.now_page, now.now_stamp),
    "/money": View(money.money_page, money.money_stamp),
    "/runs": View(runs.runs_page, runs.runs_stamp),
    "/compare": View(runs.compare_page, runs.compare_stamp),
    "/run/": View(reports.run_page, reports.run_stamp),
    "/sweeps": View(reports.sweeps_page, reports.sweeps_stamp),
    "/sweep/": View(reports.sweep_page, reports.sweep_stamp),
    "/guard": View(guard.guard_page, guard.guard_stamp),
    "/prices": View(guard.prices_page, guard.prices_stamp),
}
"""Views by their addresses; one that ends in a slash is followed by a name."""
FORMS: Final = (".json", ".csv")
_SCRIPTS: Final = ("htmx.min.js", "hx-sse.min.js")
_TYPES: Final = {"style.css": "text/css", "live.js": "text/javascript"}


class WebServer:
    """The pages as an application; keeps what they read."""

    def __init__(self, books: BookReader) -> None:
        self.books = books
        self.live = LivePages(self._make_again)
        # One thread: a view is of a fold that the next look lets grow.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlay-web")

    def routes(self) -> list[BaseRoute]:
        """Return what is served."""
        return [
            Route("/assets/{name}", _asset),
            Route("/health.json", self._health),
            Route("/events{path:path}", self._events),
            Route("/{path:path}", self._page),
        ]

    def read(self, ask: PageQuery) -> Page:
        """Make a page; called in the one thread that reads.

        Raises:
            UnknownRun: Nothing is registered under that name.
        """
        return _view_of(ask).page(ask, self.books)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _page(self, request: Request) -> Response:
        ask, form = _ask_of(request.url.path, request)
        if ask is None:
            return _missing("There is no such page.")
        try:
            return _answer(await self._in_thread(self._render, ask, form), form)
        except UnknownRun as error:
            return _missing(str(error))
        except (OutlayError, OSError) as error:
            said = self.books.people.text(str(error))
            return Response(_error_page(ask, said), 500, media_type="text/html")

    def _render(self, ask: PageQuery, form: str) -> str:
        page = self.read(ask)
        match form:
            case ".json":
                return json_text(msgspec.json.encode(self._shown(page), enc_hook=str).decode())
            case ".csv":
                stream = io.StringIO()
                write_csv(stream, page.columns, page.rows)
                return stream.getvalue()
            case _:
                return frame(page, ask)

    def _shown(self, page: Page) -> object:
        if not (people := self.books.people).hidden:
            return page.document
        return people.plain(msgspec.to_builtins(page.document, enc_hook=str))

    async def _health(self, request: Request) -> Response:
        """Answer how many pages are open, and how many runs have a reader in memory."""
        del request
        found = {"streams": self.live.streams, "readers": self.books.open_readers}
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
            return None, html.top("Not to be read now", self.books.people.text(str(error)))
        return found

    def _changed(self, ask: PageQuery, stamp: object) -> tuple[object, str | None]:
        now = _view_of(ask).stamp(ask, self.books)
        return now, None if stamp is not None and now == stamp else inside(self.read(ask))


def _ask_of(path: str, request: Request) -> tuple[PageQuery | None, str]:
    """Return what an address asks for, and in which form; None for no view."""
    query = tuple(request.query_params.multi_items())
    form = next((each for each in FORMS if path.endswith(each)), "")
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


def _answer(text: str, form: str) -> Response:
    types = {".json": "application/json", ".csv": "text/csv; charset=utf-8"}
    return Response(text, media_type=types.get(form, "text/html"))


def _missing(text: str) -> Response:
    return PlainTextResponse(f"{terminal_text(text)}\n", 404)


def _error_page(ask: PageQuery, text: str) -> str:
    parts = [html.section("What happened", f"<p>{html_text(text)}</p>")]
    return frame(Page(title="This cannot be shown", parts=parts, lives=False), ask)


@cache
def asset_text(name: str) -> str:
    """Return the style sheet of all pages and reports, or the script.

    The script is one file: htmx looks at the page as soon as it can, and has to know its extension
    by then.
    """
    if name == "style.css":
        return html.asset(name)
    vendored = files("outlay.web") / "assets"
    texts = [(vendored / each).read_text(encoding="utf-8") for each in _SCRIPTS]
    return "\n;\n".join([*texts, html.asset("page.js")])


def metrics_route(live: LiveRuns, user_shown: Callable[[str], str]) -> BaseRoute:
    """Return ``/metrics``: live runs and ceilings as Prometheus reads them, with a bearer token."""

    async def metrics(request: Request) -> Response:
        del request
        reading = await asyncio.to_thread(live.read)
        return Response(exposition(reading, user_shown), media_type=CONTENT_TYPE)

    return Route("/metrics", metrics)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        return _missing("There is no such file.")
    return Response(asset_text(name), media_type=_TYPES[name])


def build_app(web: WebServer, access: Access, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application; ``more`` routes come first."""
    middleware = [Middleware(AccessMiddleware, access=access)]
    return Starlette(routes=[*more, *web.routes()], middleware=middleware)


# Where it listens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where the server listens, and who may come.

    Attributes:
        unix_socket: A file instead of a port: on a login node, loopback belongs to everybody.
        token_file: Holds the token; needed to listen beyond loopback.
    """

    host: str = "127.0.0.1"
    port: int = 0
    unix_socket: Path | None = None
    token_file: Path | None = None

    def token(self) -> str:
        """Return the token that lets a browser in.

        Raises:
            InvalidValue: It listens beyond loopback without a token file, or the file is no secret.
        """
        if self.token_file is None:
            if self.host not in LOOPBACK:
                expected = "127.0.0.1, or --token-file FILE beside it"
                raise InvalidValue("--host", self.host, expected)
            return new_token()
        if stat.S_IMODE(self.token_file.stat().st_mode) & 0o077:
            expected = "a file that nobody else may read (chmod 600)"
            raise InvalidValue("--token-file", str(self.token_file), expected)
        token = read_own(self.token_file).decode(errors="replace").strip()
        if len(token) < _SHORTEST_TOKEN:
            expected = f"a file with {_SHORTEST_TOKEN} characters or more in it"
            raise InvalidValue("--token-file", str(self.token_file), expected)
        return token

    def listen(self) -> socket.socket:
        """Return the socket, listening."""
        if self.unix_socket is not None:
            return _unix_socket(self.unix_socket)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family)

    def url(self, listening: socket.socket, token: str) -> str:
        """Return the address to open; of a Unix socket, that of its forwarded port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = self.port or FORWARDED
        if self.unix_socket is None:
            port = listening.getsockname()[1]
        else:
            host = "localhost"
        return f"http://{host}:{port}/?token={token}"

    def forwarding(self) -> str:
        """Return the command that brings a Unix socket to the user's own machine."""
        if self.unix_socket is None:
            return ""
        path = self.unix_socket.absolute()
        return f"ssh -N -L {self.port or FORWARDED}:{path} {socket.gethostname()}"


FORWARDED: Final = 8642
_SHORTEST_TOKEN: Final = 16


def _unix_socket(path: Path) -> socket.socket:
    """Return a socket file that its owner alone can open, in place of one that nobody serves."""
    listening = socket.socket(socket.AF_UNIX)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as other:
            if other.connect_ex(str(path)) == 0:
                raise InvalidValue("--unix-socket", str(path), "a path that no server listens on")
        path.unlink()
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    listening.listen()
    return listening


class _Uvicorn(uvicorn.Server):
    """Ends its streams first, so that Ctrl-C does not wait for them."""

    def __init__(self, config: uvicorn.Config, live: LivePages) -> None:
        super().__init__(config)
        self._live = live

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._live.close()
        super().handle_exit(sig, frame)


def serve(
    web: WebServer,
    place: ServerAddress,
    announce: Callable[[str], None],
    more: Sequence[BaseRoute] = (),
) -> None:
    """Serve until a signal ends it; ``announce`` is told the address once it can be opened."""
    token = place.token()
    with place.listen() as listening:
        access = Access(token=token, hosts=LOOPBACK | {place.host.lower()})
        config = uvicorn.Config(
            build_app(web, access, more), log_level="warning", access_log=False, lifespan="off",
            ws="none", timeout_graceful_shutdown=1, server_header=False, date_header=False,
        )  # fmt: skip
        announce(place.url(listening, token))
        try:
            _Uvicorn(config, web.live).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            if place.unix_socket is not None:
                place.unix_socket.unlink(missing_ok=True)
