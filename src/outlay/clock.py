"""Clocks and timestamps; the only module that reads the system's clocks.

Code that needs the time takes a Clock, so that tests can freeze it, step it back or skip a wait.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime
from typing import Protocol

from outlay.errors import InvalidValue


class Clock(Protocol):
    """A wall clock, a monotonic clock, and sleep."""

    def wall_ns(self) -> int:
        """Return UTC nanoseconds since the epoch; may jump in either direction."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary instant; never decreases."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


def since_boot_ns(clock: Clock) -> int | None:
    """Return nanoseconds since boot, suspend included; None for any but Linux's system clock.

    The kernel gives the start times of processes on this clock.
    """
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux.
    if boot_clock is None or not isinstance(clock, SystemClock):
        return None
    return time.clock_gettime_ns(boot_clock)


class SystemClock:
    """The clocks of this machine."""

    # Bound C functions: on the hot path a Python wrapper would cost as much as the clock itself.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)


class ManualClock:
    """A clock for tests, which moves only when it is advanced."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        """Return the current wall time."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Return the current monotonic time."""
        return self._monotonic_ns

    def sleep(self, seconds: float) -> None:
        """Advance both clocks by ``seconds`` without waiting."""
        self.advance(round(seconds * 1_000_000_000))

    def advance(self, ns: int) -> None:
        """Advance both clocks by ``ns`` nanoseconds."""
        self._wall_ns += ns
        self._monotonic_ns += ns

    def step_wall(self, ns: int) -> None:
        """Step the wall clock alone by ``ns`` (negative: back), as NTP does."""
        self._wall_ns += ns


SYSTEM = SystemClock()

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MOMENT = (
    'an instant with its zone, such as "2026-11-15T20:00Z", a date (UTC), or how long ago: "2h"'
)
"""The ``expected`` text of an InvalidValue for an instant."""


def utc_datetime(wall_ns: int) -> datetime:
    """Return the instant as an aware UTC datetime, to the microsecond."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=ns // 1000)


def utc_text(wall_ns: int) -> str:
    """Return the instant as text: ``2026-11-15 20:30:00Z``."""
    return utc_datetime(wall_ns).strftime("%Y-%m-%d %H:%M:%SZ")


def parse_moment(moment: str | datetime, *, name: str, now_ns: int) -> int:
    """Return an instant in UTC nanoseconds; text is an instant, or an age such as ``"2h"``.

    A date means midnight UTC.

    Raises:
        InvalidValue: The text has none of these forms.
    """
    from outlay.units import Duration

    if isinstance(moment, str):
        with contextlib.suppress(InvalidValue):
            return now_ns - Duration.parse(moment, name=name).ns
        moment = f"{moment}T00:00Z" if _DATE.fullmatch(moment) else moment
    try:
        return wall_ns_of(datetime.fromisoformat(moment) if isinstance(moment, str) else moment)
    except ValueError:  # Includes the InvalidValue of a naive datetime.
        raise InvalidValue(name, moment, MOMENT) from None


def wall_ns_of(moment: datetime) -> int:
    """Return an aware datetime as UTC nanoseconds.

    Raises:
        InvalidValue: The datetime has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidValue("time", moment, "a datetime with a time zone (tzinfo=timezone.utc)")
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    whole_seconds = since_epoch.days * 86_400 + since_epoch.seconds
    return whole_seconds * 1_000_000_000 + since_epoch.microseconds * 1000


def utc_now() -> datetime:
    """Return the current instant as an aware datetime."""
    return utc_datetime(SYSTEM.wall_ns())


def as_utc(moment: datetime) -> datetime:
    """Return the datetime in UTC; a naive one is assumed to be UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
