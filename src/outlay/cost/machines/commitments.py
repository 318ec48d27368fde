"""Commitments: capacity that is paid for a term, whether or not runs use it.

Runs use a commitment if their price is a reserved offer of its provider. What of its cost they
used, and what nothing used, are two rows, which sum to what the commitment costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import msgspec

from outlay.cost.charges import month_edges
from outlay.cost.machines.stated_list import StatedList
from outlay.cost.spending import SpendItem
from outlay.errors import InvalidValue
from outlay.ledger.price import Price
from outlay.rates import cost, share_out
from outlay.store.run_row import AttemptCharge, RunRow
from outlay.units import Money

COMMITMENTS_FILE: Final = "commitments.json"
USED, UNUSED = "(commitment, used)", "(commitment, unused)"
"""The model names of a commitment's two rows."""
_RESERVED = ":reserved"


class Commitment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some GPUs of a provider that are paid during ``[since_ns, until_ns)``, UTC nanoseconds.

    Attributes:
        name: As the vendor's bill names it, if that has its id.
        price: Of all its GPUs together, per hour.
    """

    name: str
    provider: str
    price: Price
    gpus: int
    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentCost:
    """What a commitment cost until an instant: used and unused sum to it."""

    commitment: Commitment
    used: Money
    unused: Money

    @property
    def cost(self) -> Money:
        """What it cost."""
        return self.used + self.unused


COMMITMENTS: Final = StatedList(
    file=COMMITMENTS_FILE, type=Commitment, what="commitment", argument="NAME",
    name_of=lambda commitment: commitment.name,
)  # fmt: skip


def set_commitment(commitment: Commitment) -> None:
    """Add or replace a commitment.

    Raises:
        InvalidValue: It has no name or no GPUs, or ends before it begins.
    """
    if not commitment.name.strip():
        raise InvalidValue("NAME", commitment.name, "a name, such as the id on the bill")
    if commitment.gpus < 1:
        raise InvalidValue("--gpus", commitment.gpus, "one GPU or more")
    if commitment.until_ns <= commitment.since_ns:
        raise InvalidValue("--until", commitment.until_ns, "an instant after --since")
    COMMITMENTS.set(commitment)


def commitment_spends(
    commitment: Commitment, reports: Iterable[RunRow], now_ns: int
) -> Iterator[SpendItem]:
    """Yield a commitment's cost by month until now, used and unused.

    Runs that are charged in its own unit are in the books already, and are taken off the used part.
    """
    until_ns = min(commitment.until_ns, now_ns)
    rate, since_ns = commitment.price.rate, commitment.since_ns
    reports = list(reports)
    for start_ns, end_ns in pairwise(month_edges(since_ns, until_ns)):
        whole = cost(rate, end_ns - since_ns) - cost(rate, start_ns - since_ns)
        covered = _covered_gpu_ns(commitment, reports, start_ns, end_ns)
        left = commitment.gpus * (end_ns - start_ns) - covered
        parts = share_out(whole.micros, _whole_weights(covered, left))
        booked = _booked_micros(commitment, reports, start_ns, end_ns)
        for model, micros in ((USED, parts[0] - booked), (UNUSED, parts[1])):
            yield SpendItem(
                source="commitment", run_id=commitment.name, model=model, name=commitment.name,
                start_ns=start_ns, end_ns=end_ns, booked_ns=start_ns,
                cost=rate.unit.money(micros), assumed=rate.unit.money(0),
                provider=commitment.provider, machine=commitment.name,
            )  # fmt: skip


def cost_of_commitment(
    commitment: Commitment, reports: Iterable[RunRow], now_ns: int
) -> CommitmentCost:
    """Return what a commitment cost until now."""
    reports = list(reports)
    nothing = commitment.price.unit.money(0)
    sums = {USED: nothing, UNUSED: nothing}
    for spend in commitment_spends(commitment, reports, now_ns):
        sums[spend.model] += spend.cost
    end_ns = min(commitment.until_ns, now_ns)
    booked = _booked_micros(commitment, reports, commitment.since_ns, end_ns)
    used = sums[USED] + nothing.unit.money(booked)
    return CommitmentCost(commitment=commitment, used=used, unused=sums[UNUSED])


def _covered_gpu_ns(
    commitment: Commitment, reports: Iterable[RunRow], start_ns: int, end_ns: int
) -> Fraction:
    """Return GPUs times nanoseconds that runs used of a commitment; never more than it has."""
    changes: dict[int, Fraction] = defaultdict(Fraction)
    for _, charge in _charges(commitment, reports):
        length_ns = charge.end_ns - charge.start_ns
        first_ns, last_ns = max(charge.start_ns, start_ns), min(charge.end_ns, end_ns)
        if first_ns < last_ns:
            gpus = Fraction(charge.gpu_us * 1000, length_ns)
            changes[first_ns] += gpus
            changes[last_ns] -= gpus
    total = gpus = Fraction(0)
    for t_ns, following_ns in pairwise(sorted(changes)):
        gpus += changes[t_ns]
        total += min(gpus, Fraction(commitment.gpus)) * (following_ns - t_ns)
    return total


def _booked_micros(
    commitment: Commitment, reports: Iterable[RunRow], start_ns: int, end_ns: int
) -> int:
    """Return what runs on a commitment are charged in its own unit, by when that is booked."""
    return sum(
        charge.micros
        for report, charge in _charges(commitment, reports)
        if report.unit_of(charge) == commitment.price.unit and start_ns <= charge.booked_ns < end_ns
    )


def _charges(
    commitment: Commitment, reports: Iterable[RunRow]
) -> Iterator[tuple[RunRow, AttemptCharge]]:
    """Yield the charges of runs that use a commitment."""
    for report in reports:
        for charge in report.charges or ():
            provider = charge.offer.partition(":")[0]
            if provider.lower() == commitment.provider.lower() and _RESERVED in charge.offer:
                yield report, charge


def _whole_weights(covered: Fraction, left: Fraction) -> dict[int, int]:
    whole = covered.denominator * left.denominator
    return {0: int(covered * whole), 1: int(left * whole)}
