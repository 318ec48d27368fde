"""Counts what a run uses against its limits, and says when to stop.

Uses no files and no process group. Thread-safe; time is monotonic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import astuple, replace

from outlay.budget import snapshots
from outlay.budget.fold import RunSpend
from outlay.budget.limits import (
    Bound,
    Forecast,
    RecentUse,
    StopReason,
    Threshold,
    Thresholds,
    forecast,
    reached,
    would_pass,
)
from outlay.budget.measurements import millijoules, money_units, step_usage
from outlay.budget.surviving import Surviving
from outlay.budget.terms import Budget
from outlay.budget.usage import (
    CLOCKS,
    TRAINING,
    ZERO,
    Usage,
    check_clock,
    progress_of,
    resources_of,
)
from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.rates import units as priced_units
from outlay.units import Money, Rate

OnThreshold = Callable[[Threshold], None]


class BudgetTracker:
    """Counts what a run uses against its limits; every limit that is set binds.

    Args:
        mode: Names the limit that must be set, such as ``iso_tokens``.
        limits: Limits by configuration key, such as ``{"max_tokens": 50_000}``.
        charge: ``all`` counts evaluation, checkpoints and logging as time, see ``spend``;
            ``training`` does not count their money either.
        rate: The price of an hour, in the currency of the limit on money (default USD); prices
            steps whose cost is not stated.
        clock: Times the block of ``spend``.

    Attributes:
        bounds: The limits in effect, the mode's own first.
        used: What was used so far, over all ranks as of their last all-gather.
        base: What the run had used before this attempt.
        stop_reason: The limit that stops the run, and by how much it is or would be exceeded.

    Raises:
        InvalidValue: The limits are not valid; the message names the key and the valid ones.
    """

    def __init__(
        self,
        mode: str,
        limits: Mapping[str, object],
        *,
        charge: str | None = None,
        rate: Rate | str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._start(Budget.of(mode, limits, charge=charge), rate=rate, clock=clock)
        self._set_bounds(self.budget.bounds)  # Raises for epochs of unknown length.

    @classmethod
    def of(
        cls, budget: Budget, *, rate: Rate | str | None = None, clock: Clock = SYSTEM
    ) -> BudgetTracker:
        """Return the tracker of a budget value such as ``outlay.iso_time("2h")``."""
        tracker = cls.__new__(cls)
        tracker._start(budget, rate=rate, clock=clock)
        return tracker

    def _start(self, budget: Budget, *, rate: Rate | str | None, clock: Clock) -> None:
        self.budget = budget
        self.clocks_ns = dict.fromkeys(CLOCKS, 0)
        self._largest_on: dict[str, Usage] = {}
        self.findings: list[Finding] = []
        # Earlier attempts' use; their progress from step ``cut``, this one's first, on is undone.
        self.before, self.cut = RunSpend(()), 0
        self._loaded_progress: Usage | None = None
        self._currency = budget.currency
        self._rate = None if rate is None else _read_rate(rate, self._currency)
        self._clock = clock
        self._lock = threading.RLock()
        self._recent = RecentUse()
        self._joined = (ZERO, ZERO)
        self.bounds = budget.bounds_known
        self.used = self.base = self._others = ZERO
        self.stop_reason: StopReason | None = None
        self._listeners: list[OnThreshold] = []
        self._surviving = Surviving()
        self._ahead = Thresholds(self.bounds, self.used)

    def update(
        self,
        step_samples: int,
        step_wall_ms: float,
        comm_bytes: int = 0,
        energy_Wh: float = 0.0,
        *,
        cost: Money | float | None = None,
        flops: int = 0,
        step: int | None = None,
    ) -> None:
        """Count one micro-batch.

        Args:
            step_samples: Its tokens, including every augmented view.
            step_wall_ms: Milliseconds it took, including the wait for its data.
            comm_bytes: Payload bytes of its collectives.
            energy_Wh: Energy it used (a difference, not a meter's reading).
            cost: Its cost, if the tracker has no rate; a number is in the limit's currency.
            flops: Its floating-point operations.
            step: Its number, if not the last one's + 1; a lower number is a rollback, which takes
                back the progress it undoes.

        Raises:
            InvalidValue: An amount is negative, NaN or infinite.
        """
        usage = step_usage(
            step_samples, step_wall_ms, comm_bytes, energy_Wh, cost, flops, self._rate,
            self._currency,
        )  # fmt: skip
        self.count(usage, step=step)

    def count(
        self,
        usage: Usage,
        *,
        step: int | None = None,
        end_ns: int | None = None,
        own: Usage | None = None,
    ) -> None:
        """Count ``usage.steps`` micro-batches from number ``step`` on (None: the next).

        A step undoes every earlier execution of itself and of higher-numbered steps. ``end_ns`` is
        when it ended (default: after all time that was counted); ``own`` is its use without money
        for the time before it (default: all).
        """
        with self._lock:
            self.clocks_ns[TRAINING] += usage.time_ns
            if end_ns is None:
                end_ns = sum(self.clocks_ns.values())
            self._recent.add_step(end_ns, usage, usage if own is None else own)
            number = self._surviving.next_step if step is None else step
            if number < self.cut:
                self._undo_earlier(number)
            undone = self._surviving.execute(number, usage.tokens, usage.flops, usage.steps)
            self.used += usage
            if undone.steps:
                self.used -= undone
                self._reevaluate()
            else:
                self._check_thresholds()

    def would_exceed(
        self,
        step_samples: int = 0,
        step_wall_ms: float = 0.0,
        comm_bytes: int = 0,
        energy_Wh: float = 0.0,
        *,
        cost: Money | float | None = None,
        flops: int = 0,
    ) -> bool:
        """Return whether one more step of this size would exceed a limit; reaching it is fine."""
        usage = step_usage(
            step_samples, step_wall_ms, comm_bytes, energy_Wh, cost, flops, self._rate,
            self._currency,
        )  # fmt: skip
        return would_pass(self.used, usage, self.bounds) is not None

    def admit(self, step: Usage) -> bool:
        """Return whether a step of this size may run; a refusal becomes the stop reason."""
        with self._lock:
            self.stop_reason = self.stop_reason or would_pass(self.used, step, self.bounds)
            return self.stop_reason is None

    def should_stop(self) -> bool:
        """Return whether a limit is reached, or a step was refused because it would exceed one."""
        return self.stop_reason is not None

    @contextmanager
    def spend(self, clock: str) -> Iterator[None]:
        """Time an evaluation, a checkpoint or logging: ``with tracker.spend("evaluation"):``."""
        check_clock(clock)
        begun_ns = self._clock.monotonic_ns()
        try:
            yield
        finally:
            self.charge(clock, self._clock.monotonic_ns() - begun_ns)

    def charge(
        self,
        clock: str,
        time_ns: int,
        *,
        energy_Wh: float = 0.0,
        cost: Money | float | None = None,
    ) -> None:
        """Charge work outside the steps: its energy, its money, and with ``all`` its time.

        With ``charge="training"`` its money is not charged.

        Raises:
            InvalidValue: An amount is negative, NaN or infinite, or there is no such clock.
        """
        if time_ns < 0:
            raise InvalidValue("time_ns", time_ns, "a whole number of nanoseconds, zero or more")
        if cost is not None:
            units = money_units(cost, self._currency)
        else:
            units = 0 if self._rate is None else priced_units(self._rate, time_ns)
        energy_mj = millijoules(energy_Wh)
        self.charge_usage(clock, Usage(time_ns=time_ns, cost_units=units, energy_mj=energy_mj))

    def charge_usage(self, clock: str, usage: Usage) -> None:
        """Charge work outside the steps, given as a ``Usage``."""
        with self._lock:
            self.clocks_ns[check_clock(clock)] += usage.time_ns
            self._largest_on[clock] = usage.largest(self._largest_on.get(clock, ZERO))
            self.add(self._charged(usage))

    def add(self, usage: Usage) -> None:
        """Charge what belongs to no step and no clock."""
        with self._lock:
            self._recent.add(usage)
            self.used += usage
            self._check_thresholds()

    def allows(self, clock: str) -> bool:
        """Return whether such work fits what is left, predicted from the largest use so far.

        The first one always fits, unless the run must stop anyway.
        """
        predicted = self._largest_on.get(check_clock(clock))
        if predicted is None or self.should_stop():
            return not self.should_stop()
        return would_pass(self.used, self._charged(predicted), self.bounds) is None

    def on_threshold(self, listener: OnThreshold) -> OnThreshold:
        """Call ``listener`` once for each limit and each of 50, 75, 90 and 100 %; a decorator."""
        self._listeners.append(listener)
        return listener

    def forecast(self) -> Forecast | None:
        """Return when the run will stop at its present pace; None before the first step.

        The pace is that of the last five minutes, or of the last 20 steps if they took longer.
        """
        with self._lock:
            recent_ns, recent = self._recent.pace
            pairs = zip(*map(astuple, (recent, *self._joined)), strict=True)
            scaled = Usage(*(mine * all_ // own if own else mine for mine, own, all_ in pairs))
            return forecast(self.used, scaled, recent_ns, self.bounds)

    @property
    def totals(self) -> dict[str, int | float]:
        """What was used so far, under the documented names."""
        return snapshots.totals_of(self.used, self.budget.steps_per_epoch, self._currency)

    @property
    def remaining(self) -> dict[str, int | float]:
        """What is left of each limit, under its key; negative once it is exceeded."""
        return snapshots.remaining_of(self.used, self.budget)

    @property
    def fraction_used(self) -> float:
        """The used fraction of the limit that is closest to its end; may exceed 1."""
        return max((bound.share(self.used) for bound in self.bounds), default=0.0)

    def snapshot(self) -> dict[str, Any]:
        """Return the budget's state for a checkpoint; ``load`` restores it."""
        with self._lock:
            return snapshots.snapshot_of(
                self.budget, self.used, dict(self.clocks_ns), self.stop_reason
            )

    def load(self, snapshot: Mapping[str, Any] | None, *, allow_change: bool = False) -> None:
        """Resume from a checkpoint's snapshot; an empty one changes nothing.

        Progress becomes the snapshot's, which survived with the model. A resource is never
        refunded: it becomes the larger of the two.

        Raises:
            BudgetChanged: Its mode or limits are not this tracker's, and no change is allowed.
            InvalidValue: A total is missing or impossible; nothing was changed.
        """
        if not snapshot:
            return
        if not (allow_change or self.budget.allow_change):
            snapshots.check_unchanged(self.budget, snapshot)
        snapshots.check_totals(snapshot, self._currency)
        with self._lock:
            saved, _ = snapshots.usage_in(snapshot, otherwise=self.used, currency=self._currency)
            self.clocks_ns |= snapshots.clocks_in(snapshot, at_least=self.clocks_ns)
            if self.budget.steps_per_epoch is None and snapshot.get("steps_per_epoch"):
                self.set_steps_per_epoch(int(snapshot["steps_per_epoch"]))
            self._loaded_progress = progress_of(saved)
            self.rebase(self._loaded_progress + resources_of(self.used.largest(saved)))

    def resume_at(self, step: int, before: RunSpend | None = None) -> None:
        """Start from what survives below ``step`` by the log or by a loaded snapshot.

        ``before`` is what earlier attempts used, if that was not known yet.
        """
        with self._lock:
            self.before, self.cut = before or self.before, step
            charge, charge_cost = self.budget.charge, self.budget.charge_cost
            logged = self.before.total(charge=charge, charge_cost=charge_cost, below=step)
            progress = progress_of(logged).largest(self._loaded_progress or ZERO)
            self.rebase(progress + resources_of(logged.largest(self.used)))
            self._loaded_progress = None

    def _undo_earlier(self, step: int) -> None:
        """Undo earlier attempts' progress from ``step`` on: the step has run again."""
        lost = self.before.progress_below(self.cut) - self.before.progress_below(step)
        self.cut = step
        if self._loaded_progress is None:
            self.take_back_base(lost)
        self._loaded_progress = None  # A snapshot loaded since has it already.

    def rebase(self, total: Usage) -> None:
        """Restart from a total known from a snapshot or the run log."""
        with self._lock:
            self.used = self.base = total
            self._others, self._surviving = ZERO, Surviving()
            self._reevaluate()

    def take_back_base(self, undone: Usage) -> None:
        """Take back progress of earlier attempts that a rollback undid."""
        with self._lock:
            self.base -= undone
            self.used -= undone
            self._reevaluate()

    def state_dict(self) -> dict[str, str]:
        """Return the snapshot for PyTorch checkpoints, including torch.distributed's."""
        return {"budget": snapshots.as_json(self.snapshot())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from the result of ``state_dict``."""
        self.load(snapshots.from_json(state_dict["budget"]))

    def set_steps_per_epoch(self, steps_per_epoch: int) -> None:
        """Set the length of an epoch, unless the configuration did."""
        with self._lock:
            self.budget = self.budget.for_epochs_of(steps_per_epoch)
            self._set_bounds(self.budget.bounds)

    @property
    def own(self) -> Usage:
        """What this process has used since its start, net of rollbacks."""
        return self.used - self.base - self._others

    def absorb(self, base: Usage, others: Usage, reason: StopReason | None = None) -> None:
        """Apply the result of an all-gather; ``others`` is the use of the other ranks."""
        with self._lock:
            self.used += (base - self.base) + (others - self._others)
            self.base, self._others = base, others
            self._joined = (self.own, self.own + others)  # All ranks advance as this one does.
            self._report_thresholds()
            self.stop_reason = reason

    def _charged(self, usage: Usage) -> Usage:
        """Return the charged part of the use of work outside the steps."""
        time_ns = usage.time_ns if self.budget.charge == "all" else 0
        cost_units = usage.cost_units if self.budget.charge_cost == "all" else 0
        return replace(usage, time_ns=time_ns, cost_units=cost_units)

    def explain(self, reason: StopReason) -> None:
        """Replace the stop reason by a more detailed one."""
        with self._lock:
            self.stop_reason = reason

    def _set_bounds(self, bounds: tuple[Bound, ...]) -> None:
        self.bounds = bounds
        self._reevaluate()

    def _reevaluate(self) -> None:
        """Recompute stop reason and thresholds after a change that may have lowered the total."""
        self.stop_reason = reached(self.used, self.bounds)
        self._ahead = Thresholds(self.bounds, self.used)

    def _check_thresholds(self) -> None:
        used = self.used
        for name, mark in self._ahead.nearest:
            if getattr(used, name) >= mark:
                self._report_thresholds()
                break

    def _report_thresholds(self) -> None:
        crossed = self._ahead.cross(self.used)
        self.stop_reason = self.stop_reason or reached(self.used, self.bounds)
        for threshold in crossed:
            for listener in self._listeners:
                self._call(listener, threshold)

    def _call(self, listener: OnThreshold, threshold: Threshold) -> None:
        try:
            listener(threshold)
        except Exception as error:  # noqa: BLE001 - a listener's bug must not end a training run
            message = f"a threshold listener failed: {error!r}"
            self.findings.append(Finding(source="budget", message=message, severity="warning"))


def _read_rate(rate: Rate | str, currency: str) -> Rate:
    read = Rate.parse(rate, name="rate", currency=currency)
    if read.currency != currency:
        raise InvalidValue("rate", str(read), f"an amount per hour in {currency}, as is counted")
    return read
