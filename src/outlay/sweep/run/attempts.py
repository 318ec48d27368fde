"""A running attempt and why it must end; whether a failed run is started once more."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay.guard.gate import Leaseholder
from outlay.guard.lease import End, GiveNotice
from outlay.record.supervision import Supervision
from outlay.sweep.engines.base import Engine
from outlay.sweep.engines.ports import was_taken
from outlay.sweep.plan.launch import Place
from outlay.sweep.plan.plan import NOTICE_NS, PlannedRun
from outlay.sweep.state.outcomes import RunVerdict

# How often runs were started, and whether one that failed is started once more.

MOST_PORTS: Final = 4
"""Ports that a run is tried on before it counts as failed, if others keep taking them."""
_TAIL_BYTES: Final = 1 << 18
"""How much of the end of a failed run's output is searched for the reason."""


class StartCounter:
    """The starts of every run that count as its own."""

    def __init__(self) -> None:
        self._started: Counter[str] = Counter()
        self._ports_lost: Counter[str] = Counter()

    def count(self, run: PlannedRun) -> None:
        """Record a start."""
        self._started[run.id] += 1

    def may_try_again(self, run: PlannedRun, *, port_lost: bool) -> bool:
        """Say whether a failed run is started once more; a lost port is not its own failure."""
        if port_lost and self._ports_lost[run.id] + 1 < MOST_PORTS:
            self._ports_lost[run.id] += 1
            self._started[run.id] -= 1
            return True
        return self._started[run.id] <= run.settings.retries


def lost_its_port(log: Path, since: int, port: int) -> bool:
    """Say whether an attempt failed because another program took its port first.

    ``log`` is what the run printed, this attempt after the first ``since`` bytes.
    """
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(max(since, log.stat().st_size - _TAIL_BYTES))
        return was_taken(stream.read().decode(errors="replace"), port)
    return False


# A running attempt, and why it must end: cancelled, out of time, out of money.

CANCELLED: Final = RunVerdict("cancelled", "the sweep was cancelled")
NO_MONEY: Final = RunVerdict("cancelled", "the ceiling left no more money for it")


@dataclass(slots=True, kw_only=True)
class Active:
    """A running attempt.

    Attributes:
        started_ns: When it started, on the monotonic clock.
        funds: The hold that pays for it, where the sweep has a ceiling.
        log: What the harness writes of it in the run's log; None where it supervises itself.
        log_size: How many bytes the run had printed before this attempt.
        stopped: What the run becomes because it was asked to end.
        noticed_ns: After how long it was asked to end.
    """

    run: PlannedRun
    ticket: str
    engine: Engine
    started_ns: int
    place: Place
    funds: Leaseholder | None = None
    log: Supervision | None = None
    log_size: int = 0
    stopped: RunVerdict | None = None
    noticed_ns: int = 0

    def enforce_limits(self, now_ns: int, *, asked: int) -> None:
        """SIGTERM on cancel, timeout or no money; SIGKILL after the notice.

        ``asked`` is how often somebody has asked for the end of the sweep; twice forces it.
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

    def _give_notice(self, reason: RunVerdict, elapsed_ns: int) -> None:
        self.stopped = reason
        self.noticed_ns = elapsed_ns
        if self.funds is not None:
            self.funds.give_notice(elapsed_ns)
        self.engine.cancel(self.ticket)

    def _notice_is_over(self, elapsed_ns: int) -> bool:
        if self.funds is not None and not self.engine.remote:
            return isinstance(self.funds.renew(elapsed_ns), End)
        return elapsed_ns >= self.noticed_ns + NOTICE_NS

    def _reason_to_stop(self, elapsed_ns: int) -> RunVerdict | None:
        """Return what the run becomes if it must end by now; more money is asked for first."""
        if self.engine.remote:
            return None  # A job keeps its own time, which was paid for when it was submitted.
        timeout = self.run.settings.timeout
        if timeout is not None and elapsed_ns >= timeout.ns:
            return RunVerdict("error", f"timeout: not done after {timeout}")
        if self.funds is not None and isinstance(self.funds.renew(elapsed_ns), GiveNotice):
            return NO_MONEY
        return None
