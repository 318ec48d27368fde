"""What vendors bill beyond the time of runs: started increments, minimums, set-up time. Pure.

Runs are charged by their time. A machine whose price states billing terms is billed by those: the
difference is a row of its own, of the owners of the runs on it, so that runs and that row add up
to the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from outlay.cost.spending import SpendItem
from outlay.rates import cost_of_share, share_out
from outlay.store.run_row import AttemptCharge, RunRow
from outlay.units import Unit

BEYOND_USE = "(billed beyond use)"
"""The model name of what a machine was billed beyond the time of its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineUse:
    """A charge of a run on one machine, and the part of its hourly cost there."""

    report: RunRow
    charge: AttemptCharge
    rate: Fraction
    micros: int


def billed_beyond_use(
    reports: Iterable[RunRow], is_rented: Callable[[str], bool] = lambda _: False
) -> Iterator[SpendItem]:
    """Yield what machines were billed beyond the time of their runs, by run.

    ``is_rented`` leaves machines out whose whole cost is in a spend log.
    """
    uses: dict[tuple[str, Unit], list[_MachineUse]] = defaultdict(list)
    for report in reports:
        for charge in report.charges or ():
            if charge.terms is not None:
                for machine, use in _uses(report, charge):
                    uses[machine, report.unit_of(charge)].append(use)
    for (machine, unit), found in uses.items():
        if machine and not is_rented(machine):
            for start in _starts(found):
                yield from _beyond(machine, unit, start)


def _uses(report: RunRow, charge: AttemptCharge) -> Iterator[tuple[str, _MachineUse]]:
    weights = charge.machines or {charge.machine: 1}
    parts, whole = share_out(charge.micros, weights), sum(weights.values())
    for machine, weight in weights.items():
        rate = Fraction(charge.micros_per_hour * weight, whole)
        yield machine, _MachineUse(report=report, charge=charge, rate=rate, micros=parts[machine])


def _starts(uses: Iterable[_MachineUse]) -> Iterator[list[_MachineUse]]:
    """Yield the uses of each start of a machine: it stays up for less than one increment."""
    start: list[_MachineUse] = []
    until_ns = 0
    for use in sorted(uses, key=lambda use: (use.charge.start_ns, use.charge.end_ns)):
        assert use.charge.terms is not None
        if start and use.charge.start_ns - until_ns > use.charge.terms.increment_ns:
            yield start
            start = []
        start.append(use)
        until_ns = max(until_ns, use.charge.end_ns)
    if start:
        yield start


def _beyond(machine: str, unit: Unit, start: Sequence[_MachineUse]) -> Iterator[SpendItem]:
    """Yield what one start was billed beyond its use, at the highest rate of the runs on it."""
    first, last = start[0].charge, max((use.charge for use in start), key=lambda c: c.end_ns)
    assert last.terms is not None
    beyond_ns = last.terms.billed_ns(last.end_ns - first.start_ns) - _busy_ns(start)
    micros = cost_of_share(_peak(start), beyond_ns)
    if not micros:
        return
    weights = {place: max(use.micros, 0) for place, use in enumerate(start)}
    parts = share_out(micros, weights if any(weights.values()) else dict.fromkeys(weights, 1))
    for place, part in parts.items():
        report, charge = start[place].report, start[place].charge
        if part:
            yield SpendItem(
                source="increment", run_id=report.run_id, model=BEYOND_USE, name=report.name,
                start_ns=last.end_ns, end_ns=last.end_ns + beyond_ns,
                booked_ns=last.booked_ns, cost=unit.money(part), assumed=unit.money(0),
                user=charge.user, tags=charge.tags, provider=charge.provider, machine=machine,
                offer=charge.offer, terms=charge.terms,
            )  # fmt: skip


def _peak(start: Sequence[_MachineUse]) -> Fraction:
    """Return the highest total rate of the uses of a start."""
    changes: dict[int, Fraction] = defaultdict(Fraction)
    for use in start:
        changes[use.charge.start_ns] += use.rate
        changes[use.charge.end_ns] -= use.rate
    rate = highest = Fraction(0)
    for t_ns in sorted(changes):
        rate += changes[t_ns]
        highest = max(highest, rate)
    return highest


def _busy_ns(start: Sequence[_MachineUse]) -> int:
    return covered_ns((use.charge.start_ns, use.charge.end_ns) for use in start)


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of half-open intervals."""
    total, until_ns = 0, 0
    for start_ns, end_ns in sorted(intervals):
        total += max(end_ns - max(start_ns, until_ns), 0)
        until_ns = max(until_ns, end_ns)
    return total
