"""The names that users of ml-goodput-measurement know, and how phases map to them.

Numbers are those of its release 0.2.3. Nothing here measures anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from outlay.goodput import phases as ph


class BadputType(enum.Enum):
    """The type of badput."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class GoodputType(enum.Enum):
    """The type of goodput."""

    TOTAL = 1


BadputParts = dict[BadputType, float | dict[str, float]]
"""A number for each type of badput; CUSTOM_BADPUT_EVENTS has one for each of its names."""


class JobGoodput(NamedTuple):
    """What became of a whole job, in percent of its wall time."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int


class IntervalGoodput(NamedTuple):
    """What became of a window of a job, in percent of the wall time in it."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int
    total_job_time: float
    number_of_disruptions: int


class GoodputWithExclusions(NamedTuple):
    """What became of a job without some intervals, in percent of the wall time that is left."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int
    total_excluded_time: float


class WorkloadMetricDetails(TypedDict):
    """Everything about a job, in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: BadputParts
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """What became of a window in percent, and its size in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: BadputParts
    interval_size: int


BADPUT_OF_PHASE = {
    ph.ACCELERATOR_INIT: BadputType.TPU_INITIALIZATION,
    ph.TRAINING_PREP: BadputType.TRAINING_PREP,
    ph.PROGRAM_STARTUP: BadputType.PROGRAM_STARTUP,
    ph.DATA_LOADING: BadputType.DATA_LOADING_SYNC,
    ph.CHECKPOINT_SAVE: BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME,
    ph.CHECKPOINT_RESTORE: BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME,
    ph.WASTED_PROGRESS: BadputType.WASTED_PROGRESS_FROM_DISRUPTION,
    ph.RECOVERY: BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION,
    ph.STALL: BadputType.OTHER,
    ph.OTHER: BadputType.OTHER,
    ph.ELASTIC_SLICE_DOWN: BadputType.ELASTIC_SLICE_DOWN,
    ph.ELASTIC_SCALE_UP: BadputType.ELASTIC_SCALE_UP,
    ph.ELASTIC_REINITIALIZATION: BadputType.ELASTIC_REINITIALIZATION,
}
"""The badput that a phase is; every phase that is not here is a custom event."""

_ALWAYS_SHOWN = [kind for kind in BadputType if not kind.name.startswith("ELASTIC")]


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A unit of time: ``whole_ns`` nanoseconds are ``worth`` of it."""

    worth: int
    whole_ns: int

    def of(self, ns: int) -> float:
        """Return some nanoseconds in the unit, rounded once."""
        return ns * self.worth / self.whole_ns


SECONDS = TimeShare(1, 1_000_000_000)


def percent_of(wall_ns: int) -> TimeShare:
    """Return the unit in which ``wall_ns`` nanoseconds are 100."""
    return TimeShare(100, wall_ns)


def badput_parts(
    phases: Mapping[str, int], overlapped_load_ns: int, share: TimeShare, *, pathways: bool = False
) -> BadputParts:
    """Return the phases that are not productive under the names of badput.

    Data loading beside the steps is reported, and no badput. With ``pathways`` one controller
    outlives its workers, so that a lost worker shows as a stalled step: what stalls is recovery.
    """
    sums = dict.fromkeys(_ALWAYS_SHOWN, 0)
    custom: dict[str, int] = {}
    for phase, ns in phases.items():
        if phase == ph.STEP:
            continue
        kind = _badput_of(phase, pathways=pathways)
        sums[kind] = sums.get(kind, 0) + ns
        if kind is BadputType.CUSTOM_BADPUT_EVENTS:
            name = phase.removeprefix("custom:").upper()
            custom[name] = custom.get(name, 0) + ns
    sums[BadputType.DATA_LOADING_ASYNC] = overlapped_load_ns
    parts: BadputParts = {kind: share.of(ns) for kind, ns in sums.items()}
    parts[BadputType.CUSTOM_BADPUT_EVENTS] = {name: share.of(ns) for name, ns in custom.items()}
    return parts


def _badput_of(phase: str, *, pathways: bool) -> BadputType:
    if pathways and phase == ph.STALL:
        phase = ph.RECOVERY
    return BADPUT_OF_PHASE.get(phase, BadputType.CUSTOM_BADPUT_EVENTS)


# Intervals that somebody wants left out: put in order, and measured against a range.
#
# Works on any numbers, such as POSIX seconds.

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with those that touch or overlap as one; empty ones go."""
    kept: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if kept and begin <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end))
        else:
            kept.append((begin, end))
    return kept


def overlap(begin: float, end: float, intervals: Sequence[Interval]) -> float:
    """Return how much of a range the intervals cover; where several do, it counts once."""
    parts = (min(end, b) - max(begin, a) for a, b in merged(intervals))
    return sum((part for part in parts if part > 0), start=0.0)
