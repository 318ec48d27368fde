"""Money: a month by who pays, against ceilings; what is held, what was wasted, what is to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from outlay.clock import utc_datetime
from outlay.cost.allocation import UNTAGGED, Charge, allocate
from outlay.cost.book import CostBook
from outlay.cost.charges import MonthlyCharges, RunCharge, charges_within, month_window, owner_by
from outlay.cost.collect import refresh_reports
from outlay.cost.forecast import forecast_runs
from outlay.errors import Finding, InvalidValue
from outlay.escaping import html_text
from outlay.guard.balance import ScopeStanding
from outlay.guard.entries import WHOLE
from outlay.report import html
from outlay.report.document import Figure, figures_html
from outlay.report.html import Cell, amount, money_text
from outlay.store.runs import list_runs
from outlay.units import Money
from outlay.web.books import BookReader
from outlay.web.guard import log_stamps, standing_rows, standings_of_logs
from outlay.web.page import Ask, Page, findings_list, tabs

BY = ("user", "model", "project", "team")


def money_stamp(ask: Ask, books: BookReader) -> object:
    """Return what changes when the page does."""
    del ask
    books.refresh()
    return (books.stamp([]), log_stamps(books))


def money_page(ask: Ask, books: BookReader) -> Page:
    """Return what a month cost."""
    books.refresh()
    month = _month(ask, books)
    by = _by(ask)
    found, findings = _charges(month, books)
    groups = _groups(found.charges)
    sections, rows = [], []
    for (kind, currency), charges in groups.items():
        section, lines = _group(charges, kind, currency, by, books)
        sections.append(section)
        rows += lines
    standings, doubts = standings_of_logs(books)
    parts = [
        _choices(ask, month, by),
        html.section(f"{month}, UTC", figures_html(_lead(groups, standings))),
        *(sections or [_nothing(month)]),
        *_ceilings(standings),
        *_forecasts(books),
        *findings_list([*findings, *doubts]),
    ]
    columns = ("month", "by", "owner", "kind", "runs", "gpu_hours", "cost", "currency")
    return Page(
        title="Money", tab="Money", parts=parts, columns=columns,
        rows=[{"month": month, "by": by} | row for row in rows],
        document={"month": month, "by": by, "rows": rows, "findings": findings},
    )  # fmt: skip


def _month(ask: Ask, books: BookReader) -> str:
    here = utc_datetime(books.now_ns).strftime("%Y-%m")
    try:
        month_window(ask.get("month", here))
    except InvalidValue:
        return here
    return ask.get("month", here)


def _by(ask: Ask) -> str:
    chosen = ask.get("by", "user")
    try:
        owner_by(chosen)
    except InvalidValue:
        return "user"
    return chosen


def _charges(month: str, books: BookReader) -> tuple[MonthlyCharges, list[Finding]]:
    now_ns = books.now_ns
    refreshed = refresh_reports(books.store, now_ns)
    reports = CostBook(books.store).reports()
    found = charges_within(list_runs(books.store), reports, month_window(month), now_ns)
    return found, [*refreshed.findings, *found.findings]


def _groups(charges: Sequence[RunCharge]) -> dict[tuple[str, str], list[RunCharge]]:
    """Return charges that may be added: of one kind and one currency."""
    groups: dict[tuple[str, str], list[RunCharge]] = defaultdict(list)
    for charge in charges:
        groups[charge.kind, charge.cost.currency].append(charge)
    return dict(sorted(groups.items()))


def _group(
    charges: Sequence[RunCharge], kind: str, currency: str, by: str, books: BookReader
) -> tuple[str, list[dict[str, object]]]:
    """Return who pays for what was spent in one kind and currency; the parts sum to the whole."""
    owner_of = owner_by(by)
    shared = allocate(
        [
            Charge(owner=_owner(owner_of(c.run), by, books), micros=c.cost.micros, gpu_us=c.gpu_us)
            for c in charges
        ],
        [],
        currency=currency,
    )
    whole = shared.total
    rows = [
        [
            row.owner, _share(row.total, whole.micros), row.runs, round(row.gpu_hours, 2),
            Money(row.total, currency),
        ]
        for row in shared.rows
    ]  # fmt: skip
    runs = sum(row.runs for row in shared.rows)
    hours = round(sum(row.gpu_hours for row in shared.rows), 2)
    total = ["total", _share(whole.micros, whole.micros), runs, hours, whole]
    table = html.table(
        (by, "share", "runs", "GPU-hours", "cost"), [*rows, total], has_total=True,
        caption=f"{kind} by {by}",
    )  # fmt: skip
    lines: list[dict[str, object]] = [
        {
            "owner": row.owner, "kind": kind, "runs": row.runs, "gpu_hours": row.gpu_hours,
            "cost": Money(row.total, currency).amount, "currency": currency,
        }
        for row in shared.rows
    ]  # fmt: skip
    return html.section(f"{kind.capitalize()}, {currency}", table), lines


def _owner(name: str, by: str, books: BookReader) -> str:
    return (books.people.name(name) if by == "user" else name) or UNTAGGED


def _share(part: int, whole: int) -> Cell:
    share = part / whole if whole else 0.0
    return Cell(text=f"{share:.1%}", value=share, share=share)


def _choices(ask: Ask, month: str, by: str) -> str:
    form = (
        '<form class="filters" action="/money" data-apply><label>Month (UTC)'
        f'<input type="month" name="month" value="{month}"></label>'
        f'<input type="hidden" name="by" value="{html_text(by)}"><button>Show</button></form>'
    )
    return form + tabs("Who pays", {ask.address(by=each): f"by {each}" for each in BY}, f"by {by}")


def _lead(
    groups: dict[tuple[str, str], list[RunCharge]], standings: Sequence[tuple[str, ScopeStanding]]
) -> list[Figure]:
    found = []
    for (kind, currency), charges in groups.items():
        whole = Money(sum(charge.cost.micros for charge in charges), currency)
        found.append(Figure(f"spent, {kind}", whole, money_text(whole), leads=True))
    held: dict[str, int] = defaultdict(int)
    for _, each in standings:
        if each.scope == WHOLE:
            held[each.held.currency] += each.held.micros
    for currency, micros in held.items():
        found.append(Figure("held now", micros, money_text(Money(micros, currency)), leads=True))
    return found or [Figure("spent", 0, "nothing", leads=True)]


def _nothing(month: str) -> str:
    said = f"Nothing that is registered here cost anything in {month}. A run has a cost once it has"
    return html.section("Nothing yet", html.empty(said, 'outlay exec --price "1.50 USD/h" -- …'))


def _ceilings(standings: Sequence[tuple[str, ScopeStanding]]) -> list[str]:
    if not standings:
        return []
    headings = ("log", "scope", "used", "spent", "held", "free", "ceiling")
    table = html.table(headings, standing_rows(standings), caption="Ceilings")
    return [html.section("Against the ceilings", table)]


def _forecasts(books: BookReader) -> list[str]:
    """Return what one more run of each model would cost, with its interval."""
    history: dict[tuple[str, str], list[float]] = defaultdict(list)
    for report in CostBook(books.store).reports():
        history[report.model, report.currency].append(float(report.cost.amount))
    rows = []
    for (model, currency), costs in sorted(history.items()):
        estimate = forecast_runs(costs, 1)
        if estimate is None:
            continue
        ends = "too few runs for an interval"
        if estimate.low is not None and estimate.high is not None:
            low, high = Money.parse(estimate.low), Money.parse(estimate.high)
            ends = f"{money_text(low)} to {money_text(high)}"
        point = Money.parse(estimate.point, currency=currency)
        rows.append([model, len(costs), amount(point, mark="estimated"), ends])
    if not rows:
        return []
    headings = ("model", "runs so far", "the next run", "80 % interval")
    return [html.section("What the next run would cost", html.table(headings, rows))]
