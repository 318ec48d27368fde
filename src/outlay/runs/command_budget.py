"""A budget's limits on time and cost, enforced on a command of ``outlay exec`` from outside.

A program that records under these limits stops itself between two steps. For any other one the
supervisor counts: wall time as time, and the cost of the whole run. It starts no process.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from outlay.budget.fold import RunSpend, last_stated, rates_in
from outlay.budget.history import History, read_since_statements
from outlay.budget.limits import COST, TIME, Bound, StopReason, reached
from outlay.budget.measurements import refuse_unpriced
from outlay.budget.snapshots import check_unchanged
from outlay.budget.terms import DISABLED, Budget
from outlay.budget.usage import Usage
from outlay.errors import InvalidValue, Refused
from outlay.ledger import (
    SUPERVISOR,
    AttemptStarted,
    Price,
    SegmentId,
    derive_attempts,
    exact_gpus,
)
from outlay.ledger.attempts import alive_until
from outlay.ledger.segments import id_from_name, segment_paths
from outlay.rates import hourly
from outlay.record import Recorder
from outlay.units import Duration

_log = logging.getLogger("outlay")

NOTICE: Final = Duration(30 * 10**9)
MEASURE_EVERY_NS: Final = 15 * 10**9
"""How often the log of a program that records is read again: its price may have changed."""
_KEEPER_LATER_NS: Final = 2 * 10**9
"""The keeper ends the command later, so that the supervisor does if both are well."""


class BudgetUsedUp(Refused):
    """A command was not started, because its run has used a limit up."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(f"the {reason}; the command was not started")


# Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTerms:
    """A budget, and how it is enforced on a command.

    Attributes:
        records: Whether the program is said to record: its time is then left to its own budget.
        notice: From SIGTERM to SIGKILL.
    """

    budget: Budget
    records: bool = False
    notice: Duration = NOTICE

    @classmethod
    def stated_in(cls, terms: Mapping[str, Any]) -> Self:
        """Return the terms that a supervisor recorded."""
        notice = Duration(terms.get("notice_ns", NOTICE.ns))
        return cls(
            budget=Budget.stated_in(terms), records=bool(terms.get("records")), notice=notice
        )

    def document(self) -> dict[str, Any]:
        """Return the terms as a supervisor records them."""
        outside = {"records": self.records, "notice_ns": self.notice.ns}
        return self.budget.document() | outside

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The limits that can be counted from outside."""
        return tuple(b for b in self.budget.bounds_known if _is_countable(self.budget, b))

    @property
    def enforced(self) -> tuple[Bound, ...]:
        """The limits that are enforced from outside, whatever the program records."""
        return tuple(b for b in self.bounds if not (self.records and b.dimension is TIME))

    @property
    def left_to_records(self) -> list[str]:
        """The keys of the limits that bind only if the program records."""
        counted = {bound.dimension.key for bound in self.enforced}
        return [key for key in self.budget.limits if key not in counted]


def _is_countable(budget: Budget, bound: Bound) -> bool:
    if bound.dimension.name == COST.name:
        return budget.charge_cost == "all"
    return bound.dimension is TIME


def refuse_uncounted(terms: CommandTerms, *, name: str) -> None:
    """Refuse limits that only a program's own records can count, unless it is said to record.

    Raises:
        InvalidValue: There are such limits.
    """
    if terms.left_to_records and not terms.records:
        expected = (
            "limits on time and cost, which can be counted from outside; with --records, if the "
            "program calls outlay.run(), any limit"
        )
        raise InvalidValue(name, ", ".join(terms.left_to_records), expected)


def settle_terms(
    stated: CommandTerms | None, history: History, price: Price | None
) -> CommandTerms | None:
    """Return the terms of a command: the stated ones, else those that the run was started with.

    Raises:
        BudgetChanged: The run was started under other limits.
        BudgetRefused: Money is limited, and there is no price, or one in another currency.
    """
    before = history.stated_outside
    if stated is None and before is not None:
        stated = CommandTerms.stated_in(before)
        _log.warning(
            "no budget was stated: the run keeps the one it was started with: %s (%s). "
            "To drop it: --budget enabled=false",
            stated.budget.mode, ", ".join(f"{k} {v:,}" for k, v in stated.budget.limits.items()),
        )  # fmt: skip
    if stated is None or stated.budget is DISABLED:
        return None
    if before is not None and not stated.budget.allow_change:
        check_unchanged(stated.budget, before)
    if not stated.records or price is not None:
        refuse_unpriced(stated.budget, price, history.paid_in)
    return stated


# Enforcement


@dataclass(frozen=True, slots=True)
class CurrentUse:
    """What a run had used at ``t_ns``, and what it costs from then on."""

    t_ns: int
    used: Usage
    micros_per_hour: int

    def reaches_ns(self, bound: Bound) -> int | None:
        """Return the first instant at which a limit may be reached; None if nothing is used."""
        per_ns = 1 if bound.dimension is TIME else self.micros_per_hour
        return self.t_ns + -(-bound.left(self.used) // per_ns) if per_ns else None


class Ending(NamedTuple):
    """The limit that ends the command, and when, unless the pace changes."""

    t_ns: int
    bound: Bound


def next_ending(terms: CommandTerms, pace: CurrentUse, inside: Mapping[str, int]) -> Ending | None:
    """Return the first limit to be enforced from outside; None if there is none.

    ``inside`` has the program's own limits. A limit on time that the program enforces itself is
    left to it. One on cost ends the program a notice later: it may hang.
    """
    endings = []
    for bound in terms.enforced:
        own = inside.get(bound.dimension.key)
        is_inside = own is not None and own <= bound.limit
        t_ns = pace.reaches_ns(bound)
        if t_ns is not None and not (is_inside and bound.dimension is TIME):
            endings.append(Ending(t_ns + (terms.notice.ns if is_inside else 0), bound))
    return min(endings, key=lambda ending: ending.t_ns, default=None)


class CommandBudget:
    """Ends a command when its run has used a limit up: SIGTERM, then SIGKILL after the notice.

    Attributes:
        reason: The limit that ended the command; None while none has.
        send: Signals the command and all its descendants.
        set_deadline: Takes the monotonic time at which the keeper ends the command by itself.
    """

    def __init__(
        self,
        terms: CommandTerms,
        run_dir: Path,
        recorder: Recorder,
        header: AttemptStarted,
        history: History,
    ) -> None:
        self.terms = terms
        self.reason: StopReason | None = None
        self.send: Callable[[int], object] = lambda _: None
        self.set_deadline: Callable[[int | None], object] = lambda _: None
        self._run_dir = run_dir
        self._recorder = recorder
        self._start_ns = header.t_ns
        self._spent = history.spend_before(header, SegmentId.of(header))
        self._rate = _rate_of(header, terms.budget.currency)
        self._ranks: set[str] = set()
        self._measured_ns = 0
        self._ending: Ending | None = None
        self._kill_ns: int | None = None

    @classmethod
    def begin(
        cls,
        terms: CommandTerms,
        run_dir: Path,
        recorder: Recorder,
        header: AttemptStarted,
        history: History,
    ) -> CommandBudget:
        """Record the terms and return their enforcement.

        Raises:
            BudgetUsedUp: A limit is used up already.
        """
        event, document = terms.budget.stated_after(history.stated_outside)
        recorder.budget_event(event, document | terms.document())
        made = cls(terms, run_dir, recorder, header, history)
        used_up = reached(made._charged(made._spent), terms.enforced)
        if used_up is not None:
            is_cost = used_up.bound.dimension.name == COST.name
            down = made._spent.parts.down if is_cost else 0
            used_up = replace(used_up, before_start=True, down=down)
            made._record_stop(used_up)
            raise BudgetUsedUp(used_up)
        return made

    @classmethod
    def resumed(cls, segment: Path, recorder: Recorder) -> CommandBudget | None:
        """Return the enforcement that a killed supervisor began; None if it had no budget."""
        run_dir, name = segment.parent.parent, segment.name
        history = read_since_statements(run_dir)
        own = [spend for spend in history.spends if spend.life.segment.file_name == name]
        stated = last_stated(own)
        if stated is None or own[0].life.header is None:
            return None
        terms = CommandTerms.stated_in(stated)
        history = replace(history, currency=terms.budget.currency)
        return cls(terms, run_dir, recorder, own[0].life.header, history)

    @property
    def uncounted(self) -> list[str]:
        """The keys of the limits that were not counted, because the program recorded nothing."""
        return [] if self._ranks else self.terms.left_to_records

    def document(self) -> dict[str, Any]:
        """Return the budget for JSON: its terms, and what ended the command."""
        reason = None if self.reason is None else str(self.reason)
        ended = {"stop_reason": reason, "uncounted": self.uncounted}
        return self.terms.document() | ended

    def pause_s(self, longest_s: float) -> float:
        """Return how long to wait for the next ``poll``."""
        until_ns = self._kill_ns or (None if self._ending is None else self._ending.t_ns)
        if until_ns is None:
            return longest_s
        return min(longest_s, max(0.01, (until_ns - self._recorder.now_ns()) / 1e9))

    def poll(self) -> None:
        """Signal the command if a limit is used up."""
        now_ns = self._recorder.now_ns()
        if self._kill_ns is None:
            ending = self._measure(now_ns)
            if ending is not None and now_ns >= ending.t_ns:
                self._stop(ending.bound, now_ns)
                self._kill_ns = now_ns + self.terms.notice.ns
                self._tell_keeper(self._kill_ns)
                self.send(signal.SIGTERM)
        elif now_ns >= self._kill_ns:
            self.send(signal.SIGKILL)

    def finish(self, *, asked: bool) -> None:
        """Count up to the end; ``asked`` says whether the command was signalled to end."""
        now_ns = self._recorder.now_ns()
        ending = self._measure(now_ns)
        if self.reason is not None:
            pace, _ = self._count(now_ns)
            self.reason = replace(self.reason, used=self.reason.bound.used(pace.used))
        elif asked and ending is not None and now_ns >= ending.t_ns:
            self._stop(ending.bound, now_ns)  # By the keeper: this process was too late to.
            self._kill_ns = now_ns

    def _measure(self, now_ns: int) -> Ending | None:
        """Return what ends the command; counted again if a rank has begun, or the time has come."""
        ranks = self._rank_files()
        is_due = self._ending is not None and now_ns >= self._ending.t_ns
        if is_due or ranks != self._ranks or now_ns - self._measured_ns >= MEASURE_EVERY_NS:
            self._ranks, self._measured_ns = ranks, now_ns
            ending = next_ending(self.terms, *self._count(now_ns))
            if self._kill_ns is None and ending != self._ending:
                self._ending = ending
                self._tell_keeper(None if ending is None else ending.t_ns)
        return self._ending

    def _rank_files(self) -> set[str]:
        """Return the names of the segments that the program has begun in this attempt."""
        found = ((path.name, id_from_name(path)) for path in segment_paths(self._run_dir))
        return {
            name
            for name, segment in found
            if segment and segment.rank != SUPERVISOR and segment.start_ns >= self._start_ns
        }

    def _count(self, now_ns: int) -> tuple[CurrentUse, Mapping[str, int]]:
        """Return the run's pace, and the limits that the program enforces itself."""
        if not self._ranks:
            ns = now_ns - self._start_ns
            own = Usage(time_ns=ns, cost_units=self._rate * ns)
            return CurrentUse(now_ns, self._charged(self._spent) + own, self._rate), {}
        history = read_since_statements(self._run_dir, self.terms.budget.currency)
        lives = [spend.life for spend in history.spends]
        attempts = alive_until(derive_attempts(lives), now_ns + 1)
        rates, _ = rates_in(attempts, now_ns, self.terms.budget.currency)
        rate = 0 if rates is None else rates.rate_at(now_ns)
        pace = CurrentUse(now_ns, self._charged(history.spend(now_ns)), rate)
        begun = (s for s in history.spends if s.life.segment.file_name in self._ranks)
        stated = last_stated(begun)
        bounds = () if stated is None else Budget.stated_in(stated).bounds_known
        return pace, {bound.dimension.key: bound.limit for bound in bounds}

    def _charged(self, spend: RunSpend) -> Usage:
        budget = self.terms.budget
        return spend.total(charge=budget.charge, charge_cost=budget.charge_cost)

    def _stop(self, bound: Bound, now_ns: int) -> None:
        pace, _ = self._count(now_ns)
        self._record_stop(StopReason(bound=bound, used=bound.used(pace.used)))

    def _record_stop(self, reason: StopReason) -> None:
        self.reason = reason
        self._recorder.budget_event("stopped", {"limit_key": reason.key, "text": str(reason)})

    def _tell_keeper(self, t_ns: int | None) -> None:
        offset_ns = self._recorder.wall_offset_ns
        self.set_deadline(None if t_ns is None else t_ns - offset_ns + _KEEPER_LATER_NS)


def _rate_of(header: AttemptStarted, currency: str) -> int:
    """Return what an attempt costs per hour in micro-units, by its first record."""
    price = header.price
    if price is None or price.currency != currency:
        return 0
    return hourly(price.micros_per_hour, exact_gpus(header.gpus))
