"""A job that is asked about: where its log is, what is known of it now, and its time as shares."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Breakdown
from outlay.goodput.cache import GoodputCache
from outlay.goodput.follower import RunView
from outlay.goodput.logs import GoodputLogger, LocalRunLog, run_dir_of_job
from outlay.goodput.sources import LoggerSource, RunLogSource, Source
from outlay.goodput.summary import beside_ns
from outlay.goodput.types import BadputParts, Share, badput_parts, percent_of

_log = logging.getLogger("outlay")

Asked = TypeVar("Asked", bound="Job")
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


class Job:
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

    def _parts(self, view: RunView, breakdown: Breakdown, share: Share) -> BadputParts:
        loads = (beside_ns(view, window).get(ph.DATA_LOADING, 0) for window in breakdown.windows)
        pathways = self.using_pathways
        return badput_parts(breakdown.phases, sum(loads), share, pathways=pathways)
