"""Holds that nobody may be left to settle: something to look at, never a release."""

from __future__ import annotations

import os

from outlay.clock import wall_ns_of
from outlay.guard.books import Hold
from outlay.guard.entries import parse_timestamp

OLD_NS = 24 * 3600 * 10**9


def this_process() -> str:
    """Return the host and the number of this process, as a hold names who opened it."""
    return f"{os.uname().nodename}:{os.getpid()}"


def opener_gone(hold: Hold) -> bool:
    """Return whether the process that opened a hold is known to have ended."""
    host, _, pid = hold.by.rpartition(":")
    if host != os.uname().nodename or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def why_stale(hold: Hold, now_ns: int) -> str:
    """Return why a hold wants looking at, or nothing.

    Something rented is looked at by its watcher and by ``reap``, not here.
    """
    if hold.rental is not None:
        return ""
    if opener_gone(hold):
        return f"{hold.by} opened it and is gone"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
