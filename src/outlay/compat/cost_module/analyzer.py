"""CostAnalyzer: cost reports, budgets, comparisons and forecasts of models; and its files.

A thin wrapper of the cost book without state of its own: it returns what the store contains,
whichever process recorded it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from outlay.clock import SYSTEM, Clock, utc_datetime, wall_ns_of
from outlay.compat.cost_module.data_directory import (
    BUDGETS,
    HISTORY,
    data_directory,
    log_imported,
    read_json,
    read_own,
    update_files,
    with_own,
    write_json,
    write_rows,
)
from outlay.compat.cost_module.training import TrainingCostReport, TrainingMetrics
from outlay.cost.compare import (
    by_model,
    compare,
    of_last_unit,
    pareto_front,
    point_of,
    return_on_investment,
)
from outlay.cost.cost_book import CostBook, report_cells
from outlay.cost.forecast import Backtest, backtest, forecast_model, past_costs
from outlay.cost.thresholds import BudgetAlert
from outlay.decoding import convert
from outlay.errors import Finding, OutlayError
from outlay.store import open_store, outlay_home
from outlay.store.connection import report_damage
from outlay.store.run_row import RunRow
from outlay.units import Money
from outlay.units.money import per
from outlay.units.quantity import MILLIJOULES_PER_WH

# Import and export of the cost module's files
#
# ``cost_history.json`` is ``{run id: report with its metrics}``, ``budgets.json`` is
# ``{model: limit}`` in dollars, without budgets in other currencies. An unreadable file is neither
# imported nor overwritten.

US_PER_HOUR = 3_600_000_000
_OWN_KEYS = frozenset({"gpu_count", "energy_wh", "currency", "assumed_cost"})
"""Of reports and their metrics; the cost module's loaders refuse keys that they do not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Number of reports and budgets imported or exported, and findings about the others."""

    reports: int
    budgets: int
    findings: tuple[Finding, ...] = ()


def import_costs(analyzer: CostAnalyzer, directory: Path, *, only_new: bool = False) -> Exchanged:
    """Import the reports and budgets of a directory; idempotent.

    Args:
        analyzer: Imports into its store.
        directory: Contains the files.
        only_new: Skip runs and models that are in the store already.

    Raises:
        CorruptCosts: A file exists and cannot be read; nothing was imported.
    """
    history, budgets = _read_history(directory), _read(directory / BUDGETS)
    if only_new:
        runs, models = analyzer.run_ids, analyzer.limits
        history = {run_id: value for run_id, value in history.items() if run_id not in runs}
        budgets = {model: value for model, value in budgets.items() if model not in models}
    findings: list[Finding] = []
    recorded = {row.run_id for row in analyzer.recorded()}
    unknown = {name: value for name, value in history.items() if name not in recorded}
    reports = _import_each(
        unknown, lambda name, value: _import_report(analyzer, name, value), findings
    )
    if skipped := len(history) - len(unknown):
        message = f"{skipped:,} reports were skipped: the logs of these runs are used instead"
        findings.append(Finding(source=HISTORY, message=message, severity="warning"))
    limits = _import_each(budgets, analyzer.set_budget, findings)
    return Exchanged(reports=reports, budgets=limits, findings=tuple(findings))


def export_costs(analyzer: CostAnalyzer, directory: Path) -> Exchanged:
    """Write all reports and budgets, and keep the other contents of the files.

    Raises:
        CorruptCosts: A file exists and cannot be read; nothing was written.
    """
    history, budgets = _read_history(directory), _read(directory / BUDGETS)
    recorded = analyzer.recorded()
    history |= {row.run_id: _report_from_row(row) for row in recorded if row.kind == "cash"}
    history |= {run_id: report.to_dict() for run_id, report in analyzer.cost_history.items()}
    limits = analyzer.limits
    budgets = {model: value for model, value in budgets.items() if model not in limits}
    budgets |= {model: float(m.amount) for model, m in limits.items() if m.currency == "USD"}
    write_rows(directory / HISTORY, history, _OWN_KEYS)
    write_json(directory / BUDGETS, budgets)
    left_out = [
        Finding(source=model, message=f"its budget of {limit} is not in dollars, so not written")
        for model, limit in limits.items()
        if limit.currency != "USD"
    ]
    if showback := sum(row.kind != "cash" for row in recorded):
        message = f"{showback:,} reports are showback, which the file cannot express: not written"
        left_out.append(Finding(source=HISTORY, message=message, severity="warning"))
    findings = (*left_out, *analyzer.damage)
    return Exchanged(reports=len(history), budgets=len(budgets), findings=findings)


def _import_each(
    values: dict[str, Any], record: Callable[[str, Any], None], findings: list[Finding]
) -> int:
    """Record each value; a rejected one is a finding. Return the number recorded."""
    imported = 0
    for name, value in values.items():
        try:
            record(name, value)
        except (OutlayError, KeyError, TypeError, ValueError, OverflowError) as error:
            findings.append(Finding(source=name, message=f"{type(error).__name__}: {error}"))
        else:
            imported += 1
    return imported


def _import_report(analyzer: CostAnalyzer, run_id: str, report: object) -> None:
    values = convert(report, dict[str, Any])
    metrics = TrainingMetrics.from_dict(values.get("metrics") or _minimal_metrics(values, run_id))
    analyzer.keep_training(metrics, assumed_cost=values.get("assumed_cost", 0))


def _report_from_row(row: RunRow) -> dict[str, Any]:
    """Return the report of a run log in the format of the file."""
    gpu_us, wall_us = row.gpu_ns // 1000, row.wall_ns // 1000
    gpus, rest = divmod(gpu_us, wall_us or 1)
    is_whole = gpus > 0 and rest == 0  # Otherwise keep GPU-hours exact, as hours of one GPU.
    hours = Decimal(wall_us if is_whole else gpu_us) / US_PER_HOUR
    metrics = TrainingMetrics(
        run_id=row.run_id,
        model_name=row.model,
        num_samples=row.samples,
        num_epochs=row.epochs or 0.0,
        batch_size=0,
        learning_rate=0.0,
        total_duration_hours=float(hours),
        gpu_name="",
        gpu_price_per_hour=per(row.cost, Fraction(gpu_us, US_PER_HOUR)) or 0.0,
        validation_loss=row.loss,
        test_accuracy=row.accuracy,
        tokens_processed=row.tokens or None,
        timestamp=utc_datetime(row.at_ns),
        gpu_count=gpus if is_whole else 1,
        total_cost=float(row.paid.amount),
        energy_wh=row.energy_mj / MILLIJOULES_PER_WH if row.energy_mj else None,
        currency=row.paid.currency,
    )
    report = TrainingCostReport.of(metrics).to_dict()
    return report | {"assumed_cost": float(row.paid_assumed.amount)}


def _minimal_metrics(report: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Return the metrics that can be derived from a report without metrics."""
    return {
        "run_id": run_id,
        "model_name": report["model_name"],
        "num_samples": 0,
        "num_epochs": 0,
        "batch_size": 0,
        "learning_rate": 0.0,
        "total_duration_hours": report["gpu_hours"],
        "gpu_name": "",
        "gpu_price_per_hour": 0.0,
        "total_cost": report["total_cost"],
        "timestamp": report["timestamp"],
    }


def _read_history(directory: Path) -> dict[str, Any]:
    """Return the reports of a directory, with outlay's own keys where the same run has some."""
    path = directory / HISTORY
    own = read_own(path)
    return {
        name: with_own(row, own[name]) if name in own and isinstance(row, dict) else row
        for name, row in _read(path).items()
    }


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any]) or {}


T = TypeVar("T")


def also_named(**names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Let arguments of a method be passed by further names, such as ``budget_limit="limit"``."""

    def decorate(method: Callable[..., T]) -> Callable[..., T]:
        @wraps(method)
        def call(*args: object, **given: object) -> T:
            return method(*args, **{names.get(name, name): value for name, value in given.items()})

        return call

    return decorate


class CostAnalyzer:
    """Analyses the cost of trainings, with a budget for each model.

    Args:
        data_dir: Directory of the store; else ``$OUTLAY_STORE`` or ``$OUTLAY_HOME``. Files of the
            cost module in it, else in ``~/.context/training``, are imported and kept up to date.
        clock: Timestamps of budgets and alerts.

    Attributes:
        data_dir: The directory of the files, else of the store.
        alerts: What ``check_budget`` returned.
    """

    def __init__(self, data_dir: Path | str | None = None, *, clock: Clock = SYSTEM) -> None:
        self._book = CostBook(open_store(data_dir))
        self._clock = clock
        self.alerts: list[BudgetAlert] = []
        self._directory: Path | None = None
        if (directory := data_directory(data_dir)) is not None:
            with update_files(directory):
                imported = import_costs(self, directory, only_new=True)
                log_imported(imported.reports, "cost report", directory)
                log_imported(imported.budgets, "budget", directory)
            self._directory = directory
            self._write_files()

        self.data_dir = self._directory or Path(data_dir or outlay_home()).expanduser()

    def _write_files(self) -> None:
        if self._directory is not None:
            with update_files(self._directory):
                export_costs(self, self._directory)

    @property
    def damage(self) -> list[Finding]:
        """Findings about unreadable rows of the store, which are skipped."""
        return self._book.damage

    def analyze_training_run(self, metrics: TrainingMetrics) -> TrainingCostReport:
        """Return a training's cost report, and store it; the same run again replaces its report.

        Raises:
            InvalidValue: A figure is invalid; nothing is stored.
        """
        return self.keep_training(metrics)

    def keep_training(
        self, metrics: TrainingMetrics, *, assumed_cost: object = 0
    ) -> TrainingCostReport:
        """Do the same for a training with a partly assumed cost."""
        report = TrainingCostReport.of(metrics)
        assumed = Money.parse(assumed_cost, name="assumed_cost", currency=report.currency)
        row = replace(_row(metrics, self._clock.wall_ns()), assumed=assumed)
        known = self._book.report(row.run_id)
        if known is not None and known.charges is not None and known.cost == row.cost:
            # Its log has the same cost, with charges by user and month.
            row = replace(row, charges=known.charges, assumed=known.assumed)
        if known is not None and _is_same(row, known):
            row = replace(row, updated_ns=known.updated_ns)  # Unchanged.
        self._book.record(row, metrics.to_dict())
        self._write_files()
        return report

    def recorded(self) -> list[RunRow]:
        """Return the reports that were derived from run logs."""
        return [row for row in self._book.reports() if row.source == "ledger"]

    @also_named(budget_limit="limit")
    def set_budget(self, model_name: str, limit: object) -> None:
        """Set the budget of all runs of a model, which need not have any yet.

        Args:
            model_name: The model.
            limit: A number (US dollars), or text such as ``"1000 EUR"``; also ``budget_limit``.
        """
        self._book.set_budget(model_name, limit, self._clock.wall_ns())
        self._write_files()

    def check_budget(
        self, model_name: str, current_cost: float | None = None
    ) -> BudgetAlert | None:
        """Return an alert, each time, while a threshold is reached; it is also in ``alerts``.

        The thresholds are 50, 75, 90 and 100 percent; of several at once the highest is returned.

        Args:
            model_name: The model; without a budget, None is returned.
            current_cost: The model's cost so far; the total of its reports is used if it is higher.
        """
        alert = self._book.check_budget(
            model_name, self._clock.wall_ns(), current_cost, each_time=True
        )
        self.alerts += [] if alert is None else [alert]
        return alert

    def get_cost_comparison(self) -> dict[str, dict[str, Any]]:
        """Return the figures of every model, by name."""
        groups = by_model(self._book.reports())
        return {name: asdict(compare(rows)) for name, rows in groups.items()}

    def forecast_cost(
        self, model_name: str, planned_runs: int, avg_cost_per_run: float | None = None
    ) -> dict[str, Any]:
        """Return the forecast cost of planned runs, with an interval, and the budget status.

        Args:
            model_name: The model.
            planned_runs: Number of further runs.
            avg_cost_per_run: Overrides the average of the history.
        """
        rows, budget = self._book.reports(model_name), self._book.budget(model_name)
        return asdict(forecast_model(model_name, rows, budget, planned_runs, avg_cost_per_run))

    def backtest_forecast(self, model_name: str, planned_runs: int = 1) -> Backtest:
        """Return the accuracy of forecasts on the model's own history."""
        return backtest(past_costs(self._book.reports(model_name)), planned_runs)

    def get_roi_analysis(self, model_name: str) -> dict[str, Any]:
        """Return the total cost of a model's runs, and first, last and best accuracy."""
        rows = of_last_unit(self._book.reports(model_name))
        return asdict(return_on_investment(model_name, rows))

    def get_pareto_front(self, model_name: str | None = None) -> list[dict[str, Any]]:
        """Return the non-dominated runs in accuracy, cost, hours and energy."""
        return [point_of(row) for row in pareto_front(self._book.reports(model_name))]

    def calculate_cost_efficiency(self, metrics: TrainingMetrics) -> float:
        """Return accuracy per currency unit, else throughput per currency unit, else 0."""
        cost = metrics.cost()
        gain = metrics.test_accuracy or metrics.throughput
        return gain / float(cost.amount) if gain and cost else 0.0

    @property
    def budgets(self) -> dict[str, float]:
        """Every model's budget, in currency units."""
        return {model: float(limit.amount) for model, limit in self.limits.items()}

    @property
    def limits(self) -> dict[str, Money]:
        """Every model's exact budget with its currency."""
        return {model: budget.limit for model, budget in self._book.budgets().items()}

    @property
    def run_ids(self) -> set[str]:
        """Every run that has a report, stated or recorded."""
        return {row.run_id for row in self._book.reports()}

    @property
    def reports(self) -> dict[str, TrainingCostReport]:
        """Another name of ``cost_history``."""
        return self.cost_history

    @property
    def metrics(self) -> dict[str, TrainingMetrics]:
        """What every report from stated metrics was made of, by run."""
        return {name: each.metrics for name, each in self.cost_history.items() if each.metrics}

    @property
    def cost_history(self) -> dict[str, TrainingCostReport]:
        """Every report from stated metrics, by run."""
        found: dict[str, TrainingCostReport] = {}
        for run_id, metrics in self._book.metrics().items():
            try:
                found[run_id] = TrainingCostReport.of(TrainingMetrics.from_dict(metrics))
            except (OutlayError, KeyError, TypeError, ValueError, OverflowError) as error:
                problem = f"{type(error).__name__}: {error}"
                report_damage(self.damage, f"cost of run {run_id}", problem)
        return found


def _is_same(row: RunRow, known: RunRow) -> bool:
    return report_cells(row) == report_cells(known) | {"updated_ns": row.updated_ns}


def _row(metrics: TrainingMetrics, now_ns: int) -> RunRow:
    cost, duration_ns = metrics.cost(), metrics.duration_ns()
    at_ns = wall_ns_of(metrics.timestamp)
    return RunRow(
        run_id=metrics.run_id,
        source="stated",
        dir="",
        model=metrics.model_name,
        name=metrics.run_id,
        status="completed",
        attempts=1,
        steps=0,
        tokens=metrics.tokens_processed or 0,
        samples=metrics.num_samples,
        started_ns=at_ns - duration_ns,
        last_seen_ns=at_ns,
        wall_ns=duration_ns,
        gpu_ns=duration_ns * metrics.gpu_count,
        energy_mj=round((metrics.energy_wh or 0) * MILLIJOULES_PER_WH),
        cost=cost,
        assumed=cost * 0,
        epochs=metrics.num_epochs,
        accuracy=metrics.test_accuracy,
        loss=metrics.validation_loss,
        updated_ns=now_ns,
    )
