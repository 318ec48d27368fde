"""Money: a month by who pays, against ceilings; in no run, wasted by cause, what is to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from outlay.clock import utc_datetime
from outlay.cost.allocation import UNTAGGED
from outlay.cost.charges import month_window
from outlay.cost.forecast import forecast_runs
from outlay.cost.spending import Spending, SpendItem, Subtotal, Unit, owner_by
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.guard.balance import ScopeStanding
from outlay.guard.entries import WHOLE
from outlay.report import html
from outlay.report.document import Figure, figures_html
from outlay.report.html import Cell, amount, money_text
from outlay.runs.spending import SpendingReading, read_spending, refresh_books
from outlay.units import Money
from outlay.web.books import BookReader
from outlay.web.guard import ceiling_parts, log_stamps, standings_of_logs
from outlay.web.page import Page, PageQuery, columns_of, findings_list, tabs

BY: Final = ("user", "model", "project", "team")
_READ_AT_ONCE: Final = 25
_READ: Final = 100
"""Logs that are read to say what was wasted: those of the dearest runs of the month."""


def money_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    del ask
    books.refresh()
    return (books.stamp([]), log_stamps(books))


def money_page(ask: PageQuery, books: BookReader) -> Page:
    """Return what a month cost."""
    month, by = _month(ask, books), _by(ask)
    reading, findings = _read(books)
    window = month_window(month)
    spending = reading.spending.within(window.start_ns, window.end_ns)
    owners = spending.by(owner_by(by))
    standings, doubts = standings_of_logs(books)
    findings += [*reading.spending.findings, *spending.unpriced_finding(), *doubts]
    groups = [_group(unit, owners, by, books) for unit in spending.units()]
    parts = [
        _choices(ask, month, by),
        html.section(f"{month} (UTC)", figures_html(_lead(spending, standings))),
        columns_of(
            [
                *(groups or [_nothing(month)]),
                *_wasted(ask, spending, books),
                *ceiling_parts(standings),
                *_forecasts(reading),
            ]
        ),
        *findings_list(findings),
    ]
    rows = [
        _row(owner, total, by, books) | {"month": month} for (owner, _), total in owners.items()
    ]
    columns = (
        "month", "by", "owner", "kind", "runs", "gpu_hours", "cost", "assumed", "currency",
    )  # fmt: skip
    return Page(
        title="Money", tab="Money", parts=parts, columns=columns, rows=rows,
        document={"month": month, "by": by, "rows": rows, "findings": findings},
    )  # fmt: skip


def _read(books: BookReader) -> tuple[SpendingReading, list[Finding]]:
    """Return all that was spent; the same answer until a run or a log is registered anew."""
    books.refresh()
    key = ("spending", books.stamp([]), log_stamps(books))
    known: tuple[SpendingReading, list[Finding]] | None = books.kept.get(key)
    if known is None:
        refreshed = refresh_books(books.store, books.now_ns)
        known = books.kept.put(key, (read_spending(books.store, books.now_ns), list(refreshed)))
    return known[0], list(known[1])


def _month(ask: PageQuery, books: BookReader) -> str:
    here = utc_datetime(books.now_ns).strftime("%Y-%m")
    try:
        month_window(ask.get("month", here))
    except InvalidValue:
        return here
    return ask.get("month", here)


def _by(ask: PageQuery) -> str:
    chosen = ask.get("by", "user")
    try:
        owner_by(chosen)
    except InvalidValue:
        return "user"
    return chosen


def _group(unit: Unit, owners: dict[tuple[str, Unit], Subtotal], by: str, books: BookReader) -> str:
    """Return who pays for what was spent in one currency and kind; the parts sum to the whole."""
    found = [(owner, total) for (owner, of), total in owners.items() if of == unit]
    whole = Money(sum(total.cost.micros for _, total in found), unit.currency)
    assumed = Money(sum(total.assumed.micros for _, total in found), unit.currency)
    rows: list[list[object]] = [
        [
            _owner(owner, by, books), _share(total.cost, whole), total.runs, _hours(total.gpu_us),
            total.cost, total.assumed,
        ]
        for owner, total in found
    ]  # fmt: skip
    gpu_us = sum(total.gpu_us for _, total in found)
    runs = sum(total.runs for _, total in found)
    rows.append(["total", _share(whole, whole), runs, _hours(gpu_us), whole, assumed])
    headings = (by, "share", "runs", "GPU-hours", "cost", "of it assumed")
    table = html.table(headings, rows, has_total=True, caption=f"{unit} by {by}")
    return html.section(f"{unit.kind.capitalize()}, {unit.currency}", table)


def _hours(gpu_us: int) -> Cell:
    hours = gpu_us / 3.6e9
    return Cell(text=f"{hours:,.2f}", value=hours, is_number=True)


def _owner(name: str, by: str, books: BookReader) -> str:
    return (books.people.name(name) if by == "user" else name) or UNTAGGED


def _row(owner: str, total: Subtotal, by: str, books: BookReader) -> dict[str, object]:
    return {
        "by": by, "owner": _owner(owner, by, books), "kind": total.kind, "runs": total.runs,
        "gpu_hours": total.gpu_us / 3.6e9, "cost": total.cost.amount,
        "assumed": total.assumed.amount, "currency": total.cost.currency,
    }  # fmt: skip


def _share(part: Money, whole: Money) -> Cell:
    share = part.micros / whole.micros if whole else 0.0
    return Cell(text=f"{share:.1%}", value=share, share=share)


def _choices(ask: PageQuery, month: str, by: str) -> str:
    form = (
        '<form class="filters" action="/money" data-apply><label>Month (UTC)'
        f'<input type="month" name="month" value="{month}"></label>'
        f'<input type="hidden" name="by" value="{html_text(by)}"><button>Show</button></form>'
    )
    return form + tabs("Who pays", {ask.address(by=each): f"by {each}" for each in BY}, f"by {by}")


def _lead(spending: Spending, standings: Sequence[tuple[str, ScopeStanding]]) -> list[Figure]:
    """Return what was spent, what of it was in no run, and what is held."""
    found = [
        Figure(f"spent, {unit}", total.cost, money_text(total.cost), leads=True)
        for unit, total in spending.totals().items()
    ]
    outside = [spend for spend in spending.spends if spend.source == "rental"]
    for currency, micros in _sums(spend.cost for spend in outside).items():
        money = Money(micros, currency)
        found.append(Figure("rented, in no run", money, money_text(money), leads=True))
    held = (each.held for _, each in standings if each.scope == WHOLE)
    for currency, micros in _sums(held).items():
        money = Money(micros, currency)
        found.append(Figure("held now", money, money_text(money), leads=True))
    return found or [Figure("spent", 0, "nothing", leads=True)]


def _sums(amounts: Iterable[Money]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for money in amounts:
        sums[money.currency] += money.micros
    return sums


def _nothing(month: str) -> str:
    said = f"Nothing that is registered here cost anything in {month}. A run has a cost once it has"
    command = 'outlay exec --price "1.50 USD/h" -- python train.py'
    return html.section("Nothing yet", html.empty(f"{said} a price:", command))


def _forecasts(reading: SpendingReading) -> list[str]:
    """Return what one more run of each model would cost, with its interval."""
    history: dict[tuple[str, str], list[float]] = defaultdict(list)
    for report in reading.reports:
        history[report.model, report.currency].append(float(report.cost.amount))
    rows = []
    for (model, currency), costs in sorted(history.items()):
        estimate = forecast_runs(costs, 1)
        if estimate is None:
            continue
        ends = "too few runs for one"
        if estimate.low is not None and estimate.high is not None:
            both = (Money.parse(end, currency=currency) for end in (estimate.low, estimate.high))
            ends = " to ".join(map(money_text, both))
        point = Money.parse(estimate.point, currency=currency)
        rows.append([model, len(costs), amount(point, mark="estimated"), ends])
    if not rows:
        return []
    headings = ("model", "runs so far", "the next run", "80 % interval")
    table = html.table(headings, rows[:_READ_AT_ONCE], caption="Forecast")
    return [html.section("What the next run would cost", table)]


# What was wasted


def _wasted(ask: PageQuery, spending: Spending, books: BookReader) -> list[str]:
    """Return what the month's runs cost beyond their steps, by cause, from their logs."""
    dearest = _dearest(spending.spends)
    if not dearest:
        return []
    if len(dearest) > _READ_AT_ONCE and not ask.get("wasted"):
        link = html_text(ask.address(wasted="1"))
        said = f"Read the logs of the {min(len(dearest), _READ):,} dearest runs"
        return [html.section("Wasted, by cause", f'<p><a href="{link}">{said}</a></p>')]
    causes: dict[tuple[str, str], int] = defaultdict(int)
    whole: dict[str, int] = defaultdict(int)
    read = 0
    for run_id in dearest[:_READ]:
        parts = _by_phase(run_id, books)
        read += bool(parts)
        for phase, money in parts.items():
            whole[money.currency] += money.micros
            if phase != ph.STEP:
                causes[money.currency, phase] += money.micros
    rows = [
        [cause, _share(Money(micros, currency), Money(whole[currency], currency)),
         Money(micros, currency)]
        for (currency, cause), micros in sorted(causes.items(), key=lambda item: -item[1])
    ]  # fmt: skip
    if not rows:
        return []
    note = f"Of {read:,} runs that cost anything this month, over their whole time, by their logs."
    table = html.table(("cause", "of their cost", "cost"), rows, caption="Wasted")
    return [html.section("Wasted, by cause", table, html.note(note))]


def _dearest(spends: Sequence[SpendItem]) -> list[str]:
    sums: dict[str, int] = defaultdict(int)
    for spend in spends:
        if spend.source == "ledger":
            sums[spend.run_id] += spend.cost.micros
    return sorted(sums, key=lambda run_id: -sums[run_id])


def _by_phase(run_id: str, books: BookReader) -> dict[str, Money]:
    """Return what each phase of a run cost; nothing of one whose log cannot be read."""
    try:
        row = books.row(run_id)
        return books.reading(Path(row.dir)).cost.by_phase
    except (OutlayError, OSError):
        return {}
