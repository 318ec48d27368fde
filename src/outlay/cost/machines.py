"""Owned nodes and their cost, inside and outside of runs.

Rentals are recorded in the spend log and Slurm jobs in the accounting database. An owned node is in
neither: it costs from a stated time on, whether or not anything runs on it. Its cost outside of
runs is a row of its own, so that the runs and that row add up to the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import msgspec

from outlay.cost.charges import part_within
from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue
from outlay.files import make_private, write_whole
from outlay.ledger import Attempt, derive_attempts, read_lives
from outlay.ledger.price import Price
from outlay.rates import cost_at_most, cost_where
from outlay.store import outlay_home
from outlay.store.run_row import RunRow
from outlay.units import Money

MACHINES_FILE: Final = "machines.json"


class OwnedMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that costs during ``[since_ns, until_ns)``, UTC nanoseconds.

    Attributes:
        host: Its host name in run logs.
        price: Of the whole machine.
        until_ns: None if it is still owned.
    """

    host: str
    price: Price
    since_ns: int
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """The cost of a machine, and the part of it in runs.

    Attributes:
        in_runs: Cost of the registered runs on it, in the machine's unit.
    """

    machine: OwnedMachine
    cost: Money
    in_runs: Money

    @property
    def in_no_run(self) -> Money:
        """The cost outside of runs; negative if the runs on it cost more than the machine."""
        return self.cost - self.in_runs


def read_machines() -> dict[str, OwnedMachine]:
    """Return the stated machines by host.

    Raises:
        InvalidValue: The file exists and cannot be parsed.
    """
    path = outlay_home() / MACHINES_FILE
    try:
        stated = read_document(path, list[OwnedMachine])
    except FileNotFoundError:
        return {}
    except (OSError, BadDocument) as error:
        raise InvalidValue("machines", str(path), f"a JSON list of machines ({error})") from None
    return {machine.host: machine for machine in stated}


def set_machine(machine: OwnedMachine) -> None:
    """Add or replace a machine.

    Raises:
        InvalidValue: It has no name, or ends before it begins.
    """
    if not machine.host.strip():
        raise InvalidValue("HOST", machine.host, "the name of a node, as its runs record it")
    if machine.until_ns is not None and machine.until_ns < machine.since_ns:
        raise InvalidValue("--until", machine.until_ns, "an instant that is not before --since")
    _write(read_machines() | {machine.host: machine})


def remove_machine(host: str) -> None:
    """Remove a machine; its runs are unchanged.

    Raises:
        InvalidValue: There is no machine of that name.
    """
    machines = read_machines()
    if host not in machines:
        known = ", ".join(machines) or "none is stated"
        raise InvalidValue("HOST", host, f"a machine that was stated ({known})")
    del machines[host]
    _write(machines)


def _write(machines: dict[str, OwnedMachine]) -> None:
    path = outlay_home() / MACHINES_FILE
    make_private(path.parent)
    stated = [machines[host] for host in sorted(machines)]
    content = msgspec.json.format(msgspec.json.encode(stated), indent=2) + b"\n"
    write_whole(path, content, synced=True, private=True)


def cost_of_machine(
    machine: OwnedMachine, runs: Iterable[Path], now_ns: int, elsewhere: Iterable[RunRow] = ()
) -> MachineCost:
    """Return a machine's cost until now, and the part of it in the given runs.

    ``elsewhere`` are rows, with their charges, of runs whose log is on another host: what they cost
    counts for the host of their last attempt, by time.
    """
    until_ns = now_ns if machine.until_ns is None else min(machine.until_ns, now_ns)
    rate = machine.price.rate
    in_runs = rate.unit.money(0)
    for run_dir in runs:
        attempts = derive_attempts(read_lives(run_dir))
        shares = [_share_on(attempt, machine.host) for attempt in attempts]
        part = cost_where(attempts, shares, machine.since_ns, until_ns)
        if part is not None and part.unit == rate.unit:
            in_runs += part
    for row in elsewhere:
        if row.host == machine.host:
            same = (charge for charge in row.charges or () if row.unit_of(charge) == rate.unit)
            parts = (part_within(charge, machine.since_ns, until_ns) for charge in same)
            in_runs += rate.unit.money(sum(parts))
    cost = cost_at_most(rate, max(until_ns - machine.since_ns, 0))
    return MachineCost(machine=machine, cost=cost, in_runs=in_runs)


def _share_on(attempt: Attempt, host: str) -> Fraction:
    """Return a node's share of an attempt's cost: by its GPUs, else by its processes."""
    if not attempt.nodes:
        return Fraction(attempt.header.host == host)
    found = all(node.gpus for node in attempt.nodes)
    weights = {node.name: node.gpus if found else Fraction(node.ranks) for node in attempt.nodes}
    return weights.get(host, Fraction(0)) / sum(weights.values())
