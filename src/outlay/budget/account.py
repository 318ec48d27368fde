"""What a run has used as one process knows it: before this attempt, here, and on other ranks.

Pure state. Whether that is too much is the subject of ``outlay.budget.limits``.
"""

from __future__ import annotations

from outlay.budget.surviving import Surviving
from outlay.budget.usage import ZERO, Usage


class Account:
    """A total, and where it comes from.

    Attributes:
        total: Everything: ``base``, ``others`` and this process's own use.
        base: What the run had used before this attempt.
        others: What the other ranks add to this one's use, as last agreed.
    """

    def __init__(self, base: Usage = ZERO) -> None:
        self.total = self.base = base
        self.others = ZERO
        self._surviving = Surviving()

    @property
    def own(self) -> Usage:
        """What this process has used in this attempt, rollbacks taken back."""
        return self.total - self.base - self.others

    def execute(self, usage: Usage, step: int | None) -> bool:
        """Count ``usage.steps`` steps from number ``step`` (None: the next); say if that undid any.

        Executing a step undoes every earlier execution of it and of those that follow it.
        """
        surviving = self._surviving
        number = surviving.next_step if step is None else step
        undone = surviving.execute(number, usage.tokens, usage.flops, usage.steps)
        self.total += usage
        if not undone.steps:
            return False
        self.total -= undone
        return True

    def take_back(self, undone: Usage) -> None:
        """Take back progress of earlier attempts."""
        self.base -= undone
        self.total -= undone

    def agree(self, base: Usage, others: Usage) -> None:
        """Take over what the ranks agreed on, in place of what was known."""
        self.total += (base - self.base) + (others - self.others)
        self.base, self.others = base, others
