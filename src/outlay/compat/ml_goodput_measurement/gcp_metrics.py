"""``gcp_metrics``: sends any metric to Google Cloud Monitoring."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outlay.clock import SYSTEM
from outlay.export.cloud import MonitoringClient, end_time

__all__ = ["GCPMetrics", "ValueType"]

_log = logging.getLogger("outlay")


class ValueType(enum.Enum):
    """The field of a TypedValue."""

    BOOL = "bool_value"
    INT = "int64_value"
    DOUBLE = "double_value"
    STRING = "string_value"
    DISTRIBUTION = "distribution_value"


class GCPMetrics:
    """Sends metrics of one project."""

    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        self._client = MonitoringClient(project_id)

    def create_time_series(
        self,
        metric_type: str,
        value: Any,
        value_type: ValueType,
        metric_labels: Mapping[str, str] | None,
        resource_type: str,
        resource_labels: Mapping[str, str],
        seconds: int,
        nanos: int,
    ) -> Any:
        """Return a time series with one point."""
        typed = {value_type.value: value}
        resource = (resource_type, resource_labels)
        return self._client.series(
            metric_type, typed, metric_labels or {}, resource, (seconds, nanos)
        )

    def send_metrics(
        self, metrics: Sequence[Mapping[str, Any]], context: Mapping[str, Any] | None = None
    ) -> None:
        """Send metrics; an invalid one is logged and skipped."""
        now = end_time(SYSTEM.wall_ns())
        series = [found for metric in metrics if (found := self._series(metric, now)) is not None]
        try:
            self._client.send(series)
        except Exception as error:  # noqa: BLE001 - documented not to raise; logged with its cause
            _log.warning("cannot send metrics (%s): %s", context or "no context", error)

    def _series(self, metric: Mapping[str, Any], now: tuple[int, int]) -> Any:
        try:
            return self.create_time_series(
                metric["metric_type"],
                metric["value"],
                metric["value_type"],
                metric.get("metric_labels"),
                metric["resource_type"],
                metric["resource_labels"],
                *now,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("metric %s is skipped: %r", metric.get("metric_type"), error)
            return None
