"""Access to the pages: where the server listens, the token, the cookie, and read-only requests.

Loopback keeps out other machines, but not other users of this machine, nor pages of other sites in
the same browser. The token keeps out other users. The check of the Host header (against DNS
rebinding to 127.0.0.1) and the SameSite cookie keep out other sites.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlay.errors import InvalidValue
from outlay.export.prometheus import is_authorized
from outlay.files import read_own
from outlay.web.viewer import NOBODY, ProxyUsers

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_COOKIE: Final = "outlay-web"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
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
    """Return a random token."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Checks requests: the token or the cookie, the Host header, the method.

    Attributes:
        cookie: The value that a browser gets in exchange for the token.
        users: Who may say in whose name a request is made.
    """

    token: str
    hosts: frozenset[str] = LOOPBACK
    cookie: str = field(default_factory=new_token)
    users: ProxyUsers = NOBODY

    def refusal(self, request: Request) -> Response | None:
        """Return the response to a refused request; None if it is allowed."""
        if request.method not in ("GET", "HEAD"):
            return _plain("These pages are read-only: use GET.", 405)
        name, port = _split_host(request.headers.get("host", ""))
        if name not in self.hosts or not re.fullmatch("[0-9]*", port, re.ASCII):
            return _plain("The Host header does not name this server: see --name.", 421)
        if (refused := self.users.refusal(request.scope)) is not None:
            return refused
        if len(request.url.query) > _LONGEST_QUERY:
            return _plain("The query is too long.", 414)
        given = request.query_params.get(TOKEN)
        if given is not None:
            return self._exchange(request, given, _cookie_name(port))
        if _same(request.cookies.get(_cookie_name(port), ""), self.cookie):
            return None
        if is_authorized(request.headers.get("authorization"), self.token):
            return None  # A program, such as Prometheus.
        return _plain("Open the address that `outlay web` printed: it has the token.", 401)

    def _exchange(self, request: Request, given: str, cookie_name: str) -> Response:
        """Set the cookie and redirect to the same address without the token."""
        if not _same(given, self.token):
            return _plain("This token is not the one that `outlay web` printed.", 403)
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in pairs if name != TOKEN])
        path = "/" + request.url.path.lstrip("/")  # Two slashes would name another host.
        answer = RedirectResponse(f"{path}?{kept}" if kept else path, status_code=303)
        answer.set_cookie(
            cookie_name, self.cookie, httponly=True, samesite="strict", path="/",
            secure=request.url.scheme == "https",  # A reverse proxy said so.
        )  # fmt: skip
        return answer


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _split_host(header: str) -> tuple[str, str]:
    """Return the name and the port of a Host header."""
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        return name.lower(), rest.removeprefix(":")
    name, _, port = header.partition(":")
    return name.lower(), port


def _cookie_name(port: str) -> str:
    """Return the name of the cookie for the port that the browser opened.

    Browsers send a cookie to all ports of a host: with one name, two servers would replace each
    other's.
    """
    return f"{_COOKIE}-{port}" if port else _COOKIE


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status_code=status)


class AccessMiddleware:
    """Refuses requests without access, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        refusal = self._access.refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def send_with(message: MutableMapping[str, Any] | Message) -> None:
        if message["type"] == "http.response.start":
            added = ((name.encode(), value.encode()) for name, value in _HEADERS.items())
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with


# Where the server listens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where the server listens, and the source of its token.

    Attributes:
        names: The host names and addresses that browsers open; none for ``host``.
        unix_socket: A file instead of a port: on a login node all users share loopback.
        token_file: Holds the token; required to listen beyond loopback.
        users: Who may say in whose name a request is made.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    unix_socket: Path | None = None
    token_file: Path | None = None
    users: ProxyUsers = NOBODY

    def token(self) -> str:
        """Return the token: that of the file, else a random one.

        Raises:
            InvalidValue: It listens beyond loopback without a token file, or others may read the
                file, or the token is too short.
        """
        if self.token_file is None:
            if self.is_exposed:
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

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it."""
        return self.unix_socket is None and self.host not in LOOPBACK

    def hosts(self) -> frozenset[str]:
        """Return the Host headers to answer to, without ports.

        Only known names: a page of another site can let its own name resolve to this machine.

        Raises:
            InvalidValue: A name is not one, or it listens on all addresses and has no name.
        """
        if not self.names and self.is_exposed and _is_wildcard(self.host):
            expected = "--name NAME beside it, once for each name or address that browsers open"
            raise InvalidValue("--host", self.host, expected)
        return LOOPBACK | {_valid_name(each) for each in self.names or (self.host,)}

    def listen(self) -> socket.socket:
        """Return the listening socket."""
        if self.unix_socket is not None:
            return _unix_socket(self.unix_socket)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            error.filename = f"{self.host}:{self.port}"  # For the message to the user.
            raise

    def url(self, listening: socket.socket, token: str) -> str:
        """Return the address to open; of a Unix socket, that of the forwarded port."""
        host = _valid_name(self.names[0]) if self.names and self.is_exposed else self.host
        host = f"[{host}]" if ":" in host else host
        port = self.port or FORWARDED
        if self.unix_socket is None:
            port = listening.getsockname()[1]
        else:
            host = "localhost"
        return f"http://{host}:{port}/?token={token}"

    def forwarding(self) -> str:
        """Return the ssh command that forwards a Unix socket to the user's own machine."""
        if self.unix_socket is None:
            return ""
        path = self.unix_socket.absolute()
        return f"ssh -N -L {self.port or FORWARDED}:{path} {socket.gethostname()}"


FORWARDED: Final = 8642
_SHORTEST_TOKEN: Final = 16


def _is_wildcard(host: str) -> bool:
    """Return whether a host, such as "0.0.0.0", "::" or "0", stands for all addresses."""
    found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    return any(ipaddress.ip_address(each[4][0]).is_unspecified for each in found)


def _valid_name(name: str) -> str:
    """Return a host name or an address as browsers write it."""
    given = name.removeprefix("[").removesuffix("]").lower()
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        if _NAME.fullmatch(given):
            return given
    expected = "a host name or an address, without http:// and without a port"
    raise InvalidValue("--name", name, expected)


def _unix_socket(path: Path) -> socket.socket:
    """Return a socket file with mode 600; replaces one that no server listens on."""
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
