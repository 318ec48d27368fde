"""Readings as named numbers, for TensorBoard, trackers and files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outlay.runs.reading import RunReading

STEP_DEVIATION = "step_deviation"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number with its name and step, and the length in seconds if it is of a window."""

    name: str
    value: float
    step: int
    window_s: int | None = None


class JobReading(Protocol):
    """Figures of a job at one moment, in UTC nanoseconds, that know their own names."""

    @property
    def t_ns(self) -> int:
        """When it was taken."""

    def scalars(self) -> list[Scalar]:
        """Return its numbers: percentages, or seconds off the ideal step."""


FinishedReading = JobReading | RunReading


def scalars(reading: FinishedReading) -> list[Scalar]:
    """Return a reading's numbers."""
    if isinstance(reading, RunReading):
        step = reading.step
        return [Scalar(name, value, step) for name, value in reading.values.items()]
    return reading.scalars()


def new_scalars(reading: FinishedReading, last_step: int) -> tuple[list[Scalar], int]:
    """Return numbers without deviations up to ``last_step``, and the last step with one."""
    new = [s for s in scalars(reading) if s.name != STEP_DEVIATION or s.step > last_step]
    steps = (scalar.step for scalar in new if scalar.name == STEP_DEVIATION)
    return new, max(steps, default=last_step)
