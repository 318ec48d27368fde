"""HTTP requests to vendors: timeouts, retries, key redaction, responses parsed row by row.

A request has a deadline that holds even if the vendor sends single bytes slowly, and a response has
a maximum size, so that one failing vendor does not affect the others.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, quote_plus

import httpx2
import msgspec

from outlay.clock import SYSTEM, Clock, wall_ns_of
from outlay.decoding import BadDocument, decode, gunzip
from outlay.errors import Finding, InvalidValue
from outlay.prices.offer import Offer, Parsed, SourceFailed

_RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
_MIN_KEY_LENGTH = 8
_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Timeouts and retries.

    Attributes:
        deadline_s: For one request including its body.
        tries: Total number of requests.
        max_wait_s: Longest Retry-After that is obeyed; a longer one counts as failure.
    """

    connect_s: float = 5.0
    deadline_s: float = 60.0
    tries: int = 4
    max_wait_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    status: int
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpVendor:
    """A vendor's API.

    Attributes:
        url_name: Environment variable that overrides ``url``.
        key_name: Environment variable with the user's key.
        needs_key: It does not respond without a key.
        parse: Pure: response body and timestamp → offers and findings.
    """

    name: str
    method: str
    url: str
    url_name: str
    path: str
    body: Mapping[str, Any] | None = None
    key_name: str
    needs_key: bool = False
    parse: Callable[[bytes, int], Parsed]


@dataclass(frozen=True, slots=True)
class VendorSource:
    """Offers from a vendor's API.

    Attributes:
        base_url: Overrides the vendor's address.
        key: Overrides the key in the environment.
    """

    vendor: HttpVendor
    base_url: str | None = field(default=None, kw_only=True)
    key: str | None = field(default=None, kw_only=True, repr=False)
    retry_policy: RetryPolicy = field(default=RetryPolicy(), kw_only=True)
    clock: Clock = field(default=SYSTEM, kw_only=True)

    @property
    def name(self) -> str:
        """The vendor's name."""
        return self.vendor.name

    def load(self, fetched_ns: int) -> Parsed:
        """Send the request and parse the response."""
        if self.vendor.needs_key and not self._key:
            raise SourceFailed(self.name, f"it requires a key; set {self.vendor.key_name}")
        return self.vendor.parse(self._send(), fetched_ns)

    @property
    def _key(self) -> str | None:
        return self.key or os.environ.get(self.vendor.key_name)

    @property
    def _url(self) -> str:
        base_url = self.base_url or os.environ.get(self.vendor.url_name) or self.vendor.url
        return base_url.rstrip("/") + self.vendor.path

    def _send(self) -> bytes:
        """Return the body of a successful response.

        Raises:
            SourceFailed: There was none within the retry policy.
        """
        deadline = _Deadline(self.retry_policy.deadline_s)
        limits = httpx2.Timeout(self.retry_policy.deadline_s, connect=self.retry_policy.connect_s)
        # Only gzip, and only once: nested compression is a decompression bomb.
        headers = {
            "Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "outlay",
        }  # fmt: skip
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            with httpx2.Client(timeout=limits, headers=headers) as client:
                return self._send_with_retries(client, deadline)
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            # Without the cause: some of its messages quote a header, which may hold the key.
            raise SourceFailed(self.name, _describe_error(error)) from None

    def _send_with_retries(self, client: httpx2.Client, deadline: _Deadline) -> bytes:
        response = self._send_once(client, deadline)
        for attempt in range(1, self.retry_policy.tries):
            if response.status not in _RETRIED_STATUSES:
                break
            self._wait(attempt, response.retry_after)
            response = self._send_once(client, deadline)
        if 200 <= response.status < 300:
            return response.body
        raise SourceFailed(self.name, self._describe_status(response))

    def _send_once(self, client: httpx2.Client, deadline: _Deadline) -> _Response:
        method, traced = self.vendor.method, {"trace": deadline.trace}
        with (
            deadline,
            client.stream(method, self._url, json=self.vendor.body, extensions=traced) as response,
        ):
            return _Response(
                status=response.status_code,
                retry_after=response.headers.get("retry-after"),
                body=self._redact_key(self._read_body(response)),
            )

    def _read_body(self, response: httpx2.Response) -> bytes:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        try:
            if encoding in ("gzip", "x-gzip"):
                return gunzip(response.iter_raw(), largest=_MAX_BODY_BYTES)
            if encoding not in ("identity", ""):
                raise SourceFailed(self.name, "its response has an encoding other than gzip")
            received = bytearray()
            for chunk in response.iter_raw():
                received += chunk
                if len(received) > _MAX_BODY_BYTES:
                    raise BadDocument(f"it has more than {_MAX_BODY_BYTES:,} bytes")
        except BadDocument as error:
            raise SourceFailed(self.name, f"its response cannot be read: {error}") from None
        return bytes(received)

    def _wait(self, attempt: int, retry_after: str | None) -> None:
        usual_s = 0.5 * 2 ** (attempt - 1)
        wait_s = retry_after_s(retry_after, now_ns=self.clock.wall_ns(), otherwise=usual_s)
        if wait_s > self.retry_policy.max_wait_s:
            raise SourceFailed(self.name, f"it asks to retry only after {wait_s:g} s")
        self.clock.sleep(wait_s)

    def _describe_status(self, response: _Response) -> str:
        if response.status in (401, 403):
            refused = f"the key in {self.vendor.key_name} was refused"
            how = refused if self._key else "it requires a key"
            return f"HTTP {response.status}: {how}; set {self.vendor.key_name} to a valid key"
        text = " ".join(response.body[:200].decode("utf-8", "replace").split())
        return f"HTTP {response.status}" + (f": {text}" if text else "")

    def _redact_key(self, body: bytes) -> bytes:
        """Redact the key, should a vendor echo it, so that no error, finding or offer contains it.

        A string too short to be a key is ignored: redacting it would damage ordinary words.
        """
        if self._key is None or len(self._key) < _MIN_KEY_LENGTH:
            return body
        forms = sorted(set(_encodings_of(self._key.encode())), key=len, reverse=True)
        return re.sub(b"|".join(map(re.escape, forms)), b"***", body)


class _Deadline:
    """Shuts down all connections of a client if a request takes longer; entered for each request.

    A socket timeout restarts with every byte, so a header sent byte by byte could take hours.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._connections: list[socket.socket] = []
        self._expired = False

    def __enter__(self) -> None:
        self._timer = threading.Timer(self._seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._timer.cancel()
        if self._expired and (error is None or isinstance(error, httpx2.HTTPError | SourceFailed)):
            raise httpx2.ReadTimeout("the deadline passed") from None

    def trace(self, event: str, about: Mapping[str, Any]) -> None:
        """Remember a connection that httpx2 has opened."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            opened = about["return_value"].get_extra_info("socket")
            if opened is not None:
                self._connections.append(opened)

    def _expire(self) -> None:
        self._expired = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                # An SSL socket's own method would clear its state while another thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _encodings_of(key: bytes) -> Iterator[bytes]:
    """Yield a key as a vendor may echo it: plain, escaped for URLs or JSON, in hex or base64."""
    percent = "".join(f"%{byte:02X}" for byte in key)
    plain = key.decode("latin-1")
    for text in (plain, quote(key, safe=""), quote_plus(key), percent, key.hex()):
        yield from (text.encode("latin-1"), text.lower().encode("latin-1"))
    yield key.hex().upper().encode()
    yield plain.replace("/", "\\/").encode("latin-1")
    yield "".join(f"\\u{byte:04x}" for byte in key).encode()
    for before in range(3):  # The key's offset within a base64 group of three bytes.
        padded = base64.b64encode(bytes(before) + key).rstrip(b"=")
        whole = padded[-(-before * 8 // 6) : len(padded) - ((before + len(key)) % 3 != 0)]
        yield from (whole, whole.replace(b"+", b"-").replace(b"/", b"_"))


def retry_after_s(header: str | None, *, now_ns: int, otherwise: float) -> float:
    """Parse a Retry-After header (RFC 9110), a number or a date, into seconds."""
    if header is None:
        return otherwise
    if header.isascii() and header.isdecimal():
        return float(header[:12])
    try:
        until_ns = wall_ns_of(parsedate_to_datetime(header))
    except ValueError:
        return otherwise
    return max(0.0, (until_ns - now_ns) / 1e9)


def _describe_error(error: Exception) -> str:
    match error:
        case httpx2.TimeoutException():
            return "no complete response before the deadline"
        case httpx2.ConnectError():
            return "no connection"
        case httpx2.RemoteProtocolError() | httpx2.ReadError():
            return "the connection broke during the response"
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return "its address is not a URL"
        case _:
            return f"the request failed ({type(error).__name__})"


# Parsing of responses: a bad row is one finding, and the other rows are kept

Row = TypeVar("Row")
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


def parse_body(source: str, body: bytes, shape: type[Row]) -> Row:
    """Parse a whole response.

    Raises:
        SourceFailed: It is not JSON, or not of this shape.
    """
    try:
        return decode(body, shape)
    except BadDocument as error:
        start = body[:15].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html")):
            raise SourceFailed(source, "it sent a web page instead of JSON") from None
        raise SourceFailed(source, f"not the expected JSON: {error}") from None


def parse_rows(
    source: str,
    rows: Iterable[tuple[str, msgspec.Raw]],
    shape: type[Row],
    offers_of: Callable[[Row], Iterable[Offer]],
) -> Parsed:
    """Return the offers of every valid row, and a finding for each of the others.

    ``rows`` are pairs of a row's name for findings and its JSON; ``offers_of`` may raise
    InvalidValue.
    """
    offers: list[Offer] = []
    findings: list[Finding] = []
    for name, raw in rows:
        try:
            offers.extend(offers_of(decode(bytes(raw), shape)))
        except (BadDocument, InvalidValue) as error:
            findings.append(Finding(source=source, message=f"{name}: {error}"))
    return Parsed(offers=tuple(offers), findings=tuple(findings))


def numbered(rows: Iterable[msgspec.Raw]) -> Iterable[tuple[str, msgspec.Raw]]:
    """Name rows by their position, starting at 1."""
    return ((f"row {position}", row) for position, row in enumerate(rows, start=1))
