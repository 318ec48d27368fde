"""Cost reports of registered runs, derived from their logs; any number of times the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from outlay.cost.book import CostBook, CostRow
from outlay.errors import Finding, OutlayError

if TYPE_CHECKING:
    from outlay.goodput.follower import RunView


def refresh_reports(store: Engine, now_ns: int) -> list[Finding]:
    """Derive the report of every registered run that changed since its last one.

    A run that has no price in its row has none in its log: that is not opened. One that cannot be
    read is a finding, and does not stop the others.
    """
    book, rows, findings = CostBook(store), list[CostRow | None](), list[Finding]()
    for run in book.runs_without_report():
        if run.cost_micros is not None:
            try:
                rows.append(_read_row(Path(run.dir), now_ns))
            except (OutlayError, OSError) as error:
                findings.append(Finding(source=run.dir, message=str(error)))
    book.record(row for row in rows if row is not None)
    return findings


def _read_row(run_dir: Path, now_ns: int) -> CostRow | None:
    # Here, so that a summary for which no log is opened does not load what reads logs.
    from outlay.goodput.follower import read_view

    return report_of(read_view(run_dir, now_ns), now_ns)


def report_of(view: RunView, now_ns: int) -> CostRow | None:
    """Return what the store keeps of a run's cost; None for a run without a price."""
    from outlay.cost.charges import charges_of
    from outlay.cost.run_cost import best_loss, cost_of

    cost = cost_of(view)
    if cost.cost is None or cost.assumed is None:
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
        assumed_micros=cost.assumed.micros,
        charges=charges_of(view),
    )
