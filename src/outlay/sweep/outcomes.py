"""What an attempt's end means for its run: which status, and why. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Ended
    from outlay.sweep.journal import Status

TAKEN_BACK = "the machine was taken back"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status and the reason for it; empty for a good end."""

    status: Status
    reason: str = ""


def judge(ended: Ended, stopped: Verdict | None, logged_end: str | None) -> Verdict:
    """Return what a run is after an attempt.

    Args:
        ended: How the attempt ended.
        stopped: What the run becomes because the harness told it to end, and why.
        logged_end: How the last attempt in the run's own log ended, if it has one.
    """
    if ended.how == "not_started":
        return Verdict("error", f"could not be started: {ended.reason}")
    if ended.how == "lost":
        return Verdict("cancelled", ended.reason)
    if ended.how == "exited" and ended.reason and not ended.asked:
        return Verdict("error", ended.reason)
    if ended.how == "preempted":
        return Verdict("preempted", ended.reason or TAKEN_BACK)
    left_early = logged_end == "preempted" or (ended.asked and logged_end != "completed")
    if ended.returncode == 0 and not left_early:
        return Verdict("completed")
    if stopped is not None:
        return stopped
    if logged_end == "preempted" and not ended.asked:
        return Verdict("preempted", TAKEN_BACK)
    if ended.asked:
        # A program may well exit with 0 when it is told to end; that is not done.
        return Verdict("cancelled", ended.reason or "told to end")
    return Verdict("error", exit_text(ended.returncode))


def exit_text(returncode: int | None) -> str:
    """Return an exit status as people read it."""
    if returncode is None:
        return "ended, nobody knows how"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
