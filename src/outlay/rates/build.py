"""From a run's attempts to its rate function.

Between attempts the rule is, in this order: nothing is owed when the scheduler took the machine
back; the full price when the same machine stayed up (same boot id); what the user stated for a
stopped machine; else the full price, as an assumption that is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outlay.errors import Finding
from outlay.ledger import Price
from outlay.ledger.attempts import Attempt
from outlay.rates.function import Assumption, Basis, RateFunction, RatePiece
from outlay.rates.prices import kind_of_cost, price_findings
from outlay.units.quantity import duration_text

_A_MOMENT_NS = 1_000_000_000  # So long a program may take to look its price up.
_ELASTIC = re.compile(r"torchelastic-(?P<run>.*)-(?P<restarts>\d+)")


@dataclass(frozen=True, slots=True)
class RunRates:
    """A run's rate function, if it has a price, and what is wrong with its prices."""

    function: RateFunction | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _InForce:
    """From ``t_ns`` on, the run pays ``price`` for each of ``gpus``."""

    t_ns: int
    price: Price
    gpus: int

    @property
    def micros_per_hour(self) -> int:
        return self.price.micros_per_hour * self.gpus


def run_rates(attempts: Sequence[Attempt], until_ns: int) -> RunRates:
    """Return what the run costs over time, up to ``until_ns``.

    Args:
        attempts: Oldest first.
        until_ns: How far the last attempt's price is carried on: the present of a live run, the
            end of the window that is asked for, or its last sign of life.
    """
    changes = [list(_changes(attempt)) for attempt in attempts]
    currencies = [change.price.currency for of_attempt in changes for change in of_attempt]
    if not currencies:
        return RunRates(None)
    currency = currencies[0]
    kind = kind_of_cost(attempts)
    kept = [
        [c for c in of_attempt if (c.price.currency, c.price.kind) == (currency, kind)]
        for of_attempt in changes
    ]
    pieces, assumptions = _pieces(attempts, kept, until_ns)
    function = RateFunction(tuple(pieces), currency, tuple(assumptions))
    return RunRates(function, tuple(_findings(attempts, changes, currency)))


def _findings(
    attempts: Sequence[Attempt], changes: Sequence[Sequence[_InForce]], currency: str
) -> Iterator[Finding]:
    """Yield which prices are not counted or were old, and which time has none."""
    yield from price_findings(attempts)
    named = {change.price.currency for of_attempt in changes for change in of_attempt}
    named |= {a.header.stopped_price.currency for a in attempts if a.header.stopped_price}
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


def _changes(attempt: Attempt) -> Iterator[_InForce]:
    header = attempt.header
    if header.price is not None:
        yield _InForce(attempt.start_ns, header.price, header.gpus)
    for change in sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq)):
        yield _InForce(change.t_ns, change.price, change.gpus)


def _pieces(
    attempts: Sequence[Attempt], changes: Sequence[Sequence[_InForce]], until_ns: int
) -> tuple[list[RatePiece], list[Assumption]]:
    pieces: list[RatePiece] = []
    assumptions: list[Assumption] = []
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        end_ns = attempt.last_sign_ns
        pieces += _attempt_pieces(changes[index], end_ns)
        gap_end_ns = following.start_ns if following else until_ns
        if gap_end_ns <= end_ns or not changes[index] or attempt.completed:
            continue
        piece = _gap_piece(attempt, following, changes[index][-1], gap_end_ns)
        pieces.append(piece)
        if piece.basis is Basis.ASSUMED:
            text = "no record says whether the machine was kept; its full price is assumed"
            assumptions.append(Assumption(piece.start_ns, piece.end_ns, text))
    return pieces, assumptions


def _attempt_pieces(changes: Sequence[_InForce], end_ns: int) -> Iterator[RatePiece]:
    for change, following in pairwise((*changes, None)):
        assert change is not None
        piece_end_ns = end_ns if following is None else min(following.t_ns, end_ns)
        if change.t_ns < piece_end_ns:
            yield RatePiece(change.t_ns, piece_end_ns, change.micros_per_hour)


def _gap_piece(
    attempt: Attempt, following: Attempt | None, last: _InForce, gap_end_ns: int
) -> RatePiece:
    start_ns = attempt.last_sign_ns
    if given_back(attempt, following):
        return RatePiece(start_ns, gap_end_ns, 0, Basis.UNBILLED)
    if following and attempt.header.boot_id and attempt.header.boot_id == following.header.boot_id:
        return RatePiece(start_ns, gap_end_ns, last.micros_per_hour, Basis.MEASURED)
    stopped = attempt.header.stopped_price
    if stopped is not None and stopped.currency == last.price.currency:
        rate = stopped.micros_per_hour * last.gpus
        return RatePiece(start_ns, gap_end_ns, rate, Basis.STATED)
    return RatePiece(start_ns, gap_end_ns, last.micros_per_hour, Basis.ASSUMED)


def given_back(attempt: Attempt, following: Attempt | None) -> bool:
    """Say whether the scheduler took the machine back after ``attempt``."""
    if attempt.end is not None and attempt.end.status == "preempted":
        return True
    if following is None or not attempt.header.slurm_job:
        return False
    if attempt.header.slurm_job != following.header.slurm_job:
        return False
    before, after = attempt.header.launch, following.header.launch
    return before != after and not _restarted_in_place(before, after)


def _restarted_in_place(before: str, after: str) -> bool:
    """Say whether torchrun started its workers anew, inside the allocation it had.

    Its launch ids end in the number of such restarts, which begins at 0 with every torchrun.
    """
    earlier, later = _ELASTIC.fullmatch(before), _ELASTIC.fullmatch(after)
    if earlier is None or later is None or earlier["run"] != later["run"]:
        return False
    return int(later["restarts"]) > int(earlier["restarts"])
