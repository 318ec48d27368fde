"""Readings as OpenTelemetry metrics over OTLP/HTTP, each exported before the call returns.

No provider of OpenTelemetry's is installed: what the training exports itself is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay._version import __version__
from outlay.errors import MissingExtra, OutlayError
from outlay.export.scalars import FinishedReading, scalars
from outlay.runs.reading import RunReading

TIMEOUT_S = 10


class OtlpRefused(OutlayError):
    """The collector did not take a reading."""

    def __init__(self) -> None:
        super().__init__("the OTLP collector did not take a reading; its reason was logged")


@dataclass(frozen=True, slots=True)
class _Point:
    """One number, with its metric's name, unit and attributes; growing if it only ever grows."""

    name: str
    unit: str
    value: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    growing: bool = False


class OtlpSink:
    """An OTLP receiver, such as a collector.

    Args:
        endpoint: Its URL, with ``/v1/metrics``; "" for what OpenTelemetry's variables say.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str = "") -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import export
        except ImportError:
            raise MissingExtra("exporting over OTLP", "otlp") from None
        self._api: Any = export
        self._exporter = OTLPMetricExporter(endpoint=endpoint or None, timeout=TIMEOUT_S)

    def write(self, reading: FinishedReading) -> None:
        """Export a reading's numbers at its instant.

        Raises:
            OtlpRefused: The receiver did not take them.
        """
        done = self._exporter.export(self._data(reading))
        if done is not self._api.MetricExportResult.SUCCESS:
            raise OtlpRefused

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def _data(self, reading: FinishedReading) -> Any:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        about = {"service.name": "outlay"}
        started_ns = 0
        if isinstance(reading, RunReading):
            facts = {name.replace("/", "."): text for name, text in reading.facts.items()}
            about |= facts
            started_ns = reading.figures.started_ns
        metrics = [self._metric(point, reading.t_ns, started_ns) for point in _points(reading)]
        scope = self._api.ScopeMetrics(
            scope=InstrumentationScope("outlay", __version__), metrics=metrics, schema_url=""
        )
        resource = Resource(about)
        return self._api.MetricsData(
            [self._api.ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")]
        )

    def _metric(self, point: _Point, t_ns: int, started_ns: int) -> Any:
        api = self._api
        number = api.NumberDataPoint(
            attributes=dict(point.attributes),
            start_time_unix_nano=started_ns,
            time_unix_nano=t_ns,
            value=point.value,
        )
        data = api.Gauge(data_points=[number])
        if point.growing:
            data = api.Sum([number], api.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return api.Metric(name=point.name, description="", unit=point.unit, data=data)


def _points(reading: FinishedReading) -> Iterator[_Point]:
    if isinstance(reading, RunReading):
        yield from _run_points(reading)
        return
    for scalar in scalars(reading):
        window = {} if scalar.window_s is None else {"window_s": str(scalar.window_s)}
        unit = "s" if scalar.name == "step_deviation" else "%"
        yield _Point(f"outlay.{scalar.name.replace('/', '.')}", unit, scalar.value, window)


def _run_points(run: RunReading) -> Iterator[_Point]:
    figures = run.figures
    money = f"{{{run.currency_suffix.upper()}}}"
    yield _Point("outlay.run.steps", "{step}", figures.steps)
    yield _Point("outlay.run.attempts", "{attempt}", figures.attempts, growing=True)
    yield _Point("outlay.run.tokens", "{token}", figures.tokens, growing=True)
    yield _Point("outlay.run.samples", "{sample}", figures.samples, growing=True)
    yield _Point("outlay.run.duration", "s", figures.wall_ns / 1e9, growing=True)
    for phase, ns in run.breakdown.phases.items():
        yield _Point("outlay.run.phase.duration", "s", ns / 1e9, {"phase": phase})
    if figures.goodput is not None:
        yield _Point("outlay.run.goodput", "1", figures.goodput)
    for limit, share in run.budget_shares.items():
        yield _Point("outlay.run.budget.used", "1", share, {"limit": limit})
    if run.cost.cost is not None:
        cost = float(run.cost.cost.amount)
        yield _Point("outlay.run.cost", money, cost, growing=True)
        for phase, part in run.cost.by_phase.items():
            yield _Point("outlay.run.phase.cost", money, float(part.amount), {"phase": phase})
