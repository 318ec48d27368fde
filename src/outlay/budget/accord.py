"""One rank's side of the agreements: when to meet, what to bring, what to take home."""

from __future__ import annotations

from outlay.budget.agreement import Group, Report, Verdict, decode, encode, settle
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import ZERO, Usage
from outlay.clock import Clock


class Accord:
    """Keeps a tracker in step with the other ranks' trackers.

    Attributes:
        agreed_steps: How many steps of this attempt all ranks have agreed on.
        steady: Set where the tokens of a step are stated as a number.
        met: How many agreements there were.
    """

    def __init__(self, group: Group, tracker: BudgetTracker, clock: Clock) -> None:
        self.group = group
        self.agreed_steps = 0
        self.steady = False
        self.met = 0
        self._tracker = tracker
        self._monotonic_ns = clock.monotonic_ns
        self._largest = ZERO
        self._steps_left = 0
        self._agreement_ns = 0

    def before_step(self, step: Usage) -> Verdict | None:
        """Meet if it is time to; None means that the step may run without asking anybody.

        Raises:
            AgreementLost: A rank is gone.
        """
        if self._steps_left > 0:
            self._steps_left -= 1
            return None
        verdict = self._meet(step)
        self._steps_left = verdict.steps - 1
        return verdict

    def ran(self, usage: Usage) -> None:
        """Take note of what a step used."""
        self._largest = self._largest.largest(usage)

    def all_allow(self, allowed: bool) -> bool:  # noqa: FBT001 - the only thing it says
        """Return whether every rank allows what this one does; all ranks must ask together."""
        return all(answer == b"1" for answer in self.group.gather(b"1" if allowed else b"0"))

    def _meet(self, step: Usage) -> Verdict:
        begun_ns = self._monotonic_ns()
        own = self._tracker.own
        report = Report(
            base=self._tracker.base,
            own=own,
            next=step,
            largest=self._largest,
            steady=self.steady,
            step_ns=own.time_ns // own.steps if own.steps else 0,
            agreement_ns=self._agreement_ns,
        )
        payloads = self.group.gather(encode(report))
        reports = [decode(payload) for payload in payloads]
        verdict = settle(reports, self.group.rank, self._tracker.bounds)
        self._tracker.absorb(verdict.base, verdict.others, verdict.reason)
        self.agreed_steps = own.steps
        self.met += 1
        took_ns = self._monotonic_ns() - begun_ns
        # A running mean: the first meeting also connects, and a busy machine has its moments.
        self._agreement_ns = (3 * (self._agreement_ns or took_ns) + took_ns) // 4
        return verdict
