"""Sinks for experiment trackers: an existing W&B run, an existing MLflow run, an OTLP receiver.

W&B and MLflow keep a history by step; no step's deviation is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay._version import __version__
from outlay.errors import MissingExtra, OutlayError
from outlay.export.scalars import STEP_DEVIATION, FinishedReading, Scalar, new_scalars, scalars
from outlay.runs.figures import PREFIX, exported_numbers
from outlay.runs.reading import RunReading

# W&B, in the process of the W&B run
#
# Rows are left uncommitted: W&B adds them to the next row that the training logs. Committing would
# advance W&B's own step, and W&B drops rows that are then logged with a smaller one.

STEP_AXIS = f"{PREFIX}step"
_DEVIATION_STEP = f"{PREFIX}deviation_step"


class WandbSink:
    """Rows and summary of an existing W&B run.

    Args:
        run: From ``wandb.init``.
        against_cost: Metrics to plot against cost, such as ``"eval/*"``.
        commit: Whether each reading is a row of its own: for a run without other rows.
    """

    def __init__(
        self, run: Any, against_cost: tuple[str, ...] = (), *, commit: bool = False
    ) -> None:
        self._run = run
        self._cost = 0.0
        self._against_cost = against_cost
        self._commit = commit
        self._is_defined = False

    def write(self, reading: FinishedReading) -> None:
        """Log a reading's numbers; those of a run also go to the W&B summary."""
        self._define()
        if isinstance(reading, RunReading):
            self._write_run(reading)
            return
        rows: dict[int, dict[str, float]] = {}
        new, _ = new_scalars(reading, self._last_deviation())
        for scalar in new:
            if scalar.name == STEP_DEVIATION:
                self._log(scalar.step, {scalar.name: scalar.value, _DEVIATION_STEP: scalar.step})
            else:
                rows.setdefault(scalar.step, {})[scalar.name] = scalar.value
        for step, values in rows.items():
            self._log(step, values)

    def close(self) -> None:
        """Leave the run open: its owner finishes it."""

    def _write_run(self, reading: RunReading) -> None:
        axis = f"{PREFIX}cost_{reading.currency_suffix}"
        cost = reading.values.get(axis)
        if cost is not None and cost < max(self._cost, _number(self._run.summary, axis)):
            return  # Cost is an axis and must not decrease; a later reading was logged already.
        self._log(reading.step, reading.values)
        self._run.summary.update(reading.values | reading.facts)
        if cost is not None:
            if not self._cost:
                # After the log: W&B gives a metric whose axis has no value yet the value 0.
                for pattern in self._against_cost:
                    self._run.define_metric(pattern, step_metric=axis)
            self._cost = cost

    def _define(self) -> None:
        if not self._is_defined:
            self._run.define_metric(STEP_AXIS)
            for pattern in (f"{PREFIX}*", "goodput/*", "badput/*", STEP_DEVIATION):
                self._run.define_metric(pattern, step_metric=STEP_AXIS)
            self._is_defined = True

    def _last_deviation(self) -> int:
        return int(_number(self._run.summary, _DEVIATION_STEP, -1))

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP_AXIS: step}, commit=self._commit)


def _number(summary: Any, name: str, default: float = 0.0) -> float:
    value = summary.get(name)
    return float(value) if isinstance(value, int | float) else default


# MLflow, by client and run id: MLflow's active run is not touched

_NOT_IN_A_KEY = re.compile(r"[^\w/. :-]")


class MlflowSink:
    """Metrics and tags of an existing MLflow run; "" is MLflow's configured server.

    Raises:
        MissingExtra: MLflow is not installed.
    """

    def __init__(self, run_id: str, tracking_uri: str = "") -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtra("logging to MLflow", "mlflow") from None
        self._metric = Metric
        self._run_id = run_id
        self._client: Any = MlflowClient(tracking_uri or None)
        history = self._client.get_metric_history(run_id, STEP_DEVIATION)
        self._last_step = max((point.step for point in history), default=-1)
        self._facts: dict[str, str] = {}

    def write(self, reading: FinishedReading) -> None:
        """Log a reading's numbers, each step's deviation once; texts about a run become tags."""
        new, last_step = new_scalars(reading, self._last_step)
        at_ms = reading.t_ns // 1_000_000
        for start in range(0, len(new), 1000):  # The server's limit per request.
            metrics = [self._point(scalar, at_ms) for scalar in new[start : start + 1000]]
            self._client.log_batch(self._run_id, metrics=metrics)
        self._last_step = last_step
        if isinstance(reading, RunReading):
            for name, text in reading.facts.items():
                if self._facts.get(name) != text:
                    self._client.set_tag(self._run_id, name, text)
            self._facts = dict(reading.facts)

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _point(self, scalar: Scalar, at_ms: int) -> Any:
        key = _NOT_IN_A_KEY.sub("_", scalar.name)
        return self._metric(key, scalar.value, at_ms, max(scalar.step, 0))


# OpenTelemetry metrics over OTLP/HTTP
#
# No provider of OpenTelemetry is installed, so that the training's own export is not affected.

_OTLP_TIMEOUT_S = 10


class OtlpRefused(OutlayError):
    """The collector did not accept a reading."""

    def __init__(self) -> None:
        super().__init__("the OTLP collector did not accept a reading; its reason was logged")


@dataclass(frozen=True, slots=True)
class _Point:
    """One number of a metric; ``growing`` for a monotonic sum, else a gauge."""

    name: str
    unit: str
    value: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    growing: bool = False
    about: str = ""


class OtlpSink:
    """An OTLP/HTTP receiver, such as a collector.

    Args:
        endpoint: Its URL, with ``/v1/metrics``; "" for OpenTelemetry's environment variables.

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
        self._exporter = OTLPMetricExporter(endpoint=endpoint or None, timeout=_OTLP_TIMEOUT_S)

    def write(self, reading: FinishedReading) -> None:
        """Export a reading's numbers with its timestamp, before the call returns.

        Raises:
            OtlpRefused: The receiver did not accept them.
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
            about |= {name.replace("/", "."): text for name, text in reading.facts.items()}
            started_ns = reading.figures.started_ns
        metrics = [self._metric(point, reading.t_ns, started_ns) for point in _points(reading)]
        scope = self._api.ScopeMetrics(
            scope=InstrumentationScope("outlay", __version__), metrics=metrics, schema_url=""
        )
        metrics_of_run = self._api.ResourceMetrics(
            resource=Resource(about), scope_metrics=[scope], schema_url=""
        )
        return self._api.MetricsData([metrics_of_run])

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
        return api.Metric(name=point.name, description=point.about, unit=point.unit, data=data)


def _points(reading: FinishedReading) -> Iterator[_Point]:
    if isinstance(reading, RunReading):
        yield from _run_points(reading)
        return
    for scalar in scalars(reading):
        window = {} if scalar.window_s is None else {"window_s": str(scalar.window_s)}
        unit = "s" if scalar.name == "step_deviation" else "%"
        yield _Point(f"outlay.{scalar.name.replace('/', '.')}", unit, scalar.value, window)


def _run_points(run: RunReading) -> Iterator[_Point]:
    row, currency = run.figures, run.currency_suffix
    for figure in exported_numbers():
        if (value := figure.scaled(row)) is not None:
            unit = figure.otlp_unit(currency)
            yield _Point(figure.otlp_name, unit, value, growing=figure.counter, about=figure.about)
    for phase, ns in run.breakdown.phases.items():
        yield _Point("outlay.run.phase.duration", "s", ns / 1e9, {"phase": phase})
    for limit, share in run.budget_shares.items():
        yield _Point("outlay.run.budget.used", "1", share, {"limit": limit})
    for phase, part in run.cost.by_phase.items():
        unit = f"{{{part.currency}}}"
        yield _Point("outlay.run.phase.cost", unit, float(part.amount), {"phase": phase})
