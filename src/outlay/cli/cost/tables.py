"""How costs look in a terminal, and where the commands about cost get their books from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from sqlalchemy import Engine

from outlay.cli.output import new_table
from outlay.clock import SYSTEM
from outlay.compat.cost_module.data_directory import data_directory
from outlay.cost.book import CostBook
from outlay.cost.collect import refresh_reports
from outlay.cost.compare import ModelComparison, percent_used, standing
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.ledger.price import Kind
from outlay.runs.collect import refresh_registered
from outlay.store import open_store
from outlay.store.runs import damaged_logs
from outlay.units import Money
from outlay.units.quantity import duration_text

if TYPE_CHECKING:
    from outlay.cost.run_cost import RunCost

_DAMAGED_NAMED = 50
_STANDING = {
    None: "ok",
    "warning_50": "50 %",
    "warning_75": "75 %",
    "warning_90": "90 %",
    "exceeded": "EXCEEDED",
}


@dataclass(frozen=True, slots=True)
class CostBooks:
    """The store with every registered run's report up to date, and what could not be read."""

    store: Engine
    book: CostBook
    findings: list[Finding]


def keep_cost_files() -> None:
    """Take over the files of ``~/.context/training``, and bring them up to date; if it exists."""
    if data_directory(None) is None:
        return
    from outlay.compat.cost_module.analyzer import CostAnalyzer  # Few users have that directory.
    from outlay.compat.cost_module.optimizer import CostOptimizer
    from outlay.compat.cost_module.tracker import GPUPriceTracker

    for made in (CostAnalyzer, CostOptimizer, GPUPriceTracker):
        made()


def open_books() -> CostBooks:
    """Open the store, and derive the reports of runs that changed."""
    keep_cost_files()
    store, now_ns = open_store(), SYSTEM.wall_ns()
    registered = refresh_registered(store, now_ns)
    refreshed = refresh_reports(store, now_ns)
    findings = [*registered.findings, *refreshed.findings]
    # What a damaged log says counts, and may be anything: whoever reads a total is told.
    findings += _not_named(damaged_logs(store), findings)
    return CostBooks(store, CostBook(store, findings), findings)


def _not_named(damaged: list[Finding], findings: list[Finding]) -> list[Finding]:
    """Return the damaged runs that no other finding is about: the first, of the others a number."""
    known = {finding.source for finding in findings}
    others = [finding for finding in damaged if finding.source not in known]
    rest = len(others) - _DAMAGED_NAMED
    message = f"{rest:,} more have damaged logs: outlay runs --all lists them"
    return others[:_DAMAGED_NAMED] + (
        [Finding(source="runs", message=message, severity="warning")] if rest > 0 else []
    )


class UnknownModel(OutlayError):
    """No run of a model has a cost."""

    exit_code = 2

    def __init__(self, model: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(set(known)))
        others = f"; known are {names}" if names else ""
        super().__init__(f"no cost of {model!r} is known{others}. outlay collect DIR adds runs.")


def must_be_drawable(png: Path, found: object, wanted: str) -> None:
    """Refuse to draw nothing: whoever asked for a picture would look for it in vain."""
    if not found:
        expected = f"{wanted} to draw, and none is known: outlay collect DIR adds runs"
        raise InvalidValue("--png", str(png), expected)


def amount(value: float | None, currency: str) -> str:
    """Return an amount as people read it; small ones keep their leading digits."""
    return "-" if value is None else f"{_digits(value)} {currency}"


def interval(low: float | None, high: float | None, currency: str) -> str:
    """Return an interval as people read it; "" where there is none."""
    if low is None or high is None:
        return ""
    return f" ({_digits(low)} to {amount(high, currency)})"


def _digits(value: float) -> str:
    return f"{value:,.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4g}"


def score(value: float | None) -> str:
    """Return an accuracy as people read it."""
    return "-" if value is None else f"{value:.4f}"


def comparison_table(models: dict[str, ModelComparison]) -> Table:
    """Return one row for each model."""
    table = new_table("model", ">runs", ">total", ">per run", ">GPU-hours", ">accuracy", ">best")
    for name, figures in models.items():
        currency = f"{figures.currency}{kind_suffix(figures.kind)}"
        table.add_row(
            name, str(figures.runs), amount(figures.total_cost, currency),
            amount(figures.avg_cost_per_run, currency), f"{figures.gpu_hours:,.1f}",
            score(figures.avg_accuracy), score(figures.best_accuracy),
        )  # fmt: skip
    return table


def kind_suffix(kind: Kind) -> str:
    """Return what is written behind an amount: nothing behind cash."""
    return "" if kind == "cash" else f" {kind}"


def run_table(cost: RunCost) -> Table:
    """Return where a run's money went, by phase."""
    table = new_table("phase", ">cost", ">share")
    for name, money in cost.by_phase.items():
        share = money.micros / cost.cost.micros if cost.cost else 0.0
        table.add_row(name, str(money), f"{share:.1%}")
    table.add_section()
    total = "no price" if cost.cost is None else f"{cost.cost}{kind_suffix(cost.kind)}"
    table.add_row("total", total, "", style="bold")
    return table


def unit_lines(cost: RunCost) -> list[str]:
    """Return what a run's units cost, one line each."""
    currency = "" if cost.cost is None else cost.cost.currency
    lines = [f"wall time {duration_text(cost.wall_ns)}, {cost.gpu_ns / 3.6e12:,.2f} GPU-hours"]
    for unit, value in cost.unit_costs().items():
        if value is not None:
            lines.append(f"per {unit.replace('_', ' ')}: {amount(value, currency)}")
    lines += [f"price {price.text} per GPU: {price.origin}" for price in cost.prices]
    if cost.begin == "record":
        lines.append("begins with its first record: what came before is not known to be its own")
    if cost.end == "last_sign":
        lines.append("ends with its last sign of life: nobody recorded its end")
    return [*lines, *(f"assumed: {text}" for text in cost.assumptions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """How a model's budget stands."""

    model: str
    limit: Money
    spent: Money
    left: Money
    percent_used: float
    status: str


def budget_rows(book: CostBook) -> list[BudgetRow]:
    """Return how every model's budget stands."""
    rows = []
    for model, budget in book.budgets().items():
        spent = book.spent(model, budget.limit.currency)
        rows.append(
            BudgetRow(
                model=model,
                limit=budget.limit,
                spent=spent,
                left=budget.limit - spent,
                percent_used=percent_used(spent, budget.limit),
                status=_STANDING[standing(spent, budget.limit)],
            )
        )
    return rows


def budget_table(rows: list[BudgetRow]) -> Table:
    """Return how every model's budget stands, for reading."""
    table = new_table("model", ">spent", ">of", ">left", ">share", "status")
    for row in rows:
        share = "all" if row.percent_used == float("inf") else f"{row.percent_used:.1f} %"
        table.add_row(row.model, str(row.spent), str(row.limit), str(row.left), share, row.status)
    return table
