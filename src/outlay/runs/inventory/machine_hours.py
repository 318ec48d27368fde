"""The last hours of machines: what each cost, and the part of each hour that was of use. Pure.

A machine with a rate costs that for as long as it is there, with or without a run; one without
costs what its runs are charged. Time in a run that is no productive step counts as waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from outlay.cost.charges import part_within
from outlay.guard.balance import Hold
from outlay.guard.entries import is_machine
from outlay.runs.inventory.machines_now import MachineView
from outlay.store.run_row import RunRow
from outlay.units import Rate, Unit
from outlay.units.money import recorded_rate

HourState = Literal["productive", "waiting", "in no run", "claimed by nobody"]
HOUR_STATES: tuple[HourState, ...] = get_args(HourState)
HOUR_NS: Final = 3600 * 10**9
HOURS: Final = 24

ProductiveShare = Callable[[RunRow, int, int], float]
"""The productive share of a run during an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpan:
    """A machine during ``[start_ns, end_ns)``, and how to know its runs.

    Attributes:
        rate: None if it costs what its runs do.
        idle: What its time in no run is.
    """

    name: str
    start_ns: int
    end_ns: int
    has: Callable[[RunRow], bool]
    rate: Rate | None = None
    idle: HourState = "in no run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHours:
    """What a machine did and cost in each of the last hours, the oldest first.

    Attributes:
        shares: Of each hour, by state; what is missing to 1 is time when it was not there.
        micros: Its cost in each hour, by unit.
    """

    name: str
    shares: tuple[Mapping[HourState, float], ...]
    micros: Mapping[Unit, tuple[int, ...]] = field(default_factory=dict)

    def hours_in(self, state: HourState) -> float:
        """Return the hours in a state."""
        return sum(each.get(state, 0.0) for each in self.shares)


def last_hours(now_ns: int) -> list[int]:
    """Return the beginnings of the last hours, which end now."""
    return [now_ns - back * HOUR_NS for back in range(HOURS, 0, -1)]


def rental_span(hold: Hold, ended_ns: int | None, now_ns: int) -> MachineSpan:
    """Return a rental as a machine, until it was verified gone."""
    assert hold.rental is not None
    return MachineSpan(
        name=hold.resource or hold.rental.name, start_ns=hold.rental.started_ns,
        end_ns=now_ns if ended_ns is None else ended_ns, rate=recorded_rate(hold.rental.rate),
        has=lambda run: hold.is_machine(run.instance_id),
    )  # fmt: skip


def place_span(place: MachineView, begin_ns: int, now_ns: int) -> MachineSpan | None:
    """Return a machine that is there now and no rental of here; None if only its runs are known."""
    if place.rate is None and not place.source:
        return None
    names = {place.id, place.name} - {""}

    def has(run: RunRow) -> bool:
        if place.kind == "job":
            return run.slurm_job == place.id
        return run.host in names or is_machine(place.id, run.instance_id)

    nobodys = place.part == "claimed by nobody"
    return MachineSpan(
        name=place.name, start_ns=place.since_ns or begin_ns, end_ns=now_ns, has=has,
        rate=place.rate, idle="claimed by nobody" if nobodys else "in no run",
    )  # fmt: skip


def machine_hours(
    spans: Iterable[MachineSpan], runs: Sequence[RunRow], now_ns: int, productive: ProductiveShare
) -> list[MachineHours]:
    """Return the last hours of machines, and of the hosts of runs on none of them.

    Args:
        spans: Machines.
        runs: With a sign of life in these hours, and with their charges.
        now_ns: The present, when the last hour ends.
        productive: How much of a run's time was productive.
    """
    left, found = list(runs), list[MachineHours]()
    for span in spans:
        mine = [run for run in left if span.has(run)]
        left = [run for run in left if not span.has(run)]
        found.append(_hours(span, mine, now_ns, productive))
    for host in dict.fromkeys(run.host for run in left):
        mine = [run for run in left if run.host == host]
        here = MachineSpan(name=host, start_ns=0, end_ns=0, has=lambda _: False)
        found.append(_hours(here, mine, now_ns, productive))
    return [each for each in found if any(each.shares)]


def _hours(
    span: MachineSpan, runs: Sequence[RunRow], now_ns: int, productive: ProductiveShare
) -> MachineHours:
    shares: list[Mapping[HourState, float]] = []
    costs: dict[Unit, list[int]] = {}
    for place, begin_ns in enumerate(last_hours(now_ns)):
        end_ns = begin_ns + HOUR_NS
        there_ns = max(0, min(span.end_ns, end_ns) - max(span.start_ns, begin_ns))
        inside = [(run, _overlap_ns(run, begin_ns, end_ns)) for run in runs]
        busy = {run.run_id: ns for run, ns in inside if ns}
        shares.append(_shares(span, inside, there_ns, begin_ns, productive))
        if span.rate is not None:
            amounts = {span.rate.unit: span.rate.micros_per_hour * there_ns // HOUR_NS}
        else:
            amounts = _charged([run for run in runs if run.run_id in busy], begin_ns, end_ns)
        for unit, micros in amounts.items():
            costs.setdefault(unit, [0] * HOURS)[place] += micros
    return MachineHours(
        name=span.name, shares=tuple(shares), micros={u: tuple(each) for u, each in costs.items()}
    )


def _shares(
    span: MachineSpan,
    inside: Sequence[tuple[RunRow, int]],
    there_ns: int,
    begin_ns: int,
    productive: ProductiveShare,
) -> dict[HourState, float]:
    """Return the parts of an hour; of several runs at once, each has its part of the time."""
    in_runs_ns = sum(ns for _, ns in inside)
    busy_ns = min(in_runs_ns, HOUR_NS)
    found: dict[HourState, float] = {}
    if in_runs_ns:
        end_ns = begin_ns + HOUR_NS
        useful = sum(ns * productive(run, begin_ns, end_ns) for run, ns in inside if ns)
        share = useful / in_runs_ns
        found = {
            "productive": share * busy_ns / HOUR_NS, "waiting": (1 - share) * busy_ns / HOUR_NS,
        }  # fmt: skip
    if there_ns > busy_ns:
        found[span.idle] = (there_ns - busy_ns) / HOUR_NS
    return {state: part for state, part in found.items() if part > 0}


def _overlap_ns(run: RunRow, start_ns: int, end_ns: int) -> int:
    """Return how long a run ran in an interval: its attempts, else from its start to its end."""
    spans = [(c.start_ns, c.end_ns) for c in run.charges or () if not c.between and not c.currency]
    spans = spans or [(run.started_ns, run.at_ns)]
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in spans)


def _charged(runs: Iterable[RunRow], start_ns: int, end_ns: int) -> dict[Unit, int]:
    found: dict[Unit, int] = {}
    for run in runs:
        for charge in run.charges or ():
            unit = run.unit_of(charge)
            found[unit] = found.get(unit, 0) + part_within(charge, start_ns, end_ns)
    return found


def hourly_cost(machines: Iterable[MachineHours]) -> dict[Unit, list[int]]:
    """Return what all machines cost in each of the last hours, by unit."""
    found: dict[Unit, list[int]] = {}
    for machine in machines:
        for unit, amounts in machine.micros.items():
            sums = found.setdefault(unit, [0] * HOURS)
            for place, micros in enumerate(amounts):
                sums[place] += micros
    return found
