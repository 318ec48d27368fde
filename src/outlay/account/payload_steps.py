"""The step starts among payloads, by column: no object per step.

A million payloads become two vectors in a few passes that Python runs in C. Only when one of them
is malformed is each checked by itself. What steps mean for attempts is left to ``payloads``.
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
    """Steps that began: their places in the batch, numbers, and instants in nanoseconds."""

    place: Ints
    number: Ints
    t_ns: Ints

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> StepStarts:
        return StepStarts(self.place[chosen], self.number[chosen], self.t_ns[chosen])

    def between_places(self, first: int, beyond: int) -> StepStarts:
        """Return the steps at places ``[first, beyond)`` of the batch."""
        start, stop = np.searchsorted(self.place, [first, beyond])
        return self[int(start) : int(stop)]

    def after(self, number: int, t_ns: int) -> NDArray[np.bool_]:
        """Return which steps are later than step ``number`` at ``t_ns`` and all before them.

        Of two at the same instant, the one with the greater number is later.
        """
        keys = _keys(np.append(number, self.number), np.append(t_ns, self.t_ns))
        later: NDArray[np.bool_] = keys[1:] > np.maximum.accumulate(keys)[:-1]
        return later

    def are_in(self, number: Ints, t_ns: Ints) -> NDArray[np.bool_]:
        """Return which of these are among other steps, ordered by instant and then by number."""
        start, stop = np.searchsorted(t_ns, [self.t_ns.min(), self.t_ns.max() + 1])
        if start == stop:
            return np.zeros(len(self), dtype=np.bool_)
        others, keys = _keys(number[start:stop], t_ns[start:stop]), _keys(self.number, self.t_ns)
        nearest = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)]
        same: NDArray[np.bool_] = nearest == keys
        return same


def _keys(number: Ints, t_ns: Ints) -> NDArray[np.complex128]:
    """Return one value per step, ordered by instant and then by number.

    NumPy orders complex numbers by their real and then by their imaginary parts. Both are exact:
    instants are whole microseconds, of which a double holds 285 years.
    """
    keys = np.empty(len(number), dtype=np.complex128)
    keys.real, keys.imag = t_ns // 1000, number
    return keys


def ns_of_seconds(seconds: float) -> int:
    """Return POSIX seconds as nanoseconds, to the microsecond.

    A double resolves a quarter of a microsecond today, and datetimes resolve one: rounding to it
    restores exactly what was recorded.

    Raises:
        ValueError: It is neither an instant nor a duration.
    """
    if type(seconds) not in (int, float):
        raise ValueError("is not a number of seconds")
    if not 0 <= seconds < _LATEST_S:
        raise ValueError(f"is not from 0 to {_LATEST_S} seconds")
    whole = int(seconds)
    return whole * 1_000_000_000 + round((seconds - whole) * 1e6) * 1000


def is_count(value: Any) -> bool:
    """Return whether a value is a count; Cloud Logging, like JSON, may turn 7 into 7.0."""
    return (
        type(value) in (int, float) and 0 <= value < _BEYOND_COUNTS and value == math.floor(value)
    )


def split_steps(
    payloads: Sequence[Payload], complain: Callable[[int, str], None]
) -> tuple[StepStarts, list[int]]:
    """Return the step starts among payloads, and the places of all that are of another kind.

    What is wrong with a malformed step goes to ``complain``, with its place.
    """
    times, numbers = _fields(payloads)
    bad: set[int] = set()
    columns = _columns(times, numbers)
    if columns is None:
        bad = _blank_malformed(times, numbers, complain)
        columns = _columns(times, numbers)
        assert columns is not None, "each was checked"
    seconds, number = columns
    are_steps = ~np.isnan(seconds)
    places = np.flatnonzero(are_steps)
    steps = StepStarts(places, number[are_steps].astype(np.int64), _ns(seconds[are_steps]))
    others = np.flatnonzero(~are_steps).tolist()
    return steps, [place for place in others if place not in bad]


def _fields(payloads: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    try:
        times = [payload.get("step_start_time") for payload in payloads]
        return times, [payload.get("step_count") for payload in payloads]
    except AttributeError:  # Not all of them are mappings.
        return _fields([p if isinstance(p, Mapping) else {} for p in payloads])


def _columns(times: list[Any], numbers: list[Any]) -> tuple[Floats, Floats] | None:
    """Return times and numbers as vectors, NaN where there are none; None if one is malformed."""
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


def _blank_malformed(
    times: list[Any], numbers: list[Any], complain: Callable[[int, str], None]
) -> set[int]:
    """Replace every malformed step by None, and return the places of those."""
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
