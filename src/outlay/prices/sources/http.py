"""Asking a vendor over HTTP: time-outs, retries, and no key in anything that is said.

A request ends by its deadline even when the vendor sends a byte now and then, and an answer is
read up to a size, so that a bad day of one vendor stays that vendor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from outlay.clock import SYSTEM, Clock, wall_ns_of
from outlay.prices.sources.base import SourceFailed

_RETRIED = frozenset({429, 500, 502, 503, 504})
_SHORTEST_KEY = 8
_LARGEST_ANSWER = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
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
class Request:
    """One question to one vendor, and the key that opens its door.

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
    patience: Patience = Patience()
    clock: Clock = SYSTEM

    def send(self) -> bytes:
        """Return the body of a successful answer.

        Raises:
            SourceFailed: No such answer came within the patience.
        """
        limits = httpx.Timeout(self.patience.deadline_s, connect=self.patience.connect_s)
        headers = {"Accept": "application/json", "User-Agent": "outlay"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            with httpx.Client(timeout=limits, headers=headers) as client:
                return self._until_answered(client)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # The cause is dropped: some of httpx's messages repeat a header.
            raise SourceFailed(self.source, _in_words(error)) from None

    def _until_answered(self, client: httpx.Client) -> bytes:
        answer = self._once(client)
        for attempt in range(1, self.patience.tries):
            if answer.status not in _RETRIED:
                break
            self._wait(attempt, answer.retry_after)
            answer = self._once(client)
        if 200 <= answer.status < 300:
            return answer.body
        raise SourceFailed(self.source, self._status_in_words(answer))

    def _once(self, client: httpx.Client) -> _Answer:
        ends_ns = self.clock.monotonic_ns() + round(self.patience.deadline_s * 1e9)
        received = bytearray()
        with client.stream(self.method, self.url, json=self.body) as answer:
            for chunk in answer.iter_bytes():
                received += chunk
                if self.clock.monotonic_ns() > ends_ns:
                    raise httpx.ReadTimeout("the deadline passed")
                if len(received) > _LARGEST_ANSWER:
                    raise SourceFailed(self.source, f"more than {_LARGEST_ANSWER >> 20} MiB")
            return _Answer(
                status=answer.status_code,
                retry_after=answer.headers.get("retry-after"),
                body=self._without_key(bytes(received)),
            )

    def _wait(self, attempt: int, retry_after: str | None) -> None:
        usual_s = 0.5 * 2 ** (attempt - 1)
        wait_s = retry_after_s(retry_after, now_ns=self.clock.wall_ns(), otherwise=usual_s)
        if wait_s > self.patience.longest_wait_s:
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
        return body.replace(self.key.encode(), b"***")


def retry_after_s(header: str | None, *, now_ns: int, otherwise: float) -> float:
    """Return the seconds that a Retry-After header (RFC 9110) asks for, as a number or a date."""
    if header is None:
        return otherwise
    if header.isdecimal():
        return float(header)
    try:
        until_ns = wall_ns_of(parsedate_to_datetime(header))
    except ValueError:
        return otherwise
    return max(0.0, (until_ns - now_ns) / 1e9)


def _in_words(error: Exception) -> str:
    match error:
        case httpx.TimeoutException():
            return "no full answer in time"
        case httpx.ConnectError():
            return "no connection"
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return "the answer broke off"
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return "its address is not a URL"
        case _:
            return f"the request failed ({type(error).__name__})"
