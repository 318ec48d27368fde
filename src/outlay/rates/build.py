"""From a run's attempts to its rate function: gaps between attempts, GPUs over time, prices.

Inside an attempt the rate is price times the GPUs that are there. Between attempts it is, in this
order: what the user stated for a stopped machine; nothing when the scheduler took the machine
back; the full price when the same machine stayed up; nothing when the next attempt ran on another
one, with a finding; else the full price, as an assumption that is shown. After an attempt that
completed nothing is charged.
"""

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
from outlay.rates.function import Assumption, Basis, RateFunction, RatePiece, hourly, round_units
from outlay.units import Money
from outlay.units.quantity import duration_text

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


_A_MOMENT_NS = 1_000_000_000  # So long a program may take to look its price up.
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
    """Return what the run costs over time, up to ``until_ns``.

    Args:
        attempts: Oldest first.
        until_ns: How far the last attempt's price is carried on: the present of a live run, the
            end of the window that is asked for, or its last sign of life.
    """
    priced = [[change for change in in_force(a) if change.price is not None] for a in attempts]
    currencies = [_currency(change) for of_attempt in priced for change in of_attempt]
    if not currencies:
        return RunRates(None)
    currency = currencies[0]
    kind = kind_of_cost(attempts)
    kept = [
        [c for c in of_attempt if c.price and (c.price.currency, c.price.kind) == (currency, kind)]
        for of_attempt in priced
    ]
    pieces: list[RatePiece] = []
    assumptions: list[Assumption] = []
    findings = list(_findings(attempts, priced, currency))
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


def _currency(change: InForce) -> str:
    assert change.price is not None
    return change.price.currency


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

    What lies between two attempts on the machine belongs to the run.

    Args:
        attempts: Oldest first.
        shares: Which part of each attempt was there.
        since_ns: From when on it counts; default: from the run's begin.
        until_ns: Until when; default: to its last record.
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


def _findings(
    attempts: Sequence[Attempt], changes: Sequence[Sequence[InForce]], currency: str
) -> Iterator[Finding]:
    """Yield which prices are not counted or were old, and which time has none."""
    yield from price_findings(attempts)
    named = {_currency(change) for of_attempt in changes for change in of_attempt}
    headers = [attempt.header for attempt in attempts]
    stopped = [p for h in headers for p in (h.stopped_price, h.stopped_machine_price) if p]
    named |= {price.currency for price in stopped}
    for other in sorted(named - {currency}):
        message = f"a price in {other} is not counted: the run pays in {currency}"
        yield Finding(source="prices", message=message)
    if unpriced := sum(not of_attempt for of_attempt in changes):
        message = f"{unpriced} of {len(attempts)} attempts have no price and are not charged"
        yield Finding(source="prices", message=message, severity="warning")
    for attempt, of_attempt in zip(attempts, changes, strict=True):
        late_ns = of_attempt[0].t_ns - attempt.start_ns if of_attempt else 0
        if late_ns > _A_MOMENT_NS:
            began = duration_text(late_ns)
            message = f"an attempt had no price in its first {began}, which are not charged"
            yield Finding(source="prices", message=message, severity="warning")


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
    """Return what the time after an attempt costs, and what that leaves out, if anything."""
    assert last.price is not None
    start_ns, header = attempt.last_sign_ns, attempt.header
    machine = machine_after(attempt, following)
    gpus = total_gpus(attempt, last.gpus)
    full = hourly(last.price.micros_per_hour, gpus * kept_slices(attempt, start_ns))
    if not attempt.nodes:
        return _old_gap_piece(attempt, machine, last, gap_end_ns), None
    stopped = header.stopped_machine_price
    if stopped is not None and stopped.currency == last.price.currency:
        return RatePiece(start_ns, gap_end_ns, stopped.micros_per_hour, Basis.STATED), None
    match machine:
        case MachineAfter.TAKEN_BACK:
            return RatePiece(start_ns, gap_end_ns, 0, Basis.UNBILLED), None
        case MachineAfter.KEPT:
            return RatePiece(start_ns, gap_end_ns, full, Basis.MEASURED), None
        case MachineAfter.UNKNOWN:
            return RatePiece(start_ns, gap_end_ns, full, Basis.ASSUMED), None
        case MachineAfter.ANOTHER:
            most = RatePiece(start_ns, gap_end_ns, full)
            left_out = _left_out(most, last.price.currency)
            return RatePiece(start_ns, gap_end_ns, 0, Basis.UNBILLED), left_out


def _left_out(most: RatePiece, currency: str) -> Finding:
    """Return the finding that an earlier machine may have been paid for in vain."""
    amount = Money(round_units(most.units(most.end_ns - most.start_ns)), currency)
    message = (
        f"{duration_text(most.end_ns - most.start_ns)} between two attempts are not charged, since "
        f"the next one ran on another machine or in another job: up to {amount} if the earlier "
        "machine was kept"
    )
    return Finding(source="prices", message=message, severity="warning")


def _old_gap_piece(
    attempt: Attempt, machine: MachineAfter, last: InForce, gap_end_ns: int
) -> RatePiece:
    """Return what the time after an attempt costs by logs that do not name nodes.

    Their stopped price is of one GPU, and holds where the same boot does not say otherwise.
    """
    assert last.price is not None
    start_ns, gpus = attempt.last_sign_ns, total_gpus(attempt, last.gpus)
    stopped = attempt.header.stopped_price
    full = hourly(last.price.micros_per_hour, gpus)
    if machine is MachineAfter.TAKEN_BACK:
        return RatePiece(start_ns, gap_end_ns, 0, Basis.UNBILLED)
    if machine is MachineAfter.KEPT:
        return RatePiece(start_ns, gap_end_ns, full, Basis.MEASURED)
    if stopped is not None and stopped.currency == last.price.currency:
        stopped_rate = hourly(stopped.micros_per_hour, gpus)
        return RatePiece(start_ns, gap_end_ns, stopped_rate, Basis.STATED)
    return RatePiece(start_ns, gap_end_ns, full, Basis.ASSUMED)
