"""Writing down what happens to runs: in the journal at once, in the manifest when it is written."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.decoding import convert
from outlay.sweep.attempt_cost import AttemptCost
from outlay.sweep.engines.base import Ended
from outlay.sweep.journal import Event, Journal, Status
from outlay.sweep.manifest import Manifest
from outlay.sweep.outcomes import Verdict


@dataclass(frozen=True, slots=True)
class Recording:
    """A sweep's two files, kept in step."""

    manifest: Manifest
    journal: Journal

    def note(self, run: str, status: Status, **facts: object) -> None:
        """Write down what a run is from now on.

        Raises:
            SweepNotRecorded: The journal cannot be written.
        """
        about = {"t_ns": self.journal.now_ns(), "run": run, "status": status, **facts}
        event = convert(about, Event)
        # A start that cannot be written down does not happen; an end has happened all the same.
        self.journal.append(event, keep=status != "running")
        self.manifest.apply(run, event)

    def correct(self, run: str, more: AttemptCost) -> None:
        """Write down that a run that has ended cost more than was known then.

        Raises:
            SweepNotRecorded: The journal cannot be written.
        """
        assert more.cost is not None
        status = self.manifest.state(run).status
        self.note(
            run, status, corrects=True, cost_micros=more.cost.micros,
            currency=more.cost.currency, logged_micros=more.logged_micros,
        )  # fmt: skip

    def end(self, run: str, verdict: Verdict, ended: Ended, priced: AttemptCost) -> None:
        """Write down how an attempt ended and what it cost.

        Raises:
            SweepNotRecorded: The journal cannot be written.
        """
        self.note(run, verdict.status, **_end_facts(verdict, ended, priced))


def expect_end(
    manifest: Manifest, run: str, verdict: Verdict, ended: Ended, priced: AttemptCost
) -> None:
    """Count an attempt as ended in this process alone: whoever runs the sweep writes it down."""
    about = {"t_ns": manifest.clock.wall_ns(), "run": run, "status": verdict.status}
    manifest.apply(run, convert(about | _end_facts(verdict, ended, priced), Event))


def _end_facts(verdict: Verdict, ended: Ended, priced: AttemptCost) -> dict[str, object]:
    cost = priced.cost
    return {
        "reason": verdict.reason,
        "returncode": ended.returncode,
        "elapsed_ns": ended.elapsed_ns,
        "cost_micros": None if cost is None else cost.micros,
        "currency": "" if cost is None else cost.currency,
        "logged_micros": priced.logged_micros,
    }
