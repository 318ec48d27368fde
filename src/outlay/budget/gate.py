"""The budget inside a run: fed by the records the run writes, asked before its every step.

It joins the parts: the past, the charging and the tracker count, the accord keeps ranks together,
the telling tells.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from outlay.budget.accord import Accord
from outlay.budget.agreement import Group
from outlay.budget.charging import Charging
from outlay.budget.dimensions import COST, TOKENS
from outlay.budget.history import History, read_since_statements
from outlay.budget.measurable import (
    begin_metering,
    measured_by,
    meters_for,
    refuse_unpriced,
    refuse_unreported,
    unmeasured,
    unread_energy,
)
from outlay.budget.past import Past
from outlay.budget.snapshots import check_unchanged
from outlay.budget.statement_writer import StatementWriter
from outlay.budget.telling import Telling
from outlay.budget.terms import Budget
from outlay.budget.torch_group import torch_group
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.ledger import AttemptStarted, EndStatus, KnownRecord, Price, SegmentId, Step
from outlay.record import Recorder
from outlay.record.meters.steps import MeteredWriter
from outlay.record.meters.tokens import count_tokens
from outlay.record.recorder import Count
from outlay.record.writers import Writer

_log = logging.getLogger("outlay")


class BudgetGate:
    """One process's budget, from the attempt's begin to its end.

    Args:
        budget: The limits.
        run_dir: Where the run's log and ``budget.json`` are.
        rank: Of this process; rank 0 reads the log and tells how the budget stands.
        price: Of one GPU-hour; needed where money is limited.
        clock: Read at agreements and refreshes.
        find_group: Returns the ranks that train together, once there are any.

    Raises:
        BudgetChanged: The run started with other limits, and no change is allowed.
        BudgetRefused: Energy or money is limited and nothing here can measure it.
    """

    def __init__(
        self,
        budget: Budget,
        run_dir: Path,
        *,
        rank: int = 0,
        price: Price | None = None,
        clock: Clock = SYSTEM,
        find_group: Callable[[], Group | None] = torch_group,
    ) -> None:
        self.tracker = BudgetTracker.of(budget, clock=clock)
        self.accord: Accord | None = None
        self._run_dir = run_dir
        self._rank = rank
        self._clock = clock
        self._find_group = find_group
        self._stepped = False
        self._reported = False
        self._steady = False
        self._history = read_since_statements(run_dir) if rank == 0 else History(spends=[])
        self.tracker.findings += self._history.findings
        if self._history.stated is not None and not budget.allow_change:
            check_unchanged(budget, self._history.stated)
        refuse_unpriced(budget, price)
        self.meters = meters_for(budget, os.environ, clock)

    def begin(self, recorder: Recorder, header: AttemptStarted, segment: SegmentId) -> None:
        """Take part in an attempt whose header is written."""
        self._recorder = recorder
        self._header, self._segment = header, segment
        self._charging = Charging(self.tracker, header)
        before = self._history.spend_before(header, segment)
        self.tracker.clocks.spent_ns |= before.clocks_ns
        self._past = Past(self.tracker, before)
        self._parts_before = before.parts
        self._past.resume_at(recorder.next_step)
        self._statements = StatementWriter(segment, header, recorder.writer)
        recorder.writer = _ObservedWriter(recorder.writer, self)
        recorder.gates.append(self)
        self._telling = Telling(
            self._rank, self.tracker, recorder,
            run_dir=self._run_dir, document=self.document, clock=self._clock,
        )  # fmt: skip
        self._telling.terms(self._history.stated)
        self.refresh()

    def before_loop(self, loader: Iterable[Any], tokens: Count) -> Count:
        """Learn what a loader can tell; return how its batches' tokens are counted."""
        if self.tracker.budget.needs_steps_per_epoch and isinstance(loader, Sized):
            with contextlib.suppress(TypeError):  # What a loader without a length raises.
                self.tracker.set_steps_per_epoch(len(loader))
                self._telling.epoch(len(loader))
        _ = self.tracker.budget.bounds  # Refuses epochs whose length nobody stated.
        self._steady = isinstance(tokens, int)
        if self.accord is not None:
            self.accord.steady = self._steady
        counts_tokens = tokens is None and TOKENS.key in self.tracker.budget.limits
        return count_tokens if counts_tokens else tokens

    # What the recorder calls

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
        step = Usage(tokens=tokens, steps=1)
        if self.accord is None:
            self.tracker.admit(step)
            return self._why_stop()
        return None if self.accord.before_step(step) is None else self._why_stop()

    def after_step(self, step: Step) -> str | None:
        """Return why no further step may run; ranks find out together, before the next one."""
        del step
        self._telling.step()
        return self._why_stop() if self.accord is None else None

    def finish(self, status: EndStatus) -> None:
        """Charge what is left, and write down how the budget stands at the attempt's end."""
        self._charging.finish(self._recorder.now_ns())
        if energy_mj := self.meters.stop():
            self._recorder.heartbeat(energy_mj=energy_mj)  # What was used since the last step.
        self._telling.ended(status)
        self._statements.catch_up(state=True)

    def observe(self, record: KnownRecord, seq: int) -> None:
        """Charge what a record, just written, says was used."""
        self._statements.observe(record, seq)
        if type(record) is Step:
            self._charge_step(record)
        else:
            self._charging.other(record, seq)

    # What a training loop asks

    def allows(self, work: str) -> bool:
        """Return whether such work fits what is left; on several ranks all must ask together."""
        allowed = self.tracker.allows(work)
        return allowed if self.accord is None else self.accord.all_allow(allowed)

    def document(self) -> dict[str, Any]:
        """Return what ``budget.json`` holds."""
        document = self.tracker.snapshot()
        findings = [*self.tracker.findings, *unread_energy(self.meters)]
        document["findings"] = [str(finding) for finding in findings]
        measured = measured_by(self.meters, priced=self._charging.priced)
        document["unmeasured"] = unmeasured(self.tracker.used, measured)
        document["cost"] = None
        if self._charging.priced:
            parts = self._parts_before + self._charging.parts
            document["cost"] = parts.document(self.tracker.budget.charge_cost)
        if self.meters.energy is not None:
            document["energy_quality"] = str(self.meters.energy.quality)
        if self.accord is not None:
            ranks = {"size": self.accord.group.size, "agreed_steps": self.accord.agreed_steps}
            document["ranks"] = ranks
        return document

    def refresh(self) -> None:
        """Write ``budget.json`` as things stand."""
        self._telling.refresh()

    # How it does that

    def _first_step(self) -> None:
        self._stepped = True
        begin_metering(self.meters)
        group = self._find_group()
        if group is not None:
            self.accord = Accord(group, self.tracker, self._clock)
            self.accord.steady = self._steady
        elif self._header.world_size > 1:
            self._judge_alone()
        self._past.resume_at(self._recorder.next_step)
        self.tracker.loaded_progress = None

    def _judge_alone(self) -> None:
        """Go on from what this rank used before: there is no group to agree with."""
        history = self._history if self._history.spends else read_since_statements(self._run_dir)
        mine = history.of_rank(self._rank)
        self._past = Past(self.tracker, mine.spend_before(self._header, self._segment))
        message = f"{self._header.world_size} ranks cannot agree: limits hold for each one alone"
        self.tracker.findings.append(Finding(source="budget", message=message))

    def _charge_step(self, step: Step) -> None:
        usage = self._charging.usage(step)
        self._past.runs(step.step)
        if min(astuple(usage)) < 0:
            raise InvalidValue("step", usage, "amounts of zero or more")
        if not self._reported:
            self._reported = True
            refuse_unreported(self.tracker.budget, usage)
        priced = self._charging.step(step, usage)
        if self.accord is not None:
            self.accord.ran(priced)

    def _why_stop(self) -> str | None:
        reason = self.tracker.stop_reason
        if reason is None:
            return None
        if not (self._reported or reason.asked or reason.before_start):
            down = self._parts_before.down if reason.bound.dimension is COST else 0
            charged_all = self.tracker.budget.charge_cost == "all"
            reason = replace(reason, before_start=True, down=down if charged_all else 0)
            self.tracker.explain(reason)
            _log.warning("%s", reason)
        self._telling.stopped(reason)
        return str(reason)


class _ObservedWriter(MeteredWriter):
    """Writes through to a segment, metering each step first and telling the gate after."""

    def __init__(self, inner: Writer, gate: BudgetGate) -> None:
        super().__init__(inner, gate.meters)
        self._gate = gate

    def append(self, record: KnownRecord) -> int:
        """Write one record, charge it, and return its sequence number."""
        if type(record) is Step:
            record = self._meters.fill(record)
        seq = self._inner.append(record)
        self._gate.observe(record, seq)
        return seq
