"""Who looks at a page: the user that a reverse proxy names in a header.

The header says who somebody is, and does not let anybody in: the token does. It is believed only
where the connection comes from a stated proxy, whatever other headers say about the client.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from outlay.errors import InvalidValue

_PEER: Final = "outlay.peer"
_USER: Final = "outlay.user"
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}")
_TAKEN: Final = frozenset({"authorization", "connection", "cookie", "host", "transfer-encoding"})
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyUsers:
    """The header in which reverse proxies name the user, and the addresses of these proxies.

    Attributes:
        header: In lower case; "" if users are not named.
    """

    header: str = ""
    proxies: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, header: str | None, proxies: Sequence[str]) -> ProxyUsers:
        """Return the settings of the options.

        Raises:
            InvalidValue: One is given without the other, or is no header or no address.
        """
        if header is None:
            if proxies:
                expected = "--user-header NAME beside it, the header in which it names the user"
                raise InvalidValue("--proxy", proxies[0], expected)
            return cls()
        if not _HEADER.fullmatch(header) or header.lower() in _TAKEN:
            expected = "the name of a header that only the proxy sets, such as X-Remote-User"
            raise InvalidValue("--user-header", header, expected)
        if not proxies:
            expected = "--proxy ADDRESS beside it: from anybody else the header is refused"
            raise InvalidValue("--user-header", header, expected)
        return cls(header=header.lower(), proxies=frozenset(map(_parse_proxy, proxies)))

    def refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that may not name its user; else note the user."""
        if not self.header:
            return None
        name = self.header.encode()
        found = [value for key, value in scope["headers"] if key == name]
        if not found:
            return None
        if _peer(scope) not in self.proxies:
            return _forbidden(f"Only a reverse proxy may send {self.header}: see --proxy.")
        if len(found) > 1:
            return _forbidden(f"The reverse proxy must replace {self.header}, and sent it twice.")
        user = found[0].decode(errors="replace").strip()
        if len(user) > _LONGEST_NAME or not user.isprintable():
            return _forbidden(f"{self.header} is no name of a user.")
        scope[_USER] = user
        return None


NOBODY: Final = ProxyUsers()
"""No proxy names users."""


def user_of(scope: Scope) -> str:
    """Return the user of a request; "" if no proxy named one."""
    found: str = scope.get(_USER, "")
    return found


def behind_proxies(app: ASGIApp, users: ProxyUsers) -> ASGIApp:
    """Return an application that knows the real peer of a connection.

    What is inside sees the client and the scheme that a proxy states, as without it.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1").split(",")
    stated = ProxyHeadersMiddleware(app, [*map(str.strip, trusted), *sorted(users.proxies)])  # type: ignore[arg-type]

    async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        scope[_PEER] = client[0] if client else ""
        await stated(scope, receive, send)  # type: ignore[arg-type]

    return with_peer


def _peer(scope: Scope) -> str:
    """Return the address of the other end of the connection; "" of a socket file."""
    return _plain_address(scope.get(_PEER, ""))


def _plain_address(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _parse_proxy(address: str) -> str:
    found = _plain_address(address.removeprefix("[").removesuffix("]"))
    if not found or ipaddress.ip_address(found).is_unspecified:
        raise InvalidValue("--proxy", address, "the address of a reverse proxy, such as 127.0.0.1")
    return found


def _forbidden(text: str) -> Response:
    return PlainTextResponse(text + "\n", status_code=403)
