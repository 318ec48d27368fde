"""The watcher of something rented: ``python -m outlay.guard.rental.watch``.

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
from dataclasses import replace
from pathlib import Path

from outlay.clock import SYSTEM, utc_text
from outlay.errors import OutlayError
from outlay.escaping import terminal_text
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.locking import this_process
from outlay.guard.rental.reap import remember_log
from outlay.guard.rental.rental import Tenancy
from outlay.proc.identity import MARK_VARIABLE
from outlay.units import Duration


def start_watcher(log_path: Path, hold: Hold, environ: Mapping[str, str], poll: Duration) -> None:
    """Start a watcher that outlives this process; returns once it runs on its own.

    Raises:
        OSError: It could not be started.
    """
    remember_log(log_path)
    command = [
        sys.executable,
        "-m",
        "outlay.guard.rental.watch",
        str(log_path),
        hold.id,
        str(poll.ns),
    ]
    clean = {name: value for name, value in environ.items() if name != MARK_VARIABLE}
    with (log_path.parent / f"watch-{hold.id}.log").open("ab") as output:
        done = subprocess.run(
            command, env=clean, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    if done.returncode:
        raise OSError(done.returncode, f"the watcher failed; see {output.name}")


def look_once(place: Tenancy) -> bool:
    """Look and act once; return whether there is anything left to watch."""
    try:
        if _never_was(place):
            return False
    except OutlayError as error:  # what is rented bills on, whatever became of the log
        place.say(str(error))
    readable = place.look()
    return place.act(overdue=place.left_ns <= 0, readable=readable) != "gone"


def _never_was(place: Tenancy) -> bool:
    """Read the hold again; return whether it was released because nothing was rented."""
    books = place.guard.log.books()
    known, place.hold = place.hold.resource, books.rentals[place.hold.id]
    if known and not place.hold.resource:
        place.hold = replace(place.hold, resource=known)
    if place.hold.state == "gone":  # somebody saw that; we look for ourselves
        place.sightings.accepted = True
    return place.hold.id in books.resolved and not place.hold.resource


def pause_s(place: Tenancy, poll: Duration) -> float:
    """Return how long to wait: never past the deadline, and briefly once it has passed."""
    until_due = place.left_ns / 1e9
    return max(0.05, min(poll.seconds, until_due)) if until_due > 0 else min(poll.seconds, 15.0)


def watch(place: Tenancy, poll: Duration) -> None:
    """Watch a rental until the vendor no longer lists it, whatever became of its hold.

    What goes wrong is reported, and tried again.
    """
    while True:
        if not place.hold.watcher:  # the log could not take it before
            place.note_if_possible("watched", watcher=this_process())
        try:
            if not look_once(place):
                return
        except (OutlayError, OSError) as error:  # the log is locked, the disk full: not for ever
            _say(str(error))
        SYSTEM.sleep(pause_s(place, poll))


def _say(text: str) -> None:
    with suppress(OSError):  # a disk without room for words still has something to end
        sys.stdout.write(f"{utc_text(SYSTEM.wall_ns())} {terminal_text(text)}\n")
        sys.stdout.flush()


def main() -> None:
    """Find the rental, so that the caller hears if that fails; leave the caller; then watch."""
    log_path, hold_id, poll_ns = sys.argv[1:]
    guard = BudgetGuard.of_log(log_path)
    place = Tenancy(guard=guard, hold=guard.log.books().hold(hold_id), environ=os.environ, say=_say)
    said, saying = os.pipe()
    if os.fork():
        os.close(saying)
        os._exit(0 if os.read(said, 1) else 1)
    os.close(said)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    place.note_if_possible("watched", watcher=this_process())
    os.write(saying, b"w")
    os.close(saying)
    watch(place, Duration(int(poll_ns)))


if __name__ == "__main__":
    main()
