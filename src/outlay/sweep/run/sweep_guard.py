"""The guard of a sweep: every launch holds its predicted cost, and captures its measured cost.

A run that needs longer than predicted extends its hold in small slices while there is room under
the ceiling, and is ended when there is none. Only the harness counts the money: runs do not get the
hold, as each would hold a slice of its own on top of the prediction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from outlay.clock import SYSTEM, Clock
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import run_part
from outlay.guard.entries import RunPart
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, SpendLogUnusable, UnknownHold
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.guard.spend_log import FileSpendLog
from outlay.ledger import derive_attempts, read_identity, read_lives
from outlay.rates import cost_at_most, cost_to_last_record
from outlay.record.supervision import latest_supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.plan.plan import PlannedRun, at_most, measured, terms_of
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money, Rate
from outlay.units.money import Kind

# The cost of an attempt.
#
# It is what the attempt adds to the cost of its run's log, so that captures, journal and every
# report of the run have the same amount.


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCost:
    """The cost of an attempt.

    Attributes:
        cost: None if unknown.
        logged_micros: The total of the run's log now, in the currency of ``cost``; None where the
            log has none.
        kind: Of the cost, where the log states it.
        assumed: Whether its end was not observed.
        part: The part of the run's log that it is the cost of, if any.
    """

    cost: Money | None
    logged_micros: int | None = None
    kind: Kind | Literal[""] = ""
    assumed: bool = False
    part: RunPart | None = None


def price_attempt(
    directory: Path,
    state: RunState,
    rate: Rate | None,
    ended: Ended,
    *,
    recorded: bool | None = None,
) -> AttemptCost:
    """Return the cost of an attempt that has ended.

    ``state`` is the run's state before. ``recorded`` says whether this process could write the
    supervisor's segment; None for another supervisor, whose segment is looked up.
    """
    if recorded is None:
        recorded = latest_supervision(directory) is not None
    estimated = None
    if rate is not None and ended.is_measured:
        estimated = cost_at_most(rate, ended.elapsed_ns)
    total = logged_cost(directory)
    currency = state.currency if rate is None else rate.currency
    if total is None or currency not in ("", total.currency):
        return AttemptCost(cost=estimated)
    added = total.micros - (state.logged_micros or 0)
    if not recorded or added < 0:
        return AttemptCost(cost=estimated, logged_micros=total.micros)
    return AttemptCost(
        cost=Money(added, total.currency), logged_micros=total.micros, kind=total.kind,
        assumed=not ended.is_measured, part=_part_of(directory),
    )  # fmt: skip


def logged_cost(directory: Path) -> Money | None:
    """Return the total cost in a run's log; None where it has none."""
    return cost_to_last_record(derive_attempts(read_lives(directory)))


def _part_of(directory: Path) -> RunPart | None:
    """Return the run and its newest supervisor's segment, as the spend log names them."""
    identity, latest = read_identity(directory), latest_supervision(directory)
    return None if identity is None or latest is None else run_part(identity.run_id, latest[1])


# Holds and captures.

SPEND_LOG: Final = "spend.jsonl"


def head_of(root: Path) -> str:
    """Return the hash of the last line of a sweep's spend log; "" without a readable one."""
    try:
        return FileSpendLog(root / SPEND_LOG).head()
    except SpendLogUnusable:
        return ""


class SweepGuard:
    """The guard of one sweep, with its spend log in the sweep's directory."""

    def __init__(self, root: Path, ceiling: Money, clock: Clock = SYSTEM) -> None:
        self.budget_guard = BudgetGuard(
            ceiling.amount, root / SPEND_LOG, currency=ceiling.currency, clock=clock
        )

    def begin(self) -> None:
        """Begin the spend log of a new sweep; accepts the removal of an earlier sweep's."""
        log = self.budget_guard.log
        if isinstance(log, FileSpendLog) and log.was_removed():
            self.budget_guard.accept("a new sweep was started where there had been another")

    def open(
        self, run: PlannedRun, ticket: str, finished_ns: Sequence[int], *, remote: bool
    ) -> Leaseholder:
        """Hold the predicted cost of a run plus the cost of ending it; at least the former.

        Without a prediction, the longest finished run is used. For a ``remote`` run the most that
        it may take is held, as this harness may detach.
        """
        rate = run.rate
        prediction = run.prediction
        if prediction.cost is None:
            prediction = measured(rate, finished_ns)
        if remote:
            prediction = at_most(rate, prediction, run.entry.timeout)
        cost = prediction.cost
        assert rate is not None
        assert cost is not None
        terms = terms_of(rate, prediction.ns or 0)
        opening, least = cost + terms.cost(terms.notice.ns), max(cost, terms.least_opening())
        hold = self.budget_guard.authorize(
            run.id, opening, key=ticket, least_usd=min(least, opening)
        )
        return self._leased(hold, terms)

    def _leased(self, hold: Hold, terms: Terms) -> Leaseholder:
        """Return a lease of a hold; its times are elapsed, from 0 at the attempt's start."""
        return Leaseholder(self.budget_guard, hold, terms, refusals=(BudgetGuardExceeded,))

    def join(self, run: PlannedRun, hold: str) -> Leaseholder | None:
        """Return the lease of a running attempt; None if its hold is settled already."""
        rate, held = run.rate, self.held(hold)
        if rate is None or held is None:
            return None
        return self._leased(held, terms_of(rate, 0))

    def held(self, hold: str) -> Hold | None:
        """Return an open hold by id, or None."""
        try:
            return self.budget_guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None

    def settle(self, hold: Hold, run: str, priced: AttemptCost, *, started: bool) -> AttemptCost:
        """Capture the cost of an attempt, or the whole hold if that is unknown; return it.

        The hold is voided for an attempt that was not ``started`` and cost nothing.
        """
        if not started and not priced.cost:
            self.budget_guard.void(hold, "it could not be started")
            return priced
        if priced.cost is None:
            priced = replace(priced, cost=hold.amount, assumed=True)
        basis = "assumed" if priced.assumed else "measured"
        self.budget_guard.record_actual(run, priced.cost, hold=hold, basis=basis, part=priced.part)
        return priced

    def void_unused(self, used: Collection[str]) -> None:
        """Void holds whose runs were never started."""
        for hold in self.budget_guard.holds():
            if hold.id not in used:
                self.budget_guard.void(hold, "its run was never started")
