"""Owned nodes and their cost, inside and outside of runs.

Rentals are recorded in the spend log and Slurm jobs in the accounting database. An owned node is in
neither: it costs from a stated time on, whether or not anything runs on it. Its cost outside of
runs is a spend of its own, so that the runs and that spend add up to the machine. The part in runs
is what the store says of their charges: a machine costs the same whether or not logs remain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from outlay.cost.charges import month_edges
from outlay.cost.machines.stated_list import StatedList
from outlay.cost.spending import OWNED_IN_NO_RUN, SpendItem, charges_in
from outlay.errors import InvalidValue
from outlay.ledger.price import Price
from outlay.rates import cost_at_most
from outlay.store.run_row import RunRow
from outlay.units import Money, Unit

MACHINES_FILE: Final = "machines.json"


class OwnedMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that costs during ``[since_ns, until_ns)``, UTC nanoseconds.

    Attributes:
        host: Its host name in run logs.
        price: Of the whole machine.
        until_ns: None if it is still owned.
        user: Who pays for it while no run is on it, and ``tags`` likewise: team, project, …
    """

    host: str
    price: Price
    since_ns: int
    until_ns: int | None = None
    user: str = ""
    tags: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """What a machine cost during ``[start_ns, end_ns)``, and the part of it in runs.

    Attributes:
        by_run: What is booked in that time of the charges of each run on it, by id, in the
            micro-units of the machine's unit.
    """

    start_ns: int
    end_ns: int
    cost: Money
    by_run: Mapping[str, int]

    @property
    def in_runs(self) -> Money:
        """Charges of runs on it that are booked in that time."""
        return self.cost.unit.money(sum(self.by_run.values()))

    @property
    def in_no_run(self) -> Money:
        """The cost outside of runs; negative if the runs on it cost more than the machine."""
        return self.cost - self.in_runs


def cost_by_month(
    edges: Sequence[int], unit: Unit, cost_until: Callable[[int], int], on_it: Iterable[RunCharge]
) -> Iterator[MachineCost]:
    """Yield the cost of a machine by month, and the charges of runs on it in that month.

    ``edges`` are its start, the months' starts and its end; ``cost_until`` is its cost in
    micro-units up to an edge. A month in no run can be negative, if a run is charged in it for
    time of an earlier one; all months sum to the machine's cost.
    """
    charges = list(on_it)
    for start_ns, end_ns in pairwise(edges):
        is_first, is_last = start_ns == edges[0], end_ns == edges[-1]
        by_run = defaultdict[str, int](int)
        for each in charges:
            if (is_first or start_ns <= each.booked_ns) and (is_last or each.booked_ns < end_ns):
                by_run[each.run_id] += each.micros
        yield MachineCost(
            start_ns=start_ns,
            end_ns=end_ns,
            cost=unit.money(cost_until(end_ns) - cost_until(start_ns)),
            by_run=by_run,
        )


@dataclass(frozen=True, slots=True)
class RunCharge:
    """What of a run's charge was for one machine."""

    run_id: str
    booked_ns: int
    micros: int


MACHINES: Final = StatedList(
    file=MACHINES_FILE, type=OwnedMachine, what="machine", argument="HOST",
    name_of=lambda machine: machine.host,
)  # fmt: skip


def set_machine(machine: OwnedMachine) -> None:
    """Add or replace a machine.

    Raises:
        InvalidValue: It has no name, or ends before it begins.
    """
    if not machine.host.strip():
        raise InvalidValue("HOST", machine.host, "the name of a node, as its runs record it")
    if machine.until_ns is not None and machine.until_ns < machine.since_ns:
        raise InvalidValue("--until", machine.until_ns, "an instant that is not before --since")
    MACHINES.set(machine)


def cost_of_machine(
    machine: OwnedMachine, reports: Iterable[RunRow], now_ns: int
) -> list[MachineCost]:
    """Return an owned machine's cost by month until now; reports need their charges."""
    until_ns = now_ns if machine.until_ns is None else min(machine.until_ns, now_ns)
    edges = month_edges(machine.since_ns, until_ns)
    rate, charges = machine.price.rate, _charges_on(machine, reports, until_ns)
    return list(
        cost_by_month(
            edges, rate.unit, lambda t_ns: cost_at_most(rate, t_ns - edges[0]).micros, charges
        )
    )


def _charges_on(
    machine: OwnedMachine, reports: Iterable[RunRow], until_ns: int
) -> Iterator[RunCharge]:
    for report in reports:
        for charge in charges_in(report, report):
            # Rows that were kept from earlier versions do not have their hosts.
            is_old = not charge.hosts and not charge.between and report.host == machine.host
            micros = charge.micros if is_old else charge.hosts.get(machine.host, 0)
            whole_ns = charge.end_ns - charge.start_ns
            start_ns = max(charge.start_ns, machine.since_ns)
            inside_ns = min(charge.end_ns, until_ns) - start_ns
            if micros and inside_ns > 0 and report.unit_of(charge) == machine.price.unit:
                part = micros * inside_ns // whole_ns
                yield RunCharge(report.run_id, charge.booked_ns, part)


def machine_spends(
    machine: OwnedMachine, reports: Iterable[RunRow], now_ns: int
) -> Iterator[SpendItem]:
    """Yield the cost of an owned machine in no run, by month."""
    for month in cost_of_machine(machine, reports, now_ns):
        yield spend_in_no_run(machine, month)


def spend_in_no_run(machine: OwnedMachine, month: MachineCost) -> SpendItem:
    """Return what of a machine's cost in a month was in no run."""
    return SpendItem(
        source="owned", run_id=machine.host, model=OWNED_IN_NO_RUN, name=machine.host,
        start_ns=month.start_ns, end_ns=month.end_ns, booked_ns=month.start_ns,
        cost=month.in_no_run, assumed=month.cost * 0, user=machine.user, tags=machine.tags,
        machine=machine.host,
    )  # fmt: skip
