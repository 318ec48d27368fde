"""Where a calculator's numbers come from: a run log on disk, or any logger's entries.

Both keep what was folded, so that a query costs what is new.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from outlay.account.payloads import PayloadTranslator
from outlay.clock import utc_datetime
from outlay.errors import NotARun, OutlayError
from outlay.goodput.cache import GoodputCache
from outlay.goodput.follower import GoodputFollower, RunView, view_of
from outlay.goodput.logs import Entry, EntryInfo, GoodputLogger
from outlay.goodput.timeline import TimelineBuilder

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
        self._translator = PayloadTranslator(self._builder.account.segments, job_name)
        self._last: EntryInfo | None = None
        if cache is not None and not cache.is_cache_empty():
            self._translator.take(cache.get_cached_entries())
            self._last = cache.get_last_entry_info()

    def view(self, now_ns: int) -> RunView:
        """Return the job as it stands at ``now_ns``."""
        entries, self._last = self._read(now_ns)
        self._translator.take(entries)
        self._keep(entries)
        timeline = self._builder.build(now_ns)
        if timeline is None:
            raise NoGoodputLogs(self._job_name, "the log")
        return view_of(timeline, self._builder.account, tuple(self._translator.findings()))

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
