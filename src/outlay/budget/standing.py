"""A total and its limits: used here, before and on other ranks; why to stop. Pure state."""

from __future__ import annotations

from collections.abc import Callable

from outlay.budget.fold import Surviving
from outlay.budget.limits import Bound, StopReason, Threshold, Thresholds, reached, would_pass
from outlay.budget.usage import ZERO, Usage
from outlay.errors import Finding

OnThreshold = Callable[[Threshold], None]


class Standing:
    """What a run has used as one process knows it, judged by its limits. Not thread-safe.

    Attributes:
        bounds: The limits that are judged, the mode's own first.
        total: Everything: ``base``, ``others`` and this process's own use.
        base: What the run had used before this attempt.
        others: What the other ranks add to this one's use, as last agreed.
        reason: Why the run must stop, once it must.
        listeners: Called once for each limit and each threshold.
        findings: Where what goes wrong in a listener is told.
    """

    def __init__(self, bounds: tuple[Bound, ...], findings: list[Finding]) -> None:
        self.bounds = bounds
        self.total = self.base = self.others = ZERO
        self.reason: StopReason | None = None
        self.listeners: list[OnThreshold] = []
        self.findings = findings
        self._surviving = Surviving()
        self._ahead = Thresholds(bounds, self.total)

    @property
    def own(self) -> Usage:
        """What this process has used in this attempt, rollbacks taken back."""
        return self.total - self.base - self.others

    def execute(self, usage: Usage, step: int | None) -> None:
        """Count ``usage.steps`` steps from number ``step`` on (None: the next).

        Executing a step undoes every earlier execution of it and of those that follow it.
        """
        number = self._surviving.next_step if step is None else step
        undone = self._surviving.execute(number, usage.tokens, usage.flops, usage.steps)
        self.total += usage
        if undone.steps:
            self.total -= undone
            self._judge_afresh()
        else:
            self._look_ahead()

    def add(self, usage: Usage) -> None:
        """Count what belongs to no step."""
        self.total += usage
        self._look_ahead()

    def admit(self, step: Usage) -> bool:
        """Return whether a step of this size may run; a refusal is the reason to stop."""
        self.reason = self.reason or would_pass(self.total, step, self.bounds)
        return self.reason is None

    def agree(self, base: Usage, others: Usage, reason: StopReason | None) -> None:
        """Take over what the ranks agreed on, the reason to stop included."""
        self.total += (base - self.base) + (others - self.others)
        self.base, self.others = base, others
        self._cross()
        self.reason = reason

    def take_back(self, undone: Usage) -> None:
        """Take back progress of earlier attempts."""
        self.base -= undone
        self.total -= undone
        self._judge_afresh()

    def rebase(self, total: Usage) -> None:
        """Start over from a total known from elsewhere."""
        self.total = self.base = total
        self.others, self._surviving = ZERO, Surviving()
        self._judge_afresh()

    def judge_by(self, bounds: tuple[Bound, ...]) -> None:
        """Put other limits in place of those so far."""
        self.bounds = bounds
        self._judge_afresh()

    def _look_ahead(self) -> None:
        total = self.total
        for name, mark in self._ahead.nearest:
            if getattr(total, name) >= mark:
                self._cross()
                break

    def _cross(self) -> None:
        total = self.total
        crossed = self._ahead.cross(total)
        self.reason = self.reason or reached(total, self.bounds)
        for threshold in crossed:
            for listener in self.listeners:
                self._tell(listener, threshold)

    def _tell(self, listener: OnThreshold, threshold: Threshold) -> None:
        try:
            listener(threshold)
        except Exception as error:  # noqa: BLE001 - a listener's bug must not end a training run
            message = f"a threshold listener failed: {error!r}"
            self.findings.append(Finding(source="budget", message=message, severity="warning"))

    def _judge_afresh(self) -> None:
        """Judge a total that came otherwise than by adding a step: it may have fallen."""
        self.reason = reached(self.total, self.bounds)
        self._ahead = Thresholds(self.bounds, self.total)
