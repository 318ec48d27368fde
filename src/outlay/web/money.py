"""The money page: a month by day and owner, waste, ceilings and how they are used up, forecasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from outlay.clock import utc_datetime, utc_text
from outlay.cost.burn_down import BurnDown, burn_down
from outlay.cost.daily_cost import (
    DAY_NS,
    CostChange,
    change_text,
    changes,
    cost_by_day,
    month_before,
    month_of,
    units_by_use,
)
from outlay.cost.forecast import forecast_runs
from outlay.cost.month_forecast import PAST_DAYS, forecast_month
from outlay.cost.spending import Spending, SpendItem, Subtotal, energy_in, subtotal
from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.goodput.timeline import Window
from outlay.guard.ceilings import ScopeStanding
from outlay.guard.scopes import WHOLE
from outlay.report import html
from outlay.report.bill_document import confirmed_json, share_text
from outlay.report.digest import BOOKED_LATE, IN_NO_RUN, is_in_no_run, month_blocks, spent_parts
from outlay.report.document import Block, blocks_html
from outlay.report.html import Cell
from outlay.report.run_sections import energy
from outlay.runs.accounting.sacct_import import IN_NO_RUN as REST_OF_JOB
from outlay.runs.money.limit_use import LimitUse, exceeded, over_limit
from outlay.runs.money.spending_reader import SpendingReading, stamp_of_books
from outlay.store.run_row import RunRow
from outlay.units import Money, Unit
from outlay.units.money import sum_by_unit
from outlay.units.shown import counted, decimals_of, money_of, money_text, range_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import burn_downs_of_logs, limits_now, log_stamps, standings_of_logs
from outlay.web.page import (
    Page,
    PageQuery,
    Tile,
    chip,
    columns_of,
    findings_list,
    run_href,
    tiles,
)
from outlay.web.spending.drawings import MOST_OWNERS, DayStack, cut_days, draw_days, legend
from outlay.web.spending.limit_rows import alarm, limit_parts
from outlay.web.spending.month_reader import (
    BY,
    MonthSpending,
    bill_stamp,
    owner_function,
    owner_name,
    read_bills,
    read_month,
    read_views,
    stamp_of_spending,
)
from outlay.web.spending.spent import (
    MOST_LOGS,
    costliest,
    machine_costs,
    money_cell,
    owner_key,
    spent_href,
)

_MOST_TAGS: Final = 20
_READ_AT_ONCE: Final = 25
_MOST_WASTEFUL: Final = 10
_MOST_LATE: Final = 25


def money_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    books.refresh()
    return (books.stamp([]), log_stamps(books), bill_stamp(books), stamp_of_books())


def money_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the spending of a month."""
    found = read_month(ask, books)
    findings = list(found.findings)
    standings, doubts = standings_of_logs(books)
    findings += [*found.every.findings, *found.spending.unpriced_finding(), *doubts]
    bills = read_bills(found, books, findings)
    uses = limits_now(books, standings)
    findings = [*over_limit(uses), *findings]
    units = units_by_use(found.spending)
    stamp = stamp_of_spending(books)
    owners = found.spending.by(owner_function(found.by))
    before = month_before(found.window, books.now_ns)
    by_owner = changes(_near(found), found.window, before, owner_function(found.by))
    confirmed = [(Unit(each.currency), each.confirmed) for each in bills]
    parts = [
        *alarm(uses, books.people),
        _choices(found),
        html.section(
            f"{found.month} (UTC)",
            tiles(_lead(found, units, standings, before)),
            tiles(
                Tile(
                    label=f"confirmed by bills, {each.month}",
                    text=f"{money_text(each.confirmed)} ({share_text(each)})",
                    href=spent_href(found, unit, bills="1"),
                )
                for unit, each in confirmed
            ) if confirmed else "",
            books.cache.get(("month end", stamp, found.month), lambda: _month_end(found, books)),
            books.cache.get(
                ("energy", stamp, found.month), lambda: blocks_html(_energy(found))
            ),
        ),
        *(_days(unit, found, books) for unit in units[:1]),
        *([f'<div class="two">{"".join(_days(unit, found, books) for unit in units[1:])}</div>']
          if len(units) > 1 else []),
        columns_of(
            [
                *(_group(unit, owners, by_owner, found, books) for unit in units),
                *([] if units else [_nothing(found.month)]),
                *_machines(found, books),
                *_booked_late(found, books),
                *_wasted(ask, found, units, books),
                *books.cache.get(("next runs", stamp), lambda: _next_runs(found.reading)),
            ]
        ),
        *_wasteful(found, units),
        *limit_parts(uses, books.people, _burn_downs(uses, found, books)),
        *findings_list(findings, books.people, books.places_of(findings)),
    ]  # fmt: skip
    rows = [
        _row(owner, total, found.by, books) | {"month": found.month}
        for (owner, _), total in owners.items()
    ]
    columns = (
        "month", "by", "owner", "kind", "runs", "gpu_hours", "cost", "assumed", "currency",
    )  # fmt: skip
    return Page(
        title="Money", tab="Money", parts=parts, columns=columns, rows=rows,
        alarms=len(exceeded(uses)),
        document={
            "month": found.month, "by": found.by, "rows": rows,
            "days": [row for unit in units for row in _day_rows(unit, found, books)],
            "bills": [confirmed_json(each) for _, each in confirmed], "findings": findings,
        },
    )  # fmt: skip


def _near(found: MonthSpending) -> Spending:
    """Return the spending of the month and of the one before."""
    first = month_of(found.window.start_ns - 1)
    return found.every.within(first.start_ns, found.window.end_ns)


# Headline figures


def _lead(
    found: MonthSpending,
    units: Sequence[Unit],
    standings: Sequence[tuple[str, ScopeStanding]],
    before: Window,
) -> list[Tile]:
    """Return what was spent against the month before, what of it in no run, and what is held.

    The first currency is the one with the most runs.
    """
    earlier = changes(_near(found), found.window, before)
    tiles_found = []
    for unit in units:
        total = subtotal(found.spending.of_unit(unit)).cost
        change = earlier.get(("", unit), CostChange(spent=total, before=unit.money(0)))
        tiles_found.append(
            Tile(
                label=f"spent, {unit}", text=money_text(total), href=spent_href(found, unit),
                title=str(total), note=change_text(change, before),
                note_href=_before_href(found, unit, before) if change.before else "",
            )
        )  # fmt: skip
    for unit in units:
        outside = [each for each in found.spending.of_unit(unit) if is_in_no_run(each)]
        if outside:
            total = subtotal(outside).cost
            href = spent_href(found, unit, outside="1")
            tiles_found.append(
                Tile(label=IN_NO_RUN, text=money_text(total), title=str(total), href=href)
            )
    held = (each.held for _, each in standings if each.scope == WHOLE)
    tiles_found += (
        Tile(label="held now", text=money_text(money), href="/guard")
        for money in sum_by_unit(held)
        if money
    )
    return tiles_found or [Tile(label="spent", text="nothing")]


def _before_href(found: MonthSpending, unit: Unit, before: Window) -> str:
    """Return the address of what is behind the amount of the month before."""
    month = utc_datetime(before.start_ns).strftime("%Y-%m")
    chosen = {"month": month, "unit": str(unit), "until": utc_text(before.end_ns).replace(" ", "T")}
    return f"/spent?{urlencode({'by': found.by} | chosen)}"


# By day


def _stacks(unit: Unit, found: MonthSpending, books: BookReader) -> list[DayStack]:
    """Return the largest owners' cost by day, and the rest as one."""
    by_day = cost_by_day(found.spending.of_unit(unit), owner_function(found.by))
    order = sorted(by_day, key=found.owners(unit).index)
    count = len(order) if len(order) <= MOST_OWNERS + 1 else MOST_OWNERS
    stacks = [
        DayStack(
            label=owner_name(owner, found.by, books), by_day=by_day[owner],
            look=look if look < MOST_OWNERS else None,
            href=spent_href(found, unit, owner=owner_key(owner, found.by, books)),
        )
        for look, owner in enumerate(order[:count])
    ]  # fmt: skip
    if rest := order[count:]:
        days: dict[int, int] = defaultdict(int)
        for owner in rest:
            for day, micros in by_day[owner].items():
                days[day] += micros
        href = spent_href(found, unit, beyond=str(count))
        label = f"{len(rest)} more"
        stacks.append(DayStack(label=label, by_day=days, look=None, href=href))
    return stacks


def _days(unit: Unit, found: MonthSpending, books: BookReader) -> str:
    """Return the cost per day in one unit, as columns and as a table."""
    stacks = _stacks(unit, found, books)
    days = _days_shown(found.window, books.now_ns)
    title = f"{unit.kind.capitalize()} per day, {unit.currency}, by {found.by}"

    def href(stack: DayStack, day_ns: int) -> str:
        return f"{stack.href}&day={_day(day_ns)}"

    sums = [(day, sum(each.by_day.get(day, 0) for each in stacks)) for day in days]
    decimals = decimals_of(unit.money(micros) for _, micros in sums)
    rows = [
        [
            _day(day),
            money_cell(unit.money(micros), spent_href(found, unit, day=_day(day)), decimals),
        ]
        + [
            money_cell(unit.money(each.by_day.get(day, 0)), href(each, day), decimals)
            for each in stacks
        ]
        for day, micros in sums
        if micros
    ]
    headings = ["day (UTC)", "all", *(each.label for each in stacks)]
    table = html.table(headings, rows, caption=title)
    cut = cut_days(stacks, days)
    beyond = [f"{money_text(unit.money(m))} on {_day(day)}" for day, m in sums if day in cut]
    note = html.note(f"Columns that are cut: {', '.join(beyond)}.") if cut else ""
    return (
        f"<section><h2>{html_text(title)}</h2>{draw_days(stacks, days, unit, href, title)}{note}"
        f"{legend(stacks, unit)}<details><summary>Days as a table</summary>{table}</details>"
        "</section>"
    )


def _days_shown(month: Window, now_ns: int) -> list[int]:
    """Return the days of a month up to today."""
    end_ns = min(month.end_ns, max(now_ns, month.start_ns) + 1)
    return list(range(month.start_ns, end_ns, DAY_NS))


def _day(day_ns: int) -> str:
    return utc_datetime(day_ns).strftime("%Y-%m-%d")


def _day_rows(unit: Unit, found: MonthSpending, books: BookReader) -> list[dict[str, object]]:
    by_day = cost_by_day(found.spending.of_unit(unit), owner_function(found.by))
    return [
        {"day": _day(day), "owner": owner_name(owner, found.by, books), "kind": unit.kind,
         "cost": unit.money(micros)}
        for owner, days in by_day.items()
        for day, micros in sorted(days.items())
    ]  # fmt: skip


# By owner


def _group(
    unit: Unit,
    owners: Mapping[tuple[str, Unit], Subtotal],
    by_owner: Mapping[tuple[str, Unit], CostChange],
    found: MonthSpending,
    books: BookReader,
) -> str:
    """Return a table of owners in one unit, with the total."""
    its = [(owner, total) for (owner, of), total in owners.items() if of == unit]
    whole = sum((total.cost for _, total in its), start=unit.money(0))
    assumed = sum((total.assumed for _, total in its), start=unit.money(0))
    decimals = decimals_of([whole])
    rows: list[list[object]] = []
    for owner, total in its:
        href = spent_href(found, unit, owner=owner_key(owner, found.by, books))
        change = by_owner.get((owner, unit))
        rows.append(
            [
                Cell(text=owner_name(owner, found.by, books), href=href, is_long=True),
                money_cell(total.cost, href, decimals), "" if change is None else change.text,
                _share(total.cost, whole), _runs_of(owner, total.runs, found, books),
                _hours(total.gpu_us), total.assumed,
            ]
        )  # fmt: skip
    gpu_us = sum(total.gpu_us for _, total in its)
    runs = sum(total.runs for _, total in its)
    rows.append(
        [
            "total", money_cell(whole, spent_href(found, unit), decimals), "",
            _share(whole, whole), runs, _hours(gpu_us), assumed,
        ]
    )  # fmt: skip
    headings = [found.by, "cost", "change", "share", "runs", "GPU-hours", "assumed"]
    if not assumed:
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    table = html.table(
        headings, rows, total=len(its), caption=f"{unit} by {found.by}", is_list=True
    )
    title = f"{unit.kind.capitalize()}, {unit.currency}"
    return f'<section class="fit"><h2>{html_text(title)}</h2>{table}</section>'


def _runs_of(owner: str, count: int, found: MonthSpending, books: BookReader) -> object:
    """Return how many runs an amount is of, with a link to the list of them, costliest first."""
    if not owner or owner.endswith(IN_NO_RUN):
        return count
    name = found.by.removeprefix("tag:")
    of = {"user": books.people.name(owner), "model": owner}.get(name)
    filtered = {name: of} if of is not None else {"tag": f"{name}={owner}"}
    filtered |= {"since": _day(found.window.start_ns), "until": _day(found.window.end_ns)}
    href = f"/runs?{urlencode(filtered | {'sort': '-cost_micros'})}"
    return Cell(text=f"{count:,}", value=count, is_number=True, href=href)


def _hours(gpu_us: int) -> Cell:
    hours = gpu_us / 3.6e9
    return Cell(text=f"{hours:,.2f}", value=hours, is_number=True)


def _row(owner: str, total: Subtotal, by: str, books: BookReader) -> dict[str, object]:
    return {
        "by": by, "owner": owner_name(owner, by, books), "kind": total.cost.kind,
        "runs": total.runs, "gpu_hours": total.gpu_us / 3.6e9, "cost": total.cost.amount,
        "assumed": total.assumed.amount, "currency": total.cost.currency,
    }  # fmt: skip


def _share(part: Money, whole: Money) -> Cell:
    share = part.micros / whole.micros if whole else 0.0
    return Cell(text=f"{share:.1%}", value=share, share=share)


def _choices(found: MonthSpending) -> str:
    """Return the form: the month, and the owner: user, model, or the value of a tag."""
    names = dict.fromkeys(tag for spend in found.spending.spends for tag in spend.tags)
    tags = [f"tag:{tag}" for tag in names if tag not in BY][:_MOST_TAGS]
    options = "".join(
        f'<option value="{html_text(each)}"{" selected" if each == found.by else ""}>'
        f"{html_text(each)}</option>"
        for each in dict.fromkeys((*BY, *tags, found.by))
    )
    return (
        '<form class="filters" action="/money" data-apply><label>Month (UTC)'
        f'<input type="month" name="month" value="{found.month}"></label>'
        f'<label>By<select name="by">{options}</select></label><button>Show</button></form>'
    )


def _nothing(month: str) -> str:
    said = f"Nothing registered here cost anything in {month}. To record a cost, state a price:"
    command = 'outlay exec --price "1.50 USD/h" -- python train.py'
    return html.section("Nothing yet", html.empty(said, command))


# Ceilings, forecasts, machines


def _burn_downs(
    uses: Sequence[LimitUse], found: MonthSpending, books: BookReader
) -> dict[LimitUse, BurnDown]:
    """Return how ceilings are used up, and the budgets of models, from what their runs spent."""
    downs = burn_downs_of_logs(books, uses)
    for use in uses:
        if use.model:
            its = [each for each in found.every.of_unit(use.limit.unit) if each.model == use.model]
            by_day = cost_by_day(its, lambda _: "").get("", {})
            downs[use] = burn_down(
                by_day, limit=use.limit, spent=use.spent, held=use.held, now_ns=books.now_ns
            )
    return downs


def _month_end(found: MonthSpending, books: BookReader) -> str:
    """Return the forecast of the digest if it is the present month."""
    if found.month != utc_datetime(books.now_ns).strftime("%Y-%m"):
        return ""
    months = forecast_month(found.reading.spending, books.now_ns, found.reading.running)
    order = [unit for unit in units_by_use(found.spending) if unit in months]
    in_order = {unit: months[unit] for unit in dict.fromkeys([*order, *months])}
    since = _day(books.now_ns - PAST_DAYS * DAY_NS)
    rests_on = f"/runs?{urlencode({'since': since, 'sort': '-cost_micros'})}"
    return blocks_html(month_blocks(in_order, rests_on))


def _machines(found: MonthSpending, books: BookReader) -> list[str]:
    """Return what owned nodes cost in the month, in runs and in no run."""
    rows = []
    for machine, each in machine_costs(found, books):
        decimals = decimals_of([each.cost])
        amounts = (
            (each.cost, {"on": machine.host}),
            (each.in_runs, {"on": machine.host, "inside": "1"}),
            (each.in_no_run, {"outside": "1", "machine": machine.host}),
        )
        cells = (
            money_cell(money, spent_href(found, money.unit, **chosen), decimals)
            for money, chosen in amounts
        )
        rows.append([Cell(text=machine.host, is_long=True), *cells])
    if not rows:
        return []
    table = html.table(
        ("machine", "cost", "in runs", IN_NO_RUN), rows, caption="Owned machines", is_list=True
    )
    return [html.section("Owned machines", table)]


def _energy(found: MonthSpending) -> list[Block]:
    rows = {row.run_id: row for row in found.reading.reports}
    window = found.window
    used = energy_in(found.reading.spending.spends, rows, window.start_ns, window.end_ns)
    return list(energy(used, "estimated"))


def _booked_late(found: MonthSpending, books: BookReader) -> list[str]:
    """Return what of closed months became known later, the largest amounts first."""
    sums: dict[tuple[str, str, Unit], list[SpendItem]] = defaultdict(list)
    for spend in found.spending.spends:
        if spend.origin:
            sums[spend.origin, spend.run_id, spend.unit].append(spend)
    if not sums:
        return []
    totals = {key: subtotal(spends).cost for key, spends in sums.items()}
    decimals = decimals_of(totals.values())
    rows: list[list[object]] = []
    for (origin, run_id, unit), money in sorted(totals.items(), key=lambda each: -each[1].micros):
        spend = sums[origin, run_id, unit][0]
        href = spent_href(found, unit, late=origin, run=run_id)
        name = Cell(text=books.people.text(spend.name or run_id), href=href, is_long=True)
        who = books.people.name(spend.user)
        rows.append([origin, name, who, money_cell(money, href, decimals)])
    headings = ("month of origin", "what", "who", "booked here")
    table = html.table(headings, rows[:_MOST_LATE], caption="Booked late", is_list=True)
    more = ""
    if len(rows) > _MOST_LATE:
        more = html.note(f"The largest {_MOST_LATE} of {len(rows):,} are shown.")
    note = html.note(BOOKED_LATE)
    return [f'<section class="fit"><h2>Booked late</h2>{table}{more}{note}</section>']


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
        href = f"/runs?{urlencode({'model': model})}" if model else ""
        named = Cell(text=model or "(no model)", href=href, is_long=True)
        would = Cell(
            text=money_text(point), value=point, title=str(point), mark="estimated", href=href,
            is_number=True,
        )  # fmt: skip
        rows.append([named, would, ends, len(costs)])
    if not rows:
        return []
    headings = ("model", "the next run", "80 % interval", "runs so far")
    table = html.table(headings, rows[:_READ_AT_ONCE], caption="Forecast", is_list=True)
    return [f'<section class="fit"><h2>What the next run would cost</h2>{table}</section>']


# Waste


def _wasteful(found: MonthSpending, units: Sequence[Unit]) -> list[str]:
    """Return the month's runs that wasted most, in each unit, as the store has them."""
    counted_here = set(costliest(found))
    parts = []
    for unit in units:
        its = [
            row for row in found.reading.reports
            if row.run_id in counted_here and row.wasted and row.paid.unit == unit
        ]  # fmt: skip
        its.sort(key=lambda row: (-_wasted_micros(row), row.run_id))
        if its:
            parts.append(_wasteful_table(unit, its))
    if not parts:
        return []
    note = html.note("Of each whole run, wherever it began: everything but steps that survive.")
    return [f'<section class="fit"><h2>Runs by waste</h2>{"".join(parts)}{note}</section>']


def _wasted_micros(row: RunRow) -> int:
    return 0 if row.wasted is None else row.wasted.micros


def _wasteful_table(unit: Unit, rows: Sequence[RunRow]) -> str:
    decimals = decimals_of(unit.money(_wasted_micros(row)) for row in rows)
    cells = [
        [
            Cell(text=row.name or row.run_id, href=run_href(row.run_id), is_long=True),
            chip(row.status),
            money_cell(unit.money(_wasted_micros(row)), run_href(row.run_id), decimals),
            money_cell(row.paid, run_href(row.run_id), decimals),
            _share(unit.money(_wasted_micros(row)), row.paid), row.model,
        ]
        for row in rows[:_MOST_WASTEFUL]
    ]  # fmt: skip
    headings = ("run", "status", "wasted", "whole cost", "share of it", "model")
    return html.table(headings, cells, caption=f"Runs by waste, {unit}", is_list=True)


def _wasted(
    ask: PageQuery, found: MonthSpending, units: Sequence[Unit], books: BookReader
) -> list[str]:
    """Return what runs cost in the month besides productive steps, by phase, from their logs."""
    chosen = costliest(found)
    if not chosen:
        return []
    if len(chosen) > _READ_AT_ONCE and not ask.get("wasted"):
        link = html_text(ask.address(wasted="1"))
        said = f"Read the logs of the {min(len(chosen), MOST_LOGS):,} costliest runs"
        return [html.section("Wasted, by phase", f'<p><a href="{link}">{said}</a></p>')]
    views = dict(read_views(chosen[:MOST_LOGS], books))
    causes: dict[tuple[Unit, str], int] = defaultdict(int)
    whole: dict[Unit, int] = defaultdict(int)
    read = [spend for spend in found.spending.spends if spend.run_id in views]
    for part in spent_parts(read, views, found.window):
        whole[part.unit] += part.micros
        if part.phase != ph.STEP:
            causes[part.unit, part.phase] += part.micros
    tables = []
    for unit in units:
        its = sorted(((m, cause) for (of, cause), m in causes.items() if of == unit), reverse=True)
        decimals = decimals_of(unit.money(micros) for micros, _ in its)
        rows = [
            [
                cause,
                _share(unit.money(micros), unit.money(whole[unit])),
                money_cell(unit.money(micros), spent_href(found, unit, phase=cause), decimals),
            ]
            for micros, cause in its
        ]
        if rows:
            tables.append(html.table(("phase", "share of cost", "cost"), rows, caption=f"{unit}"))
    if not tables:
        return []
    note = f"From the logs of {counted(len(views), 'run')}: their cost in this month."
    return [html.section("Wasted, by phase", *tables, html.note(note))]
