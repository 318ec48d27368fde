"""What costs money now: one row for each machine, job or run, and the burn per hour of all.

Every row is in one part of the burn: in runs, claimed without a run, idle, or claimed by nobody;
runs on a machine have their part of it. The rows sum to the burn per hour that every screen shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from outlay.clock import utc_text
from outlay.cost.machines.owned_machines import OwnedMachine
from outlay.errors import Finding
from outlay.guard.entries import is_machine
from outlay.guard.rental.watch import RentedHold
from outlay.machine import host_key
from outlay.runs.collect import elsewhere_text, total_burn
from outlay.runs.money.spending_reader import owned_machines
from outlay.slurm import expand_nodes
from outlay.store.connection import database_ns
from outlay.store.machine_lists import (
    STALE_NS,
    MachineClaim,
    MachineKind,
    MachineList,
    SeenMachine,
    read_claims,
    read_lists,
)
from outlay.store.run_row import RunRow
from outlay.units import Rate, Unit
from outlay.units.money import decimal_text, recorded_rate, sum_by_unit

if TYPE_CHECKING:
    from sqlalchemy import Engine

Part = Literal["in runs", "claimed without a run", "idle", "claimed by nobody"]
PARTS: tuple[Part, ...] = get_args(Part)
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """A machine that costs by the hour, with or without a run.

    Attributes:
        kind: ``rental``, ``machine`` (of a vendor's list), ``job`` (of Slurm) or ``node``.
        part: Of the burn, as far as runs on it do not have it.
        rate: None if no price is known but those of the runs on it.
        source: The list that has it, and ``id`` its id there; empty if none has.
        since_ns: When it was created, or first listed; 0 if unknown.
        deadline: When it is ended; empty for never.
        watcher: The process that ends it.
        claim: Whose it is, as a person stated.
        doubt: Why it is not certain that it runs, such as since when it is not listed.
        is_shared: Whether its runs are on other machines, too.
        is_free: Whether it costs nothing by itself, as a job without GPUs.
    """

    kind: MachineKind
    name: str
    owner: str
    runs: Sequence[RunRow]
    part: Part
    rate: Rate | None = None
    source: str = ""
    id: str = ""
    since_ns: int = 0
    deadline: str = ""
    watcher: str = ""
    claim: str = ""
    doubt: str = ""
    is_shared: bool = False
    is_free: bool = False

    @property
    def burn(self) -> list[Rate]:
        """What it costs per hour; without a known price, what its runs do."""
        return total_burn(self.runs) if self.rate is None else [self.rate]

    @property
    def parts(self) -> list[tuple[Part, Rate]]:
        """Its burn by part: its runs have what they cost, and the rest is idle.

        All of it is in runs if what they cost on this machine is not known. The rest is negative if
        they cost more than the machine.
        """
        if not self.runs:
            return [(self.part, rate) for rate in self.burn]
        if self.rate is None:
            return [("in runs", rate) for rate in self.burn]
        unit, whole = self.rate.unit, self.rate.micros_per_hour
        costs = [each.micros_per_hour for each in total_burn(self.runs) if each.unit == unit]
        if self.is_shared or not any(costs):
            return [("in runs", self.rate)]
        found: list[tuple[Part, Rate]] = [("in runs", unit.rate(costs[0]))]
        return found + ([("idle", unit.rate(whole - costs[0]))] if whole != costs[0] else [])

    @property
    def shown(self) -> str:
        """Its name for people, with the list that has it and since when it is there."""
        since = f" since {utc_text(self.since_ns)[:16]}Z" if self.since_ns else ""
        named = f"{self.id} ({self.name})" if self.id and self.name != self.id else self.name
        return f"{self.source or self.kind} {named}{since}"


def burn_of(places: Iterable[MachineView]) -> list[Rate]:
    """Return the hourly cost of machines, one rate per unit."""
    return sum_by_unit(rate for place in places for rate in place.burn)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesNow:
    """What costs money now.

    Attributes:
        rented: The rentals of spend logs known here.
        lists: The lists that were asked, and whether they answer.
    """

    places: tuple[MachineView, ...]
    rented: tuple[RentedHold, ...] = ()
    lists: tuple[MachineList, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def burn(self) -> list[Rate]:
        """The burn per hour, one rate per unit: the sum of the rows."""
        return burn_of(self.places)

    @property
    def unclaimed(self) -> list[MachineView]:
        """The machines that nobody has claimed."""
        return [each for each in self.places if each.part == "claimed by nobody" and not each.runs]

    def by_part(self, unit: Unit) -> dict[Part, Rate]:
        """Return the burn by part in one unit; the parts sum to the burn."""
        rates = [pair for place in self.places for pair in place.parts if pair[1].unit == unit]
        found: dict[Part, Rate] = {}
        for part in PARTS:
            if same := [rate for name, rate in rates if name == part]:
                (found[part],) = sum_by_unit(same)
        return found

    @property
    def text(self) -> str:
        """The burn in one line: by part, with what nobody has claimed and what is not known."""
        parts = [self._unit_text(rate) for rate in self.burn] or ["no price"]
        separator = "; " if any(":" in text for text in parts) else ", "
        silent = (each for each in self.places if not each.runs and not each.burn)
        unpriced = [each.shown for each in silent if not each.is_free]
        more = [f"no price is known of {_named(unpriced)}"] if unpriced else []
        more += [f"{each.source} {each.unknown}" for each in self.lists if each.unknown]
        return "; ".join([separator.join(parts), *more])

    def _unit_text(self, whole: Rate) -> str:
        parts = self.by_part(whole.unit)
        if list(parts) == ["in runs"]:
            return str(whole)
        amounts = [f"{decimal_text(each.micros_per_hour)} {part}" for part, each in parts.items()]
        if "claimed by nobody" in parts:
            same = [each.shown for each in self.unclaimed if whole.unit in map(_unit, each.burn)]
            amounts[-1] += f": {_named(same)}"
        return f"{whole}: {', '.join(amounts)}"

    def document(self) -> dict[str, object]:
        """Return the line and its parts for JSON."""
        parts = [
            {"part": part, "kind": rate.kind, "money": rate.per_hour}
            for whole in self.burn
            for part, rate in self.by_part(whole.unit).items()
        ]
        return {
            "text": self.text, "parts": parts,
            "unclaimed": [each.shown for each in self.unclaimed],
            "unknown": {each.source: each.unknown for each in self.lists if each.unknown},
        }  # fmt: skip


def _unit(rate: Rate) -> Unit:
    return rate.unit


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


# The join. Pure.


@dataclass(slots=True)
class _RunsLeft:
    """Running runs that belong to no machine yet."""

    rows: list[RunRow]

    def take(self, is_on: Callable[[RunRow], bool]) -> list[RunRow]:
        found = [run for run in self.rows if is_on(run)]
        self.rows = [run for run in self.rows if not is_on(run)]
        return found


def machines_now(
    rented: Sequence[RentedHold],
    owned: Iterable[OwnedMachine],
    running: Iterable[RunRow],
    lists: Sequence[MachineList] = (),
    claims: Mapping[tuple[str, str], MachineClaim] | None = None,
) -> list[MachineView]:
    """Return one row for each machine: rentals, listed machines, owned nodes, jobs, other hosts.

    What two of them know is one row: a listed machine that is a rental, a job on owned nodes, a run
    on any of them.
    """
    left, claimed = _RunsLeft(list(running)), claims or {}
    listed = [(each, machine) for each in lists for machine in each.machines]
    found = [*_rentals(rented, listed, left)]
    for each, machine in listed:
        if machine.kind == "machine" and not _is_rented(machine, rented, listed):
            found.append(_claimed(_view(each, machine, left), claimed))
    jobs = [(each, machine) for each, machine in listed if machine.kind == "job"]
    nodes = _owned(owned, listed)
    on_nodes = {
        job.id: names
        for _, job in jobs
        if (names := expand_nodes(job.nodes)) and nodes.keys() >= set(names)
    }
    found += _nodes(nodes, on_nodes, jobs, left)
    found += (
        _claimed(_job(each, job, left), claimed) for each, job in jobs if job.id not in on_nodes
    )
    return [*found, *_other_places(left.rows)]


_Listed = Sequence[tuple[MachineList, SeenMachine]]


def _rentals(
    rented: Sequence[RentedHold], listed: _Listed, left: _RunsLeft
) -> Iterator[MachineView]:
    """Yield the rentals known here, then those that other hosts know."""
    for each in rented:
        hold, rental = each.hold, each.hold.rental
        assert rental is not None
        here = left.take(lambda run, hold=hold: hold.is_machine(run.instance_id))  # type: ignore[misc]
        yield MachineView(
            kind="rental", name=hold.resource or rental.name, owner=hold.lab, runs=here,
            part="idle", rate=recorded_rate(rental.rate), deadline=rental.deadline,
            watcher=hold.watcher, doubt=hold.doubt, since_ns=rental.started_ns,
        )  # fmt: skip
    for of, machine in listed:
        if machine.kind == "rental" and not any(_is_hold(machine, each) for each in rented):
            yield replace(_view(of, machine, left), part="idle", source="", id="")


def _is_hold(machine: SeenMachine, rented: RentedHold) -> bool:
    hold, rental = rented.hold, rented.hold.rental
    assert rental is not None
    return machine.id in (hold.resource, *hold.ids) or machine.name == rental.name


def _is_rented(machine: SeenMachine, rented: Sequence[RentedHold], listed: _Listed) -> bool:
    others = (other for _, other in listed if other.kind == "rental")
    return any(_is_hold(machine, each) for each in rented) or any(
        machine.id == other.id or (machine.name == other.name != "") for other in others
    )


def _view(of: MachineList, machine: SeenMachine, left: _RunsLeft) -> MachineView:
    """Return a listed machine with the runs on it: by instance id, or by host name."""
    names = {machine.id, machine.name} - {""}
    here = left.take(lambda run: is_machine(machine.id, run.instance_id) or run.host in names)
    return MachineView(
        kind=machine.kind, name=machine.name or machine.id, owner=machine.user or _users(here),
        runs=here, part="claimed by nobody", rate=machine.hourly, source=of.source, id=machine.id,
        since_ns=machine.since_ns, deadline=machine.until, doubt=of.unknown,
    )  # fmt: skip


def _claimed(view: MachineView, claims: Mapping[tuple[str, str], MachineClaim]) -> MachineView:
    claim = claims.get((view.source, view.id))
    if claim is None:
        return view
    owner = claim.user or view.owner
    return replace(view, part="claimed without a run", claim=str(claim), owner=owner)


def _job(of: MachineList, job: SeenMachine, left: _RunsLeft) -> MachineView:
    """Return a job of Slurm, which its user has claimed by submitting it."""
    here = left.take(lambda run: run.slurm_job == job.id)
    return MachineView(
        kind="job", name=job.name or job.id, owner=job.user or _users(here), runs=here,
        part="claimed without a run" if job.user else "claimed by nobody", rate=job.hourly,
        source=of.source, id=job.id, since_ns=job.since_ns, deadline=job.until, doubt=of.unknown,
        is_free=not job.gpus,
    )  # fmt: skip


def _owned(owned: Iterable[OwnedMachine], listed: _Listed) -> dict[str, MachineView]:
    """Return the owned nodes by host: those stated here, and those that other hosts state."""
    found = {
        machine.id: MachineView(
            kind="node", name=machine.id, owner="", runs=(), part="idle", rate=machine.hourly,
            watcher="owned", deadline=machine.until, doubt=of.unknown,
        )
        for of, machine in listed
        if machine.kind == "node"
    }  # fmt: skip
    return found | {
        each.host: MachineView(
            kind="node", name=each.host, owner="", runs=(), part="idle", rate=each.price.rate,
            watcher="owned", deadline="" if each.until_ns is None else utc_text(each.until_ns),
        )
        for each in owned
    }  # fmt: skip


def _nodes(
    nodes: Mapping[str, MachineView],
    on_nodes: Mapping[str, Sequence[str]],
    jobs: _Listed,
    left: _RunsLeft,
) -> Iterator[MachineView]:
    """Yield owned nodes with the runs and jobs on them; a job without a run is its user's."""
    taken = left.take(
        lambda run: run.host in nodes or (run.slurm_job != "" and run.slurm_job in on_nodes)
    )
    for name, node in nodes.items():
        here = [run for run in taken if name in (run.host, *on_nodes.get(run.slurm_job, ()))]
        users = {job.user for _, job in jobs if name in on_nodes.get(job.id, ())}
        yield replace(
            node, runs=here, owner=", ".join(sorted(users - {""})) or _users(here),
            part="claimed without a run" if users else "idle",
            is_shared=any(len(on_nodes.get(run.slurm_job, ())) > 1 for run in here),
        )  # fmt: skip


def _other_places(running: Iterable[RunRow]) -> Iterator[MachineView]:
    places: dict[tuple[MachineKind, str], list[RunRow]] = {}
    for run in running:
        place: tuple[MachineKind, str] = ("job", run.slurm_job) if run.slurm_job else (
            "node", run.host
        )  # fmt: skip
        places.setdefault(place, []).append(run)
    for (kind, name), runs in sorted(places.items()):
        doubts = dict.fromkeys(elsewhere_text(run) for run in runs if run.log_host)
        yield MachineView(
            kind=kind, name=name, owner=_users(runs), runs=runs, part="in runs",
            doubt="; ".join(doubts),
        )  # fmt: skip


def _users(runs: Iterable[RunRow]) -> str:
    return ", ".join(sorted({run.user for run in runs}))


# Reading


def read_machines_now(
    store: Engine, rented: Sequence[RentedHold], running: Iterable[RunRow], now_ns: int
) -> MachinesNow:
    """Return what costs money now: these rentals and runs, and what the store's lists have.

    ``running`` are runs whose log is reachable, and those of other hosts.
    """
    runs = list(running)
    owned, unread = owned_now(now_ns)
    own = own_sources()  # Read here without the store.
    lists = [each for each in read_lists(store) if each.source not in own]
    with store.begin() as connection:
        store_ns = database_ns(connection)
    places = machines_now(rented, owned, runs, lists, read_claims(store))
    return MachinesNow(
        places=tuple(places), rented=tuple(rented), lists=tuple(lists),
        findings=(
            *unread, *(found for each in lists for found in each.findings),
            *_silent(runs, store_ns), *_over(places),
        ),
    )  # fmt: skip


def _silent(running: Iterable[RunRow], now_ns: int) -> Iterator[Finding]:
    """Yield the runs of hosts that have not reported for a while: whether they run is unknown."""
    for run in running:
        if run.log_host and now_ns - run.as_of_ns > STALE_NS:
            message = f"unknown since; {run.name} was running {elsewhere_text(run)}"
            yield Finding(source=run.dir, message=message, severity="warning")


def _over(places: Iterable[MachineView]) -> Iterator[Finding]:
    """Yield the machines whose runs cost more than they do."""
    for place in places:
        for part, rate in place.parts:
            if part == "idle" and rate.micros_per_hour < 0:
                more = rate.unit.rate(-rate.micros_per_hour)
                message = f"the runs on it cost {more} more than it does; is a price wrong?"
                yield Finding(source=place.name, message=message, severity="warning")


def own_sources() -> tuple[str, str]:
    """Return the names of the lists that this host keeps for others: owned nodes, and rentals."""
    return f"owned/{host_key()}", f"rentals/{host_key()}"


def owned_now(now_ns: int) -> tuple[list[OwnedMachine], list[Finding]]:
    """Return the owned nodes of the present, and findings about the list of them."""
    stated, findings = owned_machines()
    there = [m for m in stated if m.since_ns <= now_ns < (m.until_ns or now_ns + 1)]
    return there, findings
