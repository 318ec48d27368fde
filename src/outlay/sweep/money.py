"""A sweep's money: every launch holds what it should cost, and captures what it did.

A run that needs longer than predicted extends its hold in small slices while there is room under
the ceiling, and is ended when there is none. The harness alone counts the money: runs are not told
of the hold, for each would set aside a slice of its own on top of what was predicted for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay import rates
from outlay.clock import SYSTEM, Clock
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, UnknownHold
from outlay.guard.lease import Terms
from outlay.sweep.engines.base import Ended
from outlay.sweep.plan import PlannedRun
from outlay.sweep.prediction import at_most, measured, terms_of
from outlay.units import Money, Rate

SPEND_LOG: Final = "spend.jsonl"


def rate_of(run: PlannedRun) -> Rate | None:
    """Return what a run costs per hour, all its GPUs."""
    price = run.settings.price
    return None if price is None else rates.rate_of(price.rate, run.charged_gpus)


def cost_of(rate: Rate | None, ended: Ended) -> Money | None:
    """Return what an attempt cost; None without a price, or where nobody knows how long it ran."""
    if rate is None or not ended.is_measured:
        return None
    return Terms(rate=rate).cost(ended.elapsed_ns)


def _capture(guard: BudgetGuard, hold: Hold, run: str, actual: Money | None) -> None:
    if actual is None:
        guard.record_actual(run, hold.amount, hold=hold, basis="assumed")
    else:
        guard.record_actual(run, actual, hold=hold)


@dataclass(slots=True)
class Funds:
    """What one attempt was given: its hold and the terms on which that is extended."""

    guard: BudgetGuard
    hold: Hold
    terms: Terms

    def keep_up(self, elapsed_ns: int) -> None:
        """Extend the hold where the next slice is due and there is room."""
        ask_ns = self.terms.ask_ns(self.hold.amount)
        if ask_ns is None or elapsed_ns < ask_ns:
            return
        more = self.terms.extension(self.hold.amount, elapsed_ns)
        if more:
            with suppress(BudgetGuardExceeded):  # There may be room later; what is held decides.
                self.hold = self.guard.extend(self.hold, more)

    def stop_ns(self) -> int | None:
        """Return after how long the run must be told to end, so that the notice is paid for."""
        return self.terms.stop_ns(self.hold.amount)

    def settle(self, actual: Money | None) -> None:
        """Record what the attempt cost, or all it held where nobody knows."""
        _capture(self.guard, self.hold, self.hold.op_label, actual)

    def void(self, reason: str) -> None:
        """Give the hold back: nothing was started."""
        self.guard.void(self.hold, reason)


class Treasury:
    """The guard of one sweep.

    Args:
        root: The sweep's directory; the spend log lies in it.
        ceiling: What the sweep may spend.
    """

    def __init__(self, root: Path, ceiling: Money, clock: Clock = SYSTEM) -> None:
        self.guard = BudgetGuard(
            ceiling.amount, root / SPEND_LOG, currency=ceiling.currency, clock=clock
        )

    def open(
        self, run: PlannedRun, ticket: str, finished_ns: Sequence[int], *, remote: bool
    ) -> Funds:
        """Hold what a run should cost.

        Args:
            run: What is to be started.
            ticket: Of the attempt, under which it is held once.
            finished_ns: What runs that have finished took, for a run that nothing else limits.
            remote: Whether nobody may be there to pay for more while it runs.

        Raises:
            BudgetGuardExceeded: It does not fit under the ceiling.
            SpendLogUnusable: The log cannot be read, locked or written.
        """
        rate = rate_of(run)
        prediction = run.prediction
        if prediction.cost is None:
            prediction = measured(rate, finished_ns)
        if remote:
            prediction = at_most(rate, prediction, run.settings.timeout)
        cost = prediction.cost
        assert rate is not None
        assert cost is not None
        terms = terms_of(rate, prediction.ns or 0)
        opening = max(cost, terms.cost(terms.notice.ns))
        return Funds(self.guard, self.guard.authorize(run.id, opening, key=ticket), terms)

    def join(self, run: PlannedRun, hold: str) -> Funds | None:
        """Return what an attempt that goes on was given; None where that is settled already."""
        rate = rate_of(run)
        try:
            held = self.guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None
        return None if rate is None else Funds(self.guard, held, terms_of(rate, 0))

    def settle_lost(self, hold: str, run: str, actual: Money | None) -> None:
        """Record an attempt whose harness died: what it cost, or all it held where nobody knows."""
        with suppress(HoldResolved, UnknownHold):
            _capture(self.guard, self.guard.log.books().hold(hold), run, actual)

    def void_unused(self, used: Collection[str]) -> None:
        """Give back holds whose runs were never started."""
        for hold in self.guard.holds():
            if hold.id not in used:
                self.guard.void(hold, "its run was never started")
