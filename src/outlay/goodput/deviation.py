"""How far each step's time is from the ideal one; for steps of any length.

The ideal step time is the mean of the own times that are not anomalous: at most the median plus
three median absolute deviations. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Ints
from outlay.goodput.own_times import OwnTimes
from outlay.goodput.typical import SortedTimes

Floats = NDArray[np.float64]
Values = Floats | Sequence[float]
ANOMALOUS_MADS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The own time per step of some executions, in order: step numbers and nanoseconds."""

    number: Ints
    own_ns: Floats

    @classmethod
    def of(cls, attempts: Iterable[OwnTimes]) -> StepTimes:
        """Return the executions of a run's attempts."""
        return cls._joined(cls._of(own, 0) for own in attempts)

    @classmethod
    def as_of_now(cls, attempts: Iterable[OwnTimes]) -> Callable[[], StepTimes]:
        """Return what returns these executions, without those that are recorded meanwhile."""
        columns = [(attempt.segment.steps, attempt.before()[0]) for attempt in attempts]
        return lambda: cls._joined(
            cls(steps.number, np.diff(own) / steps.count) for steps, own in columns
        )

    @classmethod
    def after(cls, attempts: Iterable[OwnTimes], step: int) -> StepTimes:
        """Return the executions of steps beyond a number in a run's attempts."""
        return cls._joined(cls._of(own, _first_after(own, step)) for own in attempts).beyond(step)

    @classmethod
    def latest(cls, attempts: Sequence[OwnTimes], count: int) -> StepTimes:
        """Return the last executions of a run's attempts."""
        parts: list[StepTimes] = []
        for own in reversed(attempts):
            if count <= 0:
                break
            parts.append(cls._of(own, max(own.segment.step_count - count, 0)))
            count -= len(parts[-1])
        return cls._joined(reversed(parts))

    @classmethod
    def _of(cls, attempt: OwnTimes, first: int) -> StepTimes:
        own, _ = attempt.before()
        steps = attempt.segment.steps
        return cls(steps.number[first:], np.diff(own[first:]) / steps.count[first:])

    @classmethod
    def _joined(cls, parts: Iterable[StepTimes]) -> StepTimes:
        nothing = cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
        every = [nothing, *parts]
        return cls(
            np.concatenate([part.number for part in every]),
            np.concatenate([part.own_ns for part in every]),
        )

    def __len__(self) -> int:
        return len(self.number)

    def beyond(self, step: int) -> StepTimes:
        """Return the executions of steps beyond a number."""
        later = self.number > step
        return StepTimes(self.number[later], self.own_ns[later])


def _first_after(own: OwnTimes, step: int) -> int:
    """Return the place from which on alone there are steps beyond a number."""
    segment = own.segment
    return int(segment.steps.number.searchsorted(step, side="right")) if segment.only_grows else 0


def ideal_step_ns(times: SortedTimes) -> float | None:
    """Return the mean of the times that are not anomalously long, or None without any.

    Halves are avoided: twice the median and four times the spread are whole numbers.
    """
    if not len(times):
        return None
    twice_median = sum(times.middle())
    spread_four_times = sum(times.middle_distances(twice_median))
    beyond = (2 * twice_median + ANOMALOUS_MADS * spread_four_times) // 4 + 1
    return times.total_below(beyond) / times.below(beyond)


def ideal_time(times: Values) -> float | None:
    """Return the mean of the times that are not anomalously long, or None without any."""
    _, usual = split_anomalous(times)
    return float(usual.mean()) if len(usual) else None


def split_anomalous(times: Values) -> tuple[Floats, Floats]:
    """Return the times that are anomalously long, and the others."""
    numbers = np.asarray(times, dtype=np.float64)
    anomalous = _anomalous(numbers)
    return numbers[anomalous], numbers[~anomalous]


def anomalous_excess(times: Values) -> float:
    """Return how much longer the anomalous times are together than as many ideal ones."""
    anomalous, usual = split_anomalous(times)
    return float((anomalous - usual.mean()).sum()) if len(anomalous) else 0.0


def _anomalous(times: Floats) -> NDArray[np.bool_]:
    if not len(times):
        return np.zeros(0, dtype=np.bool_)
    median = np.median(times)
    spread = np.median(np.abs(times - median))
    longer: NDArray[np.bool_] = times > median + ANOMALOUS_MADS * spread
    return longer


def step_deviation(times: StepTimes, ideal_ns: float) -> dict[int, float]:
    """Return by step number how many seconds it was off the ideal; of repeats, the last counts.

    A record that stands for several steps is found under the first of them.
    """
    off = deviations_s(times, ideal_ns)
    return dict(zip(times.number.tolist(), off.tolist(), strict=True))


def deviations_s(times: StepTimes, ideal_ns: float) -> Floats:
    """Return how many seconds each execution was off the ideal, in order."""
    off: Floats = np.abs(times.own_ns - ideal_ns) / 1e9
    return off


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOff:
    """An execution of a step: its own time, and how far that is from the ideal, in nanoseconds."""

    step: int
    own_ns: int
    off_ns: int


def worst_steps(times: StepTimes, ideal_ns: float, count: int) -> list[StepOff]:
    """Return the executions that are farthest from the ideal, shorter ones included."""
    off = times.own_ns - ideal_ns
    worst = np.argsort(-np.abs(off), kind="stable")[:count]
    return [
        StepOff(
            step=int(times.number[place]),
            own_ns=round(float(times.own_ns[place])),
            off_ns=round(float(off[place])),
        )
        for place in worst
    ]


def percentile(values: Values, percent: float) -> float:
    """Return a percentile, interpolated between neighbours; 0 without values."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """How the deviations of many steps become one number that rises when steps become uneven.

    Attributes:
        recent: How many of the latest steps are looked at.
        baseline: How many steps before those say what was usual; 0: none are asked.
        percent: Which percentile of the recent ones counts.
    """

    recent: int = 100
    baseline: int = 1000
    percent: float = 90

    @property
    def steps(self) -> int:
        """How many of the latest steps the number depends on."""
        return self.recent + self.baseline

    def of(self, deviations: Values) -> float:
        """Return the percentile of the recent deviations beyond the median of the baseline.

        Of fewer than ``recent`` it is their mean, of too few for a baseline the percentile alone.
        """
        sizes = np.abs(np.asarray(deviations, dtype=np.float64))
        if len(sizes) < self.recent:
            return float(np.mean(sizes)) if len(sizes) else 0.0
        spike = percentile(sizes[-self.recent :], self.percent)
        if not self.baseline or len(sizes) < self.steps:
            return spike
        return spike - float(np.median(sizes[-self.steps : -self.recent]))
