"""Readings into Google Cloud Monitoring, through Google's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlay.errors import MissingExtra
from outlay.export.gcp import GCPOptions, completed, plain_channel
from outlay.export.time_series import PREFIX, RESOURCE, Series, time_series
from outlay.goodput.readings import Reading

ENDPOINT = "OUTLAY_GCP_MONITORING_ENDPOINT"
TIMEOUT_S = 30.0
AT_ONCE = 200  # As many series as the service takes in one request.


class MonitoringClient:
    """Google's client of one project.

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
        channel = plain_channel(ENDPOINT)
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
        """Create the points; raises what the service answers."""
        for first in range(0, len(series), AT_ONCE):
            self._client.create_time_series(
                name=self.project,
                time_series=list(series[first : first + AT_ONCE]),
                timeout=TIMEOUT_S,
                retry=None,
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.transport.close()


class CloudMonitoringSink:
    """The series of one workload.

    Args:
        workload_id: The job's name.
        options: Which project, location, replica and accelerator; None: as the machine says.

    Raises:
        MissingExtra: Google's client is not installed.
        InvalidValue: Nothing says which project, or where, the workload is.
    """

    def __init__(self, workload_id: str, options: GCPOptions) -> None:
        self._options = completed(options)
        assert self._options.project_id is not None
        self._client = MonitoringClient(self._options.project_id)
        self._resource = {
            "location": self._options.location or "",
            "workload_id": workload_id,
            "replica_id": self._options.replica_id,
        }

    def write(self, reading: Reading) -> None:
        """Create one point in each series."""
        found = time_series(reading, self._options)
        self._client.send([self._of(series, reading.t_ns) for series in found])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _of(self, series: Series, t_ns: int) -> Any:
        kind = "int64_value" if isinstance(series.value, int) else "double_value"
        value = {kind: series.value}
        about = (RESOURCE, self._resource)
        name = PREFIX + series.name
        return self._client.series(name, value, series.labels, about, end_time(t_ns))


def end_time(t_ns: int) -> tuple[int, int]:
    """Return an instant as the service takes it: whole seconds, and nanoseconds."""
    return divmod(t_ns, 1_000_000_000)
