"""Now: the machines that are paid for, the runs on them, what they cost, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlay.clock import utc_text
from outlay.errors import Finding
from outlay.guard.entries import is_machine
from outlay.guard.rental.reap import RentedHold, known_logs, living_rentals
from outlay.report import html
from outlay.report.document import Figure, figures_html
from outlay.report.html import Cell, amount, money_text
from outlay.runs.collect import dead_runs, findings_in
from outlay.runs.figures import Burn, RunFigures, total_burn
from outlay.runs.reading import RunReading
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Money, Rate
from outlay.units.quantity import duration_text
from outlay.web.books import BookReader
from outlay.web.guard import ceiling_parts, log_stamps, standings_of_logs
from outlay.web.page import Page, PageQuery, columns_of, findings_list, run_href


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """Something that costs by the hour, whether or not a run is on it.

    Attributes:
        kind: ``rental``, ``job`` (of Slurm) or ``node``.
        runs: The runs on it; none is what to look at.
        deadline: When it is ended; empty where nothing ends it.
        watcher: Who ends it then.
    """

    kind: str
    name: str
    owner: str
    runs: Sequence[RunFigures]
    rate: Rate | None = None
    deadline: str = ""
    watcher: str = ""


def machines(rented: Sequence[RentedHold], running: Sequence[RunReading]) -> list[MachineView]:
    """Return what is paid for now: rentals first, then jobs and nodes with runs on them."""
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
    places: dict[tuple[str, str], list[RunFigures]] = {}
    for reading in left:
        header = reading.view.timeline.attempts[-1].header
        place = ("job", header.slurm_job) if header.slurm_job else ("node", header.host)
        places.setdefault(place, []).append(reading.figures)
    return found + [
        MachineView(
            kind=kind, name=name, owner=", ".join(sorted({r.user for r in runs})), runs=runs
        )
        for (kind, name), runs in sorted(places.items())
    ]


def _instance(reading: RunReading) -> str:
    return reading.view.timeline.attempts[-1].header.instance_id


def now_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    del ask
    books.refresh()
    running = list_runs(books.store, RunFilter(status="running"))
    return (books.stamp([row.dir for row in running]), log_stamps(books))


def now_page(ask: PageQuery, books: BookReader) -> Page:
    """Return what goes on now."""
    del ask
    running = books.running()
    figures = [reading.figures for reading in running]
    dead = list_runs(books.store, RunFilter(status="dead"), limit=_MOST_DEAD)
    rented, errors = living_rentals(known_logs(), clock=books.clock)
    places = machines(rented, running)
    burn = total_burn(figures)
    standings, doubts = standings_of_logs(books)
    findings = [
        *errors, *doubts, *books.findings, *findings_in(figures), *findings_in(dead),
        *dead_runs(dead),
    ]  # fmt: skip
    parts = [
        f"<section>{figures_html(_lead(burn, running, places, findings))}</section>",
        _machines(places, books),
        _runs(running, books),
        columns_of(
            [
                *ceiling_parts(standings),
                *findings_list([_shown(each, books) for each in _once(findings)]),
            ]
        ),
    ]
    rows = [_csv_row(each, books) for each in figures]
    return Page(
        title="Now", tab="Now", parts=parts, columns=list(rows[0]) if rows else _COLUMNS, rows=rows,
        document={
            "machines": places, "running": figures, "burn_per_hour": burn, "findings": findings,
            "standings": [standing for _, standing in standings],
        },
    )  # fmt: skip


_MOST_DEAD = 20
_COLUMNS = ("run", "status", "user", "host", "steps", "wall_s", "cost", "currency")


def _once(findings: Sequence[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _shown(finding: Finding, books: BookReader) -> Finding:
    return Finding(
        source=books.people.text(finding.source), message=books.people.text(finding.message),
        line=finding.line, severity=finding.severity,
    )  # fmt: skip


def _lead(
    burn: Sequence[Burn],
    running: Sequence[RunReading],
    places: Sequence[MachineView],
    findings: Sequence[Finding],
) -> list[Figure]:
    """Return the few figures that a reader looks for first."""
    empty = sum(not place.runs for place in places)
    wrong = sum(each.severity == "error" for each in findings)
    cost = ", ".join(_burn_text(each) for each in burn) or "nothing"
    return [
        Figure("costs per hour", burn, cost, leads=True),
        Figure("running", len(running), f"{len(running)}", leads=True),
        Figure("machines", len(places), f"{len(places)}", leads=True),
        Figure("without a run", empty, f"{empty}", leads=True),
        Figure("errors", wrong, f"{wrong}", leads=True),
    ]


def _burn_text(burn: Burn) -> str:
    text = money_text(burn.money)
    return text if burn.kind == "cash" else f"{text} {burn.kind}"


def _machines(places: Sequence[MachineView], books: BookReader) -> str:
    if not places:
        said = "Nothing is rented and nothing runs. Start something with"
        return html.section("Machines", html.empty(said, "outlay exec -- python train.py"))
    rows = [
        [
            Cell(text=place.kind, chip=place.kind), place.name, books.people.name(place.owner),
            _inside(place), amount(place.rate.per_hour if place.rate else _rate(place), ""),
            place.deadline[:16].replace("T", " ") or "no deadline", place.watcher or "nobody",
        ]
        for place in places
    ]  # fmt: skip
    headings = ("", "machine", "owner", "run on it", "per hour", "ends at (UTC)", "watched by")
    return html.section("Machines", html.table(headings, rows, caption="Machines"))


def _inside(place: MachineView) -> Cell:
    if not place.runs:
        return Cell(text="none", chip="warning")
    first = place.runs[0]
    more = f" and {len(place.runs) - 1} more" if len(place.runs) > 1 else ""
    return Cell(text=f"{first.name}{more}", href=run_href(first.run_id))


def _rate(place: MachineView) -> Money | None:
    burn = total_burn(place.runs)
    return burn[0].money if len(burn) == 1 else None


def _runs(running: Sequence[RunReading], books: BookReader) -> str:
    if not running:
        return ""
    rows = [_row(reading, books) for reading in running]
    headings = (
        "run", "user", "steps", "goodput", "metric", "for", "cost so far", "per hour", "budget",
        "last sign",
    )  # fmt: skip
    return html.section("Runs", html.table(headings, rows, caption="Running"))


def _row(reading: RunReading, books: BookReader) -> list[object]:
    figures = reading.figures
    burn = figures.burn_micros_per_hour
    per_hour = None if burn is None or figures.cost is None else Money(burn, figures.cost.currency)
    goodput = "" if figures.goodput is None else f"{figures.goodput:.1%}"
    return [
        Cell(text=figures.name, href=run_href(figures.run_id), title=figures.run_id),
        books.people.name(figures.user), figures.steps,
        Cell(text=goodput, is_number=True), metric_cell(figures.metric, figures.metric_value),
        Cell(text=duration_text(figures.wall_ns), is_number=True), amount(figures.cost),
        amount(per_hour), budget_cell(reading), ago(books.now_ns - figures.last_seen_ns),
    ]  # fmt: skip


def metric_cell(name: str | None, value: float | None) -> Cell:
    """Return the metric that tells most, with its name."""
    if name is None or value is None:
        return Cell(text="")
    return Cell(text=f"{name} {value:.4g}", value=value)


def budget_cell(reading: RunReading) -> Cell:
    """Return how much of its tightest limit a run has used."""
    report = reading.budget
    bounds = [] if report is None else [b for b in report.budget.bounds_known if b.limit]
    if report is None or not bounds:
        return Cell(text="none")
    share, bound = max(
        ((b.used(report.used) / b.limit, b) for b in bounds), key=lambda each: each[0]
    )
    left = (
        "" if report.forecast is None else f", {duration_text(report.forecast.time_left_ns)} left"
    )
    return Cell(text=f"{share:.0%}{left}", share=share, title=bound.dimension.key)


def ago(ns: int) -> str:
    """Return how long ago something was."""
    return "just now" if ns < 5 * 10**9 else f"{duration_text(ns)} ago"


def _csv_row(figures: RunFigures, books: BookReader) -> dict[str, object]:
    cost = figures.cost
    return {
        "run": figures.name, "run_id": figures.run_id, "status": figures.status,
        "user": books.people.name(figures.user), "host": figures.host, "steps": figures.steps,
        "goodput": figures.goodput, "wall_s": figures.wall_ns / 1e9,
        "cost": None if cost is None else cost.amount,
        "currency": None if cost is None else cost.currency,
        "started": utc_text(figures.started_ns),
    }  # fmt: skip
