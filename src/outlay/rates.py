"""The only place where time becomes money: a run's cost per hour as a step function of time.

A cost is the integral of that function, in exact integers, rounded once.

Inside an attempt the rate is the price times the number of GPUs. Between two attempts the first
match applies: the stopped price that the user stated; nothing if the scheduler took the machine
back; the full price if the same machine stayed up; nothing, with a finding, if the next attempt ran
on another machine; else the full price, reported as an assumption. Nothing is charged after an
attempt that completed, and after one that was paused only a price that was stated for that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

from outlay.errors import Finding
from outlay.ledger import Attempt, GpuCount, Price, exact_gpus
from outlay.ledger.attempts import is_same_machine
from outlay.units import Money, Rate, Unit
from outlay.units.money import GPU_TIME, MICROS
from outlay.units.quantity import NS_PER_HOUR as NS_PER_HOUR
from outlay.units.quantity import duration_text

# Exact amounts: integers of micro-units per hour times nanoseconds, rounded once.

Key = TypeVar("Key")


def hourly(micros_per_gpu_hour: int, gpus: Fraction | int) -> int:
    """Return the cost per hour of some GPUs in micro-units, rounded half to even."""
    return round(micros_per_gpu_hour * gpus)


def rate_of(price: Rate, gpus: Fraction | int) -> Rate:
    """Return the rate of some GPUs at a price per GPU."""
    return price.unit.rate(hourly(price.micros_per_hour, gpus))


def gpu_rate(gpus: Fraction | int) -> Rate:
    """Return how many GPU-hours some GPUs use per hour, rounded up: for holds."""
    return GPU_TIME.rate(math.ceil(gpus * MICROS))


def units(rate: Rate, ns: int) -> int:
    """Return the exact cost of a duration at a rate, in micro-units per hour times ns."""
    return rate.micros_per_hour * ns


def cost(rate: Rate, ns: int) -> Money:
    """Return the cost of a duration at a rate, rounded half to even."""
    return rate.unit.money(round_units(units(rate, ns)))


def cost_at_most(rate: Rate, ns: int) -> Money:
    """Return the cost of a duration at a rate, rounded up: for holds."""
    return rate.unit.money(round_units_up(units(rate, ns)))


def cost_of_share(micros_per_hour: Fraction, ns: int) -> int:
    """Return the cost of a part of a machine over a time, in micro-units, rounded half to even."""
    return round(micros_per_hour * ns / NS_PER_HOUR)


def paid_time(amount: Money, rate: Rate) -> int | None:
    """Return how many whole nanoseconds an amount pays for; None if the rate is zero."""
    return units_of(amount) // rate.micros_per_hour if rate.micros_per_hour else None


def units_of(amount: Money) -> int:
    """Return an amount in exact units."""
    return amount.micros * NS_PER_HOUR


def round_units(units: int, per: int = NS_PER_HOUR) -> int:
    """Return exact units as micro-units, half to even.

    Units are micro-units per hour times ns, or any of which ``per`` make a micro-unit.
    """
    micros, rest = divmod(units, per)
    return micros + (2 * rest > per or (2 * rest == per and micros % 2 == 1))


def round_units_up(units: int) -> int:
    """Return exact units as micro-units, rounded up: for holds."""
    return -(-units // NS_PER_HOUR)


def apportion(parts: Mapping[Key, int], per: int = NS_PER_HOUR) -> dict[Key, int]:
    """Return each part in micro-units, so that they sum to the rounded total exactly.

    Parts are in exact units, of which ``per`` make a micro-unit.

    Largest remainder method: every part is rounded down, and the missing micro-units go to the
    parts with the largest remainders; ties go to the earlier part.
    """
    total = round_units(sum(parts.values()), per)
    floors = {key: units // per for key, units in parts.items()}
    remainders = {key: units % per for key, units in parts.items()}
    return _distribute_missing(floors, remainders, total)


def share_out(micros: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """Return an amount split in proportion to weights, summing to it exactly.

    Largest remainder method, as in ``apportion``. Weights are non-negative and not all zero.
    """
    total = sum(weights.values())
    floors = {key: micros * weight // total for key, weight in weights.items()}
    remainders = {key: micros * weight % total for key, weight in weights.items()}
    return _distribute_missing(floors, remainders, micros)


def _distribute_missing(
    floors: dict[Key, int], remainders: Mapping[Key, int], total: int
) -> dict[Key, int]:
    missing = total - sum(floors.values())
    for key in sorted(floors, key=lambda key: -remainders[key])[:missing]:
        floors[key] += 1
    return floors


class Basis(StrEnum):
    """Why an interval of time is charged, or not."""

    MEASURED = "measured"
    """A process was recording, or the machine is known to have stayed up."""
    UNBILLED = "unbilled"
    """The machine was given back: nothing is charged."""
    STATED = "stated"
    """Charged at the stopped price that the user stated."""
    ASSUMED = "assumed"
    """No record tells; charged as if the machine had stayed rented."""


@dataclass(frozen=True, slots=True)
class RatePiece:
    """During ``[start_ns, end_ns)`` the whole run costs ``micros_per_hour``."""

    start_ns: int
    end_ns: int
    micros_per_hour: int
    basis: Basis = Basis.MEASURED

    def units(self, ns: int) -> int:
        """Return the exact cost of ``ns`` of the piece, in micro-units per hour times ns."""
        return self.micros_per_hour * ns


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a figure depends on and that was not measured."""

    start_ns: int
    end_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RateFunction:
    """A run's rate over time: pieces in order, without overlap; outside them nothing is charged."""

    pieces: tuple[RatePiece, ...]
    unit: Unit
    assumptions: tuple[Assumption, ...] = ()

    @property
    def currency(self) -> str:
        """The currency of its unit."""
        return self.unit.currency

    def units_between(self, start_ns: int, end_ns: int) -> int:
        """Return the exact cost of ``[start_ns, end_ns)`` in micro-units per hour times ns."""
        return sum(self.units_by_basis(start_ns, end_ns).values())

    def units_by_basis(self, start_ns: int, end_ns: int) -> dict[Basis, int]:
        """Return the exact cost of ``[start_ns, end_ns)`` by basis."""
        found = dict.fromkeys(Basis, 0)
        for piece, ns in self._overlaps(start_ns, end_ns):
            found[piece.basis] += piece.units(ns)
        return found

    def cost_between(self, start_ns: int, end_ns: int) -> Money:
        """Return the cost of ``[start_ns, end_ns)``, rounded once."""
        return self.unit.money(round_units(self.units_between(start_ns, end_ns)))

    def assumed_between(self, start_ns: int, end_ns: int) -> Money:
        """Return the assumed part of the cost of ``[start_ns, end_ns)``; at most that cost.

        Each piece costs the difference of two rounded running totals, so that pieces sum to the
        whole and a later piece never changes an earlier one.
        """
        total = assumed = 0
        for piece, ns in self._overlaps(start_ns, end_ns):
            before, total = total, total + piece.units(ns)
            if piece.basis is Basis.ASSUMED:
                assumed += round_units(total) - round_units(before)
        return self.unit.money(assumed)

    def _overlaps(self, start_ns: int, end_ns: int) -> Iterator[tuple[RatePiece, int]]:
        for piece in self.pieces:
            overlap_ns = min(end_ns, piece.end_ns) - max(start_ns, piece.start_ns)
            if overlap_ns > 0:
                yield piece, overlap_ns

    def rate_at(self, t_ns: int) -> int:
        """Return the rate in force at an instant, in micro-units per hour; 0 outside the pieces."""
        rates = (p.micros_per_hour for p in self.pieces if p.start_ns <= t_ns < p.end_ns)
        return next(rates, 0)


# GPUs of an attempt over time: those of the nodes that are alive, less the slices given back.
#
# A count that the user stated is for the whole run and is split over the recording nodes by their
# number of processes. Counts detected on the nodes are summed; a node that does not record is
# counted with the GPUs of the first one. In logs without node information all GPUs are there from
# start to end.

FOUND = ("slurm", "visible", "driver")
"""The values of ``gpus_source`` for a count detected on the node itself."""
GUESSED = "world_size"


@dataclass(frozen=True, slots=True)
class InForce:
    """From ``t_ns`` on the run has ``gpus`` at ``price`` per GPU, if it has a price."""

    t_ns: int
    gpus: GpuCount
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class GpuPiece:
    """During ``[start_ns, end_ns)`` an attempt had ``gpus`` at ``price`` per GPU."""

    start_ns: int
    end_ns: int
    gpus: Fraction
    price: Price | None = None


def in_force(attempt: Attempt) -> list[InForce]:
    """Return an attempt's recorded GPU counts and prices, in order of time."""
    header = attempt.header
    changes = sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq))
    first = InForce(attempt.start_ns, header.gpus, header.price)
    return [first, *(InForce(change.t_ns, change.gpus, change.price) for change in changes)]


def gpu_pieces(attempt: Attempt, stated: Sequence[InForce] | None = None) -> Iterator[GpuPiece]:
    """Yield an attempt's GPUs over time, in order; ``stated`` defaults to all of ``in_force``."""
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


def gpu_time(attempts: Iterable[Attempt]) -> Money:
    """Return the GPU-hours of attempts, without the time between them; rounded up once."""
    pieces = (piece for attempt in attempts for piece in gpu_pieces(attempt))
    gpu_ns = sum((piece.gpus * (piece.end_ns - piece.start_ns) for piece in pieces), Fraction(0))
    return GPU_TIME.money(math.ceil(gpu_ns * MICROS / NS_PER_HOUR))


def total_gpus(attempt: Attempt, count: GpuCount) -> Fraction:
    """Return the GPUs of all nodes, given the ``count`` that the lowest rank recorded."""
    header = attempt.header
    if count == header.gpus and header.gpus_source in FOUND and attempt.nodes:
        return sum(_weights(attempt), start=Fraction(0))
    return exact_gpus(count)


def _kept_slices(attempt: Attempt, t_ns: int) -> Fraction:
    """Return the share of an elastic run's slices not given back at an instant, 0 to 1."""
    if not attempt.nodes:
        return Fraction(1)
    changes = [change for change in attempt.slices if change.t_ns <= t_ns and change.total > 0]
    return Fraction(changes[-1].available, changes[-1].total) if changes else Fraction(1)


@dataclass(frozen=True, slots=True)
class _Share:
    """During ``[start_ns, end_ns)`` the share ``of_all`` of the run's GPUs was there."""

    start_ns: int
    end_ns: int
    of_all: Fraction


def _shares(attempt: Attempt) -> list[_Share]:
    begin_ns, end_ns = attempt.start_ns, attempt.last_sign_ns
    if not attempt.nodes:
        return [_Share(begin_ns, end_ns, Fraction(1))]
    weights = _weights(attempt)
    total, alive = sum(weights), Fraction(0)
    changes = dict.fromkeys([begin_ns, end_ns, *(c.t_ns for c in attempt.slices)], Fraction(0))
    for node, weight in zip(attempt.nodes, weights, strict=True):
        changes[node.start_ns] = changes.get(node.start_ns, Fraction(0)) + weight
        changes[node.end_ns] = changes.get(node.end_ns, Fraction(0)) - weight
    shares = []
    for t_ns, until_ns in pairwise(sorted(changes)):
        alive += changes[t_ns]
        if begin_ns <= t_ns < end_ns:
            shares.append(_Share(t_ns, until_ns, alive / total * _kept_slices(attempt, t_ns)))
    return shares


def _weights(attempt: Attempt) -> list[Fraction]:
    """Return the weight of each node: its GPUs if all were detected, else its processes."""
    nodes = attempt.nodes
    found = [node.gpus for node in nodes]
    if attempt.header.gpus_source not in FOUND or not all(found):
        return [Fraction(node.ranks) for node in nodes]
    silent_nodes = attempt.header.nodes - len(nodes)
    if silent_nodes > 0:
        found[0] += silent_nodes * nodes[0].gpus
    return found


# What happened to the machine between two attempts: it stayed up if the next one ran on it, unless
# the scheduler took it back between two starts of one Slurm job.

_ELASTIC = re.compile(r"torchelastic-(?P<run>.*)-(?P<restarts>\d+)")


class MachineAfter(Enum):
    """What happened to an attempt's machine after the attempt."""

    TAKEN_BACK = "the scheduler took it back"
    KEPT = "the next attempt ran on it"
    ANOTHER = "the next attempt ran on another one"
    UNKNOWN = "no record says"


def machine_after(attempt: Attempt, following: Attempt | None) -> MachineAfter:
    """Return what happened to the machine after ``attempt``."""
    if given_back(attempt, following):
        return MachineAfter.TAKEN_BACK
    if following is None:
        return MachineAfter.UNKNOWN
    same = is_same_machine(attempt.header, following.header)
    if same is None:
        return MachineAfter.UNKNOWN
    return MachineAfter.KEPT if same else MachineAfter.ANOTHER


def given_back(attempt: Attempt, following: Attempt | None) -> bool:
    """Return whether the scheduler took the machine back after ``attempt``."""
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


def _restarted_in_place(before: str, after: str) -> bool:
    """Return whether torchrun restarted its workers inside the same allocation.

    Its launch ids end in the restart count, which each torchrun starts at 0.
    """
    earlier, later = _ELASTIC.fullmatch(before), _ELASTIC.fullmatch(after)
    if earlier is None or later is None or earlier["run"] != later["run"]:
        return False
    return int(later["restarts"]) > int(earlier["restarts"])


# Prices of a run. Its cost is of one kind, that of its first price: cash and showback never add.

_PRICE_LOOKUP_NS = 1_000_000_000  # Unpriced time at the start that is not worth a finding.


def prices_of(attempts: Sequence[Attempt]) -> tuple[Price, ...]:
    """Return the distinct prices of a run in the order of time."""
    return tuple(dict.fromkeys(price for _, price in _dated_prices(attempts)))


def price_findings(attempts: Sequence[Attempt], counted: Unit) -> Iterator[Finding]:
    """Yield findings on prices that are not counted or out of date, and on unpriced time."""
    (currency, kind), dated = counted, list(_dated_prices(attempts))
    for other in sorted({price.kind for _, price in dated} - {kind}):
        yield _error(f"a {other} price is not counted: the run's cost is {kind}")
    warned: dict[str, str | None] = {}
    for t_ns, price in dated:
        warned.setdefault(price.offer, price.age_warning(t_ns))
    yield from map(_warning, filter(None, warned.values()))
    headers = [attempt.header for attempt in attempts]
    stopped = [p for h in headers for p in (h.stopped_price, h.stopped_machine_price) if p]
    named = {price.currency for price in (*stopped, *(price for _, price in dated))}
    for foreign in sorted(named - {currency}):
        yield _warning(
            f"the run pays in {foreign} too: that part is beside its cost in {currency}, since "
            "currencies are never added"
        )
    yield from _unpriced(attempts)


def _unpriced(attempts: Sequence[Attempt]) -> Iterator[Finding]:
    first_ns = [next((t_ns for t_ns, _ in _dated_prices([attempt])), None) for attempt in attempts]
    if missing := first_ns.count(None):
        yield _warning(f"{missing} of {len(attempts)} attempts have no price and are not charged")
    for attempt, t_ns in zip(attempts, first_ns, strict=True):
        if t_ns is not None and t_ns - attempt.start_ns > _PRICE_LOOKUP_NS:
            began = duration_text(t_ns - attempt.start_ns)
            yield _warning(f"an attempt had no price in its first {began}, which are not charged")


def _error(message: str) -> Finding:
    return Finding(source="prices", message=message)


def _warning(message: str) -> Finding:
    return Finding(source="prices", message=message, severity="warning")


def _dated_prices(attempts: Sequence[Attempt]) -> Iterator[tuple[int, Price]]:
    """Yield every price with the instant from which it applies."""
    for attempt in attempts:
        for change in in_force(attempt):
            if change.price is not None:
                yield change.t_ns, change.price


# The rate function of a run, from its attempts.

_KEPT = "no record says whether the machine was kept; its full price is assumed"
_AS_MANY_AS_PROCESSES = (
    "nobody stated how many GPUs the run has and none were found; one per process is assumed"
)
_END_UNSEEN = "an attempt without a recorded end is charged up to its last sign of life"


@dataclass(frozen=True, slots=True)
class RunRates:
    """A run's rate function (None without a price), and findings on its prices.

    ``beside`` are those of the other currencies in which it pays, if its price changed: at every
    instant one of them applies.
    """

    function: RateFunction | None
    findings: tuple[Finding, ...] = ()
    beside: tuple[RateFunction, ...] = ()


def run_rates(attempts: Sequence[Attempt], until_ns: int) -> RunRates:
    """Return the rate of a run over time, given its attempts, oldest first.

    The last attempt's price applies until ``until_ns``: the present of a live run, the end of the
    queried window, or the last sign of life.
    """
    if not (prices := prices_of(attempts)):
        return RunRates(None)
    currency, kind = unit = prices[0].unit
    kept = [[c for c in in_force(a) if c.price and c.price.kind == kind] for a in attempts]
    pieces: dict[str, list[RatePiece]] = {currency: []}
    assumptions: list[Assumption] = []
    findings = list(price_findings(attempts, unit))
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        for paid_in, piece in _attempt_pieces(attempt, kept[index]):
            pieces.setdefault(paid_in, []).append(piece)
        assumptions += _attempt_assumptions(attempt, following, kept[index])
        gap_end_ns = following.start_ns if following else until_ns
        if gap_end_ns <= attempt.last_sign_ns or not kept[index]:
            continue
        if attempt.completed or (attempt.paused and attempt.paused_price is None):
            continue  # Nothing is held after these.
        paid_in, piece, finding = _gap_piece(attempt, following, kept[index][-1], gap_end_ns)
        pieces.setdefault(paid_in, []).append(piece)
        findings += [finding] if finding else []
        if piece.basis is Basis.ASSUMED:
            assumptions.append(Assumption(piece.start_ns, piece.end_ns, _KEPT))
    beside = tuple(
        RateFunction(tuple(found), Unit(other, kind), tuple(_assumed_in(found, assumptions)))
        for other, found in pieces.items()
        if other != currency
    )
    function = RateFunction(tuple(pieces[currency]), unit, tuple(assumptions))
    return RunRates(function, tuple(findings), beside)


def _assumed_in(
    pieces: Sequence[RatePiece], assumptions: Sequence[Assumption]
) -> Iterator[Assumption]:
    """Yield the assumptions on which the cost of some pieces depends."""
    for each in assumptions:
        if any(p.start_ns < each.end_ns and each.start_ns < p.end_ns for p in pieces):
            yield each


def cost_to_last_record(attempts: Sequence[Attempt]) -> Money | None:
    """Return the cost of a run from its start to its last record; None without a price."""
    if not attempts:
        return None
    until_ns = attempts[-1].last_sign_ns
    function = run_rates(attempts, until_ns).function
    return None if function is None else function.cost_between(attempts[0].start_ns, until_ns)


def _attempt_pieces(
    attempt: Attempt, changes: Sequence[InForce]
) -> Iterator[tuple[str, RatePiece]]:
    """Yield the rate inside an attempt and its currency; pieces of the same rate are merged."""
    last: tuple[str, RatePiece] | None = None
    for each in gpu_pieces(attempt, changes):
        assert each.price is not None
        rate = hourly(each.price.micros_per_hour, each.gpus)
        piece = RatePiece(each.start_ns, each.end_ns, rate)
        if last is not None and last[0] == each.price.currency:
            earlier = last[1]
            if (earlier.end_ns, earlier.micros_per_hour) == (piece.start_ns, rate):
                last = last[0], replace(earlier, end_ns=piece.end_ns)
                continue
        if last is not None:
            yield last
        last = each.price.currency, piece
    if last is not None:
        yield last


def _attempt_assumptions(
    attempt: Attempt, following: Attempt | None, changes: Sequence[InForce]
) -> Iterator[Assumption]:
    start_ns, end_ns, header = attempt.start_ns, attempt.last_sign_ns, attempt.header
    if header.gpus_source == GUESSED and any(c.gpus == header.gpus for c in changes):
        yield Assumption(start_ns, end_ns, _AS_MANY_AS_PROCESSES)
    if attempt.nodes and attempt.end is None and following is not None:
        yield Assumption(start_ns, end_ns, _END_UNSEEN)


def _gap_piece(
    attempt: Attempt, following: Attempt | None, last: InForce, gap_end_ns: int
) -> tuple[str, RatePiece, Finding | None]:
    """Return the currency and the rate after an attempt, and a finding if it is not charged.

    In logs without node information the stopped price is per GPU, and applies only if it is not
    known what happened to the machine.
    """
    assert last.price is not None
    start_ns, header, has_nodes = attempt.last_sign_ns, attempt.header, bool(attempt.nodes)
    machine = machine_after(attempt, following)
    gpus = total_gpus(attempt, last.gpus) * _kept_slices(attempt, start_ns)
    full = RatePiece(start_ns, gap_end_ns, hourly(last.price.micros_per_hour, gpus))
    if (paused := attempt.paused_price) is not None:
        stated = replace(full, micros_per_hour=paused.micros_per_hour, basis=Basis.STATED)
        return paused.currency, stated, None
    stopped = header.stopped_machine_price if has_nodes else header.stopped_price
    currency = last.price.currency
    if stopped is not None and (has_nodes or machine is MachineAfter.UNKNOWN):
        rate = hourly(stopped.micros_per_hour, 1 if has_nodes else gpus)
        return stopped.currency, replace(full, micros_per_hour=rate, basis=Basis.STATED), None
    unbilled = replace(full, micros_per_hour=0, basis=Basis.UNBILLED)
    match machine:
        case MachineAfter.TAKEN_BACK:
            return currency, unbilled, None
        case MachineAfter.KEPT:
            return currency, full, None
        case MachineAfter.UNKNOWN:
            return currency, replace(full, basis=Basis.ASSUMED), None
        case MachineAfter.ANOTHER:
            return currency, unbilled, _uncharged_gap(full, currency)


def _uncharged_gap(full: RatePiece, currency: str) -> Finding:
    amount = Money(round_units(full.units(full.end_ns - full.start_ns)), currency)
    message = (
        f"{duration_text(full.end_ns - full.start_ns)} between two attempts are not charged, since "
        f"the next one ran on another machine or in another job: up to {amount} if the earlier "
        "machine was kept"
    )
    return _warning(message)
