"""Step starts out of payloads, by column: no object per step.

A million payloads become two vectors in a few passes that Python runs in C. Only when something in
them is odd is each looked at by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Ints

Payload = Mapping[str, Any]

_LATEST_S = 4_600_000_000
LATEST_NS = _LATEST_S * 1_000_000_000
"""In 2115; a little beyond it, a run log refuses the instant."""
_BEYOND_COUNTS = 1 << 53  # Up to it, a double is exact.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepStarts:
    """Steps that began: their places in the log, numbers and instants in nanoseconds."""

    place: Ints
    number: Ints
    t_ns: Ints

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> StepStarts:
        return StepStarts(self.place[chosen], self.number[chosen], self.t_ns[chosen])

    def between_places(self, first: int, beyond: int) -> StepStarts:
        """Return the steps at places ``[first, beyond)`` of the log."""
        start, stop = np.searchsorted(self.place, [first, beyond])
        return self[int(start) : int(stop)]

    def are_in(self, number: Ints, t_ns: Ints) -> NDArray[np.bool_]:
        """Say which of these are among some steps, whose instants are in order."""
        if not len(t_ns):
            return np.zeros(len(self), dtype=np.bool_)
        found = np.minimum(np.searchsorted(t_ns, self.t_ns), len(t_ns) - 1)
        same: NDArray[np.bool_] = (t_ns[found] == self.t_ns) & (number[found] == self.number)
        return same


@dataclass(frozen=True, slots=True)
class Sorted:
    """A log's payloads, told apart: step starts, and the places of everything else."""

    steps: StepStarts
    others: list[int]


def ns_of_seconds(seconds: float) -> int:
    """Return POSIX seconds as nanoseconds, to the microsecond.

    A double resolves a quarter of a microsecond today, and datetimes resolve one: rounding to it
    gives back exactly what was recorded.

    Raises:
        ValueError: It is no instant and no duration.
    """
    if type(seconds) not in (int, float):
        raise ValueError("is not a number of seconds")
    if not 0 <= seconds < _LATEST_S:
        raise ValueError(f"is not from 0 to {_LATEST_S} seconds")
    whole = math.floor(seconds)
    return whole * 1_000_000_000 + round((seconds - whole) * 1e6) * 1000


def is_count(value: Any) -> bool:
    """Say whether a value counts something; Cloud Logging, like JSON, may turn 7 into 7.0."""
    return (
        type(value) in (int, float) and 0 <= value < _BEYOND_COUNTS and value == math.floor(value)
    )


def tell_apart(payloads: Sequence[Payload], complain: Callable[[int, str], None]) -> Sorted:
    """Return the step starts of some payloads; what is wrong with a step goes to ``complain``."""
    times, numbers = _fields(payloads)
    bad: set[int] = set()
    columns = _columns(times, numbers)
    if columns is None:
        bad = _take_out_bad(times, numbers, complain)
        columns = _columns(times, numbers)
        assert columns is not None, "each was looked at"
    seconds, number = columns
    are_steps = ~np.isnan(seconds)
    places = np.flatnonzero(are_steps)
    steps = StepStarts(places, number[are_steps].astype(np.int64), _ns(seconds[are_steps]))
    others = np.flatnonzero(~are_steps).tolist()
    return Sorted(steps, [place for place in others if place not in bad])


def _fields(payloads: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    try:
        times = [payload.get("step_start_time") for payload in payloads]
        return times, [payload.get("step_count") for payload in payloads]
    except AttributeError:  # Something among them is no payload at all.
        return _fields([p if isinstance(p, Mapping) else {} for p in payloads])


def _columns(times: list[Any], numbers: list[Any]) -> tuple[Floats, Floats] | None:
    """Return times and numbers as vectors, NaN where there are none; None if one is no good."""
    if not set(map(type, times)) <= {float, int, type(None)}:
        return None
    if not set(map(type, numbers)) <= {int, float, type(None)}:
        return None
    try:
        seconds = np.array(times, dtype=np.float64)
        number = np.array(numbers, dtype=np.float64)
    except OverflowError:
        return None
    absent = np.isnan(seconds)
    good = (seconds >= 0) & (seconds < _LATEST_S) & (number >= 0) & (number < _BEYOND_COUNTS)
    good &= number == np.floor(number)
    is_whole = np.count_nonzero(absent) == times.count(None) == numbers.count(None)
    return (seconds, number) if is_whole and bool((good | absent).all()) else None


def _take_out_bad(
    times: list[Any], numbers: list[Any], complain: Callable[[int, str], None]
) -> set[int]:
    """Blank every pair that is no step, and return the places of those that should have been."""
    bad = set()
    for place, (time, number) in enumerate(zip(times, numbers, strict=True)):
        if time is None and number is None:
            continue
        if (problem := _problem(time, number)) is not None:
            complain(place, problem)
            times[place] = numbers[place] = None
            bad.add(place)
    return bad


def _problem(time: Any, number: Any) -> str | None:
    if not is_count(number):
        return "step_count is not a step number"
    try:
        ns_of_seconds(time)
    except ValueError as error:
        return f"step_start_time {error}"
    return None


def _ns(seconds: Floats) -> Ints:
    whole = np.floor(seconds)
    micros = np.rint((seconds - whole) * 1e6).astype(np.int64)
    return whole.astype(np.int64) * 1_000_000_000 + micros * 1000
