"""The guard page: ceilings, holds, journal, ``verify``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

from outlay.errors import Finding, OutlayError
from outlay.files import FileStamp
from outlay.guard.balance import Hold, ScopeStanding
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import AnyLine, line_kind, micros_of
from outlay.guard.rental.watch import known_logs
from outlay.guard.spend_log import Verification
from outlay.report import html
from outlay.report.document import Figure, blocks_html
from outlay.report.html import Cell
from outlay.store.runs import list_runs
from outlay.sweep.run.sweep_guard import SPEND_LOG
from outlay.units import Money
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery, chip, findings_list, tabs

_HERE: Final = Path("spend.jsonl")
_JOURNAL: Final = 100

# Spend logs and their ceilings


def spend_logs(books: BookReader) -> dict[str, Path]:
    """Return the known spend logs: the environment's, of rentals, and of sweeps.

    A log's name is the last two parts of its path, or the path where these are not unique.
    """
    named = [Path(os.environ.get("OUTLAY_SPEND_LOG", _HERE))]
    sweeps = [root / SPEND_LOG for root in books.sweeps().values()]
    found = [path / _HERE if path.is_dir() else path for path in (*named, *known_logs(), *sweeps)]
    paths = dict.fromkeys(path.absolute() for path in found if path.is_file())
    shown = books.people.text
    names = {path: shown("/".join(path.parts[-2:])) for path in paths}
    count = Counter(names.values())
    return {name if count[name] == 1 else shown(str(path)): path for path, name in names.items()}


def log_stamps(books: BookReader) -> object:
    """Return a value that changes with any spend log."""
    return tuple(map(_stamp, spend_logs(books).values()))


def _stamp(path: Path) -> FileStamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return FileStamp(found.st_size, found.st_mtime_ns)


def standings_of_logs(books: BookReader) -> tuple[list[tuple[str, ScopeStanding]], list[Finding]]:
    """Return the standing of every ceiling, with its log, and findings."""
    found: list[tuple[str, ScopeStanding]] = []
    findings: list[Finding] = []
    for name, path in spend_logs(books).items():
        try:
            guard = BudgetGuard.of_log(path, clock=books.clock)
            found += ((name, each) for each in guard.standings())
            findings += guard.findings()
        except OutlayError as error:
            findings.append(Finding(source=str(path), message=str(error)))
    return found, findings


# The page


def guard_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    return (ask.get("log"), log_stamps(books))


def guard_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the guard page of one spend log."""
    logs = spend_logs(books)
    if not logs:
        return _nothing()
    name = ask.one_of("log", logs, next(iter(logs)))
    guard, findings = _open(logs[name], books)
    verification = _verified(guard, books)
    lines = list(guard.log.lines())
    standings = () if findings and not guard.ceilings.whole else guard.standings()
    journal = [_journal_row(number, line, books) for number, line in enumerate(lines, 1)]
    holds = guard.holds()
    parts = [
        _choice(ask, list(logs), name),
        html.section("Spend log", blocks_html(_about(guard, verification, len(lines), books))),
        *ceiling_parts([(name, each) for each in standings]),
        _holds(holds, books),
        html.section(
            "Journal",
            html.table(_HEADINGS, journal[::-1][:_JOURNAL], caption="Journal"),
            html.note(f"Newest first, {_JOURNAL} at most; the CSV has all {len(journal):,} lines."),
        ),
        *findings_list([*findings, *verification.findings], books.people),
    ]
    columns = ("line", "time", "what", "operation", "estimated", "actual", "currency", "hold")
    return Page(
        title="Guard", tab="Guard", parts=parts, columns=columns,
        rows=[_csv_row(number, line, books) for number, line in enumerate(lines, 1)],
        document={
            "log": guard.log_path, "head": verification.head, "verification": verification,
            "standings": standings, "holds": holds, "findings": findings,
        },
    )  # fmt: skip


def _nothing() -> Page:
    said = "No spend log is known. Set a ceiling for all launches with"
    command = "outlay guard init DIR --ceiling 50"
    parts = [html.section("Spend log", html.empty(said, command))]
    return Page(title="Guard", tab="Guard", parts=parts, document={"log": None})


def _open(path: Path, books: BookReader) -> tuple[BudgetGuard, list[Finding]]:
    """Return the guard of a log; without a readable ceiling, one of 0 and a finding."""
    try:
        guard = BudgetGuard.of_log(path, clock=books.clock)
    except OutlayError as error:
        found = [Finding(source=str(path), message=str(error))]
        return BudgetGuard(0, path, clock=books.clock, environ={}), found
    return guard, list(guard.findings())


def _verified(guard: BudgetGuard, books: BookReader) -> Verification:
    """Return the result of ``outlay guard verify``; cached until the log changes."""
    key = (str(guard.log_path), _stamp(guard.log_path))
    return books.cache.get(
        key,
        lambda: guard.verify(runs={row.run_id: Path(row.dir) for row in list_runs(books.store)}),
    )


def _choice(ask: PageQuery, names: Sequence[str], chosen: str) -> str:
    if len(names) < 2:
        return ""
    return tabs("Spend logs", {ask.address(log=name): name for name in names}, chosen)


def _about(guard: BudgetGuard, found: Verification, lines: int, books: BookReader) -> list[Figure]:
    sound = "sound" if found.sound else "NOT SOUND"
    return [
        Figure("verified", found.sound, sound, leads=True),
        Figure("lines", lines, f"{lines:,}, {found.chained:,} chained", leads=True),
        Figure("head", found.head, found.head or "none: no line has a hash"),
        Figure("file", str(guard.log_path), books.people.text(str(guard.log_path))),
    ]


def ceiling_parts(standings: Sequence[tuple[str, ScopeStanding]]) -> list[str]:
    """Return ceilings as a section; empty without any."""
    if not standings:
        return []
    rows = [[log, *_standing_cells(each)] for log, each in standings]
    headings = ["log", "scope", "share used", "spent", "held", "remaining", "limit"]
    if len({log for log, _ in standings}) == 1:
        rows, headings = [row[1:] for row in rows], headings[1:]
    return [html.section("Ceilings", html.table(headings, rows, caption="Ceilings"))]


def _standing_cells(each: ScopeStanding) -> list[object]:
    used = each.captured + each.held
    part = Cell(text="closed" if not used else "over")
    if each.limit:
        share = used.micros / each.limit.micros
        part = Cell(text=f"{share:.0%}", value=share, share=share)
    return [str(each.scope), part, each.captured, each.held, each.remaining, each.limit]


def _holds(holds: Sequence[Hold], books: BookReader) -> str:
    if not holds:
        return html.section("Open holds", html.empty("No hold is open."))
    rows = []
    for hold in holds:
        rental = hold.rental
        rows.append(
            [
                hold.id, hold.op_label, hold.lab, hold.amount, str(hold.ts)[:16].replace("T", " "),
                hold.doubt or hold.state or "open", hold.resource,
                "" if rental is None else rental.deadline[:16].replace("T", " "),
                books.people.text(hold.watcher or hold.by),
            ]
        )  # fmt: skip
    headings = (
        "hold", "operation", "lab", "held", "since (UTC)", "state", "machine", "ends at", "by",
    )  # fmt: skip
    return html.section("Open holds", html.table(headings, rows, caption="Open holds"))


_HEADINGS: Final = ("line", "time (UTC)", "what", "operation", "estimated", "actual", "hold")


def _journal_row(number: int, line: AnyLine, books: BookReader) -> list[object]:
    def money(value: Decimal | None) -> Money | None:
        return None if value is None else Money(micros_of(value), line.currency)

    return [
        number, str(line.ts)[:19].replace("T", " "), chip(line_kind(line)),
        books.people.text(line.op_label), money(line.estimated), money(line.actual),
        getattr(line, "hold", ""),
    ]  # fmt: skip


def _csv_row(number: int, line: AnyLine, books: BookReader) -> dict[str, object]:
    return {
        "line": number, "time": line.ts, "what": line_kind(line),
        "operation": books.people.text(line.op_label), "estimated": line.estimated,
        "actual": line.actual, "currency": line.currency, "hold": getattr(line, "hold", ""),
    }  # fmt: skip
