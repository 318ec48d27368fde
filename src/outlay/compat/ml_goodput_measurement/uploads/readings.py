"""Readings: a job's figures at one moment, for a monitor that polls and uploads them.

Their size does not grow with the run: step deviations are reported only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlay.compat.ml_goodput_measurement.calculator import MeasuredJob, NoStepTimes
from outlay.compat.ml_goodput_measurement.goodput_utils import (
    BASELINE,
    RECENT,
    BadputParts,
    deviations_s,
    seconds,
    spike_of,
    step_deviation,
)
from outlay.export.scalars import STEP_DEVIATION, Scalar
from outlay.goodput import phases as ph
from outlay.goodput.follower import ideal_of, slices_used
from outlay.goodput.reliability import count_disruptions
from outlay.goodput.throughput import StepTimes
from outlay.goodput.timeline import SliceEfficiency, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputReading:
    """Figures of a whole job so far."""

    t_ns: int
    goodput_percent: float
    badput_percent: BadputParts
    goodput_s: float
    badput_s: BadputParts
    elapsed_s: float
    last_step: int
    disruptions: int
    ideal_step_s: float | None = None
    slices: SliceEfficiency | None = None

    def scalars(self) -> list[Scalar]:
        """Return the shares of time in percent."""
        return _shares(self, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """Figures of the last ``window_s`` seconds."""

    t_ns: int
    window_s: int
    goodput_percent: float
    badput_percent: BadputParts
    last_step: int
    slices: SliceEfficiency | None = None

    def scalars(self) -> list[Scalar]:
        """Return the shares of time in percent."""
        return _shares(self, self.window_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviationReading:
    """Deviations from the ideal step time.

    Attributes:
        deviations_s: Seconds by step number, for steps not reported before.
        spike_s: One number for the latest steps: high if some of them were uneven.
    """

    t_ns: int
    ideal_step_s: float
    deviations_s: dict[int, float]
    spike_s: float

    def scalars(self) -> list[Scalar]:
        """Return the seconds off the ideal step, in order of steps."""
        return [
            Scalar(STEP_DEVIATION, seconds, step)
            for step, seconds in sorted(self.deviations_s.items())
        ]


Reading = GoodputReading | WindowReading | DeviationReading


def _shares(reading: GoodputReading | WindowReading, window_s: int | None) -> list[Scalar]:
    step = reading.last_step
    badput = [
        Scalar(f"badput/{'/'.join(source).lower()}", percent, step, window_s)
        for source, percent in flat(reading.badput_percent)
    ]
    return [Scalar("goodput/goodput", reading.goodput_percent, step, window_s), *badput]


def flat(parts: BadputParts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each badput by its type's name, or by type and custom event."""
    for kind, value in parts.items():
        if isinstance(value, dict):
            for name, part in value.items():
                yield (kind.name, name), part
        else:
            yield (kind.name,), value


class GoodputReader(MeasuredJob):
    """Takes readings of a job; arguments as of ``GoodputCalculator``."""

    def read_goodput(
        self, configured_ideal_step_time: float | None = None, *, slices: bool = False
    ) -> GoodputReading:
        """Return the figures of the whole job.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: What was logged takes no time yet.
        """
        with self._view() as view:
            breakdown = view.break_down()
            goodput, parts = self._percent(view, breakdown, "yet")
            ideal_ns = ideal_of(view, configured_ideal_step_time)
            return GoodputReading(
                t_ns=view.timeline.now_ns,
                goodput_percent=goodput,
                badput_percent=parts,
                goodput_s=seconds(breakdown.phases.get(ph.STEP, 0)),
                badput_s=self._parts(view, breakdown, seconds),
                elapsed_s=seconds(breakdown.wall_ns),
                last_step=view.timeline.last_step() or 0,
                disruptions=count_disruptions(view.timeline),
                ideal_step_s=None if ideal_ns is None else ideal_ns / 1e9,
                slices=slices_used(view, [view.whole]) if slices else None,
            )

    def read_window(self, window_s: int, *, slices: bool = False) -> WindowReading:
        """Return the figures of the last ``window_s`` seconds.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: The job has no time in the window.
        """
        with self._view() as view:
            now_ns = view.timeline.now_ns
            window = Window(now_ns - window_s * 1_000_000_000, now_ns)
            breakdown = view.break_down(window)
            goodput, parts = self._percent(view, breakdown, "in the window")
            return WindowReading(
                t_ns=now_ns,
                window_s=window_s,
                goodput_percent=goodput,
                badput_percent=parts,
                last_step=view.timeline.last_step(now_ns) or 0,
                slices=slices_used(view, [window]) if slices else None,
            )

    def read_deviation(
        self, after_step: int = -1, configured_ideal_step_time: float | None = None
    ) -> DeviationReading:
        """Return the deviations of the steps above ``after_step``.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoStepTimes: No step has a duration yet.
        """
        with self._view() as view:
            ideal_ns = ideal_of(view, configured_ideal_step_time)
            if ideal_ns is None:
                raise NoStepTimes(self.job_name)
            own = view.timeline.own
            latest = StepTimes.latest(own, RECENT + BASELINE)
            return DeviationReading(
                t_ns=view.timeline.now_ns,
                ideal_step_s=ideal_ns / 1e9,
                deviations_s=step_deviation(StepTimes.after(own, after_step), ideal_ns),
                spike_s=spike_of(deviations_s(latest, ideal_ns)),
            )
