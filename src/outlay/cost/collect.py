"""Cost reports of registered runs, derived from their logs; any number of times the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from outlay.cost.book import CostBook, CostRow
from outlay.errors import Finding, OutlayError
from outlay.store.runs import RunRow

_UNPRICED_NAMED = 10


@dataclass(frozen=True, slots=True)
class Refreshed:
    """How many reports were derived anew, and which runs could not be read or have no price."""

    derived: int
    findings: list[Finding]


def refresh_reports(store: Engine, now_ns: int) -> Refreshed:
    """Derive the report of every registered run that changed since its last one.

    A run that has no price in its row has none in its log: that is not opened.
    """
    book = CostBook(store)
    stale = book.runs_without_report()
    unpriced = [row.dir for row in stale if row.cost_micros is None]
    refreshed = _derive(book, [row for row in stale if row.cost_micros is not None], now_ns)
    return Refreshed(refreshed.derived, [*refreshed.findings, *_unpriced(unpriced)])


def _unpriced(dirs: list[str]) -> Iterator[Finding]:
    """Yield the runs whose cost is not counted: the first by name, of the others how many."""
    message = "has no price, so its cost is not counted"
    for run_dir in dirs[:_UNPRICED_NAMED]:
        yield Finding(source=run_dir, message=message, severity="warning")
    if (rest := len(dirs) - _UNPRICED_NAMED) > 0:
        more = f"{rest:,} more have no price: outlay runs --all lists them"
        yield Finding(source="runs", message=more, severity="warning")


def _derive(book: CostBook, runs: Iterable[RunRow], now_ns: int) -> Refreshed:
    """Derive the reports of some runs; one that cannot be read does not stop the others."""
    rows: list[CostRow] = []
    findings: list[Finding] = []
    for run in runs:
        try:
            row = _report_row(Path(run.dir), now_ns)
        except (OutlayError, OSError) as error:
            findings.append(Finding(source=run.dir, message=str(error)))
            continue
        if row is not None:
            rows.append(row)
    book.record(rows)
    return Refreshed(len(rows), findings)


def _report_row(run_dir: Path, now_ns: int) -> CostRow | None:
    """Return what the store keeps of a run's cost; None for a run without a price."""
    # Here, so that a summary for which no log is opened does not load what reads logs.
    from outlay.cost.run_cost import best_loss, cost_of
    from outlay.goodput.follower import read_view

    view = read_view(run_dir, now_ns)
    cost = cost_of(view)
    if cost.cost is None:
        return None
    return CostRow(
        run_id=cost.run_id,
        model=cost.model,
        source="ledger",
        cost_micros=cost.cost.micros,
        currency=cost.cost.currency,
        kind=cost.kind,
        gpu_us=cost.gpu_ns // 1000,
        wall_us=cost.wall_ns // 1000,
        energy_mj=view.energy_mj() or None,
        samples=cost.samples,
        epochs=cost.epochs or 0.0,
        tokens=cost.tokens or None,
        accuracy=cost.accuracy,
        loss=best_loss(view.account),
        at_ns=cost.window.end_ns,
        updated_ns=now_ns,
    )
