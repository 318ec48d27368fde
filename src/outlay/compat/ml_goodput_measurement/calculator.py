"""GoodputCalculator: the interface of ml-goodput-measurement, on top of the timeline.

It computes nothing itself: every number comes from the run's timeline, so that parts sum to the
whole. Percentages are of wall time, 0 to 100.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from outlay.account.payloads import PayloadTranslator
from outlay.clock import SYSTEM, Clock, utc_datetime, wall_ns_of
from outlay.compat.ml_goodput_measurement.goodput_cache import GoodputCache
from outlay.compat.ml_goodput_measurement.goodput_utils import (
    BadputParts,
    GoodputInfo,
    GoodputType,
    IntervalWorkloadMetricDetails,
    StepInfo,
    WorkloadMetricDetails,
    badput_parts,
    seconds,
    step_deviation,
)
from outlay.compat.ml_goodput_measurement.recorder import (
    Entry,
    EntryInfo,
    GoodputLogger,
    LocalRunLog,
    run_dir_of_job,
)
from outlay.errors import Finding, InvalidValue, NotARun, OutlayError
from outlay.goodput import phases as ph
from outlay.goodput.follower import (
    GoodputFollower,
    RunView,
    ideal_of,
    overlapped_ns,
    slices_used,
    view_of,
)
from outlay.goodput.reliability import count_disruptions
from outlay.goodput.throughput import StepTimes
from outlay.goodput.timeline import Breakdown, SliceEfficiency, TimelineBuilder, Window

_log = logging.getLogger("outlay")

# Results.


class JobGoodput(NamedTuple):
    """Goodput of a whole job, in percent of its wall time."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int


class IntervalGoodput(NamedTuple):
    """Goodput of a window of a job, in percent of the wall time in it."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int
    total_job_time: float
    number_of_disruptions: int


class GoodputWithExclusions(NamedTuple):
    """Goodput of a job without some intervals, in percent of the remaining wall time."""

    goodput: float
    badput_breakdown: BadputParts
    last_step: int
    total_excluded_time: float


# Sources: a run log on disk (``GoodputFollower``), or the entries of a logger.
#
# Both keep the folded account: a query reads only new entries.


class NoGoodputLogs(OutlayError, ValueError):
    """Nothing was logged for a job."""

    def __init__(self, job_name: str, place: str) -> None:
        super().__init__(
            f"job {job_name!r}: no logs exist in {place}. Record with "
            "GoodputRecorder(job_name, logger_name, logging_enabled=True) under the same name."
        )


class LoggerSource:
    """A job whose entries come from a logger, optionally cached."""

    def __init__(
        self,
        job_name: str,
        logger: GoodputLogger,
        cache: GoodputCache | None,
        retention: timedelta | None,
    ) -> None:
        self._job_name = job_name
        self._logger = logger
        self._cache = cache
        self._retention = retention
        self._builder = TimelineBuilder()
        self._translator = PayloadTranslator(job_name)
        self._last: EntryInfo | None = None
        if cache is not None and not cache.is_cache_empty():
            self._fold(cache.get_cached_entries())
            self._last = cache.get_last_entry_info()

    def view(self, now_ns: int) -> RunView:
        """Return the job at ``now_ns``."""
        entries, self._last = self._read(now_ns)
        self._fold(entries)
        self._cache_entries(entries)
        timeline = self._builder.build(now_ns)
        if timeline is None:
            raise NoGoodputLogs(self._job_name, "the log")
        return view_of(timeline, self._builder.account, tuple(self._translator.findings()))

    def _fold(self, entries: list[Entry]) -> None:
        self._builder.account.add(self._translator.translate(entries))

    def _cache_entries(self, entries: list[Entry]) -> None:
        """Cache entries, unless the logger returns no position: it is read anew each time."""
        if self._cache is None or self._last is None or not entries:
            return
        try:
            self._cache.update_cached_entries(entries, self._last)
        except OSError as error:
            # Caching later entries would leave a gap: the next calculator continues from here.
            self._cache = None
            _log.warning("job %s: stopped caching entries: %s", self._job_name, error)

    def _read(self, now_ns: int) -> tuple[list[Entry], EntryInfo | None]:
        """Return the entries after the last one seen, and the new last one."""
        now = utc_datetime(now_ns)
        answer: Any
        if self._last is not None and self._last[0] is not None:
            answer = self._logger.read_cloud_logging_entries(
                start_time=self._last[0], end_time=now, last_entry_info=self._last
            )
        elif self._retention is not None:
            answer = self._logger.read_cloud_logging_entries(now - self._retention, now)
        else:
            answer = self._logger.read_cloud_logging_entries()
        if not isinstance(answer, tuple):  # A logger that returns no position.
            return list(answer), None
        entries, last = answer
        seen = last is not None and last[0] is not None
        return entries, last if seen else self._last


# Queries of a job.


class NoJobTime(OutlayError, ValueError):
    """There is no wall time, and so no share of it."""

    def __init__(self, job_name: str, where: str) -> None:
        super().__init__(f"job {job_name!r}: no job time {where}, so there is no goodput to tell")


class NoStepTimes(OutlayError, ValueError):
    """No step has a duration yet."""

    def __init__(self, job_name: str) -> None:
        super().__init__(
            f"job {job_name!r}: no step has a duration yet; a step ends when the next one begins"
        )


class MeasuredJob:
    """A job that can be queried; arguments as of ``GoodputCalculator``."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: GoodputLogger | None = None,
        using_pathways: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        max_logs_retention_period: timedelta | None = None,
        gcs_path: str | None = None,
        cache_dir: str | Path | None = None,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self.job_name = job_name
        self.logger_name = logger_name
        self.using_pathways = using_pathways
        self.findings: tuple[Finding, ...] = ()
        self._clock = clock
        self._lock = threading.RLock()
        self._cache = self._open_cache(cache_dir, gcs_path)
        self._source: GoodputFollower | LoggerSource
        if cloud_logger is None:
            self._source = GoodputFollower(run_dir_of_job(job_name))
        elif isinstance(cloud_logger, LocalRunLog):
            self._source = GoodputFollower(cloud_logger.run_dir)
        else:
            retention = max_logs_retention_period
            self._source = LoggerSource(job_name, cloud_logger, self._cache, retention)

    def _open_cache(
        self, cache_dir: str | Path | None, gcs_path: str | None
    ) -> GoodputCache | None:
        if cache_dir is None and gcs_path is None:
            return None
        return GoodputCache(self.job_name, cache_dir or "", gcs_path)

    @contextlib.contextmanager
    def _view(self) -> Iterator[RunView]:
        """Read the job; other threads wait, since a later view changes the account of this one."""
        with self._lock:
            try:
                view = self._source.view(self._clock.wall_ns())
            except NotARun as error:
                raise NoGoodputLogs(self.job_name, error.path) from None
            for finding in sorted(set(view.findings) - set(self.findings)):
                _log.warning("job %s: %s", self.job_name, finding)
            self.findings = view.findings
            yield view

    def _percent(
        self, view: RunView, breakdown: Breakdown, where: str
    ) -> tuple[float, BadputParts]:
        if not breakdown.wall_ns:
            raise NoJobTime(self.job_name, where)

        def percent(ns: int) -> float:
            return ns * 100 / breakdown.wall_ns

        parts = self._parts(view, breakdown, percent)
        return percent(breakdown.phases.get(ph.STEP, 0)), parts

    def _parts(
        self, view: RunView, breakdown: Breakdown, share: Callable[[int], float]
    ) -> BadputParts:
        loading_ns = overlapped_ns(view, breakdown.windows).get(ph.DATA_LOADING, 0)
        return badput_parts(breakdown.phases, loading_ns, share, pathways=self.using_pathways)


class GoodputCalculator(MeasuredJob):
    """Computes how much of a job was productive, while it runs and afterwards.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; ignored by the local run log.
        cloud_logger: The log to read; default: the job's local run log.
        using_pathways: One controller outlives its workers, so that a stalled step is recovery.
        max_logs_retention_period: How far back a logger is read; default: as far as it goes.
        gcs_path: Not supported: mount the bucket and pass it as ``cache_dir``.
        cache_dir: Directory in which a logger's entries are cached; default: no cache.
        clock: Gives the present.

    Raises:
        InvalidValue: The job has no name, or a ``gcs_path`` was given.
    """

    def get_job_goodput(
        self,
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> JobGoodput:
        """Return the job's goodput, its badput by type if requested, and its last step.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: What was logged takes no time yet.
        """
        with self._view() as view:
            breakdown = view.break_down()
            goodput, parts = self._percent(view, breakdown, "yet")
            self._cache_results(view, breakdown, configured_ideal_step_time)
            return JobGoodput(
                goodput, parts if include_badput_breakdown else {}, view.timeline.last_step() or 0
            )

    def get_job_goodput_interval(
        self, interval_start: datetime, interval_end: datetime
    ) -> IntervalGoodput:
        """Return the goodput of a window, clipped to the job and not to what was logged.

        Raises:
            InvalidValue: The window ends before it starts, or has no time zone.
            NoGoodputLogs: Nothing was logged.
            NoJobTime: The window lies outside the job.
        """
        window = _window(interval_start, interval_end)
        with self._view() as view:
            breakdown = view.break_down(window)
            goodput, parts = self._percent(view, breakdown, "in the window")
            return IntervalGoodput(
                goodput,
                parts,
                view.timeline.last_step(window.end_ns) or 0,
                breakdown.wall_ns / 1e9,
                count_disruptions(view.timeline, window),
            )

    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Iterable[tuple[datetime, datetime]],
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> GoodputWithExclusions:
        """Return the job's goodput without some intervals, which may overlap."""
        exclusions = tuple(_window(start, end) for start, end in exclusion_intervals)
        with self._view() as view:
            breakdown = view.break_down(exclusions=exclusions)
            goodput, parts = self._percent(view, breakdown, "outside the exclusions")
            kept_ns = sum(window.length_ns for window in breakdown.windows)
            excluded_s = (view.whole.length_ns - kept_ns) / 1e9
            self._cache_results(view, breakdown, configured_ideal_step_time)
            shown = parts if include_badput_breakdown else {}
            return GoodputWithExclusions(goodput, shown, view.timeline.last_step() or 0, excluded_s)

    def get_step_deviation(
        self, configured_ideal_step_time: float | None = None
    ) -> dict[int, float]:
        """Return the deviation from the ideal step time in seconds, by step number.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoStepTimes: No step has a duration yet.
        """
        with self._view() as view:
            steps = self._steps(view, configured_ideal_step_time)
            if steps is None:
                raise NoStepTimes(self.job_name)
            if self._cache is not None:
                self._cache.update_step_info(steps)
            return steps.step_deviations

    def get_job_goodput_details(
        self, configured_ideal_step_time: float | None = None
    ) -> WorkloadMetricDetails:
        """Return all figures of the job, in seconds."""
        with self._view() as view:
            breakdown = view.break_down()
            steps = self._steps(view, configured_ideal_step_time) or StepInfo(0.0, {})
            return {
                "goodput_time": {GoodputType.TOTAL: breakdown.phases.get(ph.STEP, 0) / 1e9},
                "badput_time": self._parts(view, breakdown, seconds),
                "max_productive_step": view.timeline.last_step() or 0,
                "total_elapsed_time": breakdown.wall_ns / 1e9,
                "disruption_count": count_disruptions(view.timeline),
                "step_time_deviation": steps.step_deviations,
                "ideal_step_time": steps.ideal_step_time,
                "total_excluded_time": 0.0,
            }

    def get_interval_metric_details(
        self, interval_start: datetime, interval_end: datetime
    ) -> IntervalWorkloadMetricDetails:
        """Return the goodput of a window; empty if there is none."""
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

    def get_slice_efficiency(
        self, interval_start: datetime | None = None, interval_end: datetime | None = None
    ) -> SliceEfficiency | None:
        """Return the use of an elastic job's slices; None if they were never counted."""
        with self._view() as view:
            return slices_used(view, [view.window(_ns(interval_start), _ns(interval_end))])

    def sync_to_gcs(self) -> None:
        """Do nothing: the cache is in ``cache_dir``."""

    def _steps(self, view: RunView, configured_ideal_step_time: float | None) -> StepInfo | None:
        ideal_ns = ideal_of(view, configured_ideal_step_time)
        if ideal_ns is None:
            return None
        return StepInfo(ideal_ns / 1e9, step_deviation(StepTimes.of(view.timeline.own), ideal_ns))

    def _cache_results(
        self, view: RunView, breakdown: Breakdown, configured_ideal_step_time: float | None
    ) -> None:
        if self._cache is None:
            return
        last = view.timeline.last_step() or 0
        excluded_ns = view.whole.length_ns - sum(w.length_ns for w in breakdown.windows)
        self._cache.update_goodput_info(
            GoodputInfo(
                total_productive_time=breakdown.phases.get(ph.STEP, 0) / 1e9,
                total_elapsed_time=breakdown.wall_ns / 1e9,
                total_unproductive_time=self._parts(view, breakdown, seconds),
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
            # Lazy: a deviation for each of a million steps is seldom needed.
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
