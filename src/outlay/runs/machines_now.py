"""Machines that cost money now, and the runs on them: rentals, owned nodes, other hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outlay.clock import utc_text
from outlay.cost.machines import OwnedMachine
from outlay.errors import Finding
from outlay.guard.rental.watch import RentedHold
from outlay.runs.collect import total_burn
from outlay.runs.spending_reader import owned_machines
from outlay.store.run_row import RunRow
from outlay.units import Rate
from outlay.units.money import recorded_rate, sum_by_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """A machine that costs by the hour, with or without a run.

    Attributes:
        kind: ``rental``, ``job`` (of Slurm) or ``node``.
        rate: None if no price is known but those of the runs on it.
        deadline: When it is ended; empty for never.
        watcher: The process that ends it.
        doubt: Why it is not certain that it runs, such as since when it is not listed.
    """

    kind: str
    name: str
    owner: str
    runs: Sequence[RunRow]
    rate: Rate | None = None
    deadline: str = ""
    watcher: str = ""
    doubt: str = ""


def machines_now(
    rented: Sequence[RentedHold], owned: Iterable[OwnedMachine], running: Iterable[RunRow]
) -> list[MachineView]:
    """Return the machines: rentals first, then owned nodes, then other hosts of runs."""
    left = list(running)
    found = []
    for each in rented:
        hold, rental = each.hold, each.hold.rental
        assert rental is not None
        here = [run for run in left if hold.is_machine(run.instance_id)]
        left = [run for run in left if run not in here]
        found.append(
            MachineView(
                kind="rental", name=hold.resource or rental.name, owner=hold.lab, runs=here,
                rate=recorded_rate(rental.rate), deadline=rental.deadline, watcher=hold.watcher,
                doubt=hold.doubt,
            )
        )  # fmt: skip
    for machine in owned:
        here = [run for run in left if _place(run) == ("node", machine.host)]
        left = [run for run in left if run not in here]
        found.append(
            MachineView(
                kind="node", name=machine.host, owner=_users(here), runs=here,
                rate=machine.price.rate, watcher="owned",
                deadline="" if machine.until_ns is None else utc_text(machine.until_ns),
            )
        )  # fmt: skip
    places: dict[tuple[str, str], list[RunRow]] = {}
    for run in left:
        places.setdefault(_place(run), []).append(run)
    return found + [
        MachineView(kind=kind, name=name, owner=_users(runs), runs=runs)
        for (kind, name), runs in sorted(places.items())
    ]


def _place(run: RunRow) -> tuple[str, str]:
    return ("job", run.slurm_job) if run.slurm_job else ("node", run.host)


def _users(runs: Iterable[RunRow]) -> str:
    return ", ".join(sorted({run.user for run in runs}))


def burn_of(places: Iterable[MachineView]) -> list[Rate]:
    """Return the hourly cost of machines; of one without a known price, that of its runs."""
    known = ([place.rate] if place.rate else total_burn(place.runs) for place in places)
    return sum_by_unit(rate for rates in known for rate in rates)


def owned_now(now_ns: int) -> tuple[list[OwnedMachine], list[Finding]]:
    """Return the owned nodes of the present, and findings about the list of them."""
    stated, findings = owned_machines()
    there = [m for m in stated if m.since_ns <= now_ns < (m.until_ns or now_ns + 1)]
    return there, findings
