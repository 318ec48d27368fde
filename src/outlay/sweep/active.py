"""One attempt that goes on, and why it must end: cancelled, out of time, out of money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlay.guard.lease import End, GiveNotice
from outlay.record.supervision import Supervision
from outlay.sweep.engines.base import Engine
from outlay.sweep.money import Funds
from outlay.sweep.outcomes import Verdict
from outlay.sweep.plan import PlannedRun
from outlay.sweep.prediction import NOTICE_NS
from outlay.sweep.room import ELSEWHERE, Share

CANCELLED: Final = Verdict("cancelled", "the sweep was cancelled")
NO_MONEY: Final = Verdict("cancelled", "the ceiling left no more money for it")


@dataclass(slots=True, kw_only=True)
class Active:
    """One attempt that goes on.

    Attributes:
        started_ns: When it started, on the monotonic clock.
        share: What it was given of this machine.
        funds: The hold that pays for it, where the sweep has a ceiling.
        log: What the harness writes of it in the run's log; None where it supervises itself.
        log_size: How many bytes the run had printed before this attempt.
        stopped: What the run becomes because it was told to end.
        told_ns: After how long it was told to end.
    """

    run: PlannedRun
    ticket: str
    engine: Engine
    started_ns: int
    share: Share = ELSEWHERE
    funds: Funds | None = None
    log: Supervision | None = None
    log_size: int = 0
    stopped: Verdict | None = None
    told_ns: int = 0

    def mind(self, now_ns: int, *, asked: int) -> None:
        """Tell it to end if it must: cancelled, out of time, out of money. End it if it does not.

        Args:
            now_ns: The monotonic clock.
            asked: How often somebody has asked for the end of the sweep; twice forces it.

        Raises:
            SpendLogUnusable: Nobody can say whether there is money.
        """
        if self.log is not None:
            self.log.beat()
        elapsed_ns = now_ns - self.started_ns
        if self.stopped is None:
            reason = CANCELLED if asked else self._reason_to_stop(elapsed_ns)
            if reason is not None:
                self._give_notice(reason, elapsed_ns)
        if self.stopped is not None and (asked > 1 or self._notice_is_over(elapsed_ns)):
            self.engine.cancel(self.ticket, force=True)

    def _give_notice(self, reason: Verdict, elapsed_ns: int) -> None:
        self.stopped = reason
        self.told_ns = elapsed_ns
        if self.funds is not None:
            self.funds.give_notice(elapsed_ns)
        self.engine.cancel(self.ticket)

    def _notice_is_over(self, elapsed_ns: int) -> bool:
        if self.funds is not None and not self.engine.remote:
            return isinstance(self.funds.tend(elapsed_ns), End)
        return elapsed_ns >= self.told_ns + NOTICE_NS

    def _reason_to_stop(self, elapsed_ns: int) -> Verdict | None:
        """Return what the run becomes if it must end by now; more money is asked for first."""
        if self.engine.remote:
            return None  # A job keeps its own time, which was paid for when it was submitted.
        timeout = self.run.settings.timeout
        if timeout is not None and elapsed_ns >= timeout.ns:
            return Verdict("error", f"timeout: not done after {timeout}")
        if self.funds is not None and isinstance(self.funds.tend(elapsed_ns), GiveNotice):
            return NO_MONEY
        return None
