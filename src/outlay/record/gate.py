"""What may stop a loop: a gate is asked before a step and told after it.

Budgets and guards are gates. The recorder knows nothing else about them.
"""

from __future__ import annotations

from typing import Protocol

from outlay.ledger import EndStatus, Step


class Gate(Protocol):
    """Decides whether training goes on; every gate that is attached binds."""

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why a step of this size must not run, or None to let it run."""

    def after_step(self, step: Step) -> str | None:
        """Take note of a step that ran; return why no further one may, or None."""

    def finish(self, status: EndStatus) -> None:
        """The attempt is over; nothing is recorded after this returns."""
