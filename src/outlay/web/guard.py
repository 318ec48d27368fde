"""The guard page: ceilings, holds, journal, ``verify``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

from outlay.clock import Clock, utc_text
from outlay.cost.burn_down import PAST_DAYS, BurnDown, burn_down
from outlay.cost.charges import month_window
from outlay.cost.daily_cost import DAY_NS
from outlay.errors import Finding, OutlayError
from outlay.export.spend_logs import local_logs
from outlay.guard.away.polled_log import Polled, PolledLog
from outlay.guard.balance import (
    Books,
    Hold,
    unit_of,
)
from outlay.guard.ceilings import ScopeStanding
from outlay.guard.entries import AnyLine, line_kind, micros_of
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.scopes import Scope
from outlay.guard.spend_log import Verification, is_url
from outlay.report import html
from outlay.report.document import Figure, blocks_html
from outlay.report.html import Cell
from outlay.runs.money.limit_use import LimitUse, exceeded, model_budgets, use_of_standing
from outlay.store.runs import list_runs, version_of_runs
from outlay.sweep.run.sweep_guard import log_of
from outlay.units import Money
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery, chip, findings_list, tabs
from outlay.web.spending.limit_rows import alarm, limit_parts

_HERE: Final = Path("spend.jsonl")
_JOURNAL: Final = 100
_WHOLE_PAUSE: Final = 20
"""After a book was read as a whole, the pause before the next, in multiples of its duration."""

# Spend logs and their ceilings


def spend_logs(books: BookReader) -> dict[str, PolledLog]:
    """Return the known spend logs: the environment's, those used here, of sweeps, and shared books.

    A log's name is the last two parts of its path, or the path where these are not unique; of a
    book, database and name.
    """
    stated = os.environ.get("OUTLAY_SPEND_LOG", str(_HERE))
    named = [stated if is_url(stated) else Path(stated), *books.logs]
    sweeps = [log_of(root) for root in books.sweeps().values()]
    found = dict.fromkeys(map(_full_name, (*named, *local_logs(), *sweeps)))
    shared = {books.polled(log).shown: log for log in found if is_url(log)}
    names = {
        log: books.people.text("/".join(log.parts[-2:]))
        for log in found
        if isinstance(log, Path) and log.is_file()
    }
    count = Counter(names.values())
    files = {
        name if count[name] == 1 else books.people.text(str(path)): path
        for path, name in names.items()
    }
    return {name: books.polled(log) for name, log in (files | shared).items()}


def _full_name(name: str | Path) -> str | Path:
    if isinstance(name, str) and is_url(name):
        return name
    path = Path(name).absolute()
    return path / _HERE if path.is_dir() else path


def log_stamps(books: BookReader) -> object:
    """Return a value that changes with any spend log."""
    return tuple(log.stamp() for log in spend_logs(books).values())


def standings_of_logs(books: BookReader) -> tuple[list[tuple[str, ScopeStanding]], list[Finding]]:
    """Return the standing of every ceiling, with its log, and findings."""
    found: list[tuple[str, ScopeStanding]] = []
    findings: list[Finding] = []
    for name, log in spend_logs(books).items():
        polled = log.ask("standings", partial(_balances, log))
        standings, doubts = polled.value or ((), ())
        found += ((name, each) for each in standings)
        findings += (*doubts, *polled.findings(log.shown))
    return found, findings


def _balances(log: PolledLog) -> tuple[tuple[ScopeStanding, ...], tuple[Finding, ...]]:
    guard = log.open()
    return guard.standings(), guard.findings()


# What is used of limits, and how it is used up


def limits_now(books: BookReader, standings: Sequence[tuple[str, ScopeStanding]]) -> list[LimitUse]:
    """Return what is used of every ceiling, and of the budgets of models."""
    key = ("budgets", version_of_runs(books.store))
    budgets = books.cache.get(key, lambda: list(model_budgets(books.store)))
    return [*budgets, *(use_of_standing(name, each) for name, each in standings)]


def burn_downs_of_logs(books: BookReader, uses: Sequence[LimitUse]) -> dict[LimitUse, BurnDown]:
    """Return how the ceilings of logs are used up, of those that are of more than a day."""
    found: dict[LimitUse, BurnDown] = {}
    logs, now_ns = spend_logs(books), books.now_ns
    for name in dict.fromkeys(use.source for use in uses if use.source in logs):
        mine = [u for u in uses if u.source == name and u.scope.period_kind in ("", "month")]
        scopes = tuple(use.scope for use in mine)
        log = logs[name]
        polled = log.ask("daily", partial(_daily, log, scopes, now_ns))
        for use, by_day in zip(mine, polled.value or (), strict=False):
            monthly = use.scope.period_kind == "month"
            end_ns = month_window(use.scope.period).end_ns if monthly else None
            found[use] = burn_down(
                by_day, limit=use.limit, spent=use.spent, held=use.held, now_ns=now_ns,
                end_ns=end_ns,
            )  # fmt: skip
    return found


def _daily(log: PolledLog, scopes: Sequence[Scope], now_ns: int) -> list[dict[int, int]]:
    """Return what was captured in each scope on each of the last days, by UTC day."""
    today_ns = now_ns // DAY_NS * DAY_NS
    days = [today_ns - back * DAY_NS for back in range(PAST_DAYS, -1, -1)]

    def read(books: Books) -> list[dict[int, int]]:
        found = []
        for scope in scopes:
            texts = {day: utc_text(day)[:10] for day in days}
            inside = {d: t for d, t in texts.items() if t.startswith(scope.period)}
            amounts = {d: books.captured(scope._replace(period=t)) for d, t in inside.items()}
            found.append({day: micros for day, micros in amounts.items() if micros})
        return found

    return log.open().log.look(read)


# What the page shows of one log


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBalances:
    """Balances and open holds of a log; findings of one without a readable ceiling."""

    standings: tuple[ScopeStanding, ...] = ()
    holds: tuple[Hold, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLog:
    """Every line of a log, and the result of ``outlay guard verify``."""

    lines: tuple[AnyLine, ...]
    verification: Verification
    took_ns: int


def _read_balances(log: PolledLog) -> LogBalances:
    try:
        guard = log.open()
    except SpendLogUnusable:
        raise
    except OutlayError as error:
        guard = log.open_without_ceiling()
        found = Finding(source=log.shown, message=str(error))
        return LogBalances(holds=guard.holds(), findings=(found,))
    return LogBalances(standings=guard.standings(), holds=guard.holds(), findings=guard.findings())


def _read_whole(log: PolledLog, runs: Mapping[str, Path], clock: Clock) -> WholeLog:
    began_ns = clock.monotonic_ns()
    guard = log.open_without_ceiling()
    verification = guard.verify(runs=runs)
    lines = guard.log.lines()
    return WholeLog(lines=lines, verification=verification, took_ns=clock.monotonic_ns() - began_ns)


def _whole(log: PolledLog, books: BookReader) -> Polled[WholeLog]:
    """Return all of a log; read again when it has changed.

    A book is read as a whole for a small part of the time only: else the last reading is returned.
    """
    stamp, last = log.stamp(), log.last("whole")
    if log.book is not None and last.value is not None:
        pause_ns = _WHOLE_PAUSE * last.value.took_ns
        if books.now_ns < last.at_ns + pause_ns:
            return last

    def make() -> Polled[WholeLog]:
        runs = {row.run_id: Path(row.dir) for row in list_runs(books.store)}
        return log.ask("whole", lambda: _read_whole(log, runs, books.clock))

    found = books.cache.get((log.shown, stamp), make)
    if found.problem:
        books.cache.drop((log.shown, stamp))
    return found


# The page


def guard_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    return (ask.get("log"), log_stamps(books))


def guard_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the guard page of one spend log; where a ceiling is exceeded comes first."""
    logs = spend_logs(books)
    if not logs:
        return _nothing()
    paths = {books.people.text(str(log.name)): name for name, log in logs.items()}
    standings, _ = standings_of_logs(books)
    over = exceeded([use_of_standing(of, each) for of, each in standings])
    in_order = list(dict.fromkeys([*(use.source for use in over), *logs]))
    name = paths.get(ask.get("log")) or ask.one_of("log", logs, in_order[0])
    log = logs[name]
    balances, whole = log.ask("balances", partial(_read_balances, log)), _whole(log, books)
    found = balances.value or LogBalances()
    findings = [*found.findings, *balances.findings(log.shown), *whole.findings(log.shown)]
    findings = list(dict.fromkeys(findings))
    lines = whole.value.lines if whole.value else ()
    verification = whole.value.verification if whole.value else None
    journal = [_journal_row(number, line, books) for number, line in enumerate(lines, 1)]
    uses = [use_of_standing(name, each) for each in found.standings]
    parts = [
        *alarm(over, books.people),
        _choice(ask, in_order, name, {use.source for use in over}),
        html.section("Spend log", blocks_html(_about(log, whole, books))),
        *limit_parts(uses, books.people, burn_downs_of_logs(books, uses), is_log=True),
        _holds(found.holds, books),
        html.section(
            "Journal",
            html.table(_HEADINGS, journal[::-1][:_JOURNAL], caption="Journal"),
            html.note(f"Newest first, {_JOURNAL} at most; the CSV has all {len(journal):,} lines."),
        ),
        *_findings([*findings, *_problems(verification)], books),
    ]
    columns = ("line", "time", "what", "operation", "estimated", "actual", "currency", "hold")
    return Page(
        title="Guard", tab="Guard", parts=parts, columns=columns, alarms=len(over),
        rows=[_csv_row(number, line, books) for number, line in enumerate(lines, 1)],
        document={
            "log": log.shown, "unit": _unit_of(found.standings),
            "head": verification.head if verification else None,
            "verification": verification, "standings": found.standings, "holds": found.holds,
            "findings": findings,
        },
    )  # fmt: skip


def _findings(findings: Sequence[Finding], books: BookReader) -> list[str]:
    return findings_list(findings, books.people, books.places_of(findings))


def _unit_of(standings: Sequence[ScopeStanding]) -> str | None:
    """Return the unit of a log's amounts; None for one without limits."""
    return str(standings[0].limit.unit) if standings else None


def _nothing() -> Page:
    said = "No spend log is known. Set a ceiling for all launches with"
    command = "outlay guard init DIR --ceiling 50"
    parts = [html.section("Spend log", html.empty(said, command))]
    return Page(title="Guard", tab="Guard", parts=parts, document={"log": None})


def _problems(found: Verification | None) -> tuple[Finding, ...]:
    return () if found is None else found.findings


def _choice(ask: PageQuery, names: Sequence[str], chosen: str, over: Collection[str]) -> str:
    """Return links to the spend logs; those with an exceeded ceiling say so."""
    if len(names) < 2:
        return ""
    said = {name: f"{name}: over" if name in over else name for name in names}
    return tabs("Spend logs", {ask.address(log=name): said[name] for name in names}, said[chosen])


def _about(log: PolledLog, whole: Polled[WholeLog], books: BookReader) -> list[Figure]:
    name = "file" if log.book is None else "book"
    named = Figure(name, log.shown, books.people.text(log.shown))
    if whole.value is None:
        return [Figure("verified", None, "not read yet", leads=True), named]
    found, lines = whole.value.verification, len(whole.value.lines)
    sound = "sound" if found.sound else "NOT SOUND"
    figures = [
        Figure("verified", found.sound, sound, leads=True),
        Figure("lines", lines, f"{lines:,}, {found.chained:,} chained", leads=True),
        Figure("head", found.head, found.head or "none: no line has a hash"),
        named,
    ]
    if log.book is not None:
        figures.append(Figure("journal as of", whole.at_ns, utc_text(whole.at_ns)))
    return figures


def _holds(holds: Sequence[Hold], books: BookReader) -> str:
    if not holds:
        return html.section("Open holds", html.empty("No hold is open."))
    rows = []
    for hold in holds:
        rental = hold.rental
        rows.append(
            [
                Cell(text=hold.op_label, is_long=True), hold.amount,
                Cell(text=hold.doubt or hold.state or "open", is_long=True),
                hold.lab, books.people.name(hold.user), hold.id,
                str(hold.ts)[:16].replace("T", " "), hold.resource,
                "" if rental is None else rental.deadline[:16].replace("T", " "),
                books.people.text(hold.watcher or hold.by),
            ]
        )  # fmt: skip
    headings = (
        "operation", "held", "state", "project", "user", "hold", "since (UTC)", "machine",
        "ends at", "by",
    )  # fmt: skip
    table = html.table(headings, rows, caption="Open holds", is_list=True)
    return html.section("Open holds", table)


_HEADINGS: Final = ("line", "what", "actual", "estimated", "operation", "time (UTC)", "hold")


def _journal_row(number: int, line: AnyLine, books: BookReader) -> list[object]:
    def money(value: Decimal | None) -> Money | None:
        return None if value is None else unit_of(line.currency).money(micros_of(value))

    return [
        number, chip(line_kind(line)), money(line.actual), money(line.estimated),
        Cell(text=books.people.text(line.op_label), is_long=True),
        str(line.ts)[:19].replace("T", " "), getattr(line, "hold", ""),
    ]  # fmt: skip


def _csv_row(number: int, line: AnyLine, books: BookReader) -> dict[str, object]:
    return {
        "line": number, "time": line.ts, "what": line_kind(line),
        "operation": books.people.text(line.op_label), "estimated": line.estimated,
        "actual": line.actual, "currency": line.currency, "hold": getattr(line, "hold", ""),
    }  # fmt: skip
