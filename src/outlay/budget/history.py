"""What a run used before this attempt, and at what price it goes on."""

from __future__ import annotations

from pathlib import Path

from outlay.budget.fold import RunSpend, SegmentSpend, join_attempts
from outlay.ledger import AttemptStarted, LedgerReader, Price, SegmentId, SegmentLife
from outlay.rates import RateFunction, RatePiece

_FOREVER_NS = 2**80


def read_spends(run_dir: Path) -> list[SegmentSpend]:
    """Return what each process in a run's log used; empty where there is no log yet."""
    spends: dict[SegmentId, SegmentSpend] = {}
    for chunk in LedgerReader(run_dir).poll():
        spend = spends.setdefault(chunk.segment, SegmentSpend(SegmentLife(chunk.segment)))
        spend.fold(chunk.records)
    for spend in spends.values():
        spend.finish()
    return list(spends.values())


def spend_before(
    spends: list[SegmentSpend], header: AttemptStarted, segment: SegmentId
) -> RunSpend:
    """Return what the run used before the attempt that begins with ``header``.

    Money includes the time between the last attempt and this one, where that is billed.
    """
    others = [spend for spend in spends if spend.life.segment != segment]
    beginning = SegmentLife(segment, header)
    return join_attempts([*others, SegmentSpend(beginning)], header.t_ns, without=segment)


class LivePrice:
    """What a running attempt costs from one record to the next.

    Args:
        header: Says what the attempt begins with.
    """

    def __init__(self, header: AttemptStarted) -> None:
        self._until_ns = header.t_ns
        self._function: RateFunction | None = None
        if header.price is not None:
            self.change(header.t_ns, header.price, header.gpus)

    def change(self, t_ns: int, price: Price, gpus: int) -> None:
        """From ``t_ns`` on each of ``gpus`` GPUs costs ``price``; take what was before first."""
        piece = RatePiece(t_ns, _FOREVER_NS, price.micros_per_hour * gpus)
        self._function = RateFunction((piece,), price.currency)

    def take_units(self, t_ns: int) -> int:
        """Return the exact cost since the last call, up to ``t_ns``."""
        if self._function is None:
            return 0
        units = self._function.units_between(self._until_ns, t_ns)
        self._until_ns = max(self._until_ns, t_ns)
        return units
