"""Vendors over HTTP: time-outs, retries, no key in any text, answers row by row.

A request ends by its deadline even when the vendor sends a byte now and then, and an answer is
read up to a size, so that a bad day of one vendor stays that vendor's.
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
from outlay.prices.offer import Offer, Parsed
from outlay.prices.sources.base import SourceFailed

_RETRIED = frozenset({429, 500, 502, 503, 504})
_SHORTEST_KEY = 8
_LARGEST_ANSWER = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait for a vendor.

    Attributes:
        deadline_s: For one request, its body included.
        tries: Requests in all, the first included.
        longest_wait_s: What a Retry-After may ask for; beyond it the vendor counts as failed.
    """

    connect_s: float = 5.0
    deadline_s: float = 60.0
    tries: int = 4
    longest_wait_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request to one vendor, with its API key.

    Attributes:
        source: What to call the vendor in errors.
        key_name: The environment variable the key comes from, for errors.
    """

    source: str
    method: str
    url: str
    body: Mapping[str, Any] | None = None
    key: str | None = field(default=None, repr=False)
    key_name: str
    retry_policy: RetryPolicy = RetryPolicy()
    clock: Clock = SYSTEM
    _connections: list[socket.socket] = field(default_factory=list, init=False, repr=False)

    def send(self) -> bytes:
        """Return the body of a successful answer.

        Raises:
            SourceFailed: No such answer came within the retry policy.
        """
        limits = httpx2.Timeout(self.retry_policy.deadline_s, connect=self.retry_policy.connect_s)
        # gzip and nothing else, once: what is packed more than once is a bomb.
        headers = {
            "Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "outlay",
        }  # fmt: skip
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            with httpx2.Client(timeout=limits, headers=headers) as client:
                return self._until_answered(client)
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            # The cause is dropped: some of its messages repeat a header.
            raise SourceFailed(self.source, _in_words(error)) from None

    def _until_answered(self, client: httpx2.Client) -> bytes:
        answer = self._once(client)
        for attempt in range(1, self.retry_policy.tries):
            if answer.status not in _RETRIED:
                break
            self._wait(attempt, answer.retry_after)
            answer = self._once(client)
        if 200 <= answer.status < 300:
            return answer.body
        raise SourceFailed(self.source, self._status_in_words(answer))

    def _once(self, client: httpx2.Client) -> _Answer:
        with (
            _Deadline(self.retry_policy.deadline_s, self._connections) as deadline,
            client.stream(
                self.method, self.url, json=self.body, extensions={"trace": deadline.trace}
            ) as answer,
        ):
            return _Answer(
                status=answer.status_code,
                retry_after=answer.headers.get("retry-after"),
                body=self._without_key(self._body_of(answer)),
            )

    def _body_of(self, answer: httpx2.Response) -> bytes:
        packed = answer.headers.get("content-encoding", "identity").strip().lower()
        try:
            if packed in ("gzip", "x-gzip"):
                return gunzip(answer.iter_raw(), largest=_LARGEST_ANSWER)
            if packed not in ("identity", ""):
                raise SourceFailed(self.source, "its answer is packed in a way it was not asked to")
            received = bytearray()
            for chunk in answer.iter_raw():
                received += chunk
                if len(received) > _LARGEST_ANSWER:
                    raise BadDocument(f"it has more than {_LARGEST_ANSWER:,} bytes")
        except BadDocument as error:
            raise SourceFailed(self.source, f"its answer cannot be read: {error}") from None
        return bytes(received)

    def _wait(self, attempt: int, retry_after: str | None) -> None:
        usual_s = 0.5 * 2 ** (attempt - 1)
        wait_s = retry_after_s(retry_after, now_ns=self.clock.wall_ns(), otherwise=usual_s)
        if wait_s > self.retry_policy.longest_wait_s:
            raise SourceFailed(self.source, f"it asks to come back in {wait_s:g} s")
        self.clock.sleep(wait_s)

    def _status_in_words(self, answer: _Answer) -> str:
        if answer.status in (401, 403):
            how = f"the key in {self.key_name} was refused" if self.key else "it asks for a key"
            return f"HTTP {answer.status}: {how}; set {self.key_name} to a valid key"
        said = " ".join(answer.body[:200].decode("utf-8", "replace").split())
        return f"HTTP {answer.status}" + (f": {said}" if said else "")

    def _without_key(self, body: bytes) -> bytes:
        """Strike out the key, should a vendor repeat it: no error, finding or offer can hold it.

        What is too short to be a key would strike out parts of ordinary words.
        """
        if self.key is None or len(self.key) < _SHORTEST_KEY:
            return body
        forms = sorted(set(_forms_of(self.key.encode())), key=len, reverse=True)
        return re.sub(b"|".join(map(re.escape, forms)), b"***", body)


class _Deadline:
    """Ends every connection of a request at an instant, whatever the vendor does meanwhile.

    A time-out of a socket begins anew with every byte; a header a byte at a time would last hours.
    New sockets of the client are added to ``connections``.
    """

    def __init__(self, seconds: float, connections: list[socket.socket]) -> None:
        self._connections = connections
        self._passed = False
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._timer.cancel()
        if self._passed and (error is None or isinstance(error, httpx2.HTTPError | SourceFailed)):
            raise httpx2.ReadTimeout("the deadline passed") from None

    def trace(self, event: str, about: Mapping[str, Any]) -> None:
        """Take note of a connection that httpx2 has opened."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            opened = about["return_value"].get_extra_info("socket")
            if opened is not None:
                self._connections.append(opened)

    def _pass(self) -> None:
        self._passed = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                # Not the method of an SSL socket, which takes its state from under a reader.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _forms_of(key: bytes) -> Iterator[bytes]:
    """Yield a key as a vendor may repeat it: plain, escaped for URLs or JSON, in hex or base64."""
    percent = "".join(f"%{byte:02X}" for byte in key)
    plain = key.decode("latin-1")
    for text in (plain, quote(key, safe=""), quote_plus(key), percent, key.hex()):
        yield from (text.encode("latin-1"), text.lower().encode("latin-1"))
    yield key.hex().upper().encode()
    yield plain.replace("/", "\\/").encode("latin-1")
    yield "".join(f"\\u{byte:04x}" for byte in key).encode()
    for before in range(3):  # Where in a group of three bytes it may begin.
        padded = base64.b64encode(bytes(before) + key).rstrip(b"=")
        whole = padded[-(-before * 8 // 6) : len(padded) - ((before + len(key)) % 3 != 0)]
        yield from (whole, whole.replace(b"+", b"-").replace(b"/", b"_"))


def retry_after_s(header: str | None, *, now_ns: int, otherwise: float) -> float:
    """Return the seconds that a Retry-After header (RFC 9110) asks for, as a number or a date."""
    if header is None:
        return otherwise
    if header.isascii() and header.isdecimal():
        return float(header[:12])
    try:
        until_ns = wall_ns_of(parsedate_to_datetime(header))
    except ValueError:
        return otherwise
    return max(0.0, (until_ns - now_ns) / 1e9)


def _in_words(error: Exception) -> str:
    match error:
        case httpx2.TimeoutException():
            return "no full answer in time"
        case httpx2.ConnectError():
            return "no connection"
        case httpx2.RemoteProtocolError() | httpx2.ReadError():
            return "the answer broke off"
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return "its address is not a URL"
        case _:
            return f"the request failed ({type(error).__name__})"


# A vendor with an HTTP API: how it is asked, and how its answer is read.


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpVendor:
    """What outlay knows about a vendor's API.

    Attributes:
        url: Its address.
        url_name: The environment variable that names another address.
        key_name: The environment variable that holds the user's key.
        needs_key: It does not answer without one.
        parse: Pure: the body of an answer and the instant of it → offers and findings.
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
    """Offers that come straight from a vendor.

    Attributes:
        base_url: Where to ask instead of the vendor's own address.
        key: Instead of the one in the environment.
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
        """Ask the vendor and read its answer."""
        vendor = self.vendor
        key = self.key or os.environ.get(vendor.key_name)
        if vendor.needs_key and not key:
            raise SourceFailed(vendor.name, f"it asks for a key; set {vendor.key_name}")
        base_url = self.base_url or os.environ.get(vendor.url_name) or vendor.url
        request = HttpRequest(
            source=vendor.name,
            method=vendor.method,
            url=base_url.rstrip("/") + vendor.path,
            body=vendor.body,
            key=key,
            key_name=vendor.key_name,
            retry_policy=self.retry_policy,
            clock=self.clock,
        )
        return vendor.parse(request.send(), fetched_ns)


# Reading a vendor's answer row by row: one bad row is one finding, and the rest still counts.

Row = TypeVar("Row")
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


def read_answer(source: str, body: bytes, shape: type[Row]) -> Row:
    """Return the whole answer in its expected shape.

    Raises:
        SourceFailed: It is not JSON, or JSON of another shape.
    """
    try:
        return decode(body, shape)
    except BadDocument as error:
        start = body[:15].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html")):
            raise SourceFailed(source, "a web page came where JSON was expected") from None
        raise SourceFailed(source, f"not the JSON that was expected: {error}") from None


def read_rows(
    source: str,
    rows: Iterable[tuple[str, msgspec.Raw]],
    shape: type[Row],
    offers_of: Callable[[Row], Iterable[Offer]],
) -> Parsed:
    """Return the offers of every readable row, and a finding for each of the others.

    A row comes with what to call it in a finding; ``offers_of`` may raise InvalidValue.
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
    """Name rows by their position, from 1."""
    return ((f"row {position}", row) for position, row in enumerate(rows, start=1))
