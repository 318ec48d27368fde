"""A run's cost by attempt and UTC month. Pure.

Amounts and GPU time are differences of rounded cumulative totals in order of time: they sum to the
run's totals, and later records do not change earlier ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlay.clock import utc_datetime, wall_ns_of
from outlay.errors import InvalidValue
from outlay.ledger import Attempt, Price
from outlay.rates import Basis, RateFunction, gpu_pieces, in_force, round_units, share_out
from outlay.store.run_row import AttemptCharge

if TYPE_CHECKING:
    from outlay.goodput.follower import RunView
    from outlay.goodput.timeline import Window

_MONTH = re.compile(r"(\d{4})-(\d{2})")


def charges_of(view: RunView) -> tuple[AttemptCharge, ...]:
    """Return a run's cost by attempt and month; empty without a price."""
    if view.rates is None:
        return ()
    attempts = view.timeline.attempts
    charges = [*_CumulativeCost(view.rates).charges(attempts)]
    for rates in view.rates_beside:
        for charge in _CumulativeCost(rates).charges(attempts):
            if charge.micros:  # Its GPU time is in the charges of the run's cost.
                charges.append(replace(charge, gpu_us=0, currency=rates.currency))
    return tuple(charges)


def part_within(charge: AttemptCharge, start_ns: int, end_ns: int) -> int:
    """Return the part of a charge in ``[start_ns, end_ns)``, in micro-units, in proportion to time.

    For a run whose log is not at hand: its log says at which prices.
    """
    whole_ns = charge.end_ns - charge.start_ns
    inside_ns = min(charge.end_ns, end_ns) - max(charge.start_ns, start_ns)
    if not whole_ns:
        return charge.micros if start_ns <= charge.start_ns < end_ns else 0
    if inside_ns <= 0:
        return 0
    return share_out(charge.micros, {True: inside_ns, False: whole_ns - inside_ns})[True]


@dataclass(slots=True)
class _CumulativeCost:
    rates: RateFunction
    units: int = 0
    gpu_ns: Fraction = field(default_factory=Fraction)

    def charges(self, attempts: Sequence[Attempt]) -> Iterator[AttemptCharge]:
        for attempt, following in pairwise((*attempts, None)):
            assert attempt is not None
            # A clock that was set later must not move a charge into another month.
            moved_ns = attempt.moved_ns
            first_ns, last_ns = attempt.start_ns - moved_ns, attempt.last_sign_ns - moved_ns
            for start_ns, end_ns in pairwise(month_edges(first_ns, last_ns)):
                yield self._charge(attempt, start_ns, end_ns, booked_ns=start_ns)
            if following is not None and following.start_ns > attempt.last_sign_ns:
                end_ns = following.start_ns - moved_ns
                booked_ns = following.start_ns - following.moved_ns
                after = self._charge(attempt, last_ns, end_ns, booked_ns=booked_ns)
                if after.micros:
                    stayed = host_weights(following)
                    hosts = {host: part for host, part in after.hosts.items() if host in stayed}
                    yield replace(after, between=True, hosts=hosts)

    def _charge(
        self, attempt: Attempt, start_ns: int, end_ns: int, *, booked_ns: int
    ) -> AttemptCharge:
        first_ns, last_ns = start_ns + attempt.moved_ns, end_ns + attempt.moved_ns
        found = self.rates.units_by_basis(first_ns, last_ns)
        micros_before, gpu_us_before = round_units(self.units), round(self.gpu_ns) // 1000
        self.units += sum(found.values())
        self.gpu_ns += gpu_ns_within(attempt, first_ns, last_ns)
        micros = round_units(self.units) - micros_before
        price = _price_in_force(attempt, first_ns)
        terms = None if price is None else price.terms
        return AttemptCharge(
            start_ns=start_ns,
            end_ns=end_ns,
            booked_ns=booked_ns,
            micros=micros,
            # Time between attempts has a single basis, and attempts are never assumed.
            assumed_micros=micros if found[Basis.ASSUMED] else 0,
            gpu_us=round(self.gpu_ns) // 1000 - gpu_us_before,
            user=attempt.header.user,
            tags=attempt.header.tags,
            machine=attempt.header.instance_id,
            hosts=share_out(micros, host_weights(attempt)),
            machines=_machines(attempt, first_ns, last_ns),
            provider="" if price is None else price.offer.partition(":")[0],
            offer="" if price is None else price.offer.partition(" ")[0],
            terms=terms,
            micros_per_hour=0 if terms is None else self.rates.rate_at(last_ns - 1),
        )


def host_weights(attempt: Attempt) -> dict[str, int]:
    """Return the weight of each node in an attempt's cost: its GPUs, else its processes."""
    nodes = attempt.nodes
    if not nodes:
        return {attempt.header.host: 1}
    found = all(node.gpus for node in nodes)
    weights = {node.name: node.gpus if found else Fraction(node.ranks) for node in nodes}
    scale = math.lcm(*(weight.denominator for weight in weights.values()))
    return {name: int(weight * scale) for name, weight in weights.items()}


def _price_in_force(attempt: Attempt, t_ns: int) -> Price | None:
    stated = [change.price for change in in_force(attempt) if change.t_ns <= t_ns]
    return next((price for price in reversed(stated) if price is not None), None)


def _machines(attempt: Attempt, start_ns: int, end_ns: int) -> dict[str, int]:
    """Return the weights of the machines of an attempt on several, by GPUs, else processes."""
    nodes = attempt.nodes
    if len(nodes) < 2 or not all(node.instance_id for node in nodes):
        return {}
    found = all(node.gpus for node in nodes)
    weights: dict[str, Fraction] = {}
    for node in nodes:
        lived_ns = max(min(node.end_ns, end_ns) - max(node.start_ns, start_ns), 0)
        weight = (node.gpus if found else node.ranks) * Fraction(lived_ns)
        weights[node.instance_id] = weights.get(node.instance_id, Fraction(0)) + weight
    if len(weights) < 2 or not any(weights.values()):
        return {}
    whole = math.lcm(*(weight.denominator for weight in weights.values()))
    return {machine: int(weight * whole) for machine, weight in weights.items()}


def gpu_ns_within(attempt: Attempt, start_ns: int, end_ns: int) -> Fraction:
    """Return GPUs times nanoseconds of an attempt during ``[start_ns, end_ns)``."""
    total = Fraction(0)
    for piece in gpu_pieces(attempt):
        overlap_ns = min(piece.end_ns, end_ns) - max(piece.start_ns, start_ns)
        total += piece.gpus * overlap_ns if overlap_ns > 0 else 0
    return total


def month_edges(start_ns: int, end_ns: int) -> list[int]:
    """Return the ends of an interval and the UTC month starts inside it."""
    if start_ns >= end_ns:
        return []
    edges = [start_ns]
    while (following_ns := _month_after(edges[-1])) < end_ns:
        edges.append(following_ns)
    return [*edges, end_ns]


def _month_after(t_ns: int) -> int:
    moment = utc_datetime(t_ns)
    return month_window(f"{moment.year:04}-{moment.month:02}").end_ns


def month_window(text: str) -> Window:
    """Return the UTC window of a month such as ``2026-10``.

    Raises:
        InvalidValue: It is not a month.
    """
    from outlay.goodput.timeline import Window

    match = _MONTH.fullmatch(text)
    year, month = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1970 <= year < MAXYEAR or not 1 <= month <= 12:
        raise InvalidValue("month", text, "a month such as 2026-10")
    following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return Window(wall_ns_of(datetime(year, month, 1, tzinfo=UTC)), wall_ns_of(following))
