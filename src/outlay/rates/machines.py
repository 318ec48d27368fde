"""What attempts say of their machines: kept or given back between two, their prices, their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise

from outlay.errors import Finding
from outlay.ledger import Attempt, AttemptStarted, GpuCount, Price, exact_gpus
from outlay.ledger.price import Kind

# What became of a machine between two attempts, as far as records say.
#
# It stayed up where the next attempt ran on the same instance; else in the same start of the same
# Slurm job; else under the same boot *and* the same process 1, since a container sees its host's
# boot id. A different answer to the first of these that both attempts recorded means another
# machine.

_ELASTIC = re.compile(r"torchelastic-(?P<run>.*)-(?P<restarts>\d+)")


class MachineAfter(Enum):
    """What became of an attempt's machine."""

    TAKEN_BACK = "the scheduler took it back"
    KEPT = "the next attempt ran on it"
    ANOTHER = "the next attempt ran on another one"
    UNKNOWN = "no record says"


def machine_after(attempt: Attempt, following: Attempt | None) -> MachineAfter:
    """Return what became of the machine after ``attempt``."""
    if given_back(attempt, following):
        return MachineAfter.TAKEN_BACK
    if following is None:
        return MachineAfter.UNKNOWN
    same = (_same_machine if attempt.nodes and following.nodes else _same_boot)(
        attempt.header, following.header
    )
    if same is None:
        return MachineAfter.UNKNOWN
    return MachineAfter.KEPT if same else MachineAfter.ANOTHER


def given_back(attempt: Attempt, following: Attempt | None) -> bool:
    """Say whether the scheduler took the machine back after ``attempt``."""
    if attempt.end is not None and attempt.end.status == "preempted":
        return True
    if following is None or not attempt.header.slurm_job:
        return False
    if attempt.header.slurm_job != following.header.slurm_job:
        return False
    restarts = attempt.header.slurm_restart, following.header.slurm_restart
    if all(restarts):
        return restarts[0] != restarts[1]
    before, after = attempt.header.launch, following.header.launch
    return before != after and not _restarted_in_place(before, after)


def _same_machine(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say whether two attempts ran on one machine; None where no record says."""
    if before.instance_id and after.instance_id:
        return before.instance_id == after.instance_id
    if before.slurm_job or after.slurm_job:
        return before.slurm_job == after.slurm_job  # Another start of it was given back.
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return False
    if before.boot_id and after.boot_id and before.init_start and after.init_start:
        return before.init_start == after.init_start
    return None


def _same_boot(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say the same of logs that hold nothing but the boot, which says nothing where it differs."""
    return True if before.boot_id and before.boot_id == after.boot_id else None


def _restarted_in_place(before: str, after: str) -> bool:
    """Say whether torchrun started its workers anew, inside the allocation it had.

    Its launch ids end in the number of such restarts, which begins at 0 with every torchrun.
    """
    earlier, later = _ELASTIC.fullmatch(before), _ELASTIC.fullmatch(after)
    if earlier is None or later is None or earlier["run"] != later["run"]:
        return False
    return int(later["restarts"]) > int(earlier["restarts"])


# The prices that a run had: of which kind they are, where they came from, how old they were.
#
# A run's cost is of one kind, that of its first price: cash and showback are never added.


def prices_of(attempts: Sequence[Attempt]) -> tuple[Price, ...]:
    """Return every price that was in force, each once, in the order of time."""
    return tuple(dict.fromkeys(price for _, price in _dated(attempts)))


def kind_of_cost(attempts: Sequence[Attempt]) -> Kind:
    """Return of which kind a run's cost is: that of its first price."""
    return next((price.kind for _, price in _dated(attempts)), "cash")


def price_findings(attempts: Sequence[Attempt]) -> Iterator[Finding]:
    """Yield which prices are of a kind that is not counted, and which were old when they began."""
    kind = kind_of_cost(attempts)
    for other in sorted({price.kind for _, price in _dated(attempts)} - {kind}):
        message = f"a {other} price is not counted: the run's cost is {kind}"
        yield Finding(source="prices", message=message)
    warned: dict[str, str | None] = {}
    for t_ns, price in _dated(attempts):
        warned.setdefault(price.offer, price.age_warning(t_ns))
    for message in filter(None, warned.values()):
        yield Finding(source="prices", message=message, severity="warning")


def _dated(attempts: Sequence[Attempt]) -> Iterator[tuple[int, Price]]:
    """Yield every price with the instant from which it was in force."""
    for attempt in attempts:
        if attempt.header.price is not None:
            yield attempt.start_ns, attempt.header.price
        for change in sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq)):
            yield change.t_ns, change.price


# How many GPUs a run has over time: those of the nodes that are alive, less slices given back.
#
# What the user stated counts for the whole run and is split over the nodes that record, by the
# number of processes on each. What was found on the nodes is summed; for a node that does not
# record, the first one stands with as many again. Logs that name no nodes have all GPUs from
# begin to end.

FOUND = ("slurm", "visible", "driver")
"""The sources of ``gpus`` that looked at the node itself."""
GUESSED = "world_size"


@dataclass(frozen=True, slots=True)
class InForce:
    """From ``t_ns`` on the run has ``gpus`` and pays ``price`` for each, if it has a price."""

    t_ns: int
    gpus: GpuCount
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class GpuPiece:
    """During ``[start_ns, end_ns)`` an attempt had so many GPUs, at ``price`` for each."""

    start_ns: int
    end_ns: int
    gpus: Fraction
    price: Price | None = None


def in_force(attempt: Attempt) -> list[InForce]:
    """Return how an attempt's GPUs and price were stated, in order of time."""
    header = attempt.header
    changes = sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq))
    first = InForce(attempt.start_ns, header.gpus, header.price)
    return [first, *(InForce(change.t_ns, change.gpus, change.price) for change in changes)]


def gpu_pieces(attempt: Attempt, stated: Sequence[InForce] | None = None) -> Iterator[GpuPiece]:
    """Yield an attempt's GPUs over time, in order; ``stated`` leaves out what is not to count."""
    shares = _shares(attempt)
    for change, following in pairwise((*(in_force(attempt) if stated is None else stated), None)):
        assert change is not None
        last_ns = attempt.last_sign_ns if following is None else following.t_ns
        total = total_gpus(attempt, change.gpus)
        for share in shares:
            start_ns = max(change.t_ns, share.start_ns)
            end_ns = min(last_ns, attempt.last_sign_ns, share.end_ns)
            if start_ns < end_ns:
                yield GpuPiece(start_ns, end_ns, total * share.of_all, change.price)


def total_gpus(attempt: Attempt, count: GpuCount) -> Fraction:
    """Return the GPUs of all nodes together, where the lowest rank says that they are ``count``."""
    header = attempt.header
    if count == header.gpus and header.gpus_source in FOUND and attempt.nodes:
        return sum(_weights(attempt), start=Fraction(0))
    return exact_gpus(count)


def kept_slices(attempt: Attempt, t_ns: int) -> Fraction:
    """Return which part of an elastic run's slices had not been given back at an instant."""
    if not attempt.nodes:
        return Fraction(1)
    changes = [change for change in attempt.slices if change.t_ns <= t_ns and change.total > 0]
    return Fraction(changes[-1].available, changes[-1].total) if changes else Fraction(1)


@dataclass(frozen=True, slots=True)
class _Share:
    """During ``[start_ns, end_ns)`` so much of the run's GPUs was there."""

    start_ns: int
    end_ns: int
    of_all: Fraction


def _shares(attempt: Attempt) -> list[_Share]:
    begin_ns, end_ns = attempt.start_ns, attempt.last_sign_ns
    if not attempt.nodes:
        return [_Share(begin_ns, end_ns, Fraction(1))]
    weights = _weights(attempt)
    total, alive = sum(weights), Fraction(0)
    joining = dict.fromkeys([begin_ns, end_ns, *(c.t_ns for c in attempt.slices)], Fraction(0))
    for node, weight in zip(attempt.nodes, weights, strict=True):
        joining[node.start_ns] = joining.get(node.start_ns, Fraction(0)) + weight
        joining[node.end_ns] = joining.get(node.end_ns, Fraction(0)) - weight
    shares = []
    for t_ns, until_ns in pairwise(sorted(joining)):
        alive += joining[t_ns]
        if begin_ns <= t_ns < end_ns:
            shares.append(_Share(t_ns, until_ns, alive / total * kept_slices(attempt, t_ns)))
    return shares


def _weights(attempt: Attempt) -> list[Fraction]:
    """Return what each node counts for beside the others: its GPUs, or else its processes."""
    nodes = attempt.nodes
    found = [node.gpus for node in nodes]
    if attempt.header.gpus_source not in FOUND or not all(found):
        return [Fraction(node.ranks) for node in nodes]
    silent_nodes = attempt.header.nodes - len(nodes)
    if silent_nodes > 0:
        found[0] += silent_nodes * nodes[0].gpus
    return found
