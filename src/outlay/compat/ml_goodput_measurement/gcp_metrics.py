"""``gcp_metrics``: sends any metric to Google Cloud Monitoring, through Google's client."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outlay.clock import SYSTEM
from outlay.compat.ml_goodput_measurement.cloud import TIMEOUT_S, plain_channel
from outlay.errors import MissingExtra

__all__ = ["GCPMetrics", "ValueType"]

logger = logging.getLogger("outlay")


MONITORING_ENDPOINT = "OUTLAY_GCP_MONITORING_ENDPOINT"
SERIES_PER_REQUEST = 200  # The service's limit of series per request.


class MonitoringClient:
    """Google's client for one project.

    Raises:
        MissingExtra: It is not installed.
    """

    def __init__(self, project_id: str) -> None:
        try:
            from google.cloud import monitoring_v3
            from google.cloud.monitoring_v3.services.metric_service import transports
        except ImportError:
            raise MissingExtra("uploading to Google Cloud Monitoring", "gcp") from None
        self.project = f"projects/{project_id}"
        self._api = monitoring_v3
        channel = plain_channel(MONITORING_ENDPOINT)
        transport = channel and transports.MetricServiceGrpcTransport(channel=channel)
        self._client: Any = monitoring_v3.MetricServiceClient(transport=transport or None)

    def series(
        self,
        metric_type: str,
        value: Mapping[str, Any],
        metric_labels: Mapping[str, str],
        resource: tuple[str, Mapping[str, str]],
        end_time: tuple[int, int],
    ) -> Any:
        """Return a time series with one point; ``value`` is one field of a TypedValue.

        ``end_time`` is in whole seconds and nanoseconds.
        """
        point = self._api.Point(
            interval={"end_time": {"seconds": end_time[0], "nanos": end_time[1]}},
            value=self._api.TypedValue(**value),
        )
        return self._api.TimeSeries(
            metric={"type": metric_type, "labels": dict(metric_labels)},
            resource={"type": resource[0], "labels": dict(resource[1])},
            points=[point],
        )

    def send(self, series: Sequence[Any]) -> None:
        """Create the points; raises the service's errors."""
        for first in range(0, len(series), SERIES_PER_REQUEST):
            self._client.create_time_series(
                name=self.project,
                time_series=list(series[first : first + SERIES_PER_REQUEST]),
                timeout=TIMEOUT_S,
                retry=None,
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.transport.close()


def end_time(t_ns: int) -> tuple[int, int]:
    """Split an instant into whole seconds and nanoseconds, as the service takes it."""
    return divmod(t_ns, 1_000_000_000)


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
            logger.error("cannot send metrics (%s): %s", context or "no context", error)  # noqa: TRY400
            return
        # As the library logs it: a mapping, of which a handler of Cloud Logging makes fields.
        message = "Sent Goodput metrics to GCM Monitoring."
        logger.info({"message": message, "metrics_count": len(series), **(context or {})})

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
            logger.warning("metric %s is skipped: %r", metric.get("metric_type"), error)
            return None
