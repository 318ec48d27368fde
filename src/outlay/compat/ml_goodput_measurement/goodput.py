"""``goodput``: the recorder and the calculator."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.export.cloud import CloudLogger
from outlay.goodput import calculator
from outlay.goodput.logs import GoodputLogger
from outlay.goodput.recorder import GoodputRecorder
from outlay.goodput.types import (
    BadputType,
    GoodputType,
    IntervalWorkloadMetricDetails,
    WorkloadMetricDetails,
)

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


class GoodputCalculator(calculator.GoodputCalculator):
    """outlay's calculator, which takes a ``gcs_path`` and says that it does not use it."""

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
