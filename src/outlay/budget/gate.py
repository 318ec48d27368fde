"""The budget inside a run: fed by the records the run writes, asked before its every step.

It joins the parts: the tracker counts, the accord keeps ranks together, the document and the
display tell. What the run used before comes from its log.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple, replace

from outlay.budget.accord import Accord
from outlay.budget.agreement import Group
from outlay.budget.bar import Display, NoDisplay, display_for
from outlay.budget.charges import Charges, ClockCharge, EnergyCharge, StepCharge
from outlay.budget.dimensions import TOKENS
from outlay.budget.document import write_document
from outlay.budget.history import History, LivePrice, read_history
from outlay.budget.measurable import (
    begin_metering,
    measured_by,
    meters_for,
    refuse_unpriced,
    refuse_unreported,
    unmeasured,
    unread_energy,
)
from outlay.budget.snapshots import check_unchanged
from outlay.budget.terms import Budget
from outlay.budget.thresholds import Threshold
from outlay.budget.torch_group import torch_group
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import ZERO, Usage, progress_of, resources_of
from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.ledger import (
    AttemptStarted,
    EndStatus,
    KnownRecord,
    Price,
    PriceChanged,
    SegmentId,
    Step,
)
from outlay.record import Recorder
from outlay.record.meters.steps import MeteredWriter
from outlay.record.meters.tokens import count_tokens
from outlay.record.recorder import Count
from outlay.record.writers import Writer

REFRESH_NS: Final = 10_000_000_000
"""How often ``budget.json`` is refreshed while the run goes on."""


class BudgetGate:
    """One process's budget, from the attempt's begin to its end.

    Args:
        budget: The limits.
        run_dir: Where the run's log and ``budget.json`` are.
        rank: Of this process; rank 0 reads the log, writes the document and shows the bar.
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
        self._charges = Charges()
        self._display: Display = NoDisplay()
        self._next_refresh_ns = 0
        self._stepped = False
        self._reported = False
        self._stop_told = False
        self._steady = False
        self._cut = 0
        self._history = read_history(run_dir) if rank == 0 else History(spends=[])
        self.tracker.findings += self._history.findings
        self._stated_before = self._history.stated
        if self._stated_before is not None and not budget.allow_change:
            check_unchanged(budget, self._stated_before)
        refuse_unpriced(budget, price)
        self.meters = meters_for(budget, os.environ, clock)

    def begin(self, recorder: Recorder, header: AttemptStarted, segment: SegmentId) -> None:
        """Take part in an attempt whose header is written."""
        self._recorder = recorder
        self._header, self._segment = header, segment
        self._price = LivePrice(header)
        self._before = self._history.spend_before(header, segment)
        self.tracker.clocks.spent_ns |= self._before.clocks_ns
        self._resume_at(recorder.next_step)
        recorder.writer = _ObservedWriter(recorder.writer, self)
        recorder.gates.append(self)
        self.tracker.on_threshold(self._tell_threshold)
        if self._rank == 0:
            self._record_terms()
            if os.environ.get("OUTLAY_PROGRESS", "1") not in ("0", "false", "off"):
                self._display = display_for(sys.stderr, self._clock)
            self.refresh()

    def before_loop(self, loader: Iterable[Any], tokens: Count) -> Count:
        """Learn what a loader can tell; return how its batches' tokens are counted."""
        if self.tracker.budget.needs_steps_per_epoch and isinstance(loader, Sized):
            with contextlib.suppress(TypeError):  # What a loader without a length raises.
                self.tracker.set_steps_per_epoch(len(loader))
                if self._rank == 0:
                    self._recorder.budget_event("epoch", {"steps_per_epoch": len(loader)})
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
        if self._clock.monotonic_ns() >= self._next_refresh_ns:
            self.refresh()
        self._display.update(self.tracker)
        return self._why_stop() if self.accord is None else None

    def finish(self, status: EndStatus) -> None:
        """Write down how the budget stands at the attempt's end."""
        if open_span := self._charges.end():
            self._charge_clock(open_span, self._recorder.now_ns())
        self._settle_money(self._recorder.now_ns())
        if energy_mj := self.meters.stop():
            self._recorder.heartbeat(energy_mj=energy_mj)  # What was used since the last step.
        if self._rank == 0:
            state = {key: self.document()[key] for key in ("totals", "clocks_ms", "stop_reason")}
            self._recorder.budget_event("ended", {"status": status, **state})
            self.refresh()
            self._display.close(self.tracker)

    def observe(self, record: KnownRecord, seq: int) -> None:
        """Charge what a record, just written, says was used."""
        if type(record) is Step:
            self._charge_step(record.step, self._charges.step(record), record.t_ns)
            return
        if isinstance(record, PriceChanged):
            self._settle_money(record.t_ns)
            self._price.change(record.t_ns, record.price, record.gpus)
        was_inside = self._charges.inside
        match self._charges.of(record, seq):
            case ClockCharge() as charge:
                self._charge_clock(charge, record.t_ns)
            case EnergyCharge(energy_mj):
                self.tracker.add(Usage(energy_mj=energy_mj))
            case StepCharge() | None:
                if self._charges.inside and not was_inside:
                    self._settle_money(record.t_ns)  # So that the span's own can be told apart.

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
        measured = measured_by(self.meters, priced=self._price.known)
        document["unmeasured"] = unmeasured(self.tracker.used, measured)
        if self.meters.energy is not None:
            document["energy_quality"] = str(self.meters.energy.quality)
        if self.accord is not None:
            ranks = {"size": self.accord.group.size, "agreed_steps": self.accord.agreed_steps}
            document["ranks"] = ranks
        return document

    def refresh(self) -> None:
        """Write ``budget.json`` as things stand; also from a signal handler, and amid a refresh."""
        self._next_refresh_ns = self._clock.monotonic_ns() + REFRESH_NS
        if self._rank == 0:
            finding = write_document(self._run_dir, self.document())
            if finding is not None and finding not in self.tracker.findings:
                self.tracker.findings.append(finding)

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
        self._resume_at(self._recorder.next_step)

    def _judge_alone(self) -> None:
        """Go on from what this rank used before: there is no group to agree with."""
        history = self._history if self._history.spends else read_history(self._run_dir)
        mine = history.of_rank(self._rank)
        self._before = mine.spend_before(self._header, self._segment)
        message = f"{self._header.world_size} ranks cannot agree: limits hold for each one alone"
        self.tracker.findings.append(Finding(source="budget", message=message))

    def _resume_at(self, step: int) -> None:
        """Start from what the log says survives below ``step``, or a loaded snapshot says."""
        self._cut = step
        charge = self.tracker.budget.charge
        logged = self._before.total(charge=charge, below=step)
        progress = progress_of(logged).largest(self.tracker.loaded_progress or ZERO)
        resources = resources_of(logged.largest(self.tracker.used))
        self.tracker.rebase(progress + resources)
        if self._stepped:
            self.tracker.loaded_progress = None

    def _charge_step(self, step: int, usage: Usage, t_ns: int) -> None:
        if step < self._cut:
            self._roll_back_before_attempt(step)
        if min(astuple(usage)) < 0:
            raise InvalidValue("step", usage, "amounts of zero or more")
        if not self._reported:
            self._reported = True
            refuse_unreported(self.tracker.budget, usage)
        usage = replace(usage, cost_units=self._price.take_units(t_ns))
        self.tracker.count(usage, step=step)
        if self.accord is not None:
            self.accord.ran(usage)

    def _roll_back_before_attempt(self, step: int) -> None:
        """The loop went back behind its own first step: less of the earlier attempts survives."""
        lost = self._before.progress_below(self._cut) - self._before.progress_below(step)
        self._cut = step
        if self.tracker.loaded_progress is None:
            self.tracker.take_back_base(lost)
        self.tracker.loaded_progress = None  # A snapshot loaded since has said so already.

    def _settle_money(self, t_ns: int) -> None:
        self.tracker.add(Usage(cost_units=self._price.take_units(t_ns)))

    def _charge_clock(self, charge: ClockCharge, t_ns: int) -> None:
        units = self._price.take_units(t_ns)
        self.tracker.charge_usage(charge.clock, Usage(time_ns=charge.time_ns, cost_units=units))

    def _why_stop(self) -> str | None:
        reason = self.tracker.stop_reason
        if reason is None:
            return None
        if not self._stop_told and self._rank == 0:
            self._stop_told = True
            self._recorder.budget_event("stopped", {"limit_key": reason.key, "text": str(reason)})
        return str(reason)

    def _record_terms(self) -> None:
        budget, before = self.tracker.budget, self._stated_before
        changes = {} if before is None else budget.changed_from(before["mode"], before["limits"])
        terms: dict[str, Any] = {"mode": budget.mode, "limits": dict(budget.limits)}
        terms |= {"charge": budget.charge, "steps_per_epoch": budget.steps_per_epoch}
        if changes:
            terms["was"] = {key: then for key, (then, _now) in changes.items()}
        self._recorder.budget_event("changed" if changes else "set", terms)

    def _tell_threshold(self, threshold: Threshold) -> None:
        if self._rank == 0:
            data = {"limit_key": threshold.bound.dimension.key, "percent": threshold.percent}
            self._recorder.budget_event("threshold", data | {"text": str(threshold)})


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
