"""Who may see the pages: a token once, then a cookie; this host alone; reading alone.

Loopback keeps other machines out, and neither other users of this one nor pages of other sites in
the same browser. Against the users stands the token, against the sites the check of the Host header
(a name that is rebound to 127.0.0.1 is not ours) and a cookie that no other site's request carries.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlay.export.prometheus import is_authorized

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_COOKIE: Final = "outlay-web"
_LONGEST_QUERY: Final = 8192
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    """Return what nobody guesses."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who is let in: those that state the token, under one of the names of this server.

    Attributes:
        cookie: What later requests carry instead; a program bears the token in each.
    """

    token: str
    hosts: frozenset[str] = LOOPBACK
    cookie: str = field(default_factory=new_token)

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let in; None for one that is."""
        if request.method not in ("GET", "HEAD"):
            return _plain("These pages are read-only: GET alone.", 405)
        if _host_name(request.headers.get("host", "")) not in self.hosts:
            return _plain("This server is not called that.", 421)
        if len(request.url.query) > _LONGEST_QUERY:
            return _plain("The query is too long.", 414)
        given = request.query_params.get(TOKEN)
        if given is not None:
            return self._exchange(request, given)
        if _same(request.cookies.get(_COOKIE, ""), self.cookie):
            return None
        if is_authorized(request.headers.get("authorization"), self.token):
            return None  # A program, such as Prometheus.
        return _plain("Open the address that `outlay web` printed: it lets this browser in.", 401)

    def _exchange(self, request: Request, given: str) -> Response:
        """Answer a token with a cookie, at the same address without the token."""
        if not _same(given, self.token):
            return _plain("This token is not the one that `outlay web` printed.", 403)
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in pairs if name != TOKEN])
        path = "/" + request.url.path.lstrip("/")  # Two slashes would name another host.
        answer = RedirectResponse(f"{path}?{kept}" if kept else path, status_code=303)
        answer.set_cookie(_COOKIE, self.cookie, httponly=True, samesite="strict", path="/")
        return answer


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status_code=status)


class AccessMiddleware:
    """Lets requests through that may pass, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        refusal = self._access.refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    """Return a sender that adds the headers of every answer."""

    async def send_with(message: MutableMapping[str, Any] | Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_encoded(_HEADERS.items())]
        await send(message)

    return send_with


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]
