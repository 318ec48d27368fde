"""Where the time went: a clock each for training, evaluation, checkpoints and logging.

Pure state. Only training is charged to a time limit, unless the budget charges ``all``; each clock
remembers its dearest use, from which the next one is predicted.
"""

from __future__ import annotations

from typing import Final

from outlay.budget.usage import ZERO, Usage
from outlay.errors import InvalidValue, choices

TRAINING: Final = "training"
CLOCKS: Final = (TRAINING, "evaluation", "checkpoint", "logging")
CLOCK_OF_SPAN: Final = {
    "evaluation": "evaluation",
    "checkpoint_save": "checkpoint",
    "checkpoint_restore": "checkpoint",
    "logging": "logging",
}


class Clocks:
    """Nanoseconds by clock, and the dearest single use of each."""

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys(CLOCKS, 0)
        self._dearest: dict[str, Usage] = {}

    def add(self, name: str, usage: Usage) -> None:
        """Record that ``name`` ran once and used this much; ``time_ns`` is what it took."""
        self.spent_ns[check_clock(name)] += usage.time_ns
        self._dearest[name] = usage.largest(self._dearest.get(name, ZERO))

    def predicted(self, name: str) -> Usage | None:
        """Return what the next use is expected to take at most; None before the first."""
        return self._dearest.get(check_clock(name))


def check_clock(name: str) -> str:
    """Return the name of a clock, or refuse it."""
    if name not in CLOCKS:
        raise InvalidValue("budget clock", name, choices(CLOCKS))
    return name
