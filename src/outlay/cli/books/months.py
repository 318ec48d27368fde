"""``outlay books``: closing months, and the closed ones."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.cost.tables import open_books
from outlay.cli.document import print_blocks
from outlay.cli.output import (
    AsJson,
    TableCell,
    amounts_cell,
    print_findings,
    print_json,
    print_path,
    print_rows,
    print_sentence,
)
from outlay.clock import utc_text
from outlay.cost.closing import (
    KeptMonth,
    document_of,
    keep_month,
    must_follow,
    read_closed_months,
    store_login,
)
from outlay.errors import InvalidValue
from outlay.guard.spend_log import login_name
from outlay.report.digest import late_blocks
from outlay.store import open_store

app = typer.Typer(help="Close months, and show closed ones.", no_args_is_help=True)
Month = Annotated[str, typer.Argument(metavar="MONTH", help="In UTC, such as 2026-10.")]


@app.command("close")
def close_month(
    month: Month,
    reason: Annotated[str, typer.Option(help="Why it can be closed, such as the invoices seen.")],
    rate: Annotated[
        list[str] | None,
        typer.Option(help='A stated exchange rate, such as "1.08 USD/EUR"; repeatable.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Close a month: it stays as it is reported now, whatever becomes known later.

    What becomes known later is booked in the month after the last closed one, and names its
    origin. A store in PostgreSQL is closed by its owner.

    Example: outlay books close 2026-10 --reason "invoices of all vendors seen"
    """
    books = open_books()
    closed, doubts = read_closed_months(books.store)
    must_follow(month, closed)
    document = document_of(
        month, books.reading.spending, by=store_login(books.store) or login_name(), reason=reason,
        now_ns=books.now_ns, previous=closed[-1].sha256 if closed else "", rates=rate or (),
    )  # fmt: skip
    kept, path = keep_month(books.store, document)
    findings = [*books.findings, *doubts]
    if as_json:
        print_json(_row(kept) | {"path": path, "findings": findings})
        return
    print_sentence(f"{month} is closed: {_totals(kept).text}. SHA-256 {kept.sha256}")
    print_path(path)
    print_findings(findings)


@app.command("show")
def show_months(
    month: Annotated[
        str | None, typer.Argument(metavar="[MONTH]", help="Only this one, with its spends.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the closed months with their hashes, and check these.

    Example: outlay books show 2026-10
    """
    closed, findings = read_closed_months(open_store())
    if month is not None:
        known = ", ".join(each.document.month for each in closed) or "none is"
        closed = [each for each in closed if each.document.month == month]
        if not closed:
            raise InvalidValue("MONTH", month, f"a month that is closed ({known})")
    if as_json:
        rows = [_row(each) for each in closed]
        if month is not None:
            rows = [row | {"spends": closed[0].document.spends} for row in rows]
        print_json({"months": rows, "findings": findings})
    else:
        _print(closed, is_whole=month is not None)
        print_findings(findings)
    if findings:
        raise typer.Exit(1)


def _row(kept: KeptMonth) -> dict[str, object]:
    document = kept.document
    return {
        "month": document.month, "sha256": kept.sha256, "previous": document.previous,
        "closed": utc_text(document.closed_ns), "by": document.by, "reason": document.reason,
        "totals": document.totals, "rates": document.rates,
        "at_stated_rates": document.at_stated_rates(), "spends": len(document.spends),
        "known_then": document.findings,
    }  # fmt: skip


def _totals(kept: KeptMonth) -> TableCell:
    return amounts_cell(list(kept.document.money().values()), "nothing was spent")


def _print(closed: list[KeptMonth], *, is_whole: bool) -> None:
    if not closed:
        print_sentence("No month is closed. outlay books close MONTH --reason ... closes one.")
        return
    print_rows(
        ("month", ">total", "closed", "by", "reason", "SHA-256"),
        [
            (
                each.document.month, _totals(each), utc_text(each.document.closed_ns)[:10],
                each.document.by, each.document.reason, each.sha256,
            )
            for each in closed
        ],
        prose=("reason",),
    )  # fmt: skip
    for each in closed:
        for total in each.document.at_stated_rates():
            rates = ", ".join(f"1 {c} = {worth}" for c, worth in each.document.rates.items())
            print_sentence(f"{each.document.month}: {total} at the stated {rates}")
        if is_whole:
            print_blocks(late_blocks(spend.item() for spend in each.document.spends))
