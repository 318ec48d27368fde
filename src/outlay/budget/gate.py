"""The budget of a run as a gate: charged by every record, checked before every step.

Joins the parts: history, charges and tracker count; the rank agreement synchronises ranks; the
reporter writes events, ``budget.json`` and the bar. A record is charged to the tracker at once, by
the thread that wrote it: the next step depends on it. A statement must cover a whole prefix of the
log, in its order, so it has a fold of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, replace

from outlay.budget.agreement import RankAgreement, SummingGroup, torch_group
from outlay.budget.display import NAME, BudgetReporter
from outlay.budget.fold import DROPPED, FORM, ProcessSpend, parts_of, rates_in
from outlay.budget.history import History, read_kept_budget, read_since_statements
from outlay.budget.limits import COST, TOKENS
from outlay.budget.measurements import (
    begin_metering,
    counted_tokens,
    meters_for,
    refuse_unpriced,
    refuse_unreported,
    unmeasured,
    unread_energy,
)
from outlay.budget.snapshots import check_unchanged
from outlay.budget.terms import Budget
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Charges, ClockCharge, Usage
from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.ledger import (
    AttemptStarted,
    BudgetStatement,
    CheckpointCommitted,
    EndStatus,
    KnownRecord,
    Price,
    PriceChanged,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    Step,
    derive_attempts,
)
from outlay.record import Recorder
from outlay.record.meters.batches import count_tokens
from outlay.record.recorder import Count, Writer

# The price of a running attempt

_FOREVER_NS: Final = 2**80
_CHANGES_MAX: Final = 8
"""A price changes less often than this within one step."""


class LivePrice:
    """The cost of a running attempt between records, in one currency.

    Attributes:
        known: Whether there is a price in that currency.
        until_ns: Up to when the cost was taken.
    """

    def __init__(self, header: AttemptStarted, currency: str) -> None:
        self.until_ns = header.t_ns
        self._currency = currency
        self._life = SegmentLife(SegmentId.of(header))
        self._life.last_sign_ns = _FOREVER_NS  # The last price applies until it changes.
        self.change(header)

    def change(self, record: AttemptStarted | PriceChanged | SlicesChanged) -> None:
        """Pay the stated price for the stated GPUs from now on."""
        life = self._life
        life.fold([record])
        del life.prices[:-_CHANGES_MAX], life.slices[:-_CHANGES_MAX]
        self._function, _ = rates_in(derive_attempts([life]), _FOREVER_NS, self._currency)
        self.known = self._function is not None

    def units_before(self, t_ns: int, time_ns: int) -> int:
        """Return the exact cost of the ``time_ns`` before ``t_ns``."""
        return 0 if self._function is None else self._function.units_between(t_ns - time_ns, t_ns)

    def take_units(self, t_ns: int) -> int:
        """Return the exact cost since the last call, up to ``t_ns``."""
        since_ns, self.until_ns = self.until_ns, max(self.until_ns, t_ns)
        return 0 if self._function is None else self._function.units_between(since_ns, t_ns)


# Charges of a running attempt: use, time on other clocks, money


class LiveCharges:
    """Charges one process's records to its tracker as they are written."""

    def __init__(self, tracker: BudgetTracker, header: AttemptStarted) -> None:
        self.charges = Charges()
        self.price = LivePrice(header, tracker.budget.currency)
        self._tracker = tracker
        self._charges_all = tracker.budget.charge_cost == "all"
        self._stepped = False

    def step(self, step: Step, usage: Usage) -> Usage:
        """Charge a step's use and the money since the last charge; return the sum."""
        paid, own = self.price.take_units(step.t_ns), usage
        if not (self._stepped and self._charges_all):
            own = replace(usage, cost_units=self.price.units_before(step.t_ns, usage.time_ns))
        self._stepped = True
        priced = replace(usage, cost_units=paid) if self._charges_all else own
        self._tracker.count(priced, step=step.step, end_ns=step.t_ns, own=own)
        return priced

    def other(self, record: KnownRecord) -> None:
        """Charge a record that is not a step."""
        if isinstance(record, PriceChanged | SlicesChanged):
            self._charge_money(record.t_ns)
            self.price.change(record)
        open_before = self.charges.open
        match self.charges.other(record):
            case ClockCharge() as charge:
                self._charge_clock(charge, record.t_ns)
            case Usage() as energy:
                self._tracker.add(energy)
            case None:
                if self.charges.open is not open_before:
                    self._charge_money(record.t_ns)  # Money from now on is the span's.

    def finish(self, t_ns: int) -> None:
        """Charge an open span, and all money up to ``t_ns``."""
        if open_span := self.charges.end():
            self._charge_clock(open_span, t_ns)
        self._charge_money(t_ns)

    def _charge_money(self, t_ns: int) -> None:
        units = self.price.take_units(t_ns)
        if self._charges_all:
            self._tracker.add(Usage(cost_units=units))

    def _charge_clock(self, charge: ClockCharge, t_ns: int) -> None:
        units = self.price.take_units(t_ns)
        self._tracker.charge_usage(charge.clock, Usage(time_ns=charge.time_ns, cost_units=units))


# Statements of a running attempt

EVERY: Final = 4_096
"""The most records of a segment between two statements."""

FOLD_EVERY: Final = 256
"""How many records are folded at once: folding one by one would make every step slower."""


class StatementWriter:
    """Replays one segment while it is written, and writes the result into it as statements.

    Observing is safe in any thread and in signal handlers: records are queued, and folded by the
    first caller that gets the lock. A statement always covers a whole prefix of the segment.

    Attributes:
        spend: What the process used, as far as its records are folded.
    """

    def __init__(self, segment: SegmentId, header: AttemptStarted, writer: Writer) -> None:
        self.spend = ProcessSpend(SegmentLife(segment))
        self.spend.apply(header)
        self._writer = writer
        self._queue: deque[tuple[int, KnownRecord]] = deque()
        self._early: dict[int, KnownRecord] = {}
        self._next_seq = 1
        self._stated_seq = 0
        self._folding = threading.Lock()

    def observe(self, record: KnownRecord, seq: int) -> None:
        """Queue a record that was just written; steps need not have their number in them."""
        self._queue.append((seq, record))
        if len(self._queue) >= FOLD_EVERY or type(record) is CheckpointCommitted:
            self.catch_up(state=type(record) is CheckpointCommitted)

    def catch_up(self, *, state: bool) -> None:
        """Fold the queued records; write a statement if ``state`` is set or one is due."""
        if not self._folding.acquire(blocking=False):
            return  # Another thread is folding, or the code that this signal handler interrupted.
        try:
            self._fold()
            if state or self._next_seq - self._stated_seq >= EVERY:
                self._state()
        finally:
            self._folding.release()

    def _fold(self) -> None:
        queue, early = self._queue, self._early
        while queue:
            seq, record = queue.popleft()
            early[seq] = record
        while self._next_seq in early or self._next_seq in self._writer.gap_numbers:
            if self._next_seq in early:
                self.spend.apply(early.pop(self._next_seq))
            self._next_seq += 1

    def _state(self) -> None:
        if len(self._early) > FOLD_EVERY:
            return  # A record before them was never observed, so no prefix can be completed.
        stated = self.spend.snapshot()
        if stated is None:
            return
        statement = BudgetStatement(
            t_ns=self.spend.life.last_sign_ns,
            form=FORM,
            covers=self._next_seq,
            state=msgspec.to_builtins(stated),
        )
        self._stated_seq = self._writer.append(statement)
        self._queue.append((self._stated_seq, statement))


_log = logging.getLogger("outlay")


class BudgetGate:
    """One process's budget during an attempt.

    Rank 0 reads the log and reports the budget. ``price`` is of one GPU-hour, needed if money is
    limited, and ``stopped_price`` of the machine between attempts; ``find_group`` returns the ranks
    that train together, or None.

    Raises:
        BudgetChanged: The run started with other limits, and no change is allowed.
        BudgetRefused: Energy or money is limited but cannot be measured here.
    """

    def __init__(
        self,
        budget: Budget,
        run_dir: Path,
        *,
        rank: int = 0,
        price: Price | None = None,
        stopped_price: Price | None = None,
        clock: Clock = SYSTEM,
        find_group: Callable[[], SummingGroup | None] = torch_group,
    ) -> None:
        self.tracker = BudgetTracker.of(budget, clock=clock)
        self.agreement: RankAgreement | None = None
        self._run_dir = run_dir
        self._rank = rank
        self._clock = clock
        self._find_group = find_group
        self._stepped = False
        self._reported = False
        self._steady = False
        self._history = History(spends=[], currency=budget.currency)
        if rank == 0:
            self._history = read_since_statements(run_dir, budget.currency)
        self.tracker.findings += self._history.findings
        self._stated = self._history.stated_inside
        if self._stated is not None and not budget.allow_change:
            check_unchanged(budget, self._stated)
        paid_in = self._history.paid_in if budget.limits_money else ""
        refuse_unpriced(budget, price, paid_in, stopped_price)
        self.meters = meters_for(budget, os.environ, clock)

    def begin(self, recorder: Recorder, header: AttemptStarted, segment: SegmentId) -> None:
        """Attach to the recorder of an attempt whose header is written."""
        self._recorder = recorder
        self._header, self._segment = header, segment
        self._charging = LiveCharges(self.tracker, header)
        before = self._history.spend_before(header, segment)
        self.tracker.findings += before.beside_findings(self.tracker.budget.currency)
        self.tracker.clocks_ns |= before.clocks_ns
        self._parts_before = before.parts
        self.tracker.resume_at(recorder.next_step, before)
        self._statements = StatementWriter(segment, header, recorder.writer)
        recorder.attach(gate=self, fill_step=self.meters.fill, observe=self.observe)
        self._reporter = BudgetReporter(
            self._rank, self.tracker, recorder,
            run_dir=self._run_dir, document=self.document, clock=self._clock,
        )  # fmt: skip
        self._reporter.record_terms(self._stated)
        self.refresh()

    def before_loop(self, loader: Iterable[Any], tokens: Count) -> Count:
        """Read a loader's length; return how to count its batches' tokens."""
        if self.tracker.budget.needs_steps_per_epoch and isinstance(loader, Sized):
            with contextlib.suppress(TypeError):  # Raised by a loader without a length.
                self.tracker.set_steps_per_epoch(len(loader))
                self._reporter.record_epoch(len(loader))
        _ = self.tracker.budget.bounds  # Raises for epochs of unknown length.
        self._steady = isinstance(tokens, int)
        if self.agreement is not None:
            self.agreement.steady = self._steady
        if TOKENS.key not in self.tracker.budget.limits:
            return tokens
        if isinstance(tokens, int):
            return counted_tokens(self.tracker.budget, self.tracker.used, tokens, None)
        return self._count_or_refuse(tokens or count_tokens)

    # Called by the recorder

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why a step of this size must not run, or None to let it run.

        Raises:
            AgreementLost: Another rank is gone.
        """
        del samples
        if tokens < 0:
            raise InvalidValue("tokens", tokens, "a whole number, zero or more")
        if not self._stepped:
            self._first_step()
        elif not self._reported:
            self._resume_at(self._recorder.next_step)
        step = Usage(tokens=tokens, steps=1)
        if self.agreement is None:
            self.tracker.admit(step)
            return self._why_stop()
        return None if self.agreement.before_step(step) is None else self._why_stop()

    def after_step(self, step: Step) -> str | None:
        """Return why no further step may run; several ranks decide that before the next step."""
        del step
        self._reporter.update()
        return self._why_stop() if self.agreement is None else None

    def finish(self, status: EndStatus) -> None:
        """Charge what is left, and record the totals."""
        self._charging.finish(self._recorder.now_ns())
        if energy_mj := self.meters.stop():
            self._recorder.heartbeat(energy_mj=energy_mj)  # Used since the last step.
        self._reporter.record_end(status)
        self._statements.catch_up(state=True)

    def observe(self, record: KnownRecord, seq: int) -> None:
        """Charge a record that was just written."""
        if type(record) is Step:
            self._statements.observe(record, seq)
            self._charge_step(record)
        else:
            record = replace(record, seq=seq)
            self._statements.observe(record, seq)
            self._charging.other(record)

    # Called by the run

    def allows(self, work: str) -> bool:
        """Return whether such work fits what is left; all ranks must call it together."""
        allowed = self.tracker.allows(work)
        return allowed if self.agreement is None else self.agreement.all_allow(allowed)

    @property
    def pauses(self) -> bool:
        """Whether it stopped the run, which is to continue later with a larger budget."""
        return self.tracker.budget.pauses and self.tracker.stop_reason is not None

    def document(self) -> dict[str, Any]:
        """Return the content of ``budget.json``."""
        document = self.tracker.snapshot()
        findings = [*self.tracker.findings, *unread_energy(self.meters)]
        document["findings"] = [str(finding) for finding in findings]
        budget = self.tracker.budget
        priced = self._charging.price.known
        used, currency = self.tracker.used, budget.currency
        document["unmeasured"] = unmeasured(used, currency, self.meters, priced=priced)
        document["cost"] = None
        if priced:
            self._statements.catch_up(state=False)
            until_ns = self._charging.price.until_ns
            parts = self._parts_before + parts_of(self._statements.spend, until_ns, currency)
            document["cost"] = parts.document(budget.charge_cost, currency)
        if self.meters.energy is not None:
            document["energy_quality"] = str(self.meters.energy.quality)
        if self.agreement is not None:
            ranks = {"size": self.agreement.group.size, "agreed_steps": self.agreement.agreed_steps}
            document["ranks"] = ranks
        return document

    def refresh(self) -> None:
        """Write ``budget.json`` now."""
        self._reporter.refresh()

    def _count_or_refuse(self, count: Callable[[Any], int | None]) -> Callable[[Any], int]:
        """Return a function of a batch that refuses it before its step if it cannot be counted."""
        tracker = self.tracker
        return lambda batch: counted_tokens(tracker.budget, tracker.used, count(batch), batch)

    def _first_step(self) -> None:
        self._stepped = True
        begin_metering(self.meters)
        group = self._find_group()
        if group is not None:
            self.agreement = RankAgreement(group, self.tracker, self._clock)
            self.agreement.steady = self._steady
        elif self._header.world_size > 1:
            self._limit_alone()
        if not self._reported:
            self.tracker.resume_at(self._recorder.next_step)

    def _resume_at(self, step: int) -> None:
        """Move the cut to the first step, if the loop has set another number."""
        if step != self.tracker.cut:
            self.tracker.resume_at(step)

    def _limit_alone(self) -> None:
        """Count this rank's own earlier use only: there is no group to agree with."""
        history = self._history
        if not history.spends:
            history = read_since_statements(self._run_dir, history.currency)
        mine = history.of_rank(self._rank)
        self.tracker.before = mine.spend_before(self._header, self._segment)
        message = (
            f"{self._header.world_size} ranks cannot communicate: limits apply to each rank alone"
        )
        self.tracker.findings.append(Finding(source="budget", message=message))

    def _charge_step(self, step: Step) -> None:
        usage = self._charging.charges.step(step)
        if min(astuple(usage)) < 0:
            raise InvalidValue("step", usage, "amounts of zero or more")
        if not self._reported:
            self._resume_at(step.step)
            self._reported = True
            refuse_unreported(self.tracker.budget, usage)
        priced = self._charging.step(step, usage)
        if self.agreement is not None:
            self.agreement.record_step(priced)

    def _why_stop(self) -> str | None:
        reason = self.tracker.stop_reason
        if reason is None:
            return None
        if not (self._reported or reason.asked or reason.before_start):
            down = self._parts_before.down if reason.bound.dimension.name == COST.name else 0
            charged_all = self.tracker.budget.charge_cost == "all"
            reason = dataclasses.replace(reason, before_start=True, down=down if charged_all else 0)
            self.tracker.explain(reason)
            _log.warning("%s", reason)
        self._reporter.record_stop(reason)
        return str(reason)


def count_without_limits(tracker: BudgetTracker, recorder: Recorder) -> None:
    """Count the use of a run whose budget is disabled; nothing is refused or written."""
    charges = Charges()

    def observe(record: KnownRecord, seq: int) -> None:
        del seq
        if type(record) is Step:
            tracker.count(charges.step(record), step=record.step)

    recorder.attach(observe=observe)


def drop_budget(run_dir: Path, recorder: Recorder) -> None:
    """Record that the run no longer has a budget, if it had one."""
    kept = read_kept_budget(run_dir)
    if kept is not None:
        recorder.budget_event(DROPPED, {"was": {"mode": kept.mode, "limits": dict(kept.limits)}})
        with contextlib.suppress(OSError):
            (run_dir / NAME).unlink(missing_ok=True)
