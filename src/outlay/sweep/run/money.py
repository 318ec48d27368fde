"""A sweep's money: what attempts cost, how they are settled, and the guard that holds for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from outlay.ledger import AttemptEnded, derive_attempts, end_segment, read_identity, read_lives
from outlay.ledger.price import Kind, typed_price
from outlay.rates import cost_at_most, cost_to_last_record, kind_of_cost, paid_time
from outlay.record.supervision import Supervision, latest_supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.plan.plan import PlannedRun, at_most, measured, terms_of
from outlay.sweep.run import attempt_log
from outlay.sweep.run.attempt_log import ENDS, end_instant_ns, supervised
from outlay.sweep.state.journal import Event, Journal, Status
from outlay.sweep.state.manifest import SweepManifest
from outlay.sweep.state.outcomes import RunState, RunVerdict, judge
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


# Recording what happens to runs, the end of an attempt above all.


@dataclass(frozen=True, slots=True)
class SweepRecorder:
    """Records what happens to the runs of a sweep, and settles their attempts.

    Without a journal in this process alone: whoever runs the sweep writes it down.

    Attributes:
        guard: The guard, where the sweep has a ceiling.
    """

    manifest: SweepManifest
    journal: Journal | None
    guard: SweepGuard | None = None

    def note(self, run: str, status: Status, **facts: Any) -> None:
        """Record what a run is from now on: in the journal at once, in the manifest later."""
        event = Event(t_ns=self.manifest.clock.wall_ns(), run=run, status=status, **facts)
        if self.journal is not None:
            # A start that cannot be written down does not happen; an end has happened anyway.
            self.journal.append(event, keep=status != "running")
        self.manifest.apply(run, event)

    def correct_late(self, run: str) -> None:
        """Add what a run's log grew by since its attempts were settled.

        A rank that ended late, or a child that outlived its parent, may write after the capture.
        """
        state = self.manifest.state(run)
        if state.logged_micros is None or state.status == "running":
            return
        total, kind = _cost_in(self.manifest.root / run)
        if total is None or total.currency != state.currency or total.micros <= state.logged_micros:
            return
        more = Money(total.micros - state.logged_micros, total.currency)
        if self.guard is not None and state.hold:
            self.guard.budget_guard.correct(run, more.amount, LATE)
        self.note(
            run, state.status, corrects=True, cost_micros=more.micros, currency=more.currency,
            kind=kind, logged_micros=total.micros,
        )  # fmt: skip

    def judge(
        self, run: str, ended: Ended, stopped: RunVerdict | None = None, *, remote: bool
    ) -> RunVerdict:
        """Return what a run is after an attempt; ``stopped`` as for ``outcomes.judge``."""
        since_ns = 0 if remote else self.manifest.state(run).started_ns or 0
        said = attempt_log.logged_end(self.manifest.root / run, since_ns)
        return judge(ended, stopped, said)

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
        """Record the end of an attempt and what it cost: in its log, the spend log, the journal.

        Args:
            run: Its run.
            ended: How it ended.
            verdict: What that makes of its run.
            remote: Whether it wrote its end into the run's log itself.
            log: What this process wrote of it there; None where its harness died.
            hold: The open hold that pays for it.
        """
        manifest, directory = self.manifest, self.manifest.root / run
        if log is not None:
            attempt_log.end(log, verdict, ended, paid=hold is not None)
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
        self.note(
            run, verdict.status, reason=verdict.reason, returncode=ended.returncode,
            elapsed_ns=ended.elapsed_ns, cost_micros=None if cost is None else cost.micros,
            currency="" if cost is None else cost.currency, kind=priced.kind,
            logged_micros=priced.logged_micros,
        )  # fmt: skip


def _end_earlier_log(
    manifest: SweepManifest, run: str, ended: Ended, verdict: RunVerdict, held: Money | None
) -> None:
    """Write down how an attempt of this machine ended whose harness died before it could.

    Where nobody saw its end, it is taken to have run for as long as the money lasts that is
    ``held`` for it, and not beyond the present.
    """
    static, directory, clock = manifest.runs[run], manifest.root / run, manifest.clock
    now_ns = clock.wall_ns()
    begun_ns = manifest.state(run).started_ns or now_ns
    latest = latest_supervision(directory)
    if latest is not None and latest[1].start_ns < begun_ns:
        latest = None  # Of an attempt before.
    start_ns = begun_ns if latest is None else latest[1].start_ns
    rate, reason = static.rate, verdict.reason
    end_ns: int | None = end_instant_ns(start_ns, ended, now_ns)
    if not ended.is_measured:
        paid_ns = None if rate is None or held is None else paid_time(held, rate)
        end_ns = None if paid_ns is None else min(now_ns, start_ns + paid_ns)
        reason = f"{reason}; {_ASSUMED}"
    if end_ns is None:
        return  # What its log says last is its end.
    status, code = ENDS.get(verdict.status, "failed"), ended.exit_code
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


class SweepGuard:
    """The guard of one sweep.

    Its spend log lies in the sweep's directory.
    """

    def __init__(self, root: Path, ceiling: Money, clock: Clock = SYSTEM) -> None:
        self.budget_guard = BudgetGuard(
            ceiling.amount, root / SPEND_LOG, currency=ceiling.currency, clock=clock
        )

    def begin(self) -> None:
        """Begin the log of a new sweep, also where one was removed together with its sweep."""
        log = self.budget_guard.log
        if isinstance(log, FileSpendLog) and log.was_removed():
            self.budget_guard.accept("a new sweep was started where there had been another")

    def open(
        self, run: PlannedRun, ticket: str, finished_ns: Sequence[int], *, remote: bool
    ) -> Leaseholder:
        """Hold what a run should cost and what ending it may cost; at least what it should cost.

        A run that nothing else limits is judged by what finished ones took. Nobody may be there to
        pay for more while a ``remote`` one runs.
        """
        rate = run.rate
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
        hold = self.budget_guard.authorize(
            run.id, opening, key=ticket, least_usd=min(least, opening)
        )
        return self._leased(hold, terms)

    def _leased(self, hold: Hold, terms: Terms) -> Leaseholder:
        """Return what extends a hold; times are elapsed ones, and the attempt starts at 0."""
        return Leaseholder(self.budget_guard, hold, terms, refusals=(BudgetGuardExceeded,))

    def join(self, run: PlannedRun, hold: str) -> Leaseholder | None:
        """Return the lease of a running attempt; None where its hold is settled already."""
        rate, held = run.rate, self.held(hold)
        if rate is None or held is None:
            return None
        return self._leased(held, terms_of(rate, 0))

    def held(self, hold: str) -> Hold | None:
        """Return a hold that is still open, or None."""
        try:
            return self.budget_guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None

    def settle(self, hold: Hold, run: str, priced: AttemptCost, *, started: bool) -> AttemptCost:
        """Capture what an attempt cost, or all it held where that is unknown; return that.

        One that was never ``started`` and cost nothing gives its hold back.
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
        """Give back holds whose runs were never started."""
        for hold in self.budget_guard.holds():
            if hold.id not in used:
                self.budget_guard.void(hold, "its run was never started")
