"""``outlay cost allocate``: a month's cost by owner, for each currency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.cost.tables import ASSUMED, AsOf, open_books, parse_as_of
from outlay.cli.output import AsJson, TableCell, console, new_table, print_findings, print_json
from outlay.cost.allocation import UNTAGGED, Allocation, AllocationRow, Spread, allocate
from outlay.cost.charges import month_window
from outlay.cost.focus import UNKNOWN, VERSIONS, Invoice, focus_rows, to_csv
from outlay.cost.spending import TEAM, Spending, SpendItem, owner_by
from outlay.errors import Finding, InvalidValue, choices
from outlay.export.spend_logs import shared_logs, with_teams
from outlay.guard.away.polled_log import PolledLog
from outlay.runs.money.spending_reader import read_reconciliation
from outlay.units import Money, Unit
from outlay.units.money import Kind
from outlay.units.shown import figure_text

_CSV_COLUMNS = (
    "owner", "runs", "gpu_hours", "direct", "shared", "idle", "total", "assumed", "currency",
)  # fmt: skip

_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A month's cost in one currency: its allocation to owners, and the idle rest."""

    unit: Unit
    allocation: Allocation
    idle: Money
    is_invoiced: bool
    findings: tuple[Finding, ...] = ()


def allocate_cost(
    by: Annotated[str, typer.Option(help="The owner: user, model, team, project or tag:NAME.")],
    month: Annotated[str, typer.Option(help="The month in UTC, such as 2026-10.")],
    bill: Annotated[
        str | None, typer.Option(help='The invoice, such as "900 USD"; its part in no run is idle.')
    ] = None,
    shared: Annotated[
        list[str] | None, typer.Option(help="An owner whose cost the others pay; repeatable.")
    ] = None,
    spread: Annotated[
        Spread, typer.Option(help="How to spread idle and shared cost.")
    ] = Spread.PROPORTIONAL,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table to this CSV file.")
    ] = None,
    focus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write FOCUS rows to this file, one per attempt."),
    ] = None,
    focus_version: Annotated[
        str, typer.Option(help="With --focus: the version, 1.2 or 1.4.")
    ] = "1.2",
    provider: Annotated[
        str | None, typer.Option(help="With --focus: the provider; default: from the prices.")
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="With --focus: the billing account; default: unknown.")
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option(help="Kind of cost; default: cash if any run was paid in cash.")
    ] = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Allocate a month's cost to users, models, teams, projects or tags; the parts sum to the bill.

    Each attempt of a run is charged to its own user, tags and month. A run without a tag team is
    charged to the team of its user, if a book knows one.

    Example: outlay cost allocate --by team --month 2026-10 --bill "900 USD"
    """
    from outlay.report.bill_document import confirmed_figure, confirmed_json  # Loads numpy.

    if focus_version not in VERSIONS:
        raise InvalidValue("--focus-version", focus_version, choices(VERSIONS))
    period, owner_of = month_window(month), _owner_by(by)
    invoice = None if bill is None else Money.parse(bill, name="--bill")
    books = open_books(parse_as_of(as_of))
    found, doubts = _teamed(books.reading.spending.within(period.start_ns, period.end_ns), by)
    chosen = kind or _kind_of(found)
    bills = [
        _bill(found, unit, owner_of, invoice, shared or [], spread)
        for unit in _units(found, chosen, invoice)
    ]
    findings = [
        *books.findings, *doubts, *found.unpriced_finding(), *_of_other_kinds(found, chosen),
        *(finding for each in bills for finding in each.findings),
    ]  # fmt: skip
    rows = [row for each in bills for row in _rows(each.allocation)]
    billed = read_reconciliation(books.store, books.reading.spending, month)
    if csv is not None:
        csv.write_text(to_csv(rows, _CSV_COLUMNS), encoding="utf-8")
    if focus is not None:
        common = Invoice(
            start_ns=period.start_ns, end_ns=period.end_ns, account=account or UNKNOWN,
            provider=provider, version=focus_version,
        )  # fmt: skip
        _write_focus(focus, found, bills, common, owner_of)
    late = [spend for spend in found.spends if spend.origin]
    if as_json:
        totals = [{"total": b.allocation.total, "assumed": b.allocation.assumed} for b in bills]
        document: dict[str, object] = {"month": month, "as_of": as_of, "kind": chosen}
        booked_late = [
            {"origin": each.origin, "run": each.run_id, "cost": each.cost, "kind": each.unit.kind}
            for each in late
        ]
        document |= {"bills": [confirmed_json(each.confirmed) for each in billed]}
        print_json(
            document | {"rows": rows, "totals": totals, "late": booked_late, "findings": findings}
        )
        return
    _print(bills, month)
    _print_late(late)
    for each in billed:
        console.print(f"Confirmed by bills: {confirmed_figure(each.confirmed).text}")
    print_findings(findings)


def _print_late(late: Sequence[SpendItem]) -> None:
    if late:
        from outlay.cli.document import print_blocks  # A summary needs neither.
        from outlay.report.digest import late_blocks

        print_blocks(late_blocks(late))


def _teamed(spending: Spending, by: str) -> tuple[Spending, tuple[Finding, ...]]:
    """Return spending with the teams of members, if it is shown by team."""
    if by not in TEAM:
        return spending, ()
    logs = [PolledLog(name, patience_s=_PATIENCE_S) for name in shared_logs()]
    try:
        return with_teams(spending, logs)
    finally:
        for log in logs:
            log.close()


def _owner_by(by: str) -> Callable[[SpendItem], str]:
    named = owner_by(by)
    return lambda spend: named(spend) or UNTAGGED


def _kind_of(found: Spending) -> Kind:
    return "showback" if {unit.kind for unit in found.units()} == {"showback"} else "cash"


def _units(found: Spending, kind: Kind, invoice: Money | None) -> list[Unit]:
    """Return the currencies to allocate: those spent, and that of the invoice."""
    spent = [unit for unit in found.units() if unit.kind == kind]
    billed = [] if invoice is None else [Unit(invoice.currency, kind)]
    return sorted({*spent, *billed})


def _bill(
    found: Spending,
    unit: Unit,
    owner_of: Callable[[SpendItem], str],
    invoice: Money | None,
    shared: Sequence[str],
    spread: Spread,
) -> Bill:
    mine = Spending(spends=tuple(found.of_unit(unit)))
    owners = {owner: sums for (owner, _), sums in mine.by(owner_of).items()}
    used = Money(sum(spend.cost.micros for spend in mine.spends), unit.currency)
    is_invoiced = invoice is not None and invoice.currency == unit.currency
    rest = invoice - used if invoice is not None and is_invoiced else Money(0, unit.currency)
    is_over = rest.micros < 0
    idle = Money(0, unit.currency) if is_over else rest
    usage = [
        AllocationRow(
            owner=owner, runs=sums.runs, gpu_us=sums.gpu_us, direct=sums.cost.micros,
            assumed=sums.assumed.micros,
        )
        for owner, sums in owners.items()
    ]  # fmt: skip
    allocation = allocate(
        usage, idle=idle.micros, shared=shared, spread=spread, currency=unit.currency
    )
    message = f"recorded runs cost {used}, more than the bill: prices or the bill are wrong"
    return Bill(
        unit=unit,
        allocation=allocation,
        idle=idle,
        is_invoiced=is_invoiced and not is_over,
        findings=(Finding(source="--bill", message=message),) if is_over else (),
    )


def _of_other_kinds(found: Spending, chosen: Kind) -> list[Finding]:
    """Return a finding per currency on cost of the other kind, which is never added."""
    return [
        Finding(
            source="runs",
            message=f"{sums.cost.as_kind('cash')} {unit.kind} is not part of {chosen}; "
            f"allocate it with --kind {unit.kind}",
            severity="warning",
        )
        for unit, sums in found.totals().items()
        if unit.kind != chosen
    ]


def _write_focus(
    path: Path,
    found: Spending,
    bills: Sequence[Bill],
    common: Invoice,
    owner_of: Callable[[SpendItem], str],
) -> None:
    rows = []
    for bill in bills:
        invoice = replace(common, billed=bill.unit.currency if bill.is_invoiced else None)
        rows += focus_rows(found.of_unit(bill.unit), bill.idle, invoice, owner_of=owner_of)
    path.write_text(to_csv(rows, VERSIONS[common.version]), encoding="utf-8")


def _rows(result: Allocation) -> list[dict[str, object]]:
    parts = ("direct", "shared", "idle", "total", "assumed")
    return [
        {"owner": row.owner, "runs": row.runs, "gpu_hours": row.gpu_hours}
        | {part: str(Money(getattr(row, part), result.currency).amount) for part in parts}
        | {"currency": result.currency}
        for row in result.rows
    ]


def _print(bills: Sequence[Bill], month: str) -> None:
    if not any(bill.allocation.rows for bill in bills):
        console.print(f"No spending is known in {month}.")
        return
    assumed = [ASSUMED] if any(bill.allocation.assumed for bill in bills) else []
    parts = ("direct", "shared", "idle")
    table = new_table("owner", ">runs", ">GPU-hours", *(f">{p}" for p in parts), ">total", *assumed)
    for bill in bills:
        result = bill.allocation
        for row in result.rows:
            amounts = [Money(getattr(row, part), result.currency) for part in parts]
            whole = Money(row.total, result.currency), Money(row.assumed, result.currency)
            table.add_row(
                row.owner, f"{row.runs:,}", f"{row.gpu_hours:,.2f}",
                *(TableCell(text=figure_text(part, 2)) for part in amounts),
                *whole[: 1 + len(assumed)],
            )  # fmt: skip
        sums = (result.total, result.assumed)[: 1 + len(assumed)]
        table.add_row("total", "", "", "", "", "", *sums, style="bold")
    console.print(table)
