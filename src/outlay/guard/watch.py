"""The watcher of something rented: ``python -m outlay.guard.watch``.

It survives the terminal and the person, ends the thing at its deadline, asks again until the
vendor no longer lists it, and then settles the hold. Should the machine itself go down,
``outlay guard reap --terminate`` from cron does the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from outlay.clock import SYSTEM, utc_text
from outlay.errors import OutlayError
from outlay.escaping import terminal_text
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import HoldResolved
from outlay.guard.rentals import Tenancy
from outlay.guard.stale import this_process
from outlay.proc.identity import MARK_VARIABLE
from outlay.units import Duration


def start_watcher(log_path: Path, hold: Hold, environ: Mapping[str, str], poll: Duration) -> None:
    """Start a watcher that outlives this process; returns once it runs on its own.

    Raises:
        OSError: It could not be started.
    """
    command = [sys.executable, "-m", "outlay.guard.watch", str(log_path), hold.id, str(poll.ns)]
    clean = {name: value for name, value in environ.items() if name != MARK_VARIABLE}
    with (log_path.parent / f"watch-{hold.id}.log").open("ab") as output:
        done = subprocess.run(
            command, env=clean, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    if done.returncode:
        raise OSError(done.returncode, f"the watcher failed; see {output.name}")


class Watch:
    """One rental, watched until its hold is resolved."""

    def __init__(self, place: Tenancy, poll: Duration) -> None:
        self._place = place
        self._poll = poll

    def round(self) -> bool:
        """Look and act once; return whether there is anything left to watch."""
        place = self._place
        try:
            place.hold = place.guard.log.books().hold(place.hold.id)
        except HoldResolved:
            return False
        except OutlayError as error:  # what is rented bills on, whatever became of the log
            place.say(str(error))
        readable = place.look()
        return place.act(overdue=place.left_ns <= 0, readable=readable) != "gone"

    def pause_s(self) -> float:
        """Return how long to wait: never past the deadline, and briefly once it has passed."""
        poll, until_due = self._poll.seconds, self._place.left_ns / 1e9
        return max(0.05, min(poll, until_due)) if until_due > 0 else min(poll, 15.0)


def watch(place: Tenancy, poll: Duration) -> None:
    """Watch a rental to its end; what goes wrong is said, and tried again."""
    place.note_if_possible("watched", watcher=this_process())
    watching = Watch(place, poll)
    while True:
        try:
            if not watching.round():
                return
        except (OutlayError, OSError) as error:  # the log is locked, the disk full: not for ever
            _say(str(error))
        SYSTEM.sleep(watching.pause_s())


def _say(text: str) -> None:
    with suppress(OSError):  # a disk without room for words still has something to end
        sys.stdout.write(f"{utc_text(SYSTEM.wall_ns())} {terminal_text(text)}\n")
        sys.stdout.flush()


def main() -> None:
    """Find the rental, so that the caller hears if that fails; leave the caller; then watch."""
    log_path, hold_id, poll_ns = sys.argv[1:]
    guard = BudgetGuard.of_log(log_path)
    place = Tenancy(guard=guard, hold=guard.log.books().hold(hold_id), environ=os.environ, say=_say)
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch(place, Duration(int(poll_ns)))


if __name__ == "__main__":
    main()
