"""Documented values of cost analysis: TrainingMetrics and TrainingCostReport.

Their amounts are floats in currency units, as documented; internally, money is exact and each float
is rounded from it once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlay.clock import SYSTEM, Clock, as_utc, utc_datetime, utc_now
from outlay.cost.compare import efficiency
from outlay.errors import InvalidValue
from outlay.ledger import exact_gpus
from outlay.rates import NS_PER_HOUR, rate_of
from outlay.rates import cost as priced
from outlay.units import Money, Rate
from outlay.units.money import per
from outlay.units.quantity import MILLIJOULES_PER_WH, exact_decimal

if TYPE_CHECKING:
    from outlay.cost.run_cost import RunCost
    from outlay.goodput.follower import RunView


@dataclass
class TrainingMetrics:
    """The metrics of a training and the hourly price of its GPUs.

    Attributes:
        gpu_price_per_hour: Of one GPU.
        test_accuracy: As a fraction; None if unknown, which is not 0.
        gpu_count: GPUs of the whole run.
        total_cost: Overrides price times hours.
        throughput: Samples per second, if measured.
        hours_used: ``total_duration_hours``, if that is 0; ``accuracy`` is an alias of
            ``test_accuracy``.
        energy_wh: Watt-hours, if measured.
    """

    run_id: str
    model_name: str
    num_samples: int
    num_epochs: float
    batch_size: int
    learning_rate: float
    total_duration_hours: float
    gpu_name: str
    gpu_price_per_hour: float
    validation_loss: float | None = None
    test_accuracy: float | None = None
    tokens_processed: int | None = None
    timestamp: datetime = field(default_factory=utc_now)
    gpu_count: int = field(default=1, kw_only=True)
    provider: str = field(default="", kw_only=True)
    total_cost: float | None = field(default=None, kw_only=True)
    throughput: float | None = field(default=None, kw_only=True)
    accuracy: float | None = field(default=None, kw_only=True)
    hours_used: float | None = field(default=None, kw_only=True)
    energy_wh: float | None = field(default=None, kw_only=True)
    currency: str = field(default="USD", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)
        if self.test_accuracy is None:
            self.test_accuracy = self.accuracy
        self.accuracy = self.test_accuracy
        if self.hours_used is None:
            self.hours_used = self.total_duration_hours
        elif not self.total_duration_hours:
            self.total_duration_hours = self.hours_used

    @classmethod
    def from_run(
        cls, run_dir: Path | str, *, price: object = None, clock: Clock = SYSTEM
    ) -> TrainingMetrics:
        """Return the metrics of a recorded run, with its exact cost.

        Args:
            run_dir: The run's directory.
            price: Per GPU-hour, used only if the run recorded none.
            clock: The present, for a live run.

        Raises:
            InvalidValue: The run has no price, so its cost is unknown.
            NotARun: There is no run log.
        """
        from outlay.cost.run_cost import cost_of
        from outlay.goodput.follower import read_view

        view = read_view(run_dir, clock.wall_ns())
        return _metrics_of(view, cost_of(view), price)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the timestamp in ISO 8601."""
        return asdict(self) | {"timestamp": self.timestamp.isoformat()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingMetrics:
        """Return the metrics of ``to_dict``; unknown keys are ignored."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        if "timestamp" in known:
            known["timestamp"] = datetime.fromisoformat(known["timestamp"])
        return cls(**known)

    def cost(self) -> Money:
        """Return the training's cost: ``total_cost``, else price times GPUs times hours.

        Raises:
            InvalidValue: A figure is negative, not finite, or not a number.
        """
        if self.total_cost is not None:
            return Money.parse(self.total_cost, name="total_cost", currency=self.currency)
        rate = Rate.parse(
            self.gpu_price_per_hour, name="gpu_price_per_hour", currency=self.currency
        )
        return priced(rate_of(rate, self._whole("gpu_count", 1)), self.duration_ns())

    def duration_ns(self) -> int:
        """Return the duration in nanoseconds."""
        expected = "a number of hours, zero or more"
        name = "total_duration_hours"
        hours = exact_decimal(self.total_duration_hours, name=name, expected=expected)
        if hours < 0 or hours.adjusted() > 9:
            raise InvalidValue(name, self.total_duration_hours, expected)
        return int((hours * NS_PER_HOUR).to_integral_value())

    def _whole(self, name: str, least: int) -> int:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidValue(name, value, f"a whole number, {least} or more")
        return value

    def check(self) -> None:
        """Raise InvalidValue if a figure or a name is invalid."""
        for name in ("run_id", "model_name", "currency"):
            if not isinstance(getattr(self, name), str):
                raise InvalidValue(name, getattr(self, name), "a text")
        if not self.run_id:
            raise InvalidValue("run_id", self.run_id, "a name that no other run has")
        for name in ("num_samples", "batch_size"):
            self._whole(name, 0)
        if self.tokens_processed is not None:
            self._whole("tokens_processed", 0)
        for name in ("num_epochs", "test_accuracy", "validation_loss", "throughput", "energy_wh"):
            if (value := getattr(self, name)) is not None:
                exact_decimal(value, name=name, expected="a finite number")
        if self.num_epochs < 0:
            raise InvalidValue("num_epochs", self.num_epochs, "a number, zero or more")


@dataclass
class TrainingCostReport:
    """The cost of a training, in total and per unit of work.

    Attributes:
        gpu_hours: Hours times GPUs.
        cost_per_token: Per **million** tokens.
        efficiency_score: Accuracy per dollar, divided by 10, at most 1; 0 without an accuracy.
        cost_per_accuracy_point: Per 1.0 of accuracy.
    """

    run_id: str
    model_name: str
    total_cost: float
    gpu_hours: float
    cost_per_sample: float
    cost_per_epoch: float
    cost_per_token: float | None = None
    efficiency_score: float = 0.0
    cost_per_accuracy_point: float | None = None
    metrics: TrainingMetrics | None = None
    timestamp: datetime = field(default_factory=utc_now)
    currency: str = field(default="USD", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, timestamps in ISO 8601."""
        nested = None if self.metrics is None else self.metrics.to_dict()
        return asdict(self) | {"metrics": nested, "timestamp": self.timestamp.isoformat()}

    @classmethod
    def of(cls, metrics: TrainingMetrics) -> TrainingCostReport:
        """Return the report of a training.

        Raises:
            InvalidValue: A figure is invalid.
        """
        metrics.check()
        total = metrics.cost()
        accuracy, tokens = metrics.test_accuracy, metrics.tokens_processed
        gpu_hours = Decimal(metrics.duration_ns() * metrics.gpu_count) / NS_PER_HOUR
        return cls(
            run_id=metrics.run_id,
            model_name=metrics.model_name,
            total_cost=float(total.amount),
            gpu_hours=float(gpu_hours),
            cost_per_sample=per(total, metrics.num_samples) or 0.0,
            cost_per_epoch=per(total, metrics.num_epochs) or 0.0,
            cost_per_token=per(total * 10**6, tokens),
            efficiency_score=efficiency(total, accuracy),
            cost_per_accuracy_point=per(total, accuracy),
            metrics=metrics,
            timestamp=metrics.timestamp,
            currency=total.currency,
        )


def _metrics_of(view: RunView, cost: RunCost, price: object) -> TrainingMetrics:
    from outlay.cost.run_cost import LEARNING_RATE, best_loss

    last = view.timeline.attempts[-1]
    header = last.header
    recorded = last.prices[-1].price if last.prices else header.price
    if recorded is not None:
        rate = Rate(recorded.micros_per_hour, recorded.currency)
    elif price is not None:
        rate = Rate.parse(price, name="price")
    else:
        raise InvalidValue("price", None, f"a price: {view.dir} recorded none; pass price=")
    rates = view.account.series(*LEARNING_RATE)
    energy_mj = view.energy_mj()
    return TrainingMetrics(
        run_id=cost.run_id,
        model_name=cost.model,
        num_samples=cost.samples,
        num_epochs=cost.epochs or 0,
        batch_size=round(cost.samples / cost.steps) if cost.steps else 0,
        learning_rate=rates[-1].value if rates else 0.0,
        total_duration_hours=cost.wall_ns / NS_PER_HOUR,
        gpu_name=header.gpu,
        gpu_price_per_hour=float(rate.per_hour.amount),
        validation_loss=best_loss(view.account),
        test_accuracy=cost.accuracy,
        tokens_processed=cost.tokens or None,
        timestamp=utc_datetime(cost.window.end_ns),
        gpu_count=math.ceil(exact_gpus(header.gpus)),
        total_cost=None if cost.cost is None else float(cost.cost.amount),
        throughput=cost.samples / (cost.wall_ns / 1e9) if cost.wall_ns else None,
        energy_wh=energy_mj / MILLIJOULES_PER_WH if energy_mj else None,
        # A run pays in its first currency, whatever its last price was stated in.
        currency=rate.currency if cost.cost is None else cost.cost.currency,
    )
