"""The money page: a month's spending by owner, ceilings, waste by phase, and forecasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

from outlay.bills.bill_book import BillBook
from outlay.bills.bill_correction import read_corrections
from outlay.bills.reconciliation import ConfirmedMonth
from outlay.clock import utc_datetime, utc_text
from outlay.cost.allocation import UNTAGGED
from outlay.cost.charges import month_window
from outlay.cost.forecast import forecast_runs
from outlay.cost.machines.owned_machines import cost_of_machine
from outlay.cost.month_forecast import forecast_month
from outlay.cost.spending import TEAM, Spending, SpendItem, Subtotal, energy_in, owner_by
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.escaping import html_text
from outlay.export.spend_logs import with_teams
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Window
from outlay.guard.ceilings import ScopeStanding
from outlay.guard.scopes import WHOLE
from outlay.report import html
from outlay.report.bill_document import confirmed_figure, confirmed_json
from outlay.report.digest import IN_NO_RUN, is_in_no_run, late_blocks, month_blocks, spent_parts
from outlay.report.document import Block, Figure, blocks_html
from outlay.report.html import Cell, amount
from outlay.report.run_sections import energy
from outlay.runs.accounting.sacct_import import IN_NO_RUN as REST_OF_JOB
from outlay.runs.spending_reader import (
    SpendingReading,
    owned_machines,
    read_reconciliation,
    read_spending,
    refresh_books,
    stamp_of_books,
)
from outlay.units import Money, Unit
from outlay.units.money import sum_by_unit
from outlay.units.shown import counted, money_of, money_text, range_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import ceiling_parts, log_stamps, spend_logs, standings_of_logs
from outlay.web.page import Page, PageQuery, columns_of, findings_list

BY: Final = ("user", "model", "project", "team")
_MOST_TAGS: Final = 20
_READ_AT_ONCE: Final = 25
_READ: Final = 100
"""The most logs that are read for what was wasted: those of the month's costliest runs."""


def money_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    books.refresh()
    return (books.stamp([]), log_stamps(books), _bill_stamp(books), stamp_of_books())


def _bill_stamp(books: BookReader) -> object:
    return [each.sha256 for each in BillBook(books.store).files()], len(read_corrections())


def _bills(
    month: str, reading: SpendingReading, books: BookReader, findings: list[Finding]
) -> list[ConfirmedMonth]:
    """Return what the month's bills confirm; cached, as a bill may be large."""
    key = ("bills", month, books.stamp([]), log_stamps(books), str(_bill_stamp(books)))

    def read() -> tuple[list[ConfirmedMonth], list[Finding]]:
        damage: list[Finding] = []
        found = read_reconciliation(books.store, reading.spending, month, damage)
        return [each.confirmed for each in found], damage

    found, damage = books.cache.get(key, read)
    findings += damage
    return found


def money_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the spending of a month."""
    month, by = _month(ask, books), _by(ask)
    reading, findings = _read(books)
    window = month_window(month)
    spending = reading.spending.within(window.start_ns, window.end_ns)
    if by in TEAM:
        spending, unknown = with_teams(spending, spend_logs(books).values())
        findings += unknown
    owners = spending.by(_owner_of(by))
    standings, doubts = standings_of_logs(books)
    findings += [*reading.spending.findings, *spending.unpriced_finding(), *doubts]
    bills = _bills(month, reading, books, findings)
    groups = [_group(unit, owners, by, month, books) for unit in spending.units()]
    parts = [
        _choices(month, by, spending),
        html.section(
            f"{month} (UTC)",
            blocks_html([*_lead(spending, standings), *map(confirmed_figure, bills)]),
            _month_end(month, reading, books),
            blocks_html(_energy(reading, window)),
        ),
        columns_of(
            [
                *(groups or [_nothing(month)]),
                *_machines(window, reading, books),
                *_booked_late(spending),
                *_wasted(ask, spending, window, books),
                *_next_runs(reading),
            ]
        ),
        *ceiling_parts(standings, books.people),
        *findings_list(findings, books.people),
    ]
    rows = [
        _row(owner, total, by, books) | {"month": month} for (owner, _), total in owners.items()
    ]
    columns = (
        "month", "by", "owner", "kind", "runs", "gpu_hours", "cost", "assumed", "currency",
    )  # fmt: skip
    return Page(
        title="Money", tab="Money", parts=parts, columns=columns, rows=rows,
        document={
            "month": month, "by": by, "rows": rows, "bills": list(map(confirmed_json, bills)),
            "findings": findings,
        },
    )  # fmt: skip


def _read(books: BookReader) -> tuple[SpendingReading, list[Finding]]:
    """Return all spending; cached until a run is registered or a spend log changes."""
    books.refresh()
    stamps = (books.stamp([]), log_stamps(books), len(read_corrections()), stamp_of_books())
    key = ("spending", *stamps)

    def read() -> tuple[SpendingReading, list[Finding]]:
        refreshed = refresh_books(books.store, books.now_ns)
        return read_spending(books.store, books.now_ns), refreshed

    reading, findings = books.cache.get(key, read)
    return reading, list(findings)


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


def _owner_of(by: str) -> Callable[[SpendItem], str]:
    """Return who pays; the cost of machines without a run is listed apart."""
    owner = owner_by(by)

    def found(spend: SpendItem) -> str:
        if not is_in_no_run(spend):
            return owner(spend)
        return IN_NO_RUN if by == "model" else f"{owner(spend)} {IN_NO_RUN}".strip()

    return found


def _group(
    unit: Unit,
    owners: dict[tuple[str, Unit], Subtotal],
    by: str,
    month: str,
    books: BookReader,
) -> str:
    """Return a table of owners in one unit, with the total."""
    found = [(owner, total) for (owner, of), total in owners.items() if of == unit]
    whole = sum((total.cost for _, total in found), start=unit.money(0))
    assumed = sum((total.assumed for _, total in found), start=unit.money(0))
    rows: list[list[object]] = [
        [
            _owner(owner, by, books), _share(total.cost, whole),
            _runs_of(owner, total.runs, by, month, books), _hours(total.gpu_us), total.cost,
            total.assumed,
        ]
        for owner, total in found
    ]  # fmt: skip
    gpu_us = sum(total.gpu_us for _, total in found)
    runs = sum(total.runs for _, total in found)
    rows.append(["total", _share(whole, whole), runs, _hours(gpu_us), whole, assumed])
    headings = [by, "share", "runs", "GPU-hours", "cost", "assumed"]
    if not assumed:
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    table = html.table(headings, rows, total=len(found), caption=f"{unit} by {by}")
    return html.section(f"{unit.kind.capitalize()}, {unit.currency}", table)


def _runs_of(owner: str, count: int, by: str, month: str, books: BookReader) -> object:
    """Return how many runs an amount is of, with a link to the list of them, costliest first."""
    if not owner or owner.endswith(IN_NO_RUN):
        return count
    name = by.removeprefix("tag:")
    of = {"user": books.people.name(owner), "model": owner}.get(name)
    filtered = {name: of} if of is not None else {"tag": f"{name}={owner}"}
    window = month_window(month)
    filtered |= {"since": utc_text(window.start_ns)[:10], "until": utc_text(window.end_ns)[:10]}
    href = f"/runs?{urlencode(filtered | {'sort': '-cost_micros'})}"
    return Cell(text=f"{count:,}", value=count, is_number=True, href=href)


def _hours(gpu_us: int) -> Cell:
    hours = gpu_us / 3.6e9
    return Cell(text=f"{hours:,.2f}", value=hours, is_number=True)


def _owner(name: str, by: str, books: BookReader) -> str:
    person = name.removesuffix(IN_NO_RUN).strip() if by == "user" else ""
    return name.replace(person, books.people.name(person)) if person else name or UNTAGGED


def _row(owner: str, total: Subtotal, by: str, books: BookReader) -> dict[str, object]:
    return {
        "by": by, "owner": _owner(owner, by, books), "kind": total.cost.kind, "runs": total.runs,
        "gpu_hours": total.gpu_us / 3.6e9, "cost": total.cost.amount,
        "assumed": total.assumed.amount, "currency": total.cost.currency,
    }  # fmt: skip


def _share(part: Money, whole: Money) -> Cell:
    share = part.micros / whole.micros if whole else 0.0
    return Cell(text=f"{share:.1%}", value=share, share=share)


def _choices(month: str, by: str, spending: Spending) -> str:
    """Return the form: the month, and the owner: user, model, or the value of a tag."""
    names = dict.fromkeys(tag for spend in spending.spends for tag in spend.tags)
    tags = [f"tag:{tag}" for tag in names if tag not in BY][:_MOST_TAGS]
    options = "".join(
        f'<option value="{html_text(each)}"{" selected" if each == by else ""}>'
        f"{html_text(each)}</option>"
        for each in dict.fromkeys((*BY, *tags, by))
    )
    return (
        '<form class="filters" action="/money" data-apply><label>Month (UTC)'
        f'<input type="month" name="month" value="{month}"></label>'
        f'<label>By<select name="by">{options}</select></label><button>Show</button></form>'
    )


def _lead(spending: Spending, standings: Sequence[tuple[str, ScopeStanding]]) -> list[Figure]:
    """Return what was spent, what of it on machines without a run, and what is held."""
    outside = replace(spending, spends=tuple(filter(is_in_no_run, spending.spends)))
    found = [
        Figure(label, total.cost, money_text(total.cost), leads=True)
        for label, part in (("spent", spending), (IN_NO_RUN, outside))
        for total in part.totals().values()
    ]
    held = (each.held for _, each in standings if each.scope == WHOLE)
    for money in sum_by_unit(held):
        found.append(Figure("held now", money, money_text(money), leads=True))
    return found or [Figure("spent", 0, "nothing", leads=True)]


def _nothing(month: str) -> str:
    said = f"Nothing registered here cost anything in {month}. To record a cost, state a price:"
    command = 'outlay exec --price "1.50 USD/h" -- python train.py'
    return html.section("Nothing yet", html.empty(said, command))


def _month_end(month: str, reading: SpendingReading, books: BookReader) -> str:
    """Return the forecast of the digest if it is the present month."""
    if month != utc_datetime(books.now_ns).strftime("%Y-%m"):
        return ""
    found = forecast_month(reading.spending, books.now_ns, reading.running)
    return blocks_html(month_blocks(found))


def _machines(month: Window, reading: SpendingReading, books: BookReader) -> list[str]:
    """Return what owned nodes cost in the month, in runs and in no run."""
    owned, _ = owned_machines()  # What cannot be read of them is a finding of the spending.
    rows = [
        [machine.host, each.cost, each.in_runs, each.in_no_run]
        for machine in owned
        for each in cost_of_machine(machine, reading.reports, books.now_ns)
        if month.start_ns <= each.start_ns < month.end_ns
    ]
    if not rows:
        return []
    table = html.table(("machine", "cost", "in runs", IN_NO_RUN), rows, caption="Owned machines")
    return [html.section("Owned machines", table)]


def _energy(reading: SpendingReading, month: Window) -> list[Block]:
    rows = {row.run_id: row for row in reading.reports}
    used = energy_in(reading.spending.spends, rows, month.start_ns, month.end_ns)
    return list(energy(used, "estimated"))


def _booked_late(spending: Spending) -> list[str]:
    blocks = late_blocks(spending.spends)
    return [html.section("Booked late", blocks_html(blocks))] if blocks else []


def _next_runs(reading: SpendingReading) -> list[str]:
    """Return the forecast cost of the next run of each model."""
    history: dict[tuple[str, Unit], list[float]] = defaultdict(list)
    for report in reading.reports:
        if report.model != REST_OF_JOB:
            history[report.model, report.paid.unit].append(float(report.paid.amount))
    rows = []
    for (model, unit), costs in sorted(history.items()):
        estimate = forecast_runs(costs, 1)
        if estimate is None:
            continue
        ends = "too few runs"
        if estimate.low is not None and estimate.high is not None:
            low, high = (money_of(end, unit) for end in (estimate.low, estimate.high))
            ends = f"{range_text(low, high)} {unit}"
        point = Money.parse(estimate.point, currency=unit.currency).as_kind(unit.kind)
        rows.append([model, len(costs), amount(point, mark="estimated"), ends])
    if not rows:
        return []
    headings = ("model", "runs so far", "the next run", "80 % interval")
    table = html.table(headings, rows[:_READ_AT_ONCE], caption="Forecast")
    return [html.section("What the next run would cost", table)]


# Waste


def _wasted(ask: PageQuery, spending: Spending, month: Window, books: BookReader) -> list[str]:
    """Return what runs cost in the month besides productive steps, by phase, from their logs."""
    costliest = _costliest(spending.spends)
    if not costliest:
        return []
    if len(costliest) > _READ_AT_ONCE and not ask.get("wasted"):
        link = html_text(ask.address(wasted="1"))
        said = f"Read the logs of the {min(len(costliest), _READ):,} costliest runs"
        return [html.section("Wasted, by phase", f'<p><a href="{link}">{said}</a></p>')]
    views = dict(_views(costliest[:_READ], books))
    causes: dict[tuple[Unit, str], int] = defaultdict(int)
    whole: dict[Unit, int] = defaultdict(int)
    read = [spend for spend in spending.spends if spend.run_id in views]
    for part in spent_parts(read, views, month):
        whole[part.unit] += part.micros
        if part.phase != ph.STEP:
            causes[part.unit, part.phase] += part.micros
    largest = sorted(causes.items(), key=lambda item: (-whole[item[0][0]], -item[1]))
    rows = [
        [cause, _share(unit.money(micros), unit.money(whole[unit])), unit.money(micros)]
        for (unit, cause), micros in largest
    ]
    if not rows:
        return []
    note = f"From the logs of {counted(len(views), 'run')}: their cost in this month."
    table = html.table(("phase", "share of cost", "cost"), rows, caption="Wasted")
    return [html.section("Wasted, by phase", table, html.note(note))]


def _costliest(spends: Sequence[SpendItem]) -> list[str]:
    sums: dict[str, int] = defaultdict(int)
    for spend in spends:
        if spend.source == "ledger" and not is_in_no_run(spend):
            sums[spend.run_id] += spend.cost.micros
    return sorted(sums, key=lambda run_id: -sums[run_id])


def _views(run_ids: Iterable[str], books: BookReader) -> Iterator[tuple[str, RunView]]:
    """Yield the runs whose logs can be read, by id."""
    for run_id in run_ids:
        with suppress(OutlayError, OSError):
            yield run_id, books.runs.reading(books.row(run_id).dir).view
