"""GoodputCalculator: the questions that ml-goodput-measurement documents, asked of the timeline.

It computes nothing itself: every number comes from the one timeline that the native log feeds, so
that parts sum to the whole. Percentages are of wall time, 0 to 100.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from outlay.clock import utc_datetime, wall_ns_of
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, ideal_of
from outlay.goodput.importing import GoodputInfo, StepInfo
from outlay.goodput.readings import MeasuredJob, NoStepTimes, one_at_a_time
from outlay.goodput.summary import count_disruptions, slices_used
from outlay.goodput.throughput import StepTimes, step_deviation
from outlay.goodput.timeline import Breakdown, SliceEfficiency, Window
from outlay.goodput.types import (
    SECONDS,
    GoodputType,
    GoodputWithExclusions,
    IntervalGoodput,
    IntervalWorkloadMetricDetails,
    JobGoodput,
    WorkloadMetricDetails,
)

_log = logging.getLogger("outlay")


class GoodputCalculator(MeasuredJob):
    """Answers how much of a job was productive, while it runs and after.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; the local run log needs none.
        cloud_logger: Where entries are read from; default: the job's local run log.
        using_pathways: One controller outlives its workers, so that a stalled step is recovery.
        max_logs_retention_period: How far back a logger is asked; default: as far as it goes.
        gcs_path: Not supported: mount the bucket and name it as ``cache_dir``.
        cache_dir: Where entries of a logger are kept for the next calculator; default: nowhere.
        clock: Says what is the present.

    Raises:
        InvalidValue: The job has no name, or a ``gcs_path`` was given.
    """

    @one_at_a_time
    def get_job_goodput(
        self,
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> JobGoodput:
        """Return the job's goodput, its badput by type if asked for, and its last step.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: What was logged takes no time yet.
        """
        view = self._view()
        breakdown = view.break_down()
        goodput, parts = self._percent(view, breakdown, "yet")
        self._remember(view, breakdown, configured_ideal_step_time)
        return JobGoodput(
            goodput, parts if include_badput_breakdown else {}, view.timeline.last_step() or 0
        )

    @one_at_a_time
    def get_job_goodput_interval(
        self, interval_start: datetime, interval_end: datetime
    ) -> IntervalGoodput:
        """Return what became of a window: all of it that the job has, logged or not.

        Raises:
            InvalidValue: The window ends before it starts, or has no time zone.
            NoGoodputLogs: Nothing was logged.
            NoJobTime: The window lies outside the job.
        """
        window = _window(interval_start, interval_end)
        view = self._view()
        breakdown = view.break_down(window)
        goodput, parts = self._percent(view, breakdown, "in the window")
        return IntervalGoodput(
            goodput,
            parts,
            view.timeline.last_step(window.end_ns) or 0,
            breakdown.wall_ns / 1e9,
            count_disruptions(view.timeline, window),
        )

    @one_at_a_time
    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Iterable[tuple[datetime, datetime]],
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> GoodputWithExclusions:
        """Return what became of the job without some intervals, which may overlap."""
        exclusions = tuple(_window(start, end) for start, end in exclusion_intervals)
        view = self._view()
        breakdown = view.break_down(exclusions=exclusions)
        goodput, parts = self._percent(view, breakdown, "outside the exclusions")
        kept_ns = sum(window.length_ns for window in breakdown.windows)
        excluded_s = (view.whole.length_ns - kept_ns) / 1e9
        self._remember(view, breakdown, configured_ideal_step_time)
        shown = parts if include_badput_breakdown else {}
        return GoodputWithExclusions(goodput, shown, view.timeline.last_step() or 0, excluded_s)

    @one_at_a_time
    def get_step_deviation(
        self, configured_ideal_step_time: float | None = None
    ) -> dict[int, float]:
        """Return by step number how many seconds it was off the ideal step time.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoStepTimes: No step has a duration yet.
        """
        steps = self._steps(self._view(), configured_ideal_step_time)
        if steps is None:
            raise NoStepTimes(self.job_name)
        if self._cache is not None:
            self._cache.update_step_info(steps)
        return steps.step_deviations

    @one_at_a_time
    def get_job_goodput_details(
        self, configured_ideal_step_time: float | None = None
    ) -> WorkloadMetricDetails:
        """Return everything about the job, in seconds."""
        view = self._view()
        breakdown = view.break_down()
        steps = self._steps(view, configured_ideal_step_time) or StepInfo(0.0, {})
        return {
            "goodput_time": {GoodputType.TOTAL: breakdown.phases.get(ph.STEP, 0) / 1e9},
            "badput_time": self._parts(view, breakdown, SECONDS),
            "max_productive_step": view.timeline.last_step() or 0,
            "total_elapsed_time": breakdown.wall_ns / 1e9,
            "disruption_count": count_disruptions(view.timeline),
            "step_time_deviation": steps.step_deviations,
            "ideal_step_time": steps.ideal_step_time,
            "total_excluded_time": 0.0,
        }

    @one_at_a_time
    def get_interval_metric_details(
        self, interval_start: datetime, interval_end: datetime
    ) -> IntervalWorkloadMetricDetails:
        """Return what became of a window; empty when there is nothing to tell about it."""
        size = int((interval_end - interval_start).total_seconds())
        try:
            answer = self.get_job_goodput_interval(interval_start, interval_end)
        except ValueError as error:
            _log.warning("no interval metrics: %s", error)
            return {"interval_goodput": {}, "interval_badput": {}, "interval_size": size}
        return {
            "interval_goodput": {GoodputType.TOTAL: answer.goodput},
            "interval_badput": answer.badput_breakdown,
            "interval_size": size,
        }

    @one_at_a_time
    def get_slice_efficiency(
        self, interval_start: datetime | None = None, interval_end: datetime | None = None
    ) -> SliceEfficiency | None:
        """Return how an elastic job used its slices; None when it never said how many train."""
        view = self._view()
        return slices_used(view, [view.window(_ns(interval_start), _ns(interval_end))])

    def sync_to_gcs(self) -> None:
        """Do nothing: the cache's files are where ``cache_dir`` says."""

    def _steps(self, view: RunView, configured_ideal_step_time: float | None) -> StepInfo | None:
        ideal_ns = ideal_of(view, configured_ideal_step_time)
        if ideal_ns is None:
            return None
        return StepInfo(ideal_ns / 1e9, step_deviation(StepTimes.of(view.timeline.own), ideal_ns))

    def _remember(
        self, view: RunView, breakdown: Breakdown, configured_ideal_step_time: float | None
    ) -> None:
        """Keep the result where a cache was asked for."""
        if self._cache is None:
            return
        last = view.timeline.last_step() or 0
        excluded_ns = view.whole.length_ns - sum(w.length_ns for w in breakdown.windows)
        self._cache.update_goodput_info(
            GoodputInfo(
                total_productive_time=breakdown.phases.get(ph.STEP, 0) / 1e9,
                total_elapsed_time=breakdown.wall_ns / 1e9,
                total_unproductive_time=self._parts(view, breakdown, SECONDS),
                max_productive_step=last,
                last_recorded_step=last,
                last_updated_timestamp=utc_datetime(view.timeline.now_ns),
                number_of_disruptions=count_disruptions(view.timeline),
                total_excluded_time=excluded_ns / 1e9,
            )
        )
        ideal_ns = ideal_of(view, configured_ideal_step_time)
        if ideal_ns is not None:
            times = StepTimes.as_of_now(view.timeline.own)
            # A deviation for each of a million steps is computed when somebody asks for them.
            self._cache.update_step_info(
                lambda: StepInfo(ideal_ns / 1e9, step_deviation(times(), ideal_ns))
            )


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else wall_ns_of(moment)


def _window(start: datetime, end: datetime) -> Window:
    for name, moment in (("start", start), ("end", end)):
        if not isinstance(moment, datetime):
            raise InvalidValue(name, moment, "a datetime with a time zone")
    window = Window(wall_ns_of(start), wall_ns_of(end))
    if window.length_ns <= 0:
        raise InvalidValue("interval", f"{start} to {end}", "an end that is after the start")
    return window
