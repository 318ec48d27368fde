"""A sweep's money: holds, captures, and the supervisor's segment in the log of each run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from outlay import rates
from outlay.clock import SYSTEM, Clock
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import LATE, run_part
from outlay.guard.entries import RunPart
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, SpendLogUnusable, UnknownHold
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.guard.spend_log import FileSpendLog
from outlay.ledger import (
    AttemptEnded,
    GpuCount,
    derive_attempts,
    end_segment,
    exact_gpus,
    read_identity,
    read_lives,
)
from outlay.ledger.price import Kind, typed_price
from outlay.rates import cost_at_most, cost_to_last_record, kind_of_cost, paid_time, rate_of
from outlay.record.supervision import Supervision, latest_supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.plan.plan import PlannedRun, at_most, measured, terms_of
from outlay.sweep.run.attempt_log import ENDS, end_instant_ns, supervised
from outlay.sweep.state.outcomes import RunState, RunVerdict
from outlay.units import Money, Rate

# What attempts of a sweep cost, also those whose harness died before it could say.
#
# What an attempt costs is what it adds to the cost of its run's log, so that captures, journal
# and every report of the run have one amount.

_ASSUMED: Final = "nobody saw it end; assumed to have run as long as its money lasted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCost:
    """What an attempt cost.

    Attributes:
        cost: None where it is unknown.
        logged_micros: What the run's log adds up to now, in the currency of ``cost``; None where
            the log does not say.
        kind: Of the cost, where the log says so.
        assumed: Whether its end was not seen.
        part: Of which run's log it is the cost, where it is one's.
    """

    cost: Money | None
    logged_micros: int | None = None
    kind: Kind | Literal[""] = ""
    assumed: bool = False
    part: RunPart | None = None


def rate_in(static: Mapping[str, Any]) -> Rate | None:
    """Return what a run of a manifest costs per hour, all its GPUs."""
    price = static.get("price")
    charged = exact_gpus(charged_in(static))
    return rate_of(Rate.parse(price, name="price"), charged) if price else None


def charged_in(static: Mapping[str, Any]) -> GpuCount:
    """Return the GPUs that a run of a manifest is charged for."""
    return static.get("charged_gpus") or gpus_in(static)


def gpus_in(static: Mapping[str, Any]) -> int:
    """Return the most GPUs that a run of a manifest may have."""
    return static.get("most_gpus") or static.get("gpus") or 1


def end_for_another(
    static: Mapping[str, Any],
    directory: Path,
    state: RunState,
    *,
    verdict: RunVerdict,
    ended: Ended,
    held: Money | None,
    clock: Clock,
) -> None:
    """Write down how an attempt of this machine ended whose harness died before it could.

    Where nobody saw its end, it is taken to have run for as long as the money lasts that is
    ``held`` for it, and not beyond the present.
    """
    now_ns, begun_ns = clock.wall_ns(), state.started_ns or clock.wall_ns()
    latest = latest_supervision(directory)
    is_ours = latest is not None and latest[1].start_ns >= begun_ns
    start_ns = latest[1].start_ns if latest is not None and is_ours else begun_ns
    rate, reason = rate_in(static), verdict.reason
    end_ns: int | None = end_instant_ns(start_ns, ended, now_ns)
    if not ended.is_measured:
        paid_ns = None if rate is None or held is None else paid_time(held, rate)
        end_ns = None if paid_ns is None else min(now_ns, start_ns + paid_ns)
        reason = f"{reason}; {_ASSUMED}"
    if end_ns is None:
        return  # What its log says last is its end.
    status = ENDS.get(verdict.status, "failed")
    if latest is not None and is_ours:
        last = AttemptEnded(
            t_ns=end_ns, status=status, reason=reason, exit_code=ended.exit_code
        )  # fmt: skip
        with suppress(OSError):
            end_segment(latest[0], last)
        return
    price = static.get("price")
    kind: Kind = static.get("price_kind") or "cash"
    stated = typed_price(price, name="price", source="sweep", kind=kind) if price else None
    what = supervised(static["id"], directory, stated, charged_in(static))
    Supervision(what, {}, clock=clock, start_ns=start_ns).end(
        status, reason, exit_code=ended.exit_code, t_ns=end_ns
    )


def price_attempt(
    directory: Path,
    state: RunState,
    rate: Rate | None,
    ended: Ended,
    *,
    recorded: bool | None = None,
) -> AttemptCost:
    """Return what an attempt that has ended cost.

    ``state`` is how the run stood before. ``recorded`` says whether its supervisor could write its
    log; None for a supervisor elsewhere.
    """
    if recorded is None:
        recorded = latest_supervision(directory) is not None
    estimated = None
    if rate is not None and ended.is_measured:
        estimated = cost_at_most(rate, ended.elapsed_ns)
    total, kind = _cost_in(directory)
    currency = state.currency if rate is None else rate.currency
    if total is None or currency not in ("", total.currency):
        return AttemptCost(cost=estimated)
    added = total.micros - (state.logged_micros or 0)
    if not recorded or added < 0:
        return AttemptCost(cost=estimated, logged_micros=total.micros)
    return AttemptCost(
        cost=Money(added, total.currency), logged_micros=total.micros, kind=kind,
        assumed=not ended.is_measured, part=_part_of(directory),
    )  # fmt: skip


def _cost_in(directory: Path) -> tuple[Money | None, Kind]:
    """Return what a run's log adds up to, None where it does not say, and of which kind it is."""
    attempts = derive_attempts(read_lives(directory))
    return cost_to_last_record(attempts), kind_of_cost(attempts)


def _part_of(directory: Path) -> RunPart | None:
    """Return which run it is, and the newest supervisor's segment."""
    identity, latest = read_identity(directory), latest_supervision(directory)
    return None if identity is None or latest is None else run_part(identity.run_id, latest[1])


def late_cost(directory: Path, state: RunState) -> AttemptCost | None:
    """Return what a log grew by since its run was last priced; None where it did not.

    A rank that ended late, or a child that outlived its parent, may write after the capture.
    """
    if state.logged_micros is None or state.status == "running":
        return None
    total, kind = _cost_in(directory)
    if total is None or total.currency != state.currency or total.micros <= state.logged_micros:
        return None
    more = Money(total.micros - state.logged_micros, total.currency)
    return AttemptCost(cost=more, logged_micros=total.micros, kind=kind)


# A sweep's money: every launch holds what it should cost, and captures what it did.
#
# A run that needs longer than predicted extends its hold in small slices while there is any room
# under the ceiling, and is ended when there is none. The harness alone counts the money: runs are
# not told of the hold, for each would set aside a slice of its own on top of what was predicted
# for it.

SPEND_LOG: Final = "spend.jsonl"


def head_of(root: Path) -> str:
    """Return the hash of the last line of a sweep's spend log; "" without one that can be read."""
    try:
        return FileSpendLog(root / SPEND_LOG).head()
    except SpendLogUnusable:
        return ""


def rate_of_run(run: PlannedRun) -> Rate | None:
    """Return what a run costs per hour, all its GPUs."""
    price = run.settings.price
    return None if price is None else rates.rate_of(price.rate, run.charged_gpus)


class Treasury:
    """The guard of one sweep.

    Its spend log lies in the sweep's directory.
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
    ) -> Leaseholder:
        """Hold what a run should cost and what ending it may cost; at least what it should cost.

        A run that nothing else limits is judged by what finished ones took. Nobody may be there to
        pay for more while a ``remote`` one runs.
        """
        rate = rate_of_run(run)
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
        return self._leased(hold, terms)

    def _leased(self, hold: Hold, terms: Terms) -> Leaseholder:
        """Return what extends a hold; times are elapsed ones, and the attempt starts at 0."""
        return Leaseholder(self.guard, hold, terms, refusals=(BudgetGuardExceeded,))

    def join(self, run: PlannedRun, hold: str) -> Leaseholder | None:
        """Return the lease of a running attempt; None where its hold is settled already."""
        rate, held = rate_of_run(run), self.held(hold)
        if rate is None or held is None:
            return None
        return self._leased(held, terms_of(rate, 0))

    def held(self, hold: str) -> Hold | None:
        """Return a hold that is still open, or None."""
        try:
            return self.guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None

    def settle_lost(self, hold: str, run: str, priced: AttemptCost) -> AttemptCost:
        """Record an attempt whose harness died: its cost, or all it held where that is unknown."""
        held = self.held(hold)
        return priced if held is None else self.capture(held, run, priced)

    def capture(self, hold: Hold, run: str, priced: AttemptCost) -> AttemptCost:
        """Record what an attempt cost, or all it held where that is unknown; return that."""
        if priced.cost is None:
            priced = replace(priced, cost=hold.amount, assumed=True)
        basis = "assumed" if priced.assumed else "measured"
        self.guard.record_actual(run, priced.cost, hold=hold, basis=basis, part=priced.part)
        return priced

    def correct(self, run: str, more: Money) -> None:
        """Add what a run that was captured turned out to cost beyond that."""
        self.guard.correct(run, more.amount, LATE)

    def void_unused(self, used: Collection[str]) -> None:
        """Give back holds whose runs were never started."""
        for hold in self.guard.holds():
            if hold.id not in used:
                self.guard.void(hold, "its run was never started")
