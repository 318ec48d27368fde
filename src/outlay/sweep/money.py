"""A sweep's money: every launch holds what it should cost, and captures what it did.

A run that needs longer than predicted extends its hold in small slices while there is any room
under the ceiling, and is ended when there is none. The harness alone counts the money: runs are not
told of the hold, for each would set aside a slice of its own on top of what was predicted for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from outlay import rates
from outlay.clock import SYSTEM, Clock
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import (
    BudgetGuardExceeded,
    HoldResolved,
    SpendLogUnusable,
    UnknownHold,
)
from outlay.guard.filelog import FileSpendLog
from outlay.guard.lease import End, GiveNotice, GoOn, Terms
from outlay.guard.leasing import Leaseholder
from outlay.sweep.attempt_cost import AttemptCost
from outlay.sweep.plan import PlannedRun
from outlay.sweep.prediction import at_most, measured, terms_of
from outlay.units import Money, Rate

SPEND_LOG: Final = "spend.jsonl"


def head_of(root: Path) -> str:
    """Return the hash of the last line of a sweep's spend log; "" without one that can be read."""
    try:
        return FileSpendLog(root / SPEND_LOG).head()
    except SpendLogUnusable:
        return ""


def rate_of(run: PlannedRun) -> Rate | None:
    """Return what a run costs per hour, all its GPUs."""
    price = run.settings.price
    return None if price is None else rates.rate_of(price.rate, run.charged_gpus)


def _capture(guard: BudgetGuard, hold: Hold, run: str, priced: AttemptCost) -> AttemptCost:
    """Capture what an attempt cost, or all it held where nobody knows; return what was captured."""
    if priced.cost is None:
        priced = replace(priced, cost=hold.amount, assumed=True)
    basis = "assumed" if priced.assumed else "measured"
    guard.record_actual(run, priced.cost, hold=hold, basis=basis, part=priced.part)
    return priced


class Funds:
    """What one attempt was given: its hold, and the lease on which that is extended.

    Times are elapsed ones: the attempt starts at 0.
    """

    def __init__(self, guard: BudgetGuard, hold: Hold, terms: Terms) -> None:
        self._guard = guard
        self._holder = Leaseholder(guard, hold, terms, refusals=(BudgetGuardExceeded,))

    @property
    def hold(self) -> Hold:
        """The hold as it was last seen."""
        return self._holder.hold

    def tend(self, elapsed_ns: int) -> GoOn | GiveNotice | End:
        """Extend the hold where that is due; return what is to be done with the attempt.

        Raises:
            SpendLogUnusable: Nobody can say whether there is money.
        """
        return self._holder.tend(elapsed_ns)

    def give_notice(self, elapsed_ns: int) -> None:
        """Remember that the attempt was told to end."""
        self._holder.lease = self._holder.lease.noticed(elapsed_ns)

    def stop_ns(self) -> int | None:
        """Return after how long the run must be told to end, so that the notice is paid for."""
        return self._holder.lease.stop_ns

    def kill_ns(self) -> int | None:
        """Return after how long the run is killed, before the end of what is paid for."""
        stop_ns = self.stop_ns()
        return None if stop_ns is None else stop_ns + self._holder.lease.terms.kill_after_ns

    def settle(self, priced: AttemptCost) -> AttemptCost:
        """Record what the attempt cost, or all it held where nobody knows; return that."""
        return _capture(self._guard, self.hold, self.hold.op_label, priced)

    def void(self, reason: str) -> None:
        """Give the hold back: nothing was started."""
        self._guard.void(self.hold, reason)


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

    def begin(self) -> None:
        """Begin the log of a new sweep, also where one was removed together with its sweep."""
        log = self.guard.log
        if isinstance(log, FileSpendLog) and log.was_removed():
            self.guard.accept("a new sweep was started where there had been another")

    def open(
        self, run: PlannedRun, ticket: str, finished_ns: Sequence[int], *, remote: bool
    ) -> Funds:
        """Hold what a run should cost and what ending it may cost; at least what it should cost.

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
        opening, least = cost + terms.cost(terms.notice.ns), max(cost, terms.least_opening())
        hold = self.guard.authorize(run.id, opening, key=ticket, least_usd=min(least, opening))
        return Funds(self.guard, hold, terms)

    def join(self, run: PlannedRun, hold: str) -> Funds | None:
        """Return what an attempt that goes on was given; None where that is settled already."""
        rate, held = rate_of(run), self.held(hold)
        if rate is None or held is None:
            return None
        return Funds(self.guard, held, terms_of(rate, 0))

    def held(self, hold: str) -> Hold | None:
        """Return a hold that is still open, or None."""
        try:
            return self.guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None

    def settle_lost(self, hold: str, run: str, priced: AttemptCost) -> AttemptCost:
        """Record an attempt whose harness died: what it cost, or all it held where nobody knows."""
        held = self.held(hold)
        return priced if held is None else _capture(self.guard, held, run, priced)

    def correct(self, run: str, more: Money) -> None:
        """Add what a run that was captured turned out to cost beyond that."""
        self.guard.correct(run, more.amount, "its log was written to after the capture")

    def void_unused(self, used: Collection[str]) -> None:
        """Give back holds whose runs were never started."""
        for hold in self.guard.holds():
            if hold.id not in used:
                self.guard.void(hold, "its run was never started")
