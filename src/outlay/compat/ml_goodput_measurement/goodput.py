"""``goodput``: the recorder and the calculator."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.export.cloud import CloudLogger
from outlay.goodput import calculator
from outlay.goodput.calculator import (
    IntervalWorkloadMetricDetails,
    JobGoodput,
    WorkloadMetricDetails,
)
from outlay.goodput.goodput_recorder import GoodputLogger, GoodputRecorder
from outlay.goodput.phases import BadputType, GoodputType

__all__ = [
    "BadputType",
    "CloudLogger",
    "GoodputCalculator",
    "GoodputRecorder",
    "GoodputType",
    "IntervalWorkloadMetricDetails",
    "WorkloadMetricDetails",
]

_log = logging.getLogger("outlay")
_CloudLogger = CloudLogger


class GoodputPercent(float):
    """A percentage that also has the badput types.

    The documented example assigns it to ``goodput``, which shadows the module, and then uses
    ``goodput.BadputType``.
    """

    BadputType = BadputType
    GoodputType = GoodputType


class GoodputCalculator(calculator.GoodputCalculator):
    """outlay's calculator; a ``gcs_path`` is ignored with a warning."""

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
        if gcs_path is not None:
            _log.warning("job %s: the cache is kept in cache_dir, not in %s", job_name, gcs_path)
        super().__init__(
            job_name,
            logger_name,
            cloud_logger,
            using_pathways,
            max_logs_retention_period,
            cache_dir=cache_dir,
            clock=clock,
        )

    def get_job_goodput(
        self,
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> JobGoodput:
        """Return the job's goodput, its badput by type if requested, and its last step."""
        found = super().get_job_goodput(include_badput_breakdown, configured_ideal_step_time)
        return found._replace(goodput=GoodputPercent(found.goodput))
