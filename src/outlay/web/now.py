"""The start page: machines that cost money now, the runs on them, burn rate, and findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outlay.clock import utc_text
from outlay.cost.machines import OwnedMachine, read_machines
from outlay.errors import Finding, InvalidValue
from outlay.guard.entries import is_machine
from outlay.guard.rental.watch import RentedHold, known_logs, living_rentals
from outlay.ledger.price import Kind
from outlay.report import html
from outlay.report.compared_runs import metric_cell, percent_cell, run_cost
from outlay.report.document import Figure, blocks_html
from outlay.report.html import Cell, amount
from outlay.runs.collect import Burn, dead_runs, findings_in, sum_burns, total_burn
from outlay.runs.figures import RunFigures
from outlay.runs.reading import RunReading
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Money, Rate
from outlay.units.quantity import duration_text
from outlay.units.shown import ago_text, kind_suffix, money_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import ceiling_parts, log_stamps, standings_of_logs
from outlay.web.page import Page, PageQuery, findings_list, run_href


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """A machine that costs by the hour, with or without a run.

    Attributes:
        kind: ``rental``, ``job`` (of Slurm) or ``node``.
        deadline: When it is ended; empty for never.
        watcher: The process that ends it.
    """

    kind: str
    name: str
    owner: str
    runs: Sequence[RunFigures]
    rate: Rate | None = None
    price_kind: Kind = "cash"
    deadline: str = ""
    watcher: str = ""


def machines(
    rented: Sequence[RentedHold], owned: Iterable[OwnedMachine], running: Sequence[RunReading]
) -> list[MachineView]:
    """Return the machines: rentals first, then owned nodes, then other hosts of runs."""
    left = list(running)
    found = []
    for each in rented:
        hold, rental = each.hold, each.hold.rental
        assert rental is not None
        here = [r for r in left if hold.resource and is_machine(hold.resource, _instance(r))]
        left = [reading for reading in left if reading not in here]
        found.append(
            MachineView(
                kind="rental", name=hold.resource or rental.name, owner=hold.lab,
                runs=[r.figures for r in here], rate=Rate.parse(rental.rate),
                deadline=rental.deadline, watcher=hold.watcher,
            )
        )  # fmt: skip
    for machine in owned:
        here = [reading for reading in left if _place(reading) == ("node", machine.host)]
        left = [reading for reading in left if reading not in here]
        runs = [reading.figures for reading in here]
        found.append(
            MachineView(
                kind="node", name=machine.host, owner=_users(runs), runs=runs,
                rate=machine.price.rate, price_kind=machine.price.kind, watcher="owned",
                deadline="" if machine.until_ns is None else utc_text(machine.until_ns),
            )
        )  # fmt: skip
    places: dict[tuple[str, str], list[RunFigures]] = {}
    for reading in left:
        places.setdefault(_place(reading), []).append(reading.figures)
    return found + [
        MachineView(kind=kind, name=name, owner=_users(runs), runs=runs)
        for (kind, name), runs in sorted(places.items())
    ]


def _place(reading: RunReading) -> tuple[str, str]:
    header = reading.view.timeline.attempts[-1].header
    return ("job", header.slurm_job) if header.slurm_job else ("node", header.host)


def _users(runs: Iterable[RunFigures]) -> str:
    return ", ".join(sorted({run.user for run in runs}))


def _instance(reading: RunReading) -> str:
    return reading.view.timeline.attempts[-1].header.instance_id


def now_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    books.refresh()
    running = list_runs(books.store, RunFilter(status="running"))
    return (books.stamp([row.dir for row in running]), log_stamps(books))


def now_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the start page."""
    del ask
    running = books.running()
    figures = [reading.figures for reading in running]
    dead = list_runs(books.store, RunFilter(status="dead"), limit=_MOST_DEAD)
    rented, errors = living_rentals(known_logs(), clock=books.clock)
    owned, unread = _owned(books.now_ns)
    places = machines(rented, owned, running)
    burn, today = _burn(places), books.spent_since(books.now_ns - books.now_ns % _DAY_NS)
    standings, doubts = standings_of_logs(books)
    found = [
        *errors, *unread, *doubts, *books.findings, *findings_in([*figures, *dead]),
        *dead_runs(dead), *_lately(books),
    ]  # fmt: skip
    findings = sorted(dict.fromkeys(found), key=lambda each: each.severity != "error")
    parts = [
        f"<section>{blocks_html(_lead((burn, today), running, places, findings))}</section>",
        _machines(places, books),
        _runs(running, books),
        *findings_list(findings, books.people),
        *ceiling_parts(standings),
    ]
    rows = [_csv_row(each, books) for each in figures]
    return Page(
        title="Now", tab="Now", parts=parts, columns=_COLUMNS, rows=rows,
        document={
            "machines": places, "running": figures, "burn_per_hour": burn, "today": today,
            "findings": findings,
            "standings": [standing for _, standing in standings],
        },
    )  # fmt: skip


_MOST_DEAD = 20
_MOST_RECENT = 200
_DAY_NS = 86_400 * 10**9
_COLUMNS = (
    "run", "run_id", "status", "user", "host", "steps", "goodput", "wall_s", "cost", "assumed",
    "currency", "kind", "started",
)  # fmt: skip


def _owned(now_ns: int) -> tuple[list[OwnedMachine], list[Finding]]:
    """Return the owned nodes of the present, and findings about the list of them."""
    try:
        stated = read_machines().values()
    except InvalidValue as error:
        return [], [Finding(source="machines", message=str(error))]
    there = (m for m in stated if m.since_ns <= now_ns < (m.until_ns or now_ns + 1))
    return list(there), []


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


def _lead(
    spent: tuple[Sequence[Burn], Sequence[Burn]],
    running: Sequence[RunReading],
    places: Sequence[MachineView],
    findings: Sequence[Finding],
) -> list[Figure]:
    empty = sum(not place.runs for place in places)
    wrong = sum(each.severity == "error" for each in findings)
    burn, today = (", ".join(map(_burn_text, each)) or "nothing" for each in spent)
    return [
        Figure("burn per hour", spent[0], burn, leads=True),
        Figure("spent by runs today (UTC)", spent[1], today, leads=True),
        Figure("running", len(running), f"{len(running)}", leads=True),
        Figure("machines", len(places), f"{len(places)}", leads=True),
        Figure("machines without a run", empty, f"{empty}", leads=True),
        Figure("errors", wrong, f"{wrong}", leads=True),
    ]


def _burn_text(burn: Burn) -> str:
    return f"{money_text(burn.money)}{kind_suffix(burn.kind)}"


def _machines(places: Sequence[MachineView], books: BookReader) -> str:
    if not places:
        said = "Nothing is rented and nothing is running. Start a run with"
        return html.section("Machines", html.empty(said, "outlay exec -- python train.py"))
    rows = [
        [
            Cell(text=place.kind, chip=place.kind), place.name, books.people.name(place.owner),
            _inside(place), _per_hour(place),
            place.deadline[:16].replace("T", " ") or "no deadline", place.watcher or "none",
        ]
        for place in places
    ]  # fmt: skip
    headings = ("", "machine", "owner", "run on it", "burn per hour", "ends at (UTC)", "watched by")
    return html.section("Machines", html.table(headings, rows, caption="Machines"))


def _inside(place: MachineView) -> Cell:
    if not place.runs:
        return Cell(text="none", chip="warning")
    first = place.runs[0]
    more = f" and {len(place.runs) - 1} more" if len(place.runs) > 1 else ""
    return Cell(text=f"{first.name}{more}", href=run_href(first.run_id))


def _burn(places: Iterable[MachineView]) -> list[Burn]:
    """Return the burn of machines; of one without a known price, that of its runs."""
    return sum_burns(
        burn
        for place in places
        for burn in (
            total_burn(place.runs)
            if place.rate is None
            else [Burn(place.price_kind, place.rate.per_hour)]
        )
    )


def _per_hour(place: MachineView) -> object:
    burn = _burn([place])
    if len(burn) == 1:
        return amount(burn[0].money, kind=burn[0].kind)
    return Cell(text=", ".join(map(_burn_text, burn)) or "no price", is_number=True)


def _runs(running: Sequence[RunReading], books: BookReader) -> str:
    if not running:
        return ""
    rows = [_row(reading, books) for reading in running]
    headings = (
        "run", "user", "steps", "goodput", "metric", "wall time", "cost", "burn per hour", "budget",
        "last seen",
    )  # fmt: skip
    return html.section("Runs", html.table(headings, rows, caption="Running"))


def _row(reading: RunReading, books: BookReader) -> list[object]:
    figures = reading.figures
    burn = figures.burn_micros_per_hour
    per_hour = None if burn is None or figures.cost is None else Money(burn, figures.cost.currency)
    return [
        Cell(text=figures.name, href=run_href(figures.run_id), title=figures.run_id),
        books.people.name(figures.user), figures.steps,
        percent_cell(figures.goodput), metric_cell(figures.metric, figures.metric_value),
        Cell(text=duration_text(figures.wall_ns), is_number=True),
        run_cost(figures), amount(per_hour, kind=figures.kind),
        budget_cell(reading),
        ago_text(books.now_ns - figures.last_seen_ns),
    ]  # fmt: skip


def budget_cell(reading: RunReading) -> Cell:
    """Return the used share of a run's tightest limit."""
    report, used = reading.budget, reading.budget_used
    if report is None or used is None:
        return Cell(text="none")
    key, share = used
    left = (
        "" if report.forecast is None else f", {duration_text(report.forecast.time_left_ns)} left"
    )
    return Cell(text=f"{share:.0%}{left}", share=share, title=key)


def _csv_row(figures: RunFigures, books: BookReader) -> dict[str, object]:
    cost = figures.cost
    return {
        "run": figures.name, "run_id": figures.run_id, "status": figures.status,
        "user": books.people.name(figures.user), "host": figures.host, "steps": figures.steps,
        "goodput": figures.goodput, "wall_s": figures.wall_ns / 1e9,
        "cost": None if cost is None else cost.amount,
        "assumed": None if figures.assumed is None else figures.assumed.amount,
        "currency": None if cost is None else cost.currency, "kind": figures.kind,
        "started": utc_text(figures.started_ns),
    }  # fmt: skip
