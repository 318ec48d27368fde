"""When a Slurm job's time is up: known from the environment or from ``squeue``, and told in time.

One grace before the end the loop is to stop, so that what was done is saved; the job's script need
not ask for a signal. Asking Slurm happens in a thread of its own: training never waits for it, and
a Slurm that does not answer leaves the job as it is.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.record.slurm import SlurmJob, end_of
from outlay.units import Duration
from outlay.units.quantity import duration_text

GRACE: Final = Duration(60 * 10**9)
_SHARE: Final = 10
"""Of the time that is left at the start at most this part is the grace, where nobody stated one."""
_ASK_TIMEOUT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 3600.0


def stated_grace(environ: Mapping[str, str]) -> Duration | None:
    """Return how long before the end a run is to stop, where somebody says so.

    Raises:
        InvalidValue: It is no duration.
    """
    stated = environ.get("OUTLAY_GRACE")
    if not stated:
        return None
    grace = Duration.parse(stated, name="OUTLAY_GRACE")
    if not grace:
        raise InvalidValue("OUTLAY_GRACE", stated, 'a duration above zero, such as "2m"')
    return grace


def ask_end(job: SlurmJob) -> int | None:
    """Return when Slurm says that a job's time is up; None without a limit or an answer."""
    return end_of(_ask(job, "%e"))


def ask_state(job: SlurmJob) -> str:
    """Return what Slurm calls a job now, such as CANCELLED; "" without an answer.

    A job is gone from the queue as soon as its script is, whatever its other processes still do;
    Slurm remembers it for a while.
    """
    return _ask(job, "%T")


def _ask(job: SlurmJob, wanted: str) -> str:
    shown = ["--noheader", "--states=all", f"--format=%i {wanted}"]
    command = ["squeue", *shown, f"--jobs={job.id}"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL, env=os.environ | {"SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ""
    rows = (line.split() for line in asked.stdout.splitlines())
    return next((row[1] for row in rows if len(row) == 2 and row[0] == job.id), "")


class JobEndWatch:
    """A thread that says once that the job's time is nearly up; never keeps the process alive.

    The end is asked for again before that is said: an administrator may have moved it.

    Args:
        job: Whose end to wait for.
        on_due: Told the reason, in the thread.
        grace: How long before the end; default: a minute, and at most a tenth of what is left.
        ask: How Slurm is asked.
    """

    def __init__(
        self,
        job: SlurmJob,
        on_due: Callable[[str], object],
        *,
        grace: Duration | None = None,
        ask: Callable[[SlurmJob], int | None] = ask_end,
        clock: Clock = SYSTEM,
    ) -> None:
        self._job = job
        self._on_due = on_due
        self._grace = grace
        self._ask = ask
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outlay-job-end", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say nothing any more."""
        self._stopped.set()

    def _watch(self) -> None:
        end_ns = self._job.end_ns or self._ask(self._job)
        if end_ns is None:
            return
        left_ns = end_ns - self._clock.wall_ns()
        grace_ns = self._grace.ns if self._grace else min(GRACE.ns, max(0, left_ns) // _SHARE)
        while not self._stopped.is_set():
            left_ns = end_ns - grace_ns - self._clock.wall_ns()
            if left_ns <= 0:
                moved_ns = self._ask(self._job) or end_ns
                if moved_ns <= end_ns:
                    self._on_due(f"the job's time is up in {duration_text(grace_ns)}")
                    return
                end_ns = moved_ns
                continue
            self._stopped.wait(min(left_ns / 10**9, _LONGEST_WAIT_S))
