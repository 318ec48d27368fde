"""Google Cloud: a job's log in Cloud Logging, and project, zone and accelerator of this machine.

Queries only the metadata service, and only for options that the user left out. Of a credentials
file only the project is read; Google's own clients use the rest. With an explicit endpoint, such as
an emulator, no credentials are used.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.compat.ml_goodput_measurement.recorder import Entry, EntryInfo, plain
from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, MissingExtra
from outlay.export.background import Background, Limits, Outcome

_log = logging.getLogger("outlay")

ACCELERATOR_OF_MACHINE_TYPE = {
    "tpu7x": "TPU-7x",
    "ct6e": "TPU-v6e",
    "ct5p": "TPU-v5p",
    "ct5lp": "TPU-v5e",
    "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p",
    "ct3p": "TPU-v3",
    "ct3": "TPU-v3",
    "tpu-v2": "TPU-v2",
    "tpu": "TPU",
    "a3-edgegpu": "NVIDIA-H100",
    "a3-highgpu": "NVIDIA-H100",
    "a3-megagpu": "NVIDIA-H100",
    "a3-ultragpu": "NVIDIA-H200",
    "a2": "NVIDIA-A100",
    "gpu": "GPU",
}
"""Accelerator by a part of the machine type's name; the first match counts."""


@dataclass(frozen=True, slots=True)
class GCPOptions:
    """A job's workload on Google Cloud, and which metrics are uploaded.

    Options that are None come from the machine's metadata service.
    """

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


def completed(options: GCPOptions) -> GCPOptions:
    """Fill in missing options from the environment and the metadata service.

    Raises:
        InvalidValue: Project or location is not known.
    """

    def needed(name: str, given: str | None, ask: Callable[[], str | None]) -> str:
        value = given or ask()
        if not value:
            expected = f"GCPOptions to name it: {NOTHING_SAYS}"
            raise InvalidValue(name, given, expected)
        return value

    return replace(
        options,
        project_id=needed("project_id", options.project_id, project_id),
        location=needed("location", options.location, zone),
        acc_type=options.acc_type or accelerator_type(),
        cluster_name=options.cluster_name or cluster_name(),
    )


def metadata(
    category: str, attribute: str, timeout: float | None = 5, retries: int = 3
) -> str | None:
    """Query the metadata service; None if there is no such service or value.

    Args:
        category: ``instance`` or ``project``.
        attribute: The path below it, such as ``zone``.
        timeout: In seconds.
        retries: How often to retry if the service does not answer or is too busy.
    """
    import httpx2

    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{category}/{attribute}"
    with httpx2.Client(timeout=timeout, trust_env=False) as client:
        for _ in range(retries + 1):
            try:
                answer = client.get(url, headers={"Metadata-Flavor": "Google"})
            except httpx2.ConnectError:
                break  # Not on Google Cloud: a retry would not change that.
            except httpx2.HTTPError:
                continue
            if answer.is_success:
                return answer.text
            if answer.status_code not in (429, 500, 502, 503, 504):
                break
    _log.info("the metadata service has no %s/%s", category, attribute)
    return None


PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
NOTHING_SAYS = "neither the environment nor a metadata service of this machine does"


def project_id() -> str | None:
    """Return the project, found as Google's clients find it.

    From ``GOOGLE_CLOUD_PROJECT``, else from the file ``GOOGLE_APPLICATION_CREDENTIALS``, else from
    the metadata service.
    """
    named = next(filter(None, map(os.environ.get, PROJECT_VARIABLES)), None)
    return named or _project_of_credentials() or metadata("project", "project-id")


def _project_of_credentials() -> str | None:
    path = os.environ.get(CREDENTIALS_VARIABLE)
    if not path:
        return None
    try:
        project = read_document(Path(path), dict[str, Any]).get("project_id")
    except (OSError, BadDocument) as error:
        _log.warning("the file that %s names cannot be read: %s", CREDENTIALS_VARIABLE, error)
        return None
    return project if isinstance(project, str) else None


def zone() -> str | None:
    """Return this machine's zone, such as ``us-central1-a``."""
    path = metadata("instance", "zone")
    return path.rpartition("/")[2] if path else None


def accelerator_type() -> str:
    """Return this machine's accelerator, by its machine type; else ``UNKNOWN``."""
    machine = (metadata("instance", "machine-type") or "").rpartition("/")[2].lower()
    fitting = (name for part, name in ACCELERATOR_OF_MACHINE_TYPE.items() if part in machine)
    return next(fitting, "UNKNOWN")


def cluster_name() -> str | None:
    """Return the name of this machine's cluster."""
    return metadata("instance", "attributes/cluster-name")


def plain_channel(variable: str) -> Any:
    """Return a gRPC channel without TLS and credentials to the endpoint in a variable.

    None if it is not set: then Google's client finds its service and credentials.

    Raises:
        MissingExtra: Google's clients are not installed.
    """
    endpoint = os.environ.get(variable)
    if not endpoint:
        return None
    try:
        import grpc
    except ImportError:
        raise MissingExtra("reaching Google Cloud", "gcp") from None
    return grpc.insecure_channel(endpoint)


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
        expected = f"project_id= or GOOGLE_CLOUD_PROJECT to name it: {NOTHING_SAYS}"
        raise InvalidValue("project_id", given, expected)
    return chosen


def _to_microseconds(moment: datetime) -> datetime:
    """Truncate to microseconds; an entry with more digits may be read twice."""
    return datetime.combine(moment.date(), moment.timetz()).astimezone(UTC)


def _quoted(moment: datetime) -> str:
    return json.dumps(moment.astimezone(UTC).isoformat().replace("+00:00", "Z"))
