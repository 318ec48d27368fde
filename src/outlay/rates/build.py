"""From a run's attempts to its rate function.

Inside an attempt the rate is price times the GPUs that are there. Between attempts it is, in this
order: what the user stated for a stopped machine; nothing when the scheduler took the machine back;
the full price when the same machine stayed up; nothing when the next attempt ran on another one,
with a finding; else the full price, as an assumption that is shown. After an attempt that completed
nothing is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlay.errors import Finding
from outlay.ledger import Attempt
from outlay.rates.amounts import hourly, round_units
from outlay.rates.function import Assumption, Basis, RateFunction, RatePiece
from outlay.rates.gaps import MachineAfter, machine_after
from outlay.rates.gpus import GUESSED, InForce, gpu_pieces, in_force, kept_slices, total_gpus
from outlay.rates.prices import kind_of_cost, price_findings
from outlay.units import Money
from outlay.units.quantity import duration_text

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
