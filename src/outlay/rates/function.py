"""What a run costs per hour, as a step function of time; how attempts make it; exact amounts.

Inside an attempt the rate is price times the GPUs that are there. Between attempts it is, in this
order: what the user stated for a stopped machine; nothing when the scheduler took the machine
back; the full price when the same machine stayed up; nothing when the next attempt ran on another
one, with a finding; else the full price, as an assumption that is shown. After an attempt that
completed nothing is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

from outlay.errors import Finding
from outlay.ledger import Attempt, GpuCount, Price, exact_gpus
from outlay.rates.machines import MachineAfter, machine_after, price_findings, prices_of
from outlay.units import Money, Rate
from outlay.units.quantity import NS_PER_HOUR, duration_text

# Exact amounts: micro-units per hour times nanoseconds, rounded once and in one place.

Key = TypeVar("Key")


def hourly(micros_per_gpu_hour: int, gpus: Fraction | int) -> int:
    """Return what some GPUs cost per hour, in micro-units: a share of one rounded half to even."""
    return round(micros_per_gpu_hour * gpus)


def rate_of(price: Rate, gpus: Fraction | int) -> Rate:
    """Return what some GPUs cost per hour at a price for each."""
    return Rate(hourly(price.micros_per_hour, gpus), price.currency)


def units(rate: Rate, ns: int) -> int:
    """Return the exact cost of some time at a rate, in micro-units per hour times ns."""
    return rate.micros_per_hour * ns


def cost(rate: Rate, ns: int) -> Money:
    """Return what some time costs at a rate, rounded half to even."""
    return Money(round_units(units(rate, ns)), rate.currency)


def cost_at_most(rate: Rate, ns: int) -> Money:
    """Return what some time costs at a rate, any rest counted whole: for money set aside."""
    return Money(round_units_up(units(rate, ns)), rate.currency)


def paid_time(amount: Money, rate: Rate) -> int | None:
    """Return how many whole nanoseconds an amount pays for; None where they cost nothing."""
    return units_of(amount) // rate.micros_per_hour if rate.micros_per_hour else None


def units_of(amount: Money) -> int:
    """Return an amount in exact units."""
    return amount.micros * NS_PER_HOUR


def round_units(units: int) -> int:
    """Return exact units (micro-units per hour times ns) as micro-units, half to even."""
    micros, rest = divmod(units, NS_PER_HOUR)
    half = NS_PER_HOUR // 2
    return micros + (rest > half or (rest == half and micros % 2 == 1))


def round_units_up(units: int) -> int:
    """Return exact units as micro-units, any rest counted whole: for money set aside."""
    return -(-units // NS_PER_HOUR)


def apportion(parts: Mapping[Key, int]) -> dict[Key, int]:
    """Return each part in micro-units, so that they sum to the rounded whole exactly.

    Largest remainder: every part is rounded down, and the micro-units still missing go to the
    parts that lost most; ties go to the part that comes first.
    """
    total = round_units(sum(parts.values()))
    floors = {key: units // NS_PER_HOUR for key, units in parts.items()}
    lost = {key: units % NS_PER_HOUR for key, units in parts.items()}
    return _topped_up(floors, lost, total)


def share_out(micros: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """Return an amount split in proportion to weights, summing to it exactly.

    Largest remainder, as in ``apportion``. The weights are zero or more and not all zero.
    """
    total = sum(weights.values())
    floors = {key: micros * weight // total for key, weight in weights.items()}
    lost = {key: micros * weight % total for key, weight in weights.items()}
    return _topped_up(floors, lost, micros)


def _topped_up(floors: dict[Key, int], lost: Mapping[Key, int], total: int) -> dict[Key, int]:
    """Return the parts with what is missing of the total given to those that lost most."""
    missing = total - sum(floors.values())
    for key in sorted(floors, key=lambda key: -lost[key])[:missing]:
        floors[key] += 1
    return floors


class Basis(StrEnum):
    """On what ground a stretch of time is charged."""

    MEASURED = "measured"
    """A process was recording, or the machine is known to have stayed up."""
    UNBILLED = "unbilled"
    """The machine was given back: nothing to pay."""
    STATED = "stated"
    """The user said what a stopped machine costs."""
    ASSUMED = "assumed"
    """Nothing is known; charged as if the machine had stayed rented."""


@dataclass(frozen=True, slots=True)
class RatePiece:
    """During ``[start_ns, end_ns)`` the whole run costs ``micros_per_hour``."""

    start_ns: int
    end_ns: int
    micros_per_hour: int
    basis: Basis = Basis.MEASURED

    def units(self, ns: int) -> int:
        """Return the exact cost of some of its time, in micro-units per hour times ns."""
        return self.micros_per_hour * ns


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a figure rests on and nobody measured."""

    start_ns: int
    end_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RateFunction:
    """A run's rate over time: pieces in order, without overlap; outside them nothing is charged."""

    pieces: tuple[RatePiece, ...]
    currency: str
    assumptions: tuple[Assumption, ...] = ()

    def units_between(self, start_ns: int, end_ns: int) -> int:
        """Return the exact cost of ``[start_ns, end_ns)`` in micro-units per hour times ns."""
        return sum(self.units_by_basis(start_ns, end_ns).values())

    def units_by_basis(self, start_ns: int, end_ns: int) -> dict[Basis, int]:
        """Return the exact cost of ``[start_ns, end_ns)`` by the ground on which it is charged."""
        found = dict.fromkeys(Basis, 0)
        for piece in self.pieces:
            overlap_ns = min(end_ns, piece.end_ns) - max(start_ns, piece.start_ns)
            if overlap_ns > 0:
                found[piece.basis] += piece.units(overlap_ns)
        return found

    def cost_between(self, start_ns: int, end_ns: int) -> Money:
        """Return the cost of ``[start_ns, end_ns)``, rounded once."""
        return Money(round_units(self.units_between(start_ns, end_ns)), self.currency)

    def assumed_between(self, start_ns: int, end_ns: int) -> Money:
        """Return what of the cost of ``[start_ns, end_ns)`` is only assumed; never more than it.

        Each stretch of time costs the difference of two rounded totals, so that stretches sum to
        the whole, and what comes later changes nothing of what came before.
        """
        total = assumed = 0
        for piece in self.pieces:
            overlap_ns = min(end_ns, piece.end_ns) - max(start_ns, piece.start_ns)
            if overlap_ns > 0:
                before, total = total, total + piece.units(overlap_ns)
                if piece.basis is Basis.ASSUMED:
                    assumed += round_units(total) - round_units(before)
        return Money(assumed, self.currency)

    def rate_at(self, t_ns: int) -> int:
        """Return the rate in force at an instant, in micro-units per hour; 0 outside the pieces."""
        holding = (p.micros_per_hour for p in self.pieces if p.start_ns <= t_ns < p.end_ns)
        return next(holding, 0)


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


# The rate function of a run, from its attempts.

_KEPT = "no record says whether the machine was kept; its full price is assumed"
_AS_MANY_AS_PROCESSES = (
    "nobody stated how many GPUs the run has and none were found; one per process is assumed"
)
_END_UNSEEN = "an attempt without a recorded end is charged up to its last sign of life"


@dataclass(frozen=True, slots=True)
class RunRates:
    """A run's rate function, if it has a price, and what is wrong with its prices."""

    function: RateFunction | None
    findings: tuple[Finding, ...] = ()


def run_rates(attempts: Sequence[Attempt], until_ns: int) -> RunRates:
    """Return what a run of these attempts, oldest first, costs over time.

    The last one's price is carried on to ``until_ns``: the present of a live run, the end of the
    window that is asked for, or its last sign of life.
    """
    first = next(iter(prices_of(attempts)), None)
    if first is None:
        return RunRates(None)
    currency, kind = first.currency, first.kind
    kept = [
        [c for c in in_force(a) if c.price and (c.price.currency, c.price.kind) == (currency, kind)]
        for a in attempts
    ]
    pieces: list[RatePiece] = []
    assumptions: list[Assumption] = []
    findings = list(price_findings(attempts, currency))
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        pieces += _attempt_pieces(attempt, kept[index])
        assumptions += _assumed_inside(attempt, following, kept[index])
        gap_end_ns = following.start_ns if following else until_ns
        if gap_end_ns <= attempt.last_sign_ns or not kept[index] or attempt.completed:
            continue
        piece, finding = _gap_piece(attempt, following, kept[index][-1], gap_end_ns)
        pieces.append(piece)
        findings += [finding] if finding else []
        if piece.basis is Basis.ASSUMED:
            assumptions.append(Assumption(piece.start_ns, piece.end_ns, _KEPT))
    return RunRates(RateFunction(tuple(pieces), currency, tuple(assumptions)), tuple(findings))


def cost_to_last_record(attempts: Sequence[Attempt]) -> Money | None:
    """Return what a run has cost, from its begin to its last record; None without a price."""
    if not attempts:
        return None
    until_ns = attempts[-1].last_sign_ns
    function = run_rates(attempts, until_ns).function
    return None if function is None else function.cost_between(attempts[0].start_ns, until_ns)


def cost_where(
    attempts: Sequence[Attempt],
    shares: Sequence[Fraction],
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Money | None:
    """Return what of a run's cost fell on one machine; None where none did, or without a price.

    ``shares`` says which part of each attempt, oldest first, was there. What lies between two
    attempts on the machine belongs to the run. By default all of it counts, to its last record.
    """
    function = run_rates(attempts, attempts[-1].last_sign_ns).function if attempts else None
    if function is None or not any(shares):
        return None
    cost = Money(0, function.currency)
    for place, (attempt, share) in enumerate(zip(attempts, shares, strict=True)):
        stays = place + 1 < len(attempts) and shares[place + 1] > 0
        end_ns = attempts[place + 1].start_ns if stays else attempt.last_sign_ns
        start_ns = attempt.start_ns if since_ns is None else max(attempt.start_ns, since_ns)
        end_ns = end_ns if until_ns is None else min(end_ns, until_ns)
        if share and start_ns < end_ns:
            whole = function.cost_between(start_ns, end_ns)
            cost += Money(round(whole.micros * share), whole.currency)
    return cost


def _attempt_pieces(attempt: Attempt, changes: Sequence[InForce]) -> Iterator[RatePiece]:
    """Yield the rate inside an attempt; neighbours at the same rate are one piece."""
    last: RatePiece | None = None
    for piece in gpu_pieces(attempt, changes):
        assert piece.price is not None
        rate = hourly(piece.price.micros_per_hour, piece.gpus)
        if last and (last.end_ns, last.micros_per_hour) == (piece.start_ns, rate):
            last = RatePiece(last.start_ns, piece.end_ns, rate)
            continue
        if last:
            yield last
        last = RatePiece(piece.start_ns, piece.end_ns, rate)
    if last:
        yield last


def _assumed_inside(
    attempt: Attempt, following: Attempt | None, changes: Sequence[InForce]
) -> Iterator[Assumption]:
    """Yield what the charge of an attempt rests on that nobody recorded."""
    start_ns, end_ns, header = attempt.start_ns, attempt.last_sign_ns, attempt.header
    if header.gpus_source == GUESSED and any(c.gpus == header.gpus for c in changes):
        yield Assumption(start_ns, end_ns, _AS_MANY_AS_PROCESSES)
    if attempt.nodes and attempt.end is None and following is not None:
        yield Assumption(start_ns, end_ns, _END_UNSEEN)


def _gap_piece(
    attempt: Attempt, following: Attempt | None, last: InForce, gap_end_ns: int
) -> tuple[RatePiece, Finding | None]:
    """Return what the time after an attempt costs, and what that leaves out, if anything.

    In logs that do not name nodes, the stopped price is of one GPU, and the same boot counts more.
    """
    assert last.price is not None
    start_ns, header, has_nodes = attempt.last_sign_ns, attempt.header, bool(attempt.nodes)
    machine = machine_after(attempt, following)
    gpus = total_gpus(attempt, last.gpus) * kept_slices(attempt, start_ns)
    full = RatePiece(start_ns, gap_end_ns, hourly(last.price.micros_per_hour, gpus))
    stopped = header.stopped_machine_price if has_nodes else header.stopped_price
    if stopped is not None and stopped.currency != last.price.currency:
        stopped = None
    if stopped is not None and (has_nodes or machine is MachineAfter.UNKNOWN):
        rate = hourly(stopped.micros_per_hour, 1 if has_nodes else gpus)
        return replace(full, micros_per_hour=rate, basis=Basis.STATED), None
    unbilled = replace(full, micros_per_hour=0, basis=Basis.UNBILLED)
    match machine:
        case MachineAfter.TAKEN_BACK:
            return unbilled, None
        case MachineAfter.KEPT:
            return full, None
        case MachineAfter.UNKNOWN:
            return replace(full, basis=Basis.ASSUMED), None
        case MachineAfter.ANOTHER:
            return unbilled, _left_out(full, last.price.currency)


def _left_out(most: RatePiece, currency: str) -> Finding:
    """Return the finding that an earlier machine may have been paid for in vain."""
    amount = Money(round_units(most.units(most.end_ns - most.start_ns)), currency)
    message = (
        f"{duration_text(most.end_ns - most.start_ns)} between two attempts are not charged, since "
        f"the next one ran on another machine or in another job: up to {amount} if the earlier "
        "machine was kept"
    )
    return Finding(source="prices", message=message, severity="warning")
