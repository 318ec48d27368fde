"""The guard of a sweep: every launch holds its predicted cost, and captures its measured cost.

A run that needs longer than predicted extends its hold in small slices while there is room under
the ceiling, and is ended when there is none. Only the harness counts the money: runs do not get the
hold, as each would hold a slice of its own on top of the prediction.

The spend log is the sweep's own, in its directory, or a book that it shares with others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.guard.away.polled_log import PolledLog
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import LATE, run_part
from outlay.guard.entries import Captured, RunPart, micros_of, read_amount
from outlay.guard.errors import (
    BudgetGuardExceeded,
    CeilingUnusable,
    HoldResolved,
    SpendLogUnusable,
    UnknownHold,
)
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.guard.scopes import lab_of
from outlay.guard.spend_log import FileSpendLog, is_url, open_book
from outlay.ledger import (
    GpuCount,
    derive_attempts,
    exact_gpus,
    read_identity,
    read_lives,
    segment_paths,
)
from outlay.rates import cost_at_most, cost_to_last_record, gpu_rate, gpu_time
from outlay.record.supervision import latest_supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.errors import NotASweep
from outlay.sweep.grid.grid import read_limit
from outlay.sweep.plan.plan import PlannedRun, Prediction, SweepPlan, at_most, measured, terms_of
from outlay.sweep.state.manifest import SweepManifest, read_manifest
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money, Rate, Unit
from outlay.units.money import GPU_TIME, Kind

# The cost of an attempt.
#
# It is what the attempt adds to the cost of its run's log, so that captures, journal and every
# report of the run have the same amount.


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCost:
    """The cost of an attempt.

    Attributes:
        cost: None if unknown; in the unit of the sweep's book, if it has one that counts money.
        logged_micros: The total of the run's log now, in the currency of ``cost``; None where the
            log has none.
        kind: Of the cost, where the log states it.
        assumed: Whether its end was not observed.
        part: The part of the run's log that it is the cost of, if any.
        gpu_time: In GPU-hours, for a book that counts them; None if unknown.
    """

    cost: Money | None
    logged_micros: int | None = None
    kind: Kind | Literal[""] = ""
    assumed: bool = False
    part: RunPart | None = None
    gpu_time: Money | None = None


def price_attempt(
    directory: Path,
    state: RunState,
    rate: Rate | None,
    ended: Ended,
    *,
    recorded: bool | None = None,
    unit: Unit | None = None,
) -> AttemptCost:
    """Return the cost of an attempt that has ended.

    ``state`` is the run's state before. ``recorded`` says whether this process could write the
    supervisor's segment; None for another supervisor, whose segment is looked up. ``unit`` is that
    of a book of money, which counts nothing else.
    """
    if recorded and rate is None and len(segment_paths(directory)) == 1:
        return AttemptCost(cost=None)  # The supervisor's segment, which has no price.
    if recorded is None:
        recorded = latest_supervision(directory) is not None
    estimated = None
    if rate is not None and ended.is_measured:
        estimated = cost_at_most(rate, ended.elapsed_ns)
        estimated = estimated if unit is None else estimated.as_kind(unit.kind)
    total = logged_cost(directory)
    currency = state.currency if rate is None else rate.currency
    if total is None or currency not in ("", total.currency) or unit not in (None, total.unit):
        return AttemptCost(cost=estimated)
    added = total.micros - (state.logged_micros or 0)
    if not recorded or added < 0:
        return AttemptCost(cost=estimated, logged_micros=total.micros)
    return AttemptCost(
        cost=total.unit.money(added), logged_micros=total.micros, kind=total.kind,
        assumed=not ended.is_measured, part=_part_of(directory),
    )  # fmt: skip


def logged_cost(directory: Path) -> Money | None:
    """Return the total cost in a run's log; None where it has none."""
    return cost_to_last_record(derive_attempts(read_lives(directory)))


def time_attempt(
    directory: Path, state: RunState, gpus: GpuCount, ended: Ended, *, recorded: bool | None = None
) -> AttemptCost:
    """Return the GPU-hours of an attempt that has ended; its cost is not known here.

    They are what it adds to the GPU time of its run's log, as with ``price_attempt``.
    """
    if recorded is None:
        recorded = latest_supervision(directory) is not None
    added = logged_gpu_time(directory).micros - (state.gpu_micros or 0)
    if recorded and added >= 0:
        return AttemptCost(
            cost=None, gpu_time=GPU_TIME.money(added), assumed=not ended.is_measured,
            part=_part_of(directory),
        )  # fmt: skip
    if not ended.is_measured:
        return AttemptCost(cost=None)
    return AttemptCost(
        cost=None, gpu_time=cost_at_most(gpu_rate(exact_gpus(gpus)), ended.elapsed_ns)
    )


def logged_gpu_time(directory: Path) -> Money:
    """Return the GPU-hours of all attempts in a run's log."""
    return gpu_time(derive_attempts(read_lives(directory)))


def _part_of(directory: Path) -> RunPart | None:
    """Return the run and its newest supervisor's segment, as the spend log names them."""
    identity, latest = read_identity(directory), latest_supervision(directory)
    return None if identity is None or latest is None else run_part(identity.run_id, latest[1])


# Holds and captures.

SPEND_LOG: Final = "spend.jsonl"


def log_of(root: Path) -> str | Path:
    """Return the spend log of a sweep: the book that it draws on, else the one in its directory."""
    try:
        book = read_manifest(root).about.get("book")
    except NotASweep:
        book = None
    if not isinstance(book, str):
        return root / SPEND_LOG
    return book if is_url(book) else Path(book)


def shown_book(book: str) -> str:
    """Return what may be shown of the name of a book."""
    return str(open_book(book).name) if is_url(book) else book


def ceiling_text(manifest: SweepManifest) -> str:
    """Return a sweep's own limit and the book that it draws on, in words."""
    ceiling, book = manifest.about.get("ceiling"), manifest.about.get("book")
    found = [str(ceiling)] if ceiling else []
    found += [shown_book(book)] if isinstance(book, str) else []
    return ", ".join(found) or "none"


def head_of(root: Path) -> str:
    """Return the hash of the last line of a sweep's spend log; "" without a readable one.

    A book that is away is not waited for.
    """
    log = PolledLog(log_of(root))
    try:
        return log.ask("head", (log.book or FileSpendLog(Path(log.name))).head).value or ""
    finally:
        log.close()


# A share of a book.
#
# A book has no total per sweep. The sweep's own limit counts the cost of its ended attempts, by its
# journal, and its open holds in the book. Both are exact whenever something more is held: only the
# harness, which has the sweep's lock, opens or extends holds of the sweep; an attempt that is
# captured in the book and not yet in the journal is one that a killed harness left, and the next
# harness settles those, with the amount in the book, before it starts a run.


@dataclass(frozen=True, slots=True, kw_only=True)
class BookShare:
    """A sweep's share of a book.

    Attributes:
        label: Begins the labels of the sweep's operations, which are ``<label>/<run>``.
        limit: The most that the sweep may commit; None for the limits of the book alone.
        spent_micros: Returns the cost of the sweep's ended attempts in a unit.
    """

    label: str
    limit: Money | None
    spent_micros: Callable[[Unit], int]


class _BookGuard(BudgetGuard):
    """The guard of a book, which also refuses what passes the sweep's own limit.

    Attributes:
        current: Returns a guard with the ceiling that the book states now: a sweep may run for
            weeks, and must not bring back a ceiling that was lowered meanwhile.
    """

    share: BookShare
    current: Callable[[], BudgetGuard]

    def authorize(
        self, op_label: str, estimated_usd: object, *, least_usd: object = None, **more: Any
    ) -> Hold:
        """Hold what fits into the sweep's limit and into those of the book."""
        asked = self._fitting(estimated_usd, least_usd)
        return self.current().authorize(op_label, asked, least_usd=least_usd, **more)

    def extend(
        self, hold: Hold | str, more_usd: object, *, least_usd: object = None, **more: Any
    ) -> Hold:
        """Hold more, as ``authorize`` does."""
        asked = self._fitting(more_usd, least_usd)
        return self.current().extend(hold, asked, least_usd=least_usd, **more)

    def void(self, hold: Hold | str, reason: str, **more: Any) -> None:
        """Release a hold."""
        self.current().void(hold, reason, **more)

    def record_actual(self, op_label: str, actual_usd: object, **more: Any) -> Captured:
        """Record the cost of an operation."""
        return self.current().record_actual(op_label, actual_usd, **more)

    def correct(self, op_label: str, difference_usd: object, reason: str, **more: Any) -> None:
        """Add a difference to the cost of an operation."""
        self.current().correct(op_label, difference_usd, reason, **more)

    def own_holds(self) -> tuple[Hold, ...]:
        """Return the sweep's open holds, oldest first."""
        return tuple(
            hold for hold in self.holds() if hold.op_label.partition("/")[0] == self.share.label
        )

    def _fitting(self, asked_usd: object, least_usd: object) -> Money:
        """Return the amount to ask of the book: no more than the sweep's limit leaves."""
        asked = read_amount(asked_usd, name="estimated_usd", unit=self.unit)
        limit = self.share.limit
        if limit is None:
            return asked
        limit = limit.as_kind(self.unit.kind)
        spent = self.unit.money(self.share.spent_micros(self.unit))
        held = sum((hold.amount for hold in self.own_holds()), self.unit.money(0))
        free = limit - spent - held
        if asked <= free:
            return asked
        least = asked
        if least_usd is not None:
            least = read_amount(least_usd, name="least_usd", unit=self.unit)
        if least <= free:
            return free
        raise BudgetGuardExceeded(
            f"sweep {self.share.label}: {spent} spent + {held} held + {asked} asked > {limit} "
            f"({free} free)"
        )


def _open_share(book: str, share: BookShare, clock: Clock) -> _BookGuard:
    """Return the guard of a book, under the limits that the book states.

    Raises:
        Refused: It can't be read, states no ceiling, or has another currency than the limit.
    """
    name = book if is_url(book) else Path(book)
    opened = open_book(book, clock=clock) if is_url(book) else None
    guard = _BookGuard.of_log(name, clock=clock, log=opened)
    guard.current = partial(BudgetGuard.of_log, name, clock=clock, log=opened)
    guard.share, limit = share, share.limit
    if limit is not None and limit.currency != guard.unit.currency:
        raise CeilingUnusable(shown_book(book), str(limit), f"a limit in {guard.currency}")
    return guard


@dataclass(frozen=True, slots=True, kw_only=True)
class BookRoom:
    """How much a book has left for a new sweep: the tightest of its limits and of the sweep's."""

    book: str
    room: Money


def book_room(plan: SweepPlan, clock: Clock = SYSTEM) -> BookRoom:
    """Return how much the book of a grid has left.

    Raises:
        Refused: It can't be read or states no ceiling, or its currency is not that of the runs.
    """
    grid = plan.grid
    share = BookShare(label=grid.name, limit=grid.ceiling, spent_micros=lambda _: 0)
    guard = _open_share(grid.book, share, clock)
    unit = guard.unit
    for run in plan.runs if unit != GPU_TIME else ():
        if run.entry.price is not None and run.entry.price.unit != unit:
            expected = f"a price in {unit}, as {shown_book(grid.book)} has"
            raise InvalidValue(f"price of {run.id}", str(run.entry.price.unit), expected)
    limits = [] if grid.ceiling is None else [grid.ceiling.as_kind(unit.kind)]
    room = min([guard.room(lab_of(grid.name)), *limits])
    return BookRoom(book=shown_book(grid.book), room=room)


def predicted_in(plan: SweepPlan, unit: Unit) -> Money | None:
    """Return the predicted total of a sweep in the unit of its book; None if it is unknown."""
    if unit == GPU_TIME:
        times = [(gpu_rate(run.charged_gpus), run.prediction.ns) for run in plan.runs]
        costs = [cost_at_most(rate, ns) for rate, ns in times if ns is not None]
        return sum(costs, unit.money(0)) if len(costs) == len(times) else None
    cost = plan.predicted_cost
    return None if cost is None or cost.currency != unit.currency else cost.as_kind(unit.kind)


def guard_of(manifest: SweepManifest, clock: Clock = SYSTEM) -> SweepGuard | None:
    """Return the guard of a sweep; None for one without a ceiling."""
    ceiling, book = manifest.about.get("ceiling"), manifest.about.get("book")
    limit = read_limit(ceiling) if ceiling else None
    if isinstance(book, str):
        share = BookShare(
            label=manifest.about["label"], limit=limit,
            spent_micros=partial(_spent_micros, manifest),
        )  # fmt: skip
        return SweepGuard(manifest.root, limit, clock, guard=_open_share(book, share, clock))
    return None if limit is None else SweepGuard(manifest.root, limit, clock)


def _spent_micros(manifest: SweepManifest, unit: Unit) -> int:
    """Return the cost of a sweep's ended attempts in the unit of its book."""
    states = manifest.states.values()
    if unit == GPU_TIME:
        return sum(state.gpu_micros or 0 for state in states)
    return sum(state.cost_micros or 0 for state in states)


def check_same_log(manifest: SweepManifest, plan: SweepPlan, clock: Clock = SYSTEM) -> None:
    """Check that a sweep whose grid now names another book has no open hold in the old log.

    Raises:
        InvalidValue: It has some, which nobody would settle.
    """
    before, after = manifest.about.get("book") or "", plan.grid.book
    guard = guard_of(manifest, clock) if before != after else None
    if guard is None or not guard.holds():
        return
    where = shown_book(before) if before else str(manifest.root / SPEND_LOG)
    expected = f"the one in which it has {len(guard.holds())} open holds, {where}; resume it there"
    raise InvalidValue("ceiling", shown_book(after) if after else "no book", expected)


class SweepGuard:
    """The guard of one sweep.

    Its spend log is in the sweep's directory, unless ``guard`` is that of a book.
    """

    def __init__(
        self,
        root: Path,
        ceiling: Money | None,
        clock: Clock = SYSTEM,
        *,
        guard: _BookGuard | None = None,
    ) -> None:
        self._book = guard
        if guard is not None:
            self.budget_guard: BudgetGuard = guard
            return
        assert ceiling is not None
        self.budget_guard = BudgetGuard(
            ceiling.amount, root / SPEND_LOG, currency=ceiling.currency, clock=clock
        )

    @property
    def is_shared(self) -> bool:
        """Whether it draws on a book."""
        return self._book is not None

    @property
    def unit(self) -> Unit:
        """The unit of its holds and captures."""
        return self.budget_guard.unit

    def rate_of(self, run: PlannedRun) -> Rate | None:
        """Return what a run costs per hour in the unit of the guard; None without a price.

        A sweep's own log is stated without a kind, and takes the prices of either.
        """
        if self.unit == GPU_TIME:
            return gpu_rate(run.charged_gpus)
        rate = run.rate
        if rate is None or rate.currency != self.unit.currency:
            return rate
        return self.unit.rate(rate.micros_per_hour)

    def label(self, run: str) -> str:
        """Return the label of a run's operations."""
        return run if self._book is None else f"{self._book.share.label}/{run}"

    def holds(self) -> tuple[Hold, ...]:
        """Return the sweep's open holds, oldest first."""
        return self.budget_guard.holds() if self._book is None else self._book.own_holds()

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
        rate, prediction = self.rate_of(run), run.prediction
        assert rate is not None
        if prediction.ns is not None:
            prediction = replace(prediction, cost=self._predicted_cost(rate, prediction))
        elif prediction.cost is None or self.unit == GPU_TIME:
            prediction = measured(rate, finished_ns)
        if remote:
            prediction = at_most(rate, prediction, run.entry.timeout)
        assert prediction.cost is not None
        cost = self.unit.money(prediction.cost.micros)
        terms = terms_of(rate, prediction.ns or 0)
        opening, least = cost + terms.cost(terms.notice.ns), max(cost, terms.least_opening())
        hold = self.budget_guard.authorize(
            self.label(run.id), opening, key=ticket, least_usd=min(least, opening), rate=rate
        )
        return self._leased(hold, terms)

    def _predicted_cost(self, rate: Rate, prediction: Prediction) -> Money:
        """Return the predicted cost in the unit of the guard."""
        if prediction.cost is None or self.unit == GPU_TIME:
            return cost_at_most(rate, prediction.ns or 0)
        return prediction.cost

    def _leased(self, hold: Hold, terms: Terms) -> Leaseholder:
        """Return a lease of a hold; its times are elapsed, from 0 at the attempt's start."""
        refusals: tuple[type[Exception], ...] = (BudgetGuardExceeded,)
        if self.is_shared:  # A database that is away ends no run that is paid for.
            refusals = (BudgetGuardExceeded, SpendLogUnusable)
        return Leaseholder(self.budget_guard, hold, terms, refusals=refusals)

    def join(self, run: PlannedRun, hold: str) -> Leaseholder | None:
        """Return the lease of a running attempt; None if its hold is settled already."""
        rate, held = self.rate_of(run), self.held(hold)
        if rate is None or held is None:
            return None
        return self._leased(held, terms_of(rate, 0))

    def held(self, hold: str) -> Hold | None:
        """Return an open hold by id, or None."""
        try:
            return self.budget_guard.log.books().hold(hold)
        except (HoldResolved, UnknownHold):
            return None

    def settle(
        self, hold: Hold, run: str, priced: AttemptCost, *, started: bool, ticket: str
    ) -> AttemptCost:
        """Capture the cost of an attempt, or the whole hold if that is unknown; return it.

        The hold is voided for an attempt that was not ``started`` and cost nothing.
        """
        amount = self._amount(priced)
        if not started and not amount:
            self.budget_guard.void(hold, "it could not be started")
            return priced
        if amount is None:
            amount, priced = hold.amount, self._with(replace(priced, assumed=True), hold.amount)
        basis = "assumed" if priced.assumed else "measured"
        self.budget_guard.record_actual(
            self.label(run), amount, hold=hold, basis=basis, part=priced.part,
            key=_capture_key(ticket) if self.is_shared else "",
        )  # fmt: skip
        return priced

    def _amount(self, priced: AttemptCost) -> Money | None:
        """Return what an attempt cost in the unit of the guard; None if that is unknown."""
        if self.unit == GPU_TIME:
            return priced.gpu_time
        return None if priced.cost is None else self.unit.money(priced.cost.micros)

    def _with(self, priced: AttemptCost, amount: Money) -> AttemptCost:
        """Return an attempt with another amount in the unit of the guard."""
        if self.unit == GPU_TIME:
            return replace(priced, gpu_time=amount)
        return replace(priced, cost=amount)

    def correct(self, run: str, more: Money) -> None:
        """Add to the cost of a run what its log has gained since its capture."""
        self.budget_guard.correct(self.label(run), more.amount, LATE)

    def as_captured(self, priced: AttemptCost, ticket: str) -> AttemptCost:
        """Return the cost that a book has for an attempt, if it was captured before."""
        if self._book is None:
            return priced
        found = self._book.log.look(lambda books: books.grant(_capture_key(ticket)))
        if not isinstance(found, Captured):
            return priced
        return self._with(priced, self.unit.money(micros_of(found.actual)))

    def void_unused(self, used: Collection[str]) -> None:
        """Void holds whose runs were never started."""
        for hold in self.holds():
            if hold.id not in used:
                self.budget_guard.void(hold, "its run was never started")


def _capture_key(ticket: str) -> str:
    return f"{ticket}#cost"
