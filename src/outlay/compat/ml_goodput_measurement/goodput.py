"""``goodput``: the recorder and the calculator."""

from __future__ import annotations

import logging
from pathlib import Path

from outlay.compat.ml_goodput_measurement import calculator
from outlay.compat.ml_goodput_measurement.calculator import JobGoodput
from outlay.compat.ml_goodput_measurement.cloud import CloudLogger
from outlay.compat.ml_goodput_measurement.goodput_cache import GoodputCache
from outlay.compat.ml_goodput_measurement.goodput_utils import (
    BadputType,
    GoodputType,
    IntervalWorkloadMetricDetails,
    WorkloadMetricDetails,
)
from outlay.compat.ml_goodput_measurement.recorder import GoodputRecorder

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

    def _open_cache(
        self, cache_dir: str | Path | None, gcs_path: str | None
    ) -> GoodputCache | None:
        if gcs_path is not None:
            message = "job %s: the cache is kept in cache_dir, not in %s"
            _log.warning(message, self.job_name, gcs_path)
        return super()._open_cache(cache_dir, None)

    def get_job_goodput(
        self,
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
    ) -> JobGoodput:
        """Return the job's goodput, its badput by type if requested, and its last step."""
        found = super().get_job_goodput(include_badput_breakdown, configured_ideal_step_time)
        return found._replace(goodput=GoodputPercent(found.goodput))
