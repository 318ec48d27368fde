"""What the ``outlay cost`` commands share: their options, data source and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from sqlalchemy import Engine

from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.output import FittingTable, TableCell, new_table
from outlay.clock import SYSTEM, parse_moment
from outlay.cost.compare import ModelComparison
from outlay.cost.cost_book import CostBook, budgeted
from outlay.cost.spending import Spending, SpendItem
from outlay.cost.thresholds import highest_reached, percent_used
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.runs.money.spending_reader import (
    SpendingReading,
    read_outside_of_runs,
    read_spending,
    refresh_books,
)
from outlay.store import open_store
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Money, Unit
from outlay.units.shown import amount_text, money_of, range_text

ASSUMED = ">of which assumed"
_STANDING = {
    None: "ok",
    "warning_50": "50 %",
    "warning_75": "75 %",
    "warning_90": "90 %",
    "exceeded": "EXCEEDED",
}
_STYLES = {"EXCEEDED": "red", "90 %": "yellow"}


AsOf = Annotated[
    str | None,
    typer.Option(
        metavar="INSTANT",
        help="Use only what was known then, such as 2026-11-01 (UTC) or 2026-11-01T09:00+01:00.",
    ),
]


def parse_as_of(text: str | None) -> int | None:
    """Parse ``--as-of``; a bare date is midnight UTC."""
    if text is None:
        return None
    return parse_moment(text, name="--as-of", now_ns=SYSTEM.wall_ns())


@dataclass(frozen=True, kw_only=True)
class CostBooks:
    """The store with up-to-date reports of all registered runs, and findings from reading them.

    Attributes:
        as_of_ns: Ignore what was recorded later; None for no limit.
    """

    store: Engine
    book: CostBook
    findings: list[Finding]
    now_ns: int
    as_of_ns: int | None = None

    @cached_property
    def reading(self) -> SpendingReading:
        """All spending by attempt and month; its findings are added to ``findings``."""
        found = read_spending(self.store, self.now_ns, as_of_ns=self.as_of_ns, damage=self.findings)
        self.findings.extend(found.spending.findings)
        return found

    def reports(self, model: str | None = None) -> list[RunRow]:
        """Return the reports of all runs or of a model, oldest first."""
        if self.as_of_ns is None:
            return self.book.reports(model)
        found = self.reading.reports
        return [replace(row, charges=None) for row in found if model in (None, row.model)]

    def outside_of_runs(self) -> list[SpendItem]:
        """Return the cost that is in no run: of rentals, beyond use, and by bills."""
        if self.as_of_ns is not None:
            spends = self.reading.spending.spends
            return [spend for spend in spends if spend.source not in ("ledger", "stated")]
        found, findings = read_outside_of_runs(self.book, self.now_ns)
        self.findings.extend(findings)
        return found

    def unpriced(self, model: str | None = None) -> list[Finding]:
        """Return a finding if runs have no price; ``model`` limits them."""
        runs = list_runs(self.store, RunFilter(model=model, is_priced=False))
        until_ns = self.now_ns if self.as_of_ns is None else self.as_of_ns
        known = tuple(run for run in runs if run.started_ns <= until_ns)
        return Spending(spends=(), unpriced=known).unpriced_finding()


def open_books(as_of_ns: int | None = None) -> CostBooks:
    """Open the store and update the reports of runs that changed."""
    keep_cost_files()
    store, now_ns = open_store(), SYSTEM.wall_ns()
    findings = refresh_books(store, now_ns)
    return CostBooks(
        store=store,
        book=CostBook(store, findings),
        findings=findings,
        now_ns=now_ns,
        as_of_ns=as_of_ns,
    )


class UnknownModel(OutlayError):
    """No run of a model has a cost."""

    exit_code = 2

    def __init__(self, model: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(set(known)))
        others = f"; known models: {names}" if names else ""
        super().__init__(
            f"no cost of {model!r} is known{others}. Register runs with: outlay import runs DIR"
        )


def must_be_drawable(png: Path, found: object, wanted: str) -> None:
    """Raise InvalidValue if there is nothing to draw."""
    if not found:
        expected = f"{wanted} to draw; none is known. Register runs with: outlay import runs DIR"
        raise InvalidValue("--png", str(png), expected)


def amount(value: float | None, unit: Unit | str) -> str:
    """Return an amount as text; "-" for None."""
    return "-" if value is None else amount_text(value, unit)


def interval(low: float | None, high: float | None, currency: str) -> str:
    """Return " (low to high CURRENCY)"; "" without an interval."""
    if low is None or high is None:
        return ""
    return f" ({range_text(money_of(low, currency), money_of(high, currency))} {currency})"


def score(value: float | None) -> str:
    """Return an accuracy as text; "-" for None."""
    return "-" if value is None else f"{value:.4f}"


def _amount_cell(value: float | None, unit: Unit | str) -> TableCell:
    money = None if value is None else money_of(value, unit)
    return TableCell(text=amount(value, unit), money=money)


def comparison_table(models: dict[str, ModelComparison]) -> FittingTable:
    """Return one row per model."""
    assumed = [ASSUMED] if any(figures.assumed_cost for figures in models.values()) else []
    table = new_table(
        "model", ">runs", ">total", *assumed, ">per run", ">GPU-hours", ">accuracy", ">best",
        first=("model", "total", "runs", ASSUMED.lstrip(">"), "GPU-hours"),
    )  # fmt: skip
    for name, figures in models.items():
        unit = Unit(figures.currency, figures.kind)
        table.add_row(
            name, str(figures.runs), _amount_cell(figures.total_cost, unit),
            *([_amount_cell(figures.assumed_cost, figures.currency)] if assumed else []),
            _amount_cell(figures.avg_cost_per_run, unit), f"{figures.gpu_hours:,.1f}",
            score(figures.avg_accuracy), score(figures.best_accuracy),
        )  # fmt: skip
    return table


def assumed_suffix(assumed: Money | None) -> str:
    """Return the suffix of a total that states its assumed part; "" if none is."""
    return f", of which assumed {assumed}" if assumed else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """State of a model's budget.

    Attributes:
        assumed: The assumed part of ``spent``.
        not_counted: Cost of another unit.
    """

    model: str
    limit: Money
    spent: Money
    assumed: Money
    left: Money
    percent_used: float
    status: str
    not_counted: tuple[Money, ...]


def budget_rows(books: CostBooks) -> list[BudgetRow]:
    """Return the state of every model's budget."""
    rows = []
    for model, budget in books.book.budgets().items():
        found = budgeted(books.reports(model), budget.limit)
        rows.append(
            BudgetRow(
                model=model,
                limit=found.limit,
                spent=found.spent,
                assumed=found.assumed,
                left=found.limit - found.spent,
                percent_used=percent_used(found.spent, found.limit),
                status=_STANDING[highest_reached(found.spent, found.limit)],
                not_counted=found.not_counted,
            )
        )
    return rows


def budget_document(row: BudgetRow) -> dict[str, object]:
    """Return a row for JSON, where the kind of an amount is beside it."""
    beside = [msgspec.to_builtins(money) | {"kind": money.kind} for money in row.not_counted]
    document: dict[str, object] = msgspec.to_builtins(row)
    return document | {"not_counted": beside, "kind": row.spent.kind}


def budget_table(rows: list[BudgetRow]) -> FittingTable:
    """Return one row per budget."""
    assumed = [ASSUMED] if any(row.assumed for row in rows) else []
    beside = [">not counted"] if any(row.not_counted for row in rows) else []
    table = new_table(
        "scope", ">spent", *assumed, ">of", ">left", ">share", "status", *beside,
        first=("scope", "status", "spent", "of"),
    )  # fmt: skip
    for row in rows:
        share = "all" if row.percent_used == float("inf") else f"{row.percent_used:.1f} %"
        others = ", ".join(map(str, row.not_counted)) or "-"
        table.add_row(
            f"model {row.model}", row.spent, *([row.assumed] if assumed else []),
            row.limit, row.left, share, row.status, *([others] if beside else []),
            style=_STYLES.get(row.status),
        )  # fmt: skip
    return table
