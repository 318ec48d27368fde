"""A job that is asked about: its sources, its time as shares, one reading of it."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from outlay.account.payloads import PayloadTranslator
from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.errors import Finding, NotARun, OutlayError
from outlay.goodput import phases as ph
from outlay.goodput.follower import GoodputFollower, RunView, ideal_of, view_of
from outlay.goodput.importing import GoodputCache
from outlay.goodput.logs import Entry, EntryInfo, GoodputLogger, LocalRunLog, run_dir_of_job
from outlay.goodput.summary import beside_ns, count_disruptions, slices_used
from outlay.goodput.throughput import Spikes, StepTimes, deviations_s, step_deviation
from outlay.goodput.timeline import Breakdown, SliceEfficiency, TimelineBuilder, Window
from outlay.goodput.types import SECONDS, BadputParts, TimeShare, badput_parts, percent_of

# Where a calculator's numbers come from: a run log on disk, or any logger's entries.
#
# Both keep what was folded, so that a query costs what is new.

_log = logging.getLogger("outlay")


class NoGoodputLogs(OutlayError, ValueError):
    """Nothing was ever logged for a job."""

    def __init__(self, job_name: str, place: str) -> None:
        super().__init__(
            f"job {job_name!r}: no logs exist in {place}. Record with "
            "GoodputRecorder(job_name, logger_name, logging_enabled=True) under the same name."
        )


class Source(Protocol):
    """Shows a job as it stands."""

    def view(self, now_ns: int) -> RunView:
        """Return the job as it stands at ``now_ns``.

        Raises:
            NoGoodputLogs: Nothing was logged.
        """


class RunLogSource:
    """A job whose entries, or native records, are in a run log."""

    def __init__(self, job_name: str, run_dir: Path) -> None:
        self._job_name = job_name
        self._run_dir = run_dir
        self._follower = GoodputFollower(run_dir)

    def view(self, now_ns: int) -> RunView:
        """Return the job as it stands at ``now_ns``."""
        try:
            return self._follower.view(now_ns)
        except NotARun:
            raise NoGoodputLogs(self._job_name, str(self._run_dir)) from None


class LoggerSource:
    """A job whose entries come from a logger, and are kept in a cache where one is given."""

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
        """Return the job as it stands at ``now_ns``."""
        entries, self._last = self._read(now_ns)
        self._fold(entries)
        self._keep(entries)
        timeline = self._builder.build(now_ns)
        if timeline is None:
            raise NoGoodputLogs(self._job_name, "the log")
        return view_of(timeline, self._builder.account, tuple(self._translator.findings()))

    def _fold(self, entries: list[Entry]) -> None:
        self._builder.account.add(self._translator.translate(entries))

    def _keep(self, entries: list[Entry]) -> None:
        """Cache entries; of a log that keeps no account, all are read again anyway."""
        if self._cache is None or self._last is None or not entries:
            return
        try:
            self._cache.update_cached_entries(entries, self._last)
        except OSError as error:
            # To cache later ones would leave a hole: the next calculator reads on from here.
            self._cache = None
            _log.warning("job %s: caches no more entries: %s", self._job_name, error)

    def _read(self, now_ns: int) -> tuple[list[Entry], EntryInfo | None]:
        """Return the entries after the last one seen, and which is the last now."""
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
        if not isinstance(answer, tuple):  # A logger that keeps no account of what it gave.
            return list(answer), None
        entries, last = answer
        seen = last is not None and last[0] is not None
        return entries, last if seen else self._last


# A job that is asked about: where its log is, what is known of it now, and its time as shares.

Asked = TypeVar("Asked", bound="MeasuredJob")
Answer = TypeVar("Answer")
P = ParamSpec("P")


class NoJobTime(OutlayError, ValueError):
    """There is nothing to take a share of."""

    def __init__(self, job_name: str, where: str) -> None:
        super().__init__(f"job {job_name!r}: no job time {where}, so there is no goodput to tell")


class NoStepTimes(OutlayError, ValueError):
    """No step has a duration yet."""

    def __init__(self, job_name: str) -> None:
        super().__init__(
            f"job {job_name!r}: no step has a duration yet; a step ends when the next one begins"
        )


def one_at_a_time(
    ask: Callable[Concatenate[Asked, P], Answer],
) -> Callable[Concatenate[Asked, P], Answer]:
    """Let threads ask one after another: a view is of a fold that the next look lets grow."""

    @functools.wraps(ask)
    def asked(self: Asked, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        with self._lock:
            return ask(self, *args, **kwargs)

    return asked


class MeasuredJob:
    """A job as those see it who ask; its arguments are those of ``GoodputCalculator``."""

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
        self._cache: GoodputCache | None = None
        if cache_dir is not None or gcs_path is not None:
            self._cache = GoodputCache(job_name, cache_dir or "", gcs_path)
        self._source: Source
        if cloud_logger is None:
            self._source = RunLogSource(job_name, run_dir_of_job(job_name))
        elif isinstance(cloud_logger, LocalRunLog):
            self._source = RunLogSource(job_name, cloud_logger.run_dir)
        else:
            retention = max_logs_retention_period
            self._source = LoggerSource(job_name, cloud_logger, self._cache, retention)

    def _view(self) -> RunView:
        view = self._source.view(self._clock.wall_ns())
        for finding in sorted(set(view.findings) - set(self.findings)):
            _log.warning("job %s: %s", self.job_name, finding)
        self.findings = view.findings
        return view

    def _percent(
        self, view: RunView, breakdown: Breakdown, where: str
    ) -> tuple[float, BadputParts]:
        if not breakdown.wall_ns:
            raise NoJobTime(self.job_name, where)
        percent = percent_of(breakdown.wall_ns)
        parts = self._parts(view, breakdown, percent)
        return percent.of(breakdown.phases.get(ph.STEP, 0)), parts

    def _parts(self, view: RunView, breakdown: Breakdown, share: TimeShare) -> BadputParts:
        loads = (beside_ns(view, window).get(ph.DATA_LOADING, 0) for window in breakdown.windows)
        pathways = self.using_pathways
        return badput_parts(breakdown.phases, sum(loads), share, pathways=pathways)


# What an upload says: everything about one moment, from one look at the log.
#
# A monitor asks again and again, so that nothing here grows with the run: of step deviations only
# those are told that were not told before.


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputReading:
    """What has become of a whole job so far."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """What became of the last ``window_s`` seconds."""

    t_ns: int
    window_s: int
    goodput_percent: float
    badput_percent: BadputParts
    last_step: int
    slices: SliceEfficiency | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviationReading:
    """How far steps were off the ideal step time.

    Attributes:
        deviations_s: Seconds by step number, of the steps that are told for the first time.
        spike_s: One number for the latest steps: high when some of them were uneven.
    """

    t_ns: int
    ideal_step_s: float
    deviations_s: dict[int, float]
    spike_s: float


Reading = GoodputReading | WindowReading | DeviationReading


class GoodputReader(MeasuredJob):
    """Answers those who ask about a job at intervals; it is made as a calculator is."""

    @one_at_a_time
    def read_goodput(
        self, configured_ideal_step_time: float | None = None, *, slices: bool = False
    ) -> GoodputReading:
        """Return what has become of the job.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: What was logged takes no time yet.
        """
        view = self._view()
        breakdown = view.break_down()
        goodput, parts = self._percent(view, breakdown, "yet")
        ideal_ns = ideal_of(view, configured_ideal_step_time)
        return GoodputReading(
            t_ns=view.timeline.now_ns,
            goodput_percent=goodput,
            badput_percent=parts,
            goodput_s=SECONDS.of(breakdown.phases.get(ph.STEP, 0)),
            badput_s=self._parts(view, breakdown, SECONDS),
            elapsed_s=SECONDS.of(breakdown.wall_ns),
            last_step=view.timeline.last_step() or 0,
            disruptions=count_disruptions(view.timeline),
            ideal_step_s=None if ideal_ns is None else ideal_ns / 1e9,
            slices=slices_used(view, [view.whole]) if slices else None,
        )

    @one_at_a_time
    def read_window(self, window_s: int, *, slices: bool = False) -> WindowReading:
        """Return what became of the seconds before now.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoJobTime: The job has no time in the window.
        """
        view = self._view()
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

    @one_at_a_time
    def read_deviation(
        self, after_step: int = -1, configured_ideal_step_time: float | None = None
    ) -> DeviationReading:
        """Return how far the steps beyond ``after_step`` were off the ideal.

        Raises:
            NoGoodputLogs: Nothing was logged.
            NoStepTimes: No step has a duration yet.
        """
        view = self._view()
        ideal_ns = ideal_of(view, configured_ideal_step_time)
        if ideal_ns is None:
            raise NoStepTimes(self.job_name)
        own, spikes = view.timeline.own, Spikes()
        return DeviationReading(
            t_ns=view.timeline.now_ns,
            ideal_step_s=ideal_ns / 1e9,
            deviations_s=step_deviation(StepTimes.after(own, after_step), ideal_ns),
            spike_s=spikes.of(deviations_s(StepTimes.latest(own, spikes.steps), ideal_ns)),
        )
