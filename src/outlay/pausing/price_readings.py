"""The price of one offer, read again and again, and which readings are news.

A reading that cannot be had is no news: it changes nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, OutlayError
from outlay.files import open_own
from outlay.ledger.price import Price, typed_price
from outlay.machine import gpu_model, visible_gpus
from outlay.policy.simulation import PriceChange
from outlay.prices.current import resolve_price
from outlay.prices.names import PriceName, parse_name
from outlay.units import Rate, Unit
from outlay.units.quantity import duration_text

MOST_JUMP: Final = 3
"""A price that is more than this many times the last one, or that much less, is no news."""
_MOST_BYTES: Final = 4096
_COMMAND_S: Final = 60.0


class PriceUnreadable(OutlayError):
    """The present price of an offer cannot be read."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: no price can be read ({reason}). Expected one such as 2.10 USD/h. Nothing "
            "was started."
        )
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceReading:
    """What an offer cost per hour, all of its GPUs, at an instant in UTC nanoseconds."""

    price: Rate
    at_ns: int


ReadPrice = Callable[[], PriceReading]
"""Reads the present price; raises ``PriceUnreadable``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceWatch:
    """The last readings of a price.

    Attributes:
        known: The last price that a second reading confirmed, or that was known before.
        earlier: The reading before the latest, if both are good and young enough.
        problem: Why the latest reading is no news; empty if it is good.
    """

    max_age_ns: int
    known: Rate | None = None
    earlier: PriceReading | None = None
    latest: PriceReading | None = None
    problem: str = ""

    @property
    def news(self) -> tuple[Rate, Rate] | None:
        """The prices of the last two readings, if both count."""
        if self.earlier is None or self.latest is None:
            return None
        return self.earlier.price, self.latest.price

    def read(self, read_price: ReadPrice, now_ns: int) -> PriceWatch:
        """Return the watch after another reading at ``now_ns``."""
        try:
            reading = read_price()
        except PriceUnreadable as error:
            return self._without_news(error.reason)
        if problem := self._problem(reading, now_ns):
            return self._without_news(problem)
        earlier = self.latest if self.latest and self._is_young(self.latest, now_ns) else None
        known = reading.price if earlier else self.known
        return replace(self, known=known, earlier=earlier, latest=reading, problem="")

    def _problem(self, reading: PriceReading, now_ns: int) -> str:
        if not self._is_young(reading, now_ns):
            age = duration_text(abs(now_ns - reading.at_ns))
            return f"it is {age} old" if now_ns > reading.at_ns else f"it is {age} ahead"
        for last in (self.known, None if self.latest is None else self.latest.price):
            if last is not None and _is_jump(last, reading.price):
                return f"{reading.price} is more than {MOST_JUMP} times away from {last}"
        return ""

    def _is_young(self, reading: PriceReading, now_ns: int) -> bool:
        return abs(now_ns - reading.at_ns) <= self.max_age_ns

    def _without_news(self, problem: str) -> PriceWatch:
        return replace(self, earlier=None, latest=None, problem=problem)


def _is_jump(last: Rate, price: Rate) -> bool:
    low, high = sorted((last.micros_per_hour, price.micros_per_hour))
    return high > MOST_JUMP * low


# Where a price is read.


def price_in_file(path: Path, unit: Unit) -> PriceReading:
    """Return the price that a file states, such as ``2.10 USD/h``; as old as the file.

    Raises:
        PriceUnreadable: It cannot be read, or has no such text, as while it is being replaced.
    """
    try:
        file = open_own(path, os.O_RDONLY)
        try:
            at_ns, raw = os.fstat(file).st_mtime_ns, os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        raise PriceUnreadable(str(path), error.strerror or str(error)) from None
    return PriceReading(price=_stated(raw, unit, str(path)), at_ns=at_ns)


def price_of_command(command: Sequence[str], unit: Unit, clock: Clock = SYSTEM) -> PriceReading:
    """Return the price that a command prints; as old as its start.

    Raises:
        PriceUnreadable: It fails, takes longer than a minute, or prints no price.
    """
    at_ns = clock.wall_ns()
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PriceUnreadable(command[0], str(error)) from None
    if done.returncode:
        raise PriceUnreadable(command[0], f"it ended with {done.returncode}")
    return PriceReading(price=_stated(done.stdout, unit, command[0]), at_ns=at_ns)


def _stated(raw: bytes, unit: Unit, where: str) -> Rate:
    """Parse a price; a text that may be a part of another is none."""
    text = raw.decode(errors="replace").strip()
    if "/h" not in text:
        raise PriceUnreadable(where, f"it says {text[:40]!r}")
    try:
        price = typed_price(text, name="price", source="stated", currency=unit.currency)
    except InvalidValue:
        raise PriceUnreadable(where, f"it says {text[:40]!r}") from None
    return _in_unit(price, unit, where).rate


def _in_unit(price: Price, unit: Unit, where: str) -> Price:
    if price.unit != unit:
        raise PriceUnreadable(where, f"{price.text} is not in {unit}, which the spend log counts")
    return price


def price_of_offer(
    name: str, unit: Unit, environ: Mapping[str, str], *, fetch: bool
) -> PriceReading:
    """Return the price of an offer as it was last fetched, or is fetched now.

    Sources that outlay cannot ask, such as prices set by hand, are not fetched.

    Raises:
        PriceUnreadable: The source does not answer, or no such offer is known.
    """
    if fetch:
        _fetch(parse_name(name, name="--offers").provider)
    gpus = visible_gpus(environ)
    try:
        found = resolve_price(name, name="--offers", environ=environ, gpu=gpu_model(), gpus=gpus)
    except OutlayError as error:
        raise PriceUnreadable(name, str(error)) from None
    price = _in_unit(found.price, unit, name)
    rate = price.rate * gpus_of(name, environ) if found.whole is None else found.whole
    return PriceReading(price=rate, at_ns=price.fetched_ns)


def gpus_of(name: str, environ: Mapping[str, str]) -> int:
    """Return the GPUs of a named offer: in its name, else those of this machine, else one."""
    return parse_name(name, name="--offers").gpus or visible_gpus(environ) or 1


def _fetch(provider: str) -> None:
    # Here: only this needs an HTTP client and the store.
    from outlay.prices.price_book import PriceBook, fetch
    from outlay.prices.sources.vendors import sources_named
    from outlay.store import open_store

    try:
        sources = sources_named([provider])
    except InvalidValue:
        return
    snapshot = fetch(sources[0])
    if snapshot.failed:
        why = snapshot.findings[0].message if snapshot.findings else "not loaded"
        raise PriceUnreadable(provider, why)
    book = PriceBook(open_store())
    book.record([snapshot])
    book.publish()


def stored_history(
    name: str, unit: Unit, environ: Mapping[str, str], *, since_ns: int
) -> list[PriceChange]:
    """Return the stored prices of an offer, all of its GPUs: the cheapest at each instant."""
    from outlay.prices.series import points
    from outlay.store import open_store

    asked = parse_name(name, name="--offers")
    gpus = gpus_of(name, environ)
    found = points(
        open_store(), gpu=asked.gpu, provider=asked.provider, tier=asked.tier, since_ns=since_ns,
        currency=unit.currency,
    )  # fmt: skip
    cheapest: dict[int, int] = {}
    for point in found:
        if _is_same_offer(point.series.gpu_count, community=point.series.community, asked=asked):
            micros = point.price.micros
            cheapest[point.at_ns] = min(micros, cheapest.get(point.at_ns, micros))
    return [PriceChange(at_ns, unit.rate(micros * gpus)) for at_ns, micros in cheapest.items()]


def _is_same_offer(gpu_count: int, *, community: bool, asked: PriceName) -> bool:
    return community == asked.community and asked.gpus in (None, gpu_count)
