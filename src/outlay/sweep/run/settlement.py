"""A sweep's money: the cost of attempts, their settlement, and the guard of the ceiling."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

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
    EndStatus,
    derive_attempts,
    end_segment,
    read_identity,
    read_lives,
)
from outlay.ledger.price import typed_price
from outlay.rates import cost_at_most, cost_to_last_record, paid_time
from outlay.record.supervision import Supervision, latest_supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.plan.plan import PlannedRun, at_most, measured, terms_of
from outlay.sweep.run.attempt_log import logged_end, supervised
from outlay.sweep.state.manifest import Journal, SweepManifest
from outlay.sweep.state.outcomes import Event, RunState, RunVerdict, Status, judge
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
    total = _cost_in(directory)
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


def _cost_in(directory: Path) -> Money | None:
    """Return the total cost in a run's log; None where it has none."""
    return cost_to_last_record(derive_attempts(read_lives(directory)))


def _part_of(directory: Path) -> RunPart | None:
    """Return the run and its newest supervisor's segment, as the spend log names them."""
    identity, latest = read_identity(directory), latest_supervision(directory)
    return None if identity is None or latest is None else run_part(identity.run_id, latest[1])


# Recording events and settling attempts.


@dataclass(frozen=True, slots=True)
class SweepRecorder:
    """Records events of a sweep's runs, and settles their attempts.

    Attributes:
        journal: None where another process runs the sweep and records; then only the manifest in
            memory is updated.
        guard: None for a sweep without a ceiling.
    """

    manifest: SweepManifest
    journal: Journal | None
    guard: SweepGuard | None = None

    def record(self, run: str, status: Status, **facts: Any) -> None:
        """Record a run's new status: in the journal at once, in the manifest later."""
        event = Event(t_ns=self.manifest.clock.wall_ns(), run=run, status=status, **facts)
        if self.journal is not None:
            # A start that cannot be recorded is not made; an end has happened anyway.
            self.journal.append(event, keep=status != "running")
        self.manifest.apply(run, event)

    def correct_late(self, run: str) -> None:
        """Record the cost that a run's log has gained since its attempts were settled.

        A late rank, or a child that outlived its parent, may write after the capture.
        """
        state = self.manifest.state(run)
        if state.logged_micros is None or state.status == "running":
            return
        total = _cost_in(self.manifest.root / run)
        if total is None or total.currency != state.currency or total.micros <= state.logged_micros:
            return
        more = Money(total.micros - state.logged_micros, total.currency)
        if self.guard is not None and state.hold:
            self.guard.budget_guard.correct(run, more.amount, LATE)
        self.record(
            run, state.status, corrects=True, cost_micros=more.micros, currency=more.currency,
            kind=total.kind, logged_micros=total.micros,
        )  # fmt: skip

    def judge(
        self, run: str, ended: Ended, stopped: RunVerdict | None = None, *, remote: bool
    ) -> RunVerdict:
        """Return a run's status after an attempt; ``stopped`` as for ``outcomes.judge``."""
        since_ns = 0 if remote else self.manifest.state(run).started_ns or 0
        return judge(ended, stopped, logged_end(self.manifest.root / run, since_ns))

    def settle_earlier(self, run: str, ended: Ended, *, remote: bool) -> None:
        """Settle an attempt whose harness died."""
        hold = None if self.guard is None else self.guard.held(self.manifest.state(run).hold)
        self.settle(run, ended, self.judge(run, ended, remote=remote), remote=remote, hold=hold)

    def settle(
        self,
        run: str,
        ended: Ended,
        verdict: RunVerdict,
        *,
        remote: bool,
        log: Supervision | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Record the end and the cost of an attempt: in its log, the spend log, the journal.

        A ``remote`` attempt has written its end into its log itself. ``log`` is the supervisor's
        segment, None for a remote one or if its harness died; ``hold`` is open and pays for it.
        """
        manifest, directory = self.manifest, self.manifest.root / run
        if log is not None:
            _end_log(log, verdict, ended, paid=hold is not None)
            ended = replace(ended, elapsed_ns=log.end_ns - log.start_ns)
        elif not remote:
            _end_earlier_log(manifest, run, ended, verdict, None if hold is None else hold.amount)
        priced = price_attempt(
            directory, manifest.state(run), manifest.runs[run].rate, ended,
            recorded=None if log is None else log.is_recorded,
        )  # fmt: skip
        if self.guard is not None and hold is not None:
            priced = self.guard.settle(hold, run, priced, started=ended.how != "not_started")
        cost = priced.cost
        self.record(
            run, verdict.status, reason=verdict.reason, returncode=ended.returncode,
            elapsed_ns=ended.elapsed_ns, cost_micros=None if cost is None else cost.micros,
            currency="" if cost is None else cost.currency, kind=priced.kind,
            logged_micros=priced.logged_micros,
        )  # fmt: skip


# The end of an attempt in its run's log.

_END_STATUSES: Final[Mapping[str, EndStatus]] = {
    "completed": "completed", "preempted": "preempted", "cancelled": "terminated",
}  # fmt: skip
_ASSUMED: Final = "its end was not observed; assumed to have run as long as its money lasted"


def _end_log(log: Supervision, verdict: RunVerdict, ended: Ended, *, paid: bool) -> None:
    """Record the end of an attempt; with fsync only where money is held for it."""
    log.end(
        _END_STATUSES.get(verdict.status, "failed"), verdict.reason, exit_code=ended.exit_code,
        t_ns=_end_instant_ns(log.start_ns, ended, log.now_ns()), synced=paid,
    )  # fmt: skip


def _end_instant_ns(start_ns: int, ended: Ended, now_ns: int) -> int:
    """Return when an attempt ended: when it was reaped, else its start plus its run time."""
    if ended.how == "not_started" or ended.never_ran:
        return start_ns
    if start_ns <= ended.ended_ns <= now_ns:
        return ended.ended_ns
    return start_ns + ended.elapsed_ns if ended.elapsed_ns else now_ns


def _end_earlier_log(
    manifest: SweepManifest, run: str, ended: Ended, verdict: RunVerdict, held: Money | None
) -> None:
    """Record the end of a local attempt whose harness died before it could.

    If nothing observed its end, it is assumed to have run until the money ``held`` for it was used
    up, or until now if that is earlier.
    """
    static, directory, clock = manifest.runs[run], manifest.root / run, manifest.clock
    now_ns = clock.wall_ns()
    begun_ns = manifest.state(run).started_ns or now_ns
    latest = latest_supervision(directory)
    if latest is not None and latest[1].start_ns < begun_ns:
        latest = None  # An earlier attempt's.
    start_ns = begun_ns if latest is None else latest[1].start_ns
    rate, reason = static.rate, verdict.reason
    end_ns: int | None = _end_instant_ns(start_ns, ended, now_ns)
    if not ended.is_measured:
        paid_ns = None if rate is None or held is None else paid_time(held, rate)
        end_ns = None if paid_ns is None else min(now_ns, start_ns + paid_ns)
        reason = f"{reason}; {_ASSUMED}"
    if end_ns is None:
        return  # The last record of its log is its end.
    status, code = _END_STATUSES.get(verdict.status, "failed"), ended.exit_code
    if latest is not None:
        with suppress(OSError):
            last = AttemptEnded(t_ns=end_ns, status=status, reason=reason, exit_code=code)
            end_segment(latest[0], last)
        return
    price = None
    if static.price:
        kind = static.price_kind or "cash"
        price = typed_price(static.price, name="price", source="sweep", kind=kind)
    what = supervised(run, directory, price, static.gpus_charged)
    log = Supervision(what, {}, clock=clock, start_ns=start_ns)
    log.end(status, reason, exit_code=code, t_ns=end_ns)


# The guard: every launch holds its predicted cost, and captures its measured cost.
#
# A run that needs longer than predicted extends its hold in small slices while there is room under
# the ceiling, and is ended when there is none. Only the harness counts the money: runs do not get
# the hold, as each would hold a slice of its own on top of the prediction.

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
