"""Google's services on loopback: Monitoring and Logging over gRPC, the metadata service over HTTP.

They speak the official messages, reject what they do not implement, and fail as a test configures.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from google.cloud.logging_v2.types import (
    ListLogEntriesRequest,
    ListLogEntriesResponse,
    WriteLogEntriesRequest,
    WriteLogEntriesResponse,
)
from google.cloud.monitoring_v3.types import CreateTimeSeriesRequest
from google.protobuf.empty_pb2 import Empty

from outlay.compat.ml_goodput_measurement.cloud import LOGGING_ENDPOINT
from outlay.compat.ml_goodput_measurement.gcp_metrics import MONITORING_ENDPOINT

INFO = 200  # Of google.logging.type.LogSeverity.
PAGE = 3  # Small, so that tests read several pages.
REJECTED = "rejected by the stand-in"


@dataclass
class Fault:
    """How a service fails: with a status code (so often; -1: always), or without an answer."""

    status: grpc.StatusCode | None = None
    times: int = -1
    hangs: bool = False
    released: threading.Event = field(default_factory=threading.Event)

    def apply(self, context: Any) -> None:
        if self.hangs:
            self.released.wait()
        if self.status is not None and self.times != 0:
            self.times -= 1
            context.abort(self.status, REJECTED)


@dataclass
class Monitoring:
    """Keeps the points that were created."""

    fault: Fault = field(default_factory=Fault)
    requests: list[Any] = field(default_factory=list)

    def create(self, request: Any, context: Any) -> Empty:
        self.fault.apply(context)
        self.requests.append(request)
        return Empty()

    def series(self) -> list[Any]:
        return [series for request in self.requests for series in request.time_series]

    def value(self, name: str, **labels: str) -> float:
        """Return the last value of a series."""
        found = [
            point.value.double_value or point.value.int64_value
            for series in self.series()
            if series.metric.type.endswith(f"/{name}")
            and all(series.metric.labels.get(key) == text for key, text in labels.items())
            for point in series.points
        ]
        return float(found[-1])


@dataclass
class Logging:
    """Keeps entries, and lists those that match a filter."""

    fault: Fault = field(default_factory=Fault)
    entries: list[Any] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)

    def write(self, request: Any, context: Any) -> Any:
        self.fault.apply(context)
        known = {entry.insert_id for entry in self.entries}
        for entry in request.entries:
            if entry.insert_id not in known:
                entry.log_name = request.log_name
                self.entries.append(entry)
        return WriteLogEntriesResponse()

    def list(self, request: Any, context: Any) -> Any:
        self.fault.apply(context)
        assert request.order_by == "timestamp asc"
        self.filters.append(request.filter)
        wanted = [entry for entry in self.entries if matches(request.filter, entry)]
        wanted.sort(key=lambda entry: (entry.timestamp, entry.insert_id))
        first = int(request.page_token or 0)
        more = str(first + PAGE) if first + PAGE < len(wanted) else ""
        page = wanted[first : first + PAGE]
        return ListLogEntriesResponse(entries=page, next_page_token=more)


def matches(text: str, entry: Any) -> bool:
    """Return whether an entry matches a filter of the form ``a AND b AND (c OR (d AND e))``."""
    terms: dict[str, Callable[[str], bool]] = {
        "logName=": lambda value: value == entry.log_name,
        "severity=": lambda value: value == "INFO" and entry.severity == INFO,
        "jsonPayload.job_name=": lambda value: value == entry.json_payload["job_name"],
        "timestamp<=": lambda value: entry.timestamp <= instant(value),
        "timestamp>": lambda value: entry.timestamp > instant(value),
        "timestamp=": lambda value: entry.timestamp == instant(value),
        "insertId>": lambda value: entry.insert_id > value,
    }

    def decide(match: re.Match[str]) -> str:
        return str(terms[match[1]]((match[2] or match[3]).replace('\\"', '"')))

    names = "|".join(map(re.escape, terms))
    logic = re.sub(rf'({names})(?:"((?:[^"\\]|\\.)*)"|(\w+))', decide, text)
    assert re.fullmatch(r"(True|False|AND|OR|[ ()])+", logic), text
    return bool(eval(logic.replace("AND", "and").replace("OR", "or")))


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _handlers(service: str, methods: dict[str, tuple[Any, Any, Any]]) -> Any:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                work, request_deserializer=request.deserialize, response_serializer=serialize
            )
            for name, (work, request, serialize) in methods.items()
        },
    )


@contextmanager
def serve(handlers: Any, fault: Fault) -> Iterator[str]:
    """Serve on loopback, and yield the endpoint."""
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        fault.released.set()
        server.stop(grace=None).wait()


def monitoring_handlers(service: Monitoring) -> Any:
    to_bytes = Empty.SerializeToString
    methods = {"CreateTimeSeries": (service.create, CreateTimeSeriesRequest, to_bytes)}
    return _handlers("google.monitoring.v3.MetricService", methods)


def logging_handlers(service: Logging) -> Any:
    methods = {
        "WriteLogEntries": (
            service.write,
            WriteLogEntriesRequest,
            WriteLogEntriesResponse.serialize,
        ),
        "ListLogEntries": (service.list, ListLogEntriesRequest, ListLogEntriesResponse.serialize),
    }
    return _handlers("google.logging.v2.LoggingServiceV2", methods)


@contextmanager
def monitoring_on_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    """Replace Cloud Monitoring by a service on loopback."""
    service = Monitoring()
    with serve(monitoring_handlers(service), service.fault) as endpoint:
        monkeypatch.setenv(MONITORING_ENDPOINT, endpoint)
        yield service


@contextmanager
def logging_on_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logging]:
    """Replace Cloud Logging by a service on loopback."""
    service = Logging()
    with serve(logging_handlers(service), service.fault) as endpoint:
        monkeypatch.setenv(LOGGING_ENDPOINT, endpoint)
        yield service


class _Metadata(BaseHTTPRequestHandler):
    values: dict[str, str]
    failures: list[int]

    def do_GET(self) -> None:
        name = self.path.removeprefix("/computeMetadata/v1/")
        if self.failures:
            self.send_error(self.failures.pop())
        elif self.headers["Metadata-Flavor"] != "Google" or name not in self.values:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.values[name].encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_metadata(values: dict[str, str], failures: Sequence[int] = ()) -> Iterator[str]:
    """Serve a machine's metadata on loopback, after some failures, and yield the host."""
    handler = type("Metadata", (_Metadata,), {"values": values, "failures": list(failures)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
