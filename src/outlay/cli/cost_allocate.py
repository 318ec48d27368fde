"""``outlay cost allocate``: who pays for a month."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.cost_tables import open_books
from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.cost.allocation import IDLE, UNTAGGED, Allocation, Charge, Pool, Spread, allocate
from outlay.errors import Finding
from outlay.ledger.price import Kind
from outlay.store.runs import list_runs
from outlay.units import Money

if TYPE_CHECKING:
    from outlay.cost.charges import Charges, RunCharge

_CSV_COLUMNS = ("owner", "runs", "gpu_hours", "direct", "shared", "idle", "total", "currency")


def allocate_cost(
    by: Annotated[str, typer.Option(help="Who pays: user, model, team, project or tag:NAME.")],
    month: Annotated[str, typer.Option(help="Which month, in UTC, such as 2026-10.")],
    bill: Annotated[
        str | None,
        typer.Option(help='The invoice, such as "900 USD"; what no run used of it is idle.'),
    ] = None,
    shared: Annotated[
        list[str] | None, typer.Option(help="An owner whose cost the others share; repeatable.")
    ] = None,
    spread: Annotated[
        Spread, typer.Option(help="How idle and shared cost are spread.")
    ] = Spread.PROPORTIONAL,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table to it.")
    ] = None,
    focus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write FOCUS 1.2 rows to it, one per run."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(help="What is shared out; default: cash, where any run was paid for in cash."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share out a month's cost by user, team, project or tag; the parts sum to the bill.

    Example: outlay cost allocate --by team --month 2026-10 --bill "900 USD"
    """
    from outlay.cost.charges import charges_within, month_window, owner_by
    from outlay.cost.focus import COLUMNS, focus_rows, to_csv

    period, owner_of = month_window(month), owner_by(by)
    invoice = None if bill is None else Money.parse(bill, name="--bill")
    books = open_books()
    found = charges_within(list_runs(books.store), books.book.reports(), period, SYSTEM.wall_ns())
    owners = {c.run.run_id: owner_of(c.run) or UNTAGGED for c in found.charges}
    chosen, others = _of_kind(found, kind)
    currency = _currency(chosen, invoice)
    kept = [charge for charge in chosen.charges if charge.cost.currency == currency]
    idle, over = _idle(kept, invoice, currency)
    result = allocate(
        [Charge(owner=owners[c.run.run_id], micros=c.cost.micros, gpu_us=c.gpu_us) for c in kept],
        [Pool(name=IDLE, micros=idle.micros)] if idle else [],
        shared=shared or [],
        spread=spread,
        currency=currency,
    )
    findings = [*books.findings, *found.findings, *others, *_foreign(chosen, currency), *over]
    if csv is not None:
        csv.write_text(to_csv(_rows(result), _CSV_COLUMNS), encoding="utf-8")
    if focus is not None:
        rows = focus_rows(kept, idle, period, owners=owners)
        focus.write_text(to_csv(rows, COLUMNS), encoding="utf-8")
    if as_json:
        print_json({"rows": _rows(result), "total": result.total, "findings": findings})
        return
    _print(result, month)
    print_findings(findings)


def _of_kind(found: Charges, kind: Kind | None) -> tuple[Charges, list[Finding]]:
    """Return the charges of one kind, and the runs of the other, which nobody adds to them."""
    kinds = {charge.kind for charge in found.charges}
    chosen = kind or ("showback" if kinds == {"showback"} else "cash")
    others = [
        Finding(
            source=charge.run.dir,
            message=f"cost {charge.cost} {charge.kind}, which is not counted among {chosen}; "
            f"--kind {charge.kind} shares it out",
            severity="warning",
        )
        for charge in found.charges
        if charge.kind != chosen
    ]
    return replace(found, charges=[c for c in found.charges if c.kind == chosen]), others


def _currency(found: Charges, bill: Money | None) -> str:
    """Return the bill's currency, else that of the first run."""
    if bill is not None:
        return bill.currency
    return found.charges[0].cost.currency if found.charges else "USD"


def _foreign(found: Charges, currency: str) -> list[Finding]:
    """Return the runs that were paid in another currency, which nobody adds."""
    return [
        Finding(
            source=charge.run.dir,
            message=f"cost {charge.cost}, which is not counted among {currency}",
        )
        for charge in found.charges
        if charge.cost.currency != currency
    ]


def _idle(
    charges: list[RunCharge], bill: Money | None, currency: str
) -> tuple[Money, list[Finding]]:
    """Return what the bill holds beyond the runs; that runs cost more than it is a finding."""
    used = Money(sum(charge.cost.micros for charge in charges), currency)
    if bill is None:
        return Money(0, currency), []
    idle = bill - used
    if idle.micros >= 0:
        return idle, []
    message = f"recorded runs cost {used}, more than the bill: prices or the bill are wrong"
    return Money(0, currency), [Finding(source="--bill", message=message)]


def _rows(result: Allocation) -> list[dict[str, object]]:
    return [
        {
            "owner": row.owner,
            "runs": row.runs,
            "gpu_hours": row.gpu_hours,
            "direct": str(Money(row.direct, result.currency).amount),
            "shared": str(Money(row.shared, result.currency).amount),
            "idle": str(Money(row.idle, result.currency).amount),
            "total": str(Money(row.total, result.currency).amount),
            "currency": result.currency,
        }
        for row in result.rows
    ]


def _print(result: Allocation, month: str) -> None:
    if not result.rows:
        console.print(f"Nothing was spent in {month} that is known here.")
        return
    currency = result.currency
    table = new_table(
        "owner", ">runs", ">GPU-hours",
        *(f">{part}, {currency}" for part in ("direct", "shared", "idle")), ">total",
    )  # fmt: skip
    for row in result.rows:
        parts = [Money(each, result.currency) for each in (row.direct, row.shared, row.idle)]
        table.add_row(
            row.owner, str(row.runs), f"{row.gpu_hours:,.2f}",
            *(f"{part.amount:,.2f}" for part in parts), str(Money(row.total, result.currency)),
        )  # fmt: skip
    table.add_section()
    table.add_row("total", "", "", "", "", "", str(result.total), style="bold")
    console.print(table)
