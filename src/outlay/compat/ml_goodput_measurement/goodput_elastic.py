"""``goodput_elastic``: jobs whose slices come and go."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from outlay.compat.ml_goodput_measurement.goodput import GoodputCalculator
from outlay.compat.ml_goodput_measurement.goodput_utils import (
    ElasticIntervalWorkloadMetricDetails,
    ElasticWorkloadMetricDetails,
)
from outlay.compat.ml_goodput_measurement.recorder import ElasticGoodputRecorder

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputRecorder"]


class ElasticGoodputCalculator(GoodputCalculator):
    """A calculator whose details include slice efficiency."""

    def get_job_goodput_details(
        self, configured_ideal_step_time: float | None = None
    ) -> ElasticWorkloadMetricDetails:
        """Return the job's details, in seconds."""
        whole = super().get_job_goodput_details(configured_ideal_step_time)
        details = cast(ElasticWorkloadMetricDetails, whole)
        if slices := self.get_slice_efficiency():
            details["stepping_slice_efficiency"] = slices.stepping
            details["available_slice_efficiency"] = slices.available
        return details

    def get_interval_metric_details(
        self, interval_start: datetime, interval_end: datetime
    ) -> ElasticIntervalWorkloadMetricDetails:
        """Return the details of a window; empty if nothing was recorded in it."""
        whole = super().get_interval_metric_details(interval_start, interval_end)
        details = cast(ElasticIntervalWorkloadMetricDetails, whole)
        if details["interval_goodput"] and (
            slices := self.get_slice_efficiency(interval_start, interval_end)
        ):
            details["stepping_slice_efficiency"] = slices.stepping
            details["available_slice_efficiency"] = slices.available
        return details
