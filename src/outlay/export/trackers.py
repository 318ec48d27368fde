"""Readings into experiment trackers: a W&B run, an MLflow run. Runs exist already; none is made.

Both keep a history by step, in which no step's deviation is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlay.errors import MissingExtra
from outlay.export.scalars import STEP_DEVIATION, FinishedReading, Scalar, new_scalars
from outlay.runs.figures import PREFIX
from outlay.runs.reading import RunReading

# W&B, in the process that holds the run.
#
# Rows are left uncommitted: they go with the next row that the training logs itself. To commit them
# would advance W&B's own step, and W&B drops what is then logged with a smaller one.

STEP_AXIS = f"{PREFIX}step"
_DEVIATION_STEP = f"{PREFIX}deviation_step"


class WandbSink:
    """Rows and figures of a W&B run that exists.

    Args:
        run: The run, as ``wandb.init`` returned it.
        against_cost: Metrics that are shown against dollars, such as ``"eval/*"``.
        commit: Whether each reading is a row of its own: for a run that nobody else logs to.
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
        """Log a reading's numbers; a run's also become figures of its summary."""
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
        """Leave the run open: it is its owner's to finish."""

    def _write_run(self, reading: RunReading) -> None:
        axis = f"{PREFIX}cost_{reading.currency_suffix}"
        cost = reading.values.get(axis)
        if cost is not None:
            if cost < max(self._cost, _number(self._run.summary, axis)):
                return  # Dollars are an axis, which never goes back; a later reading is ahead.
            if not self._cost:
                for pattern in self._against_cost:
                    self._run.define_metric(pattern, step_metric=axis)
            self._cost = cost
        self._log(reading.step, reading.values)
        self._run.summary.update(reading.values | reading.facts)

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


# MLflow, by client and run id: no state of MLflow's own is touched.

_NOT_IN_A_KEY = re.compile(r"[^\w/. :-]")


class MlflowSink:
    """Metrics and tags of an MLflow run that exists; "" is the server that MLflow is set to.

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
        """Log a reading's numbers, each step's deviation once; facts of a run become tags."""
        new, last_step = new_scalars(reading, self._last_step)
        at_ms = reading.t_ns // 1_000_000
        for start in range(0, len(new), 1000):  # As many as the server takes at once.
            metrics = [self._point(scalar, at_ms) for scalar in new[start : start + 1000]]
            self._client.log_batch(self._run_id, metrics=metrics)
        self._last_step = last_step
        if isinstance(reading, RunReading):
            for name, text in reading.facts.items():
                if self._facts.get(name) != text:
                    self._client.set_tag(self._run_id, name, text)
            self._facts = dict(reading.facts)

    def close(self) -> None:
        """Nothing is held open."""

    def _point(self, scalar: Scalar, at_ms: int) -> Any:
        key = _NOT_IN_A_KEY.sub("_", scalar.name)
        return self._metric(key, scalar.value, at_ms, max(scalar.step, 0))
