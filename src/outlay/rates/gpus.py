"""How many GPUs a run has over time: those of the nodes that are alive, less slices given back.

What the user stated counts for the whole run and is split over the nodes that record, by the number
of processes on each. What was found on the nodes is summed; for a node that does not record, the
first one stands with as many again. Logs that name no nodes have all GPUs from begin to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from outlay.ledger import Attempt, GpuCount, Price, exact_gpus

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
