"""What is behind an amount of the page of money: runs, machines, bills, which sum to it exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from outlay.clock import parse_moment, utc_datetime
from outlay.cost.daily_cost import DAY_NS, days_of, part_between
from outlay.cost.machines.owned_machines import (
    MachineCost,
    OwnedMachine,
    cost_of_machine,
    spend_in_no_run,
)
from outlay.cost.spending import SpendItem
from outlay.errors import Finding, InvalidValue
from outlay.report import html
from outlay.report.digest import is_in_no_run, spent_parts
from outlay.report.html import Cell
from outlay.runs.money.spending_reader import owned_machines
from outlay.store.run_row import RunRow
from outlay.units import Money, Unit
from outlay.units.shown import counted, decimals_of, figure_text, money_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import log_stamps
from outlay.web.page import Page, PageQuery, findings_list, run_href
from outlay.web.spending.month_reader import (
    MonthSpending,
    bill_stamp,
    owner_function,
    owner_name,
    read_bills,
    read_month,
    read_views,
)

_MOST_ROWS: Final = 500
MOST_LOGS: Final = 100
"""The most logs that are read for what was wasted: those of the month's costliest runs."""
_SOURCES: Final = {
    "ledger": "run", "stated": "stated", "rental": "rental in no run", "owned": "machine in no run",
    "increment": "billed beyond use", "commitment": "commitment", "bill": "correction by a bill",
}  # fmt: skip
_COLUMNS: Final = (
    "what", "run_id", "name", "model", "user", "cost", "currency", "kind", "first", "last",
)  # fmt: skip


def spent_href(found: MonthSpending, unit: Unit, **chosen: str) -> str:
    """Return the address of what is behind an amount of a month, in one unit."""
    of = {"month": found.month, "by": found.by, "unit": str(unit)}
    return f"/spent?{urlencode(of | chosen)}"


def money_cell(money: Money, href: str, decimals: int) -> Cell:
    """Return an amount that leads to what is behind it."""
    text = f"{figure_text(money, decimals)} {money.unit}"
    return Cell(
        text=text, value=money, href=href if money else "", title=str(money), is_number=True
    )


@dataclass(slots=True)
class _SpentRow:
    """What one run or machine has of an amount."""

    spend: SpendItem
    micros: int
    first_ns: int
    last_ns: int


def spent_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    books.refresh()
    return books.stamp([]), log_stamps(books), bill_stamp(books)


def spent_page(ask: PageQuery, books: BookReader) -> Page:
    """Return what is behind an amount."""
    found = read_month(ask, books)
    unit = _unit(ask, found)
    findings: list[Finding] = []
    back = {"month": found.month, "by": found.by}
    crumbs = (
        f'<p class="crumbs"><a href="/money?{urlencode(back).replace("&", "&amp;")}">Money</a></p>'
    )
    if ask.get("bills"):
        return _bills_page(found, unit, books, crumbs)
    rows_of = _machine_rows if ask.get("on") else _rows
    rows = rows_of(ask, found, unit, books)
    whole = unit.money(sum(row.micros for row in rows))
    registered = {row.run_id for row in found.reading.reports if row.source == "ledger"}
    decimals = decimals_of([whole])
    table = [_cells(row, unit, registered, decimals, books) for row in rows[:_MOST_ROWS]]
    if rest := rows[_MOST_ROWS:]:
        money = unit.money(sum(row.micros for row in rest))
        more = [f"{len(rest):,} more", money_cell(money, "", decimals), "", "", "", "", ""]
        table.append(more)
    table.append(["total", money_cell(whole, "", decimals), "", "", "", "", ""])
    headings = ("what", "cost", "kind", "model", "user", "first used (UTC)", "last used")
    drawn = html.table(headings, table, total=len(table) - 1, caption="What it is of", is_list=True)
    said = f"{money_text(whole)}: {_said(ask, found, books)}, of {counted(len(rows), 'row')}."
    body = drawn if rows else html.empty("Nothing was spent on this.")
    cells = [_csv_row(row, unit, books) for row in rows]
    return Page(
        title=f"What {money_text(whole)} is of", tab="Money", crumbs=crumbs, verdict=said,
        parts=[
            f'<section class="fit">{body}</section>',
            *findings_list(findings, books.people),
        ],
        columns=_COLUMNS, rows=cells,
        document={"month": found.month, "by": found.by, "total": whole, "kind": unit.kind,
                  "rows": cells},
    )  # fmt: skip


def _unit(ask: PageQuery, found: MonthSpending) -> Unit:
    try:
        return Unit.parse(ask.get("unit", "USD"))
    except InvalidValue:
        return next(iter(found.spending.units()), Unit())


# What is chosen


def owner_key(owner: str, by: str, books: BookReader) -> str:
    """Return an owner for an address, without the name of a person if people are hidden."""
    return owner_name(owner, by, books) if books.people.hidden else owner


def _rows(ask: PageQuery, found: MonthSpending, unit: Unit, books: BookReader) -> list[_SpentRow]:
    """Return runs and machines with their parts of an amount, the largest first."""
    rows: dict[tuple[str, str, str], _SpentRow] = {}
    part_of = _part_of(ask, found, books)
    for spend in _chosen(ask, found, unit, books):
        if micros := part_of(spend):
            key = (spend.source, spend.run_id, spend.name)
            row = rows.setdefault(key, _SpentRow(spend, 0, spend.start_ns, spend.end_ns))
            row.micros += micros
            row.first_ns = min(row.first_ns, spend.start_ns)
            row.last_ns = max(row.last_ns, spend.end_ns)
    return sorted(rows.values(), key=lambda row: (-row.micros, row.spend.run_id))


def machine_costs(
    found: MonthSpending, books: BookReader
) -> list[tuple[OwnedMachine, MachineCost]]:
    """Return what owned machines cost in the month."""
    owned, _ = owned_machines()  # What cannot be read of them is a finding of the spending.
    month = found.window
    return [
        (machine, each)
        for machine in owned
        for each in cost_of_machine(machine, found.reading.reports, books.now_ns)
        if month.start_ns <= each.start_ns < month.end_ns
    ]


def _machine_rows(
    ask: PageQuery, found: MonthSpending, unit: Unit, books: BookReader
) -> list[_SpentRow]:
    """Return what an owned machine's cost of the month is of, the largest first."""
    rows = []
    of_run = {report.run_id: report for report in found.reading.reports}
    for machine, month in machine_costs(found, books):
        if machine.host != ask.get("on") or month.cost.unit != unit:
            continue
        for run_id, micros in month.by_run.items():
            rows.append(_run_row(of_run[run_id], unit.money(micros), month))
        if not ask.get("inside") and month.in_no_run:
            rest = spend_in_no_run(machine, month)
            rows.append(_SpentRow(rest, rest.cost.micros, rest.start_ns, rest.end_ns))
    return sorted(rows, key=lambda row: (-row.micros, row.spend.run_id))


def _run_row(run: RunRow, cost: Money, month: MachineCost) -> _SpentRow:
    """Return what a run has of a machine's cost of a month."""
    start_ns, end_ns = max(run.started_ns, month.start_ns), min(run.last_seen_ns, month.end_ns)
    spend = SpendItem(
        source=run.source, run_id=run.run_id, model=run.model, name=run.name, start_ns=start_ns,
        end_ns=end_ns, booked_ns=start_ns, cost=cost, assumed=cost * 0, user=run.user,
    )  # fmt: skip
    return _SpentRow(spend, cost.micros, start_ns, end_ns)


def _chosen(
    ask: PageQuery, found: MonthSpending, unit: Unit, books: BookReader
) -> Iterator[SpendItem]:
    """Yield the spends of an owner or of all, in runs or outside of them."""
    owners, machines, late = ask.every("owner"), ask.every("machine"), ask.get("late")
    runs = ask.every("run")
    if beyond := ask.number("beyond", 0, most=10**6) if ask.get("beyond") else 0:
        owners = [owner_key(each, found.by, books) for each in found.owners(unit)[beyond:]]
    owner_of = owner_function(found.by)
    for spend in found.spending.of_unit(unit):
        is_its = not (owners or beyond) or owner_key(owner_of(spend), found.by, books) in owners
        is_there = not machines or spend.machine in machines
        is_there &= not late or spend.origin == late
        is_there &= not runs or spend.run_id in runs
        if is_its and is_there and (not ask.get("outside") or is_in_no_run(spend)):
            yield spend


def _part_of(ask: PageQuery, found: MonthSpending, books: BookReader) -> Callable[[SpendItem], int]:
    """Return what of a spend counts: all of it, or its part of a day, a phase, or up to a time."""
    if ask.get("phase"):
        return _part_of_phase(ask.get("phase"), found, books)
    day_ns, until_ns = (_moment(ask, name, books) for name in ("day", "until"))
    if day_ns is not None:
        return lambda spend: dict(days_of(spend)).get(day_ns // DAY_NS * DAY_NS, 0)
    if until_ns is not None:
        return lambda spend: part_between(spend, found.window.start_ns, until_ns)
    return lambda spend: spend.cost.micros


def _moment(ask: PageQuery, name: str, books: BookReader) -> int | None:
    try:
        text = ask.get(name)
        return parse_moment(text, name=name, now_ns=books.now_ns) if text else None
    except InvalidValue:
        return None


def _part_of_phase(
    phase: str, found: MonthSpending, books: BookReader
) -> Callable[[SpendItem], int]:
    views = dict(read_views(costliest(found)[:MOST_LOGS], books))

    def part(spend: SpendItem) -> int:
        if spend.run_id not in views or spend.source != "ledger":
            return 0
        parts = spent_parts([spend], views, found.window)
        return sum(each.micros for each in parts if each.phase == phase)

    return part


def costliest(found: MonthSpending) -> list[str]:
    """Return the runs that cost most in the month, by id."""
    sums: dict[str, int] = {}
    for spend in found.spending.spends:
        if spend.source == "ledger" and not is_in_no_run(spend):
            sums[spend.run_id] = sums.get(spend.run_id, 0) + spend.cost.micros
    return sorted(sums, key=lambda run_id: -sums[run_id])


def _said(ask: PageQuery, found: MonthSpending, books: BookReader) -> str:
    """Return what was chosen, in words."""
    words = [f"spent in {found.month} (UTC)"]
    if ask.get("day"):
        words = [f"spent on {ask.get('day')} (UTC)"]
    elif ask.get("until"):
        words = [f"spent in {found.month} before {ask.get('until')}"]
    words += (f"{found.by} {owner_name(owner, found.by, books)}" for owner in ask.every("owner"))
    if ask.get("beyond"):
        words.append(f"every {found.by} but the first {ask.get('beyond')}")
    words += (f"machine {name}" for name in ask.every("machine"))
    words += [f"of {ask.get('late')}, which was closed before"] if ask.get("late") else []
    words += [f"machine {ask.get('on')}"] if ask.get("on") else []
    words += ["in runs"] if ask.get("inside") else []
    words += ["in no run"] if ask.get("outside") else []
    words += [f"phase {ask.get('phase')}"] if ask.get("phase") else []
    return ", ".join(words)


# What is shown


def _cells(
    row: _SpentRow, unit: Unit, registered: set[str], decimals: int, books: BookReader
) -> list[object]:
    spend = row.spend
    has_page = spend.run_id in registered and spend.source in ("ledger", "increment")
    href = run_href(spend.run_id) if has_page else _elsewhere(spend)
    return [
        Cell(text=books.people.text(spend.name or spend.run_id), href=href, title=spend.run_id),
        money_cell(unit.money(row.micros), "", decimals),
        _SOURCES[spend.source], spend.model, books.people.name(spend.user),
        _minute(row.first_ns), _minute(row.last_ns),
    ]  # fmt: skip


def _elsewhere(spend: SpendItem) -> str:
    return {"rental": "/guard", "owned": "/", "bill": "", "stated": ""}.get(spend.source, "")


def _minute(t_ns: int) -> Cell:
    return Cell(text=utc_datetime(t_ns).strftime("%Y-%m-%d %H:%M"), value=t_ns)


def _csv_row(row: _SpentRow, unit: Unit, books: BookReader) -> Mapping[str, object]:
    spend, money = row.spend, unit.money(row.micros)
    return {
        "what": _SOURCES[spend.source], "run_id": spend.run_id,
        "name": books.people.text(spend.name),
        "model": spend.model, "user": books.people.name(spend.user), "cost": money.amount,
        "currency": money.currency, "kind": money.kind, "first": _minute(row.first_ns).text,
        "last": _minute(row.last_ns).text,
    }  # fmt: skip


def _bills_page(found: MonthSpending, unit: Unit, books: BookReader, crumbs: str) -> Page:
    """Return the resources of which a bill confirms what the books have."""
    findings: list[Finding] = []
    bills = [b for b in read_bills(found, books, findings) if b.currency == unit.currency]
    rows = [row for bill in bills for row in bill.rows if row.is_confirmed]
    whole = unit.money(sum(row.in_books for row in rows))
    decimals = decimals_of([whole])
    table: list[list[object]] = [
        [
            row.resource or "(no resource)", money_cell(unit.money(row.in_books), "", decimals),
            row.how or row.state, books.people.name(row.owner), row.provider,
        ]
        for row in sorted(rows, key=lambda row: -row.in_books)
    ]  # fmt: skip
    table.append(["total", money_cell(whole, "", decimals), "", "", ""])
    headings = ("resource", "cost", "match", "owner", "provider")
    drawn = html.table(
        headings, table, total=len(table) - 1, caption="Confirmed by bills", is_list=True
    )
    cells = [
        {"what": "bill", "run_id": row.resource, "name": row.resource, "model": "",
         "user": books.people.name(row.owner), "cost": unit.money(row.in_books).amount,
         "currency": unit.currency, "kind": unit.kind, "first": "", "last": ""}
        for row in rows
    ]  # fmt: skip
    return Page(
        title=f"What {money_text(whole)} is of", tab="Money", crumbs=crumbs,
        verdict=f"{money_text(whole)} of the books of {found.month} are confirmed by bills.",
        parts=[f'<section class="fit">{drawn}</section>', *findings_list(findings, books.people)],
        columns=_COLUMNS, rows=cells,
        document={"month": found.month, "total": whole, "kind": unit.kind, "rows": cells},
    )  # fmt: skip
