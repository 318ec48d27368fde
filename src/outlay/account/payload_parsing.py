"""Parsing of goodput payloads: step starts by column, everything else one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlay.account import columns as names
from outlay.account.columns import Ints

# Payloads other than step starts: one payload is one event.
#
# The keys are those that ml-goodput-measurement 0.2.3 and Orbax's checkpoint logger write. A
# malformed payload raises a ValueError that says why. ``payloads`` assigns events to attempts.


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job was started or restarted."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job completed."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class SpanStart:
    """A span began."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class SpanEnd:
    """A span ended."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """A span recorded at its end; without ``begin_ns`` it began at the last sign of life."""

    begin_ns: int | None
    duration_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of all steps up to and including ``step``."""

    t_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """How many slices of an elastic job train, how many it has, and how many could train."""

    t_ns: int
    active: int
    total: int
    available: int


Event = JobStarted | JobEnded | SpanStart | SpanEnd | TimedSpan | SavedCheckpoint | SliceCounts

_SPANS = {
    "tpu_init": names.ACCELERATOR_INIT,
    "training_prep": names.TRAINING_PREP,
    "data_loading": names.DATA_LOADING,
    "elastic_reinit": names.ELASTIC_REINITIALIZATION,
}
_BEGINS = {f"{stem}_start_time": span for stem, span in _SPANS.items()}
_ENDS = {f"{stem}_end_time": span for stem, span in _SPANS.items()}


def parse_event(payload: Payload) -> Event:
    """Return the event of a payload.

    Raises:
        ValueError: The payload is of no known kind, or a value in it is malformed.
    """
    if not isinstance(payload, Mapping):
        raise ValueError("is no JSON object")
    for key in payload:
        if key in _BEGINS:
            return SpanStart(_instant(payload, key), _BEGINS[key])
        if key in _ENDS:
            return SpanEnd(_instant(payload, key), _ENDS[key])
    match payload:
        case {"job_start_time": _}:
            return JobStarted(_instant(payload, "job_start_time"))
        case {"job_end_time": _}:
            return JobEnded(_instant(payload, "job_end_time"))
        case {"custom_badput_event_type": kind}:
            return _edge(payload, "custom_badput_event", f"custom:{_text(kind)}")
        case {"elastic_wait_event_type": kind}:
            is_scale_up = "scale_up" in _text(kind).lower()
            span = names.ELASTIC_SCALE_UP if is_scale_up else names.ELASTIC_SLICE_DOWN
            return _edge(payload, "elastic_wait", span)
        case {"elastic_slice_counts_timestamp": _}:
            return _slices(payload)
        case {"checkpoint_start_time": _, "checkpoint_step": step}:
            return SavedCheckpoint(_instant(payload, "checkpoint_start_time"), _whole(step, "step"))
        case {"event_type": "save" | "restore" | "emergency_restore" as kind}:
            return _checkpoint(payload, kind)
        case _:
            raise ValueError("is of no known kind")


def instant_of(event: Event) -> int | None:
    """Return when an event happened, or its span began; None if the payload has no instant."""
    return event.begin_ns if isinstance(event, TimedSpan) else event.t_ns


def _edge(payload: Payload, stem: str, span: str) -> SpanStart | SpanEnd:
    if f"{stem}_start_time" in payload:
        return SpanStart(_instant(payload, f"{stem}_start_time"), span)
    return SpanEnd(_instant(payload, f"{stem}_end_time"), span)


def _slices(payload: Payload) -> SliceCounts:
    t_ns = _instant(payload, "elastic_slice_counts_timestamp")
    keys = ("active_slices", "total_slices", "available_slices")
    active, total, available = (_whole(payload.get(key), key) for key in keys)
    if total < 1 or active > total:
        raise ValueError("says that more slices train than there are")
    return SliceCounts(t_ns, active, total, available)


def _checkpoint(payload: Payload, kind: str) -> TimedSpan:
    """Return how long a checkpoint blocked training; of a save, the part that blocks."""
    parts = (
        ("checkpoint_manager_blocking", "checkpointer_blocking")
        if kind == "save"
        else ("checkpoint_manager", "checkpointer")
    )
    span = names.CHECKPOINT_SAVE if kind == "save" else names.CHECKPOINT_RESTORE
    for part in parts:
        if payload.get(f"{part}_duration_secs") is not None:
            begin = payload.get(f"{part}_start_time")
            begin_ns = None if begin is None else _instant(payload, f"{part}_start_time")
            return TimedSpan(begin_ns, _instant(payload, f"{part}_duration_secs"), span)
    raise ValueError(f"is a {kind} without a duration: it was not finished")


def _instant(payload: Payload, key: str) -> int:
    if key not in payload:
        raise ValueError(f"has no {key}")
    try:
        return ns_of_seconds(payload[key])
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


def _whole(value: Any, name: str) -> int:
    if not is_count(value):
        raise ValueError(f"{name} is not a count")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("its event type is not text")
    return value


# Step starts by column, without an object per step.
#
# A million payloads become two vectors in a few passes in C. Only if one is malformed are they
# checked one by one. ``payloads`` assigns steps to attempts.

Payload = Mapping[str, Any]

_LATEST_S = 4_600_000_000
LATEST_NS = _LATEST_S * 1_000_000_000
"""In 2115; a run log refuses instants a little later than that."""
_BEYOND_COUNTS = 1 << 53  # Doubles are exact below it.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepStarts:
    """Step starts: their indices in the batch, step numbers, and instants in nanoseconds."""

    place: Ints
    number: Ints
    t_ns: Ints

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> StepStarts:
        return StepStarts(self.place[chosen], self.number[chosen], self.t_ns[chosen])

    def between_places(self, first: int, beyond: int) -> StepStarts:
        """Return the steps at indices ``[first, beyond)`` of the batch."""
        start, stop = np.searchsorted(self.place, [first, beyond])
        return self[int(start) : int(stop)]

    def after(self, number: int, t_ns: int) -> NDArray[np.bool_]:
        """Return which steps are later than step ``number`` at ``t_ns`` and than all before them.

        Steps are ordered by instant, then by number.
        """
        keys = _keys(np.append(number, self.number), np.append(t_ns, self.t_ns))
        later: NDArray[np.bool_] = keys[1:] > np.maximum.accumulate(keys)[:-1]
        return later

    def are_in(self, number: Ints, t_ns: Ints) -> NDArray[np.bool_]:
        """Return which steps are among others, which are sorted by instant and then by number."""
        start, stop = np.searchsorted(t_ns, [self.t_ns.min(), self.t_ns.max() + 1])
        if start == stop:
            return np.zeros(len(self), dtype=np.bool_)
        others, keys = _keys(number[start:stop], t_ns[start:stop]), _keys(self.number, self.t_ns)
        nearest = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)]
        same: NDArray[np.bool_] = nearest == keys
        return same


def _keys(number: Ints, t_ns: Ints) -> NDArray[np.complex128]:
    """Return one sort key per step: by instant, then by number.

    NumPy sorts complex numbers by real, then by imaginary part. Both are exact: instants are whole
    microseconds, and a double holds 285 years of them.
    """
    keys = np.empty(len(number), dtype=np.complex128)
    keys.real, keys.imag = t_ns // 1000, number
    return keys


def ns_of_seconds(seconds: float) -> int:
    """Return POSIX seconds as nanoseconds, to the microsecond.

    A double resolves a quarter of a microsecond today, a datetime one microsecond: rounding
    restores exactly what was recorded.

    Raises:
        ValueError: It is not a number, negative, or too large.
    """
    if type(seconds) not in (int, float):
        raise ValueError("is not a number of seconds")
    if not 0 <= seconds < _LATEST_S:
        raise ValueError(f"is not from 0 to {_LATEST_S} seconds")
    whole = int(seconds)
    return whole * 1_000_000_000 + round((seconds - whole) * 1e6) * 1000


def is_count(value: Any) -> bool:
    """Return whether a value is a count; 7.0 is one, since JSON may turn 7 into it."""
    return (
        type(value) in (int, float) and 0 <= value < _BEYOND_COUNTS and value == math.floor(value)
    )


def split_steps(
    payloads: Sequence[Payload], complain: Callable[[int, str], None]
) -> tuple[StepStarts, list[int]]:
    """Return the step starts among payloads, and the indices of the other payloads.

    ``complain`` is called with the index of each malformed step and what is wrong with it.
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
    """Return times and numbers as vectors, NaN for None; None if one is malformed."""
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
    """Replace every malformed step by None, and return their indices."""
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
