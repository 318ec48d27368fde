"""How far each step's time is from the ideal one; for steps of any length.

The ideal step time is the mean of the own times that are not anomalous: at most the median plus
three median absolute deviations. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.goodput.columns import Ints
from outlay.goodput.fold import SegmentFold

Floats = NDArray[np.float64]
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


def ideal_step_ns(times: StepTimes) -> float | None:
    """Return the mean of the times that are not anomalously long, or None without any."""
    if not len(times):
        return None
    median = np.median(times.own_ns)
    spread = np.median(np.abs(times.own_ns - median))
    usual = times.own_ns[times.own_ns <= median + ANOMALOUS_MADS * spread]
    return float(usual.mean())


def step_deviation(times: StepTimes, ideal_ns: float) -> dict[int, float]:
    """Return by step number how many seconds it was off the ideal; of repeats, the last counts.

    A record that stands for several steps is found under the first of them.
    """
    off = np.abs(times.own_ns - ideal_ns) / 1e9
    return dict(zip(times.number.tolist(), off.tolist(), strict=True))
