"""The last 24 hours on the start page: what an hour cost, and what each machine did."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlay.clock import utc_datetime
from outlay.cost.charges import charges_of
from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.guard.away.polled_log import PolledLog
from outlay.guard.balance import Books, Hold
from outlay.guard.rental.watch import ended_ns
from outlay.report import html
from outlay.runs.inventory.machine_hours import (
    HOUR_NS,
    HOUR_STATES,
    HOURS,
    MachineHours,
    MachineSpan,
    hourly_cost,
    last_hours,
    machine_hours,
    place_span,
    rental_span,
)
from outlay.runs.inventory.machines_now import MachinesNow
from outlay.runs.reading import RunReading
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, list_runs
from outlay.units.shown import money_text
from outlay.web.book_reader import BookReader
from outlay.web.guard import spend_logs
from outlay.web.spending.drawings import draw_hours, draw_states, states_legend

_MOST_RUNS: Final = 500
_MOST_MACHINES: Final = 40


def read_last_day(
    books: BookReader, now: MachinesNow, running: Sequence[RunReading]
) -> list[MachineHours]:
    """Return the last 24 hours of every machine, from the store and the runs that run."""
    now_ns = books.now_ns
    begin_ns = last_hours(now_ns)[0]
    live = {reading.run_id: reading for reading in running}
    seen = RunFilter(since_ns=begin_ns)
    stored = list_runs(books.store, seen, limit=_MOST_RUNS, sort="-last_seen_ns", with_charges=True)
    rows = [_live_row(live[row.run_id]) if row.run_id in live else row for row in stored]
    spans: list[MachineSpan] = []
    for log in spend_logs(books).values():
        asked = log.ask("rentals of a day", partial(_rentals_of, log))
        for hold, gone_ns in asked.value or ():
            if gone_ns is None or gone_ns > begin_ns:
                spans.append(rental_span(hold, gone_ns, now_ns))
    known = {span.name for span in spans}
    places = (place_span(each, begin_ns, now_ns) for each in now.places if each.name not in known)
    spans += (span for span in places if span is not None)

    def productive(row: RunRow, start_ns: int, end_ns: int) -> float:
        reading = live.get(row.run_id)
        if reading is None:
            return row.goodput or 0.0
        timeline = reading.view.timeline
        start_ns = max(start_ns, timeline.start_ns)
        found = timeline.between(start_ns, max(end_ns, start_ns))
        return found.get(ph.STEP, 0) / (sum(found.values()) or 1)

    return machine_hours(spans, rows, now_ns, productive)


def _live_row(reading: RunReading) -> RunRow:
    return replace(reading.figures, charges=charges_of(reading.view))


def _rentals_of(log: PolledLog) -> list[tuple[Hold, int | None]]:
    return log.open_without_ceiling().log.look(_rentals)


def _rentals(books: Books) -> list[tuple[Hold, int | None]]:
    """Return every rental of a log, and when it ended; None for one that has not."""
    holds = [hold for hold in books.rentals() if hold.lives or not books.is_open(hold.id)]
    return [(hold, None if books.is_open(hold.id) else ended_ns(books, hold)) for hold in holds]


def last_day_parts(machines: Sequence[MachineHours], now_ns: int, books: BookReader) -> list[str]:
    """Return the last 24 hours as sections; empty if nothing was there."""
    if not machines:
        return []
    order = sorted(machines, key=lambda each: -sum(map(len, each.shares)))[:_MOST_MACHINES]
    rows: list[list[str]] = []
    for each in order:
        parts = [f"{each.hours_in(state):.1f} h {state}" for state in HOUR_STATES]
        said = ", ".join(p for p in parts if not p.startswith("0.0 h"))
        name = books.people.text(each.name)
        drawn = draw_states(each.shares, HOUR_STATES, f"{name}, last {HOURS} hours: {said}")
        rows.append([html_text(name), drawn, html_text(said)])
    begin, end = (utc_datetime(t).strftime("%H:%M") for t in (now_ns - HOURS * HOUR_NS, now_ns))
    ends = f"{begin} to {end} (UTC)"
    body = "".join(
        f'<tr><td>{name}</td><td class="strip24" data-label="{ends}">{drawn}</td>'
        f'<td class="text">{said}</td></tr>'
        for name, drawn, said in rows
    )
    table = (
        '<div class="wide" tabindex="0" role="group" aria-label="Hours of machines">'
        '<table class="list"><caption class="hidden">Hours of machines</caption><thead><tr>'
        '<th scope="col">machine</th>'
        f'<th scope="col" class="ends"><span>{begin}</span><span>{end} (UTC)</span></th>'
        f'<th scope="col">in all</th></tr></thead><tbody>{body}</tbody></table></div>'
    )
    title = f"The last {HOURS} hours"
    note = html.note(
        "In a run, time that is no productive step counts as waiting; of runs that have ended it "
        "is spread evenly over their time."
    )
    return [
        f'<section class="fit"><h2>{title}</h2>{_sparks(machines, now_ns)}{table}'
        f"{states_legend(HOUR_STATES)}{note}</section>"
    ]


def _sparks(machines: Sequence[MachineHours], now_ns: int) -> str:
    """Return what each hour cost, one drawing for each unit."""
    parts = []
    cash_first = sorted(hourly_cost(machines).items(), key=lambda each: each[0].kind != "cash")
    for unit, amounts in cash_first:
        highest = max(range(HOURS), key=lambda place: amounts[place])
        at = utc_datetime(now_ns - (HOURS - highest) * HOUR_NS).strftime("%H:%M")
        last, most, whole = (
            money_text(unit.money(m)) for m in (amounts[-1], amounts[highest], sum(amounts))
        )
        said = f"{last} in the last hour, at most {most} from {at}, {whole} in all"
        drawn = draw_hours([float(each) for each in amounts], f"{unit} per hour: {said}")
        parts.append(
            f"<div><h3>{html_text(str(unit))} per hour</h3>{drawn}{html.note(f'{said}.')}</div>"
        )
    return f'<div class="two">{"".join(parts)}</div>' if parts else ""


def last_day_json(machines: Sequence[MachineHours], now_ns: int) -> dict[str, object]:
    """Return the last 24 hours for JSON."""
    return {
        "begins_ns": last_hours(now_ns),
        "machines": [
            {"name": each.name, "shares": list(map(dict, each.shares))} for each in machines
        ],
        "cost": [
            {"kind": unit.kind, "hours": [unit.money(micros) for micros in amounts]}
            for unit, amounts in hourly_cost(machines).items()
        ],
    }  # fmt: skip
