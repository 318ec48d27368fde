"""Google Cloud Logging as a goodput log, and Google Cloud Monitoring as a sink."""

from __future__ import annotations

import atexit
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import quote

from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.errors import InvalidValue, MissingExtra
from outlay.export.background import Background, Limits, Outcome
from outlay.export.gcp import NOTHING_SAYS, GCPOptions, completed, plain_channel, project_id
from outlay.export.scalars import PREFIX, RESOURCE, FinishedReading, MetricSeries, time_series
from outlay.goodput.goodput_recorder import Entry, EntryInfo, plain

# Google Cloud Logging, through Google's client
#
# Entries are written in the background, in batches with retries; reading resumes after the last
# entry seen.

LOGGING_ENDPOINT = "OUTLAY_GCP_LOGGING_ENDPOINT"
TIMEOUT_S = 30.0
RETENTION = timedelta(days=30)  # Cloud Logging's default.
WAITING = 100_000
ATTEMPTS = 5
PAGE = 1000


class CloudLogger:
    """A job's entries in Google Cloud Logging.

    Args:
        job_name: Entries of other jobs are dropped.
        log_name: The log's name in the project.
        max_logs_retention_period: How far back to read if no start time is given.
        background_grace_period_s: Timeout of ``flush``, and at the exit of Python.
        background_batch_size: The largest number of entries in one request.
        background_max_latency_s: How long an entry may wait for others to fill its batch.
        project_id: Default: from the environment, the credentials or the metadata service.
        clock: Timestamps of entries.

    Raises:
        MissingExtra: Google's client is not installed.
        InvalidValue: The project is not known.
    """

    def __init__(
        self,
        job_name: str,
        log_name: str,
        max_logs_retention_period: timedelta | None = None,
        *,
        background_grace_period_s: float = 5.0,
        background_batch_size: int = 100,
        background_max_latency_s: float = 2.0,
        project_id: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.job_name = job_name
        self.log_name = log_name
        self.retention = max_logs_retention_period or RETENTION
        self.project_id = _project(project_id)
        self._grace_s = background_grace_period_s
        self._clock = clock
        self._client = _client()
        self._ids = (f"{uuid.uuid4().hex[:8]}-{number:010d}" for number in count())
        self._sending: Background[dict[str, Any]] = Background(
            f"Cloud Logging of job {job_name}",
            self._send,
            Limits(
                waiting=WAITING,
                batch=background_batch_size,
                attempts=ATTEMPTS,
                linger_s=background_max_latency_s,
            ),
        )
        atexit.register(self._at_exit)

    @property
    def outcome(self) -> Outcome:
        """How many entries were sent and lost."""
        return self._sending.outcome

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Enqueue an entry; it is sent in the background."""
        if entry is None or entry.get("job_name", self.job_name) != self.job_name:
            return
        self._sending.offer(
            {
                "insert_id": next(self._ids),
                "timestamp": utc_datetime(self._clock.wall_ns()),
                "severity": "INFO",
                "json_payload": plain(entry),
            }
        )

    def flush(self) -> None:
        """Wait until all entries are sent, at most for the grace period."""
        self._sending.drain(self._grace_s)

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        """Return the entries in an interval, or after the last one seen, and the new last one."""
        from google.cloud.logging_v2.types import LogEntry
        from google.protobuf.json_format import MessageToDict

        end = end_time or utc_datetime(self._clock.wall_ns())
        start = start_time or end - self.retention
        entries: list[Entry] = []
        last: EntryInfo = last_entry_info or (None, None)
        for found in self._client.list_log_entries(
            request={
                "resource_names": [f"projects/{self.project_id}"],
                "filter": self._filter(start, end, last_entry_info),
                "order_by": "timestamp asc",
                "page_size": PAGE,
            },
            timeout=TIMEOUT_S,
        ):
            entries.append(MessageToDict(LogEntry.pb(found).json_payload))
            last = (_to_microseconds(found.timestamp), found.insert_id)
        return entries, last

    def _filter(self, start: datetime, end: datetime, last: EntryInfo | None) -> str:
        after = f"timestamp>{_quoted(start)}"
        if last is not None and last[0] is not None and last[1]:
            at = _quoted(last[0])
            after = f"(timestamp>{at} OR (timestamp={at} AND insertId>{json.dumps(last[1])}))"
        return " AND ".join(
            [
                f"logName={json.dumps(self._full_name)}",
                "severity=INFO",
                f"jsonPayload.job_name={json.dumps(self.job_name)}",
                f"timestamp<={_quoted(end)}",
                after,
            ]
        )

    @property
    def _full_name(self) -> str:
        return f"projects/{self.project_id}/logs/{quote(self.log_name, safe='')}"

    def _send(self, batch: Sequence[dict[str, Any]]) -> None:
        resource = {"type": "global", "labels": {"project_id": self.project_id}}
        self._client.write_log_entries(
            log_name=self._full_name,
            resource=resource,
            entries=batch,
            timeout=TIMEOUT_S,
            retry=None,
        )

    def _at_exit(self) -> None:
        if not self._sending.drain(self._grace_s):
            self._sending.abandon()


def _client() -> Any:
    try:
        from google.cloud.logging_v2.services.logging_service_v2 import (
            LoggingServiceV2Client,
            transports,
        )
    except ImportError:
        raise MissingExtra("logging to Google Cloud", "gcp") from None
    channel = plain_channel(LOGGING_ENDPOINT)
    transport = channel and transports.LoggingServiceV2GrpcTransport(channel=channel)
    return LoggingServiceV2Client(transport=transport or None)


def _project(given: str | None) -> str:
    chosen = given or project_id()
    if not chosen:
        expected = f"a project: {NOTHING_SAYS} name one"
        raise InvalidValue("project_id", given, expected)
    return chosen


def _to_microseconds(moment: datetime) -> datetime:
    """Truncate to microseconds; an entry with more digits may be read twice."""
    return datetime.combine(moment.date(), moment.timetz()).astimezone(UTC)


def _quoted(moment: datetime) -> str:
    return json.dumps(moment.astimezone(UTC).isoformat().replace("+00:00", "Z"))


# Google Cloud Monitoring, through Google's client

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


class CloudMonitoringSink:
    """The time series of one workload.

    Args:
        workload_id: The job's name.
        options: Project, location, replica and accelerator; None: from the metadata service.

    Raises:
        MissingExtra: Google's client is not installed.
        InvalidValue: Project or location is not known.
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

    def write(self, reading: FinishedReading) -> None:
        """Create one point in each series."""
        found = time_series(reading, self._options)
        self._client.send([self._of(series, reading.t_ns) for series in found])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _of(self, series: MetricSeries, t_ns: int) -> Any:
        kind = "int64_value" if isinstance(series.value, int) else "double_value"
        value = {kind: series.value}
        about = (RESOURCE, self._resource)
        name = PREFIX + series.name
        return self._client.series(name, value, series.labels, about, end_time(t_ns))


def end_time(t_ns: int) -> tuple[int, int]:
    """Split an instant into whole seconds and nanoseconds, as the service takes it."""
    return divmod(t_ns, 1_000_000_000)
