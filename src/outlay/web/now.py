"""The start page: machines that cost money now, the runs on them, burn rate, and findings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlay.errors import Finding
from outlay.guard.balance import Books
from outlay.guard.rental.watch import RentedHold, known_books, known_logs, living_rentals
from outlay.report import html
from outlay.report.compared_runs import figure_cell
from outlay.report.html import Cell
from outlay.runs.collect import DEAD_SHOWN_NS, dead_runs, elsewhere_text, findings_in
from outlay.runs.figures import BY_NAME
from outlay.runs.inventory.machines_now import MachinesNow, MachineView, read_machines_now
from outlay.runs.money.limit_use import NEAR, exceeded, over_limit
from outlay.runs.reading import RunReading
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Money, Rate
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, money_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import limits_now, log_stamps, standings_of_logs
from outlay.web.page import Page, PageQuery, Tile, findings_list, run_href, tiles
from outlay.web.spending.last_day import last_day_json, last_day_parts, read_last_day
from outlay.web.spending.limit_rows import alarm, limit_parts


def now_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    books.refresh()
    running = list_runs(books.store, RunFilter(status="running"))
    return (books.stamp([row.dir for row in running]), log_stamps(books))


def now_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the start page."""
    del ask
    books.refresh()
    running = books.runs.running()
    elsewhere = books.runs.elsewhere
    figures = [*(reading.figures for reading in running), *elsewhere]
    lately = RunFilter(status="dead", since_ns=books.now_ns - DEAD_SHOWN_NS)
    dead = list_runs(books.store, lately, limit=_MOST_DEAD)
    rented, errors = _rented(books)
    now = read_machines_now(books.store, rented, figures, books.now_ns)
    places, burn = now.places, [each.per_hour for each in now.burn]
    today = books.spent_since(books.now_ns - books.now_ns % _DAY_NS)
    standings, doubts = standings_of_logs(books)
    uses = limits_now(books, standings)
    hours = read_last_day(books, now, running)
    found = [
        *over_limit(uses), *errors, *now.findings, *doubts, *books.runs.findings,
        *findings_in([*figures, *dead]), *dead_runs(dead), *_lately(books),
    ]  # fmt: skip
    findings = sorted(dict.fromkeys(found), key=lambda each: each.severity != "error")
    over = exceeded(uses)
    parts = [
        *alarm(uses, books.people),
        f"<section>{tiles(_lead((burn, today), len(figures), now, findings, len(over)))}</section>",
        *(findings_list(findings, books.people, books.places_of(findings)) if over else ()),
        _machines(now, books),
        _runs(running, elsewhere, books),
        *last_day_parts(hours, books.now_ns, books),
        *(() if over else findings_list(findings, books.people, books.places_of(findings))),
        *limit_parts(uses, books.people),
    ]
    rows = [_csv_row(each, books) for each in figures]
    return Page(
        title="Now", tab="Now", parts=parts, columns=_COLUMNS, rows=rows, alarms=len(over),
        document={
            "machines": [
                msgspec.to_builtins(each) | {"price_kind": (each.rate or Rate).kind}
                for each in places
            ], "running": figures, "burn": now.document(),
            "burn_per_hour": _by_kind(burn), "today": _by_kind(today), "findings": findings,
            "standings": [standing for _, standing in standings],
            "over_limit": [use.finding for use in over],
            "last_hours": last_day_json(hours, books.now_ns),
        },
    )  # fmt: skip


_MOST_DEAD = 20
_MOST_RECENT = 200
_DAY_NS = 86_400 * 10**9
_COLUMNS = (
    "run", "run_id", "status", "user", "host", "steps", "goodput", "wall_s", "cost", "assumed",
    "currency", "kind", "started",
)  # fmt: skip
_SHOWN = ("steps", "goodput", "metric_value", "wall_s", "cost", "burn_per_hour")


def _lately(books: BookReader) -> list[Finding]:
    """Return findings about runs of the last day: damaged logs, and failures."""
    recent = RunFilter(since_ns=books.now_ns - _DAY_NS)
    rows = list_runs(books.store, recent, limit=_MOST_RECENT)
    failed = [
        Finding(source=row.dir, message=f"{row.name} failed", severity="warning")
        for row in rows
        if row.status == "failed"
    ]
    return [*findings_in(rows), *failed]


def _by_kind(amounts: Sequence[Money]) -> list[dict[str, object]]:
    return [{"kind": money.kind, "money": money} for money in amounts]


def _lead(
    spent: tuple[Sequence[Money], Sequence[Money]],
    running: int,
    now: MachinesNow,
    findings: Sequence[Finding],
    over: int,
) -> list[Tile]:
    places = now.places
    empty = sum(not place.runs for place in places)
    nobodys = len(now.unclaimed)
    wrong = sum(each.severity == "error" for each in findings)
    burn, today = (", ".join(map(money_text, each)) or "nothing" for each in spent)
    found = [
        Tile(label="burn per hour", text=burn, href="#machines"),
        Tile(label="spent by runs today (UTC)", text=today, href="/money"),
        Tile(label="running", text=f"{running}", href="/runs?status=running"),
        Tile(label="machines", text=f"{len(places)}", href="#machines"),
        Tile(label="machines without a run", text=f"{empty}", href="#machines"),
    ]
    if nobodys:
        found.append(Tile(label="claimed by nobody", text=f"{nobodys}", is_bad=True))
    note = f"{counted(over, 'limit')} exceeded" if over else ""
    return [
        *found,
        Tile(label="errors", text=f"{wrong}", note=note, is_bad=wrong > 0, href="#wrong"),
    ]


def _rented(books: BookReader) -> tuple[list[RentedHold], list[Finding]]:
    """Return the rentals of the logs and books known here; a book that is away keeps its last."""
    rented, findings = living_rentals(known_logs(), clock=books.clock)
    for url in known_books():
        log = books.polled(url)
        polled = log.ask("rentals", lambda log=log: log.open().log.look(Books.open_rentals))  # type: ignore[misc]
        rented += (RentedHold(log.shown, hold) for hold in polled.value or ())
        findings += polled.findings(log.shown)
    return rented, findings


def _machines(now: MachinesNow, books: BookReader) -> str:
    places = now.places
    if not places:
        said = "Nothing is rented and nothing is running. Start a run with"
        return html.section("Machines", html.empty(said, "outlay exec -- python train.py"))
    rows = [
        [
            f"{place.name} ({place.doubt})" if place.doubt else place.name,
            Cell(text=place.kind, chip=place.kind),
            books.people.name(place.owner), _inside(place), _per_hour(place),
            place.deadline[:16].replace("T", " ") or "no deadline", place.watcher or "none",
            place.claim or ("nobody's" if place in now.unclaimed else place.source),
        ]
        for place in places
    ]  # fmt: skip
    headings = (
        "machine", "kind", "owner", "run on it", "burn per hour", "ends at (UTC)", "watched by",
        "claimed for",
    )  # fmt: skip
    line = html.note(books.people.text(f"Burning now: {now.text}."))
    table = html.table(headings, rows, caption="Machines", is_list=True)
    return f'<section id="machines"><h2>Machines</h2>{line}{table}</section>'


def _inside(place: MachineView) -> Cell:
    if not place.runs:
        return Cell(text="none", chip="warning")
    first = place.runs[0]
    more = f" and {len(place.runs) - 1} more" if len(place.runs) > 1 else ""
    return Cell(text=f"{first.name}{more}", href=run_href(first.run_id))


def _per_hour(place: MachineView) -> object:
    burn = [each.per_hour for each in place.burn]
    if len(burn) == 1:
        return burn[0]
    return Cell(text=", ".join(map(money_text, burn)) or "no price", is_number=True)


def _runs(running: Sequence[RunReading], elsewhere: Sequence[RunRow], books: BookReader) -> str:
    if not running and not elsewhere:
        return ""
    rows = [_row(reading.figures, budget_cell(reading), books) for reading in running]
    rows += [_row(row, _stored_budget(row), books) for row in elsewhere]
    headings = ("run", "user", *(BY_NAME[name].label for name in _SHOWN), "budget", "last seen")
    return html.section("Runs", html.table(headings, rows, caption="Running", is_list=True))


def _row(run: RunRow, budget: Cell, books: BookReader) -> list[object]:
    now_ns = books.now_ns
    about = books.people.text(elsewhere_text(run)) if run.log_host else run.run_id
    return [
        Cell(text=run.name, href=run_href(run.run_id), title=about, is_name=True),
        books.people.name(run.user),
        *(figure_cell(BY_NAME[name], run, now_ns) for name in _SHOWN),
        budget,
        BY_NAME["last_seen"].text(run, now_ns),
    ]


def _stored_budget(run: RunRow) -> Cell:
    used = run.budget_used
    if used is None:
        return Cell(text="none")
    return Cell(text=f"{used:.0%}", share=used, chip=_used_state(used))


def _used_state(share: float) -> str:
    """Return the colour of a budget's used share."""
    return "exceeded" if share > 1 else "near" if share >= NEAR else ""


def budget_cell(reading: RunReading) -> Cell:
    """Return the used share of a run's tightest limit."""
    report, used = reading.budget, reading.budget_used
    if report is None or used is None:
        return Cell(text="none")
    key, share = used
    left = (
        "" if report.forecast is None else f", {duration_text(report.forecast.time_left_ns)} left"
    )
    return Cell(text=f"{share:.0%}{left}", share=share, title=key, chip=_used_state(share))


def _csv_row(run: RunRow, books: BookReader) -> dict[str, object]:
    cells = {name: BY_NAME[name].cell(run) for name in _COLUMNS[1:]}
    return {"run": run.name} | cells | {"user": books.people.name(run.user)}
