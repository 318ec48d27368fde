"""``outlay digest``: the week on a page, for reading, as Markdown, or as HTML."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import typer

from outlay.cli.output import (
    AsJson,
    SafeConsole,
    console,
    new_console,
    new_table,
    print_json,
    print_sentence,
)
from outlay.clock import SYSTEM, parse_moment
from outlay.errors import InvalidValue
from outlay.files import write_whole
from outlay.goodput.timeline import Window
from outlay.guard.rental.watch import known_logs
from outlay.report.digest import Digest, digest_document, read_digest
from outlay.report.document import Document, Figure, NoteBlock, Table, to_html, to_markdown
from outlay.report.html import Cell
from outlay.store import open_store
from outlay.units import Money


def show_digest(
    since: Annotated[str, typer.Option(help="From when on: 7d, or an instant.")] = "7d",
    form: Annotated[
        Literal["text", "markdown", "html"], typer.Option("--format", help="How it is written.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="A spend log; default: all that this machine rented by."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the week on a page.

    Who spent what on which model; what of it was productive, wasted and by which cause, or in no
    run; dead runs; budgets and ceilings near their end; the month ahead; what would save most.

    Example: outlay digest --since 7d --format html --output week.html
    """
    now_ns = SYSTEM.wall_ns()
    start_ns = parse_moment(since, name="--since", now_ns=now_ns)
    if start_ns >= now_ns:
        raise InvalidValue("--since", since, "an instant that has passed")
    logs = tuple(log) if log else known_logs()
    digest = read_digest(open_store(), logs, Window(start_ns, now_ns), now_ns)
    document = digest_document(digest)
    if as_json:
        print_json(_plain(digest))
    elif output is not None:
        write_whole(output, _written(document, form).encode())
        console.print(str(output), soft_wrap=True)
    elif form == "text":
        _print(document, console)
    else:
        typer.echo(_written(document, form), nl=False)


def _written(document: Document, form: str) -> str:
    if form == "text":
        page = StringIO()
        _print(document, new_console(page))
        return page.getvalue()
    return to_html(document) if form == "html" else to_markdown(document)


def _plain(digest: Digest) -> dict[str, object]:
    """Return a digest as JSON shows it."""
    return {
        "period": digest.period,
        "totals": {str(unit): money for unit, money in digest.totals().items()},
        "by_phase": {str(unit): digest.by_phase(unit) for unit in digest.totals()},
        "parts": [
            {
                "user": part.user, "model": part.model, "phase": part.phase,
                "micros": part.micros, "currency": part.unit.currency, "kind": part.unit.kind,
            }
            for part in digest.parts
        ],
        "month": {
            str(unit): Money(round(total.point), unit.currency)
            for unit, total in digest.months.items()
        },
        "month_interval": {
            str(unit): {
                "low": Money(round(total.low), unit.currency),
                "high": Money(round(total.high), unit.currency),
                "confidence": total.confidence,
            }
            for unit, total in digest.months.items()
            if total.low is not None and total.high is not None
        },
        "limits": [
            {"name": e.name, "used": e.used, "limit": e.limit, "percent": e.percent}
            for e in digest.limits
        ],
        "dead": digest.dead,
        "advice": [
            {"saves": line.saves, "runs": line.runs, "best": line.best.to_dict()}
            for line in digest.advice
        ],
        "heads": digest.heads,
        "findings": digest.findings,
    }  # fmt: skip


def _print(document: Document, to: SafeConsole) -> None:
    to.print(document.title, style="bold", soft_wrap=True)
    print_sentence(document.verdict, to)
    for section in document.sections:
        to.print(f"\n{section.title}", style="bold")
        for place, block in enumerate(section.blocks):
            match block:
                case Table(headings, rows, grade):
                    columns = list(zip(*rows, strict=True))
                    marks = (">" if any(map(_is_number, cells)) else "" for cells in columns)
                    table = new_table(*(m + h for m, h in zip(marks, headings, strict=True)))
                    for row in rows:
                        table.add_row(*(c.text if isinstance(c, Cell) else str(c) for c in row))
                    if place:
                        to.print()
                    to.print(table)
                    if grade != "measured":
                        to.print(f"{grade.capitalize()}.")
                case Figure(label, _, text, grade):
                    print_sentence(f"{label}: {text} ({grade})", to)
                case NoteBlock(text):
                    print_sentence(text, to)
                case _:
                    pass


def _is_number(cell: object) -> bool:
    return cell.is_number if isinstance(cell, Cell) else isinstance(cell, int | Money)
