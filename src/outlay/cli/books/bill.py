"""``outlay bill``: import vendors' bills, compare them with the books, correct the books."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from outlay.bills.bill_book import Again, BillBook, Imported, check_total
from outlay.bills.bill_correction import append_corrections, corrections_for, read_corrections
from outlay.bills.bill_line import CATEGORIES
from outlay.bills.bill_readers import read_bill, read_map
from outlay.bills.reconciliation import (
    CAUSES,
    ReconciledRow,
    Reconciliation,
    hours,
    part_name,
)
from outlay.cli.cost.tables import open_books
from outlay.cli.document import print_document
from outlay.cli.output import AsJson, console, print_findings, print_json, print_rows
from outlay.clock import SYSTEM, utc_text
from outlay.cost.charges import month_window
from outlay.cost.closing import open_month, read_closed_months
from outlay.cost.focus import to_csv
from outlay.errors import Finding, InvalidValue
from outlay.report.bill_document import bill_document, confirmed_json
from outlay.runs.money.spending_reader import read_reconciliation
from outlay.store import open_store
from outlay.units import Money
from outlay.units.shown import counted

app = typer.Typer(help="Vendors' bills beside the books.", no_args_is_help=True)
Month = Annotated[str, typer.Option(help="The month of the invoices, such as 2026-10.")]


@app.command("import")
def import_bill(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="FOCUS, AWS CUR 2.0, Google Cloud's export, or runpodctl billing; CSV, JSON or "
            "JSON Lines, also gzip.",
        ),
    ],
    columns: Annotated[
        Path | None, typer.Option("--map", metavar="TOML", help="The columns of another table.")
    ] = None,
    total: Annotated[
        str | None, typer.Option(help='Refuse unless the lines sum to it, such as "912.40 USD".')
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the lines of invoices imported before.")
    ] = False,
    add: Annotated[
        bool, typer.Option("--add", help="It is another part of an invoice imported before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import a bill; the same file or the same lines again change nothing.

    Example: outlay bill import focus-2026-10.csv.gz --total "912.40 USD"
    """
    if replace and add:
        raise InvalidValue("--add", "--replace", "one of the two")
    parsed = read_bill(file, None if columns is None else read_map(columns))
    if total is not None:
        check_total(parsed, Money.parse(total, name="--total"))
    book = BillBook(open_store())
    again: Again = "replace" if replace else "add" if add else "refuse"
    done = book.add(parsed, SYSTEM.wall_ns(), again=again)
    if as_json:
        print_json(_imported_json(done, len(parsed.lines)) | {"findings": book.damage})
        return
    console.print(_imported_text(done, len(parsed.lines)), soft_wrap=True)
    print_findings(book.damage)


def _imported_json(done: Imported, lines: int) -> dict[str, object]:
    about: dict[str, object] = msgspec.to_builtins(done.about)
    return about | {"lines": lines, "new_lines": done.new_lines, "kept": str(done.path)}


def _imported_text(done: Imported, lines: int) -> str:
    if not done.new_lines:
        return f"Nothing changed: its {counted(lines, 'line')} had been imported before."
    known = lines - done.new_lines
    others = f" ({known:,} were known)" if known else ""
    sums = "; ".join(
        f"invoice {each.invoice} of {each.provider} ({each.month}): "
        f"{each.to_the_cent:f} {each.currency}"
        for each in done.about.invoices
    )
    return f"{counted(done.new_lines, 'line')} imported{others}, {done.about.format}. {sums}"


@app.command("list")
def list_bills(as_json: AsJson = False) -> None:
    """List imported bills.

    Example: outlay bill list
    """
    book = BillBook(open_store())
    files = book.files()
    if as_json:
        print_json({"bills": files, "findings": book.damage})
        return
    print_rows(
        ("file", "format", "imported", "month", ">lines", "sha256"),
        [
            (
                each.file, each.format, utc_text(each.imported_ns)[:16], ", ".join(each.months),
                f"{each.lines:,}", each.sha256[:12],
            )
            for each in files
        ],
    )  # fmt: skip
    print_findings(book.damage)


@app.command("reconcile")
def show_reconciliation(
    month: Month,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the rows to this CSV file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a month's bills with the books: by resource what differs, and why.

    It changes nothing. Holds are another matter: outlay guard reconcile.

    Example: outlay bill reconcile --month 2026-10
    """
    found, findings = _reconciled(month)
    rows = [_row(each, row) for each in found for row in each.rows]
    if csv is not None:
        csv.write_text(to_csv(rows, list(rows[0]) if rows else []), encoding="utf-8")
    if as_json:
        print_json(
            {
                "month": month,
                "currencies": [_json(each) for each in found],
                "rows": rows,
                "findings": findings,
            }
        )
        return
    print_document(bill_document(month, found), console)
    print_findings(findings)


@app.command("correct")
def correct_books(
    month: Month,
    reason: Annotated[str, typer.Option(help="Why, in a few words.")],
    resource: Annotated[
        list[str] | None, typer.Option(help="Only this resource of the bill; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Book what a month's bills have and the books lack, as corrections by resource and cause.

    Amounts belong to the owners of the runs on a machine. What only the books have is left as it
    is. If the month is closed, they are booked in the open one.

    Example: outlay bill correct --month 2026-10 --reason "bill of October"
    """
    found, findings = _reconciled(month)
    made = corrections_for(
        found, read_corrections(), by=getpass.getuser(), reason=reason, at_ns=SYSTEM.wall_ns(),
        resources=resource or (),
    )  # fmt: skip
    if made:
        append_corrections(made)
    closed, _ = read_closed_months(open_store())
    into = open_month(month_window(month).start_ns, closed) or month
    if as_json:
        document = {"month": month, "books_into": into, "corrections": made}
        print_json(document | {"findings": findings})
        return
    for each in made:
        amount = Money(each.micros, each.currency)
        console.print(f"{each.resource or each.provider}: {each.part} {amount}", soft_wrap=True)
    console.print(f"{counted(len(made), 'correction')} booked in {into}.")
    print_findings(findings)


def _reconciled(month: str) -> tuple[list[Reconciliation], list[Finding]]:
    month_window(month)  # Refuses what is no month before anything is read.
    books = open_books()
    spending = books.reading.spending
    found = read_reconciliation(books.store, spending, month, books.findings)
    if not found:
        message = f"no bill of {month} was imported: outlay bill import FILE"
        books.findings.append(Finding(source="bills", message=message, severity="warning"))
    return found, books.findings


def _json(found: Reconciliation) -> dict[str, object]:
    def sums(rows: Sequence[ReconciledRow]) -> dict[str, str]:
        amounts = {"booked": sum(r.in_books for r in rows), "billed": sum(r.total for r in rows)}
        return {name: _amount(micros, found.currency) for name, micros in amounts.items()}

    return confirmed_json(found.confirmed) | {
        "matched": sums(found.of("matched")),
        "only_in_the_bill": sums(found.of("only in the bill")),
        "only_in_the_books": sums(found.of("only in the books")),
        "invoices": [
            msgspec.to_builtins(each) | {"to_the_cent": str(each.to_the_cent)}
            for each in found.invoices
        ],
    }


def _row(found: Reconciliation, row: ReconciledRow) -> dict[str, object]:
    def shown(micros: int) -> str:
        return _amount(micros, found.currency)

    beside = [name for name in CATEGORIES if name != "usage"]
    return {
        "state": row.state, "provider": row.provider, "resource": row.resource,
        "owner": row.owner, "how": row.how, "our_hours": hours(row.our_ns),
        "billed_hours": hours(row.billed_ns), "our_cost": shown(row.ours),
        "billed_usage": shown(row.billed.get("usage", 0)),
        **{name.replace(" ", "_"): shown(row.causes.get(name, 0)) for name in CAUSES},
        **{part_name(n).replace(" ", "_"): shown(row.billed.get(n, 0)) for n in beside},
        "total": shown(row.total), "corrected": shown(sum(row.corrected.values())),
        "confirmed": row.is_confirmed, "currency": found.currency,
    }  # fmt: skip


def _amount(micros: int, currency: str) -> str:
    return str(Money(micros, currency).amount)
