"""How far each step's time is from the ideal one; for steps of any length.

The ideal step time is the mean of the own times that are not anomalous: at most the median plus
three median absolute deviations. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.goodput.columns import Ints
from outlay.goodput.fold import SegmentFold

Floats = NDArray[np.float64]
Values = Floats | Sequence[float]
ANOMALOUS_MADS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The own time per step of some executions, in order: step numbers and nanoseconds."""

    number: Ints
    own_ns: Floats

    @classmethod
    def of(cls, folds: Iterable[SegmentFold]) -> StepTimes:
        """Return the step times of a run's attempts."""
        numbers = [np.empty(0, dtype=np.int64)]
        times = [np.empty(0, dtype=np.float64)]
        for fold in folds:
            own, _ = fold.own_before()
            numbers.append(fold.number.values)
            times.append(np.diff(own) / fold.count.values)
        return cls(np.concatenate(numbers), np.concatenate(times))

    def __len__(self) -> int:
        return len(self.number)

    def after(self, number: int) -> StepTimes:
        """Return the executions of steps beyond a number."""
        beyond = self.number > number
        return StepTimes(self.number[beyond], self.own_ns[beyond])

    def last(self, count: int) -> StepTimes:
        """Return the latest executions."""
        return StepTimes(self.number[-count:], self.own_ns[-count:])


def ideal_step_ns(times: StepTimes) -> float | None:
    """Return the mean of the times that are not anomalously long, or None without any."""
    return ideal_time(times.own_ns)


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
