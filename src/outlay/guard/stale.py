"""Holds that nobody may be left to settle: something to look at, never a release.

A process is known by its host, its number and its start time: numbers are used again.
"""

from __future__ import annotations

import os
from functools import cache

from outlay.clock import utc_text, wall_ns_of
from outlay.guard.books import Hold
from outlay.guard.entries import parse_timestamp
from outlay.proc.identity import read_process

OLD_NS = 24 * 3600 * 10**9


def this_process() -> str:
    """Return this process as holds and notes name one: host, number and start time."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    found = read_process(pid)
    started = "" if found is None else f":{found.start}"
    return f"{os.uname().nodename}:{pid}{started}"


os.register_at_fork(after_in_child=_name_of.cache_clear)


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended; of another host nothing is known."""
    host, pid, start = _parts(process)
    if host != os.uname().nodename or not pid.isdigit():
        return False
    found = read_process(int(pid))
    if found is not None:
        return found.is_dead or bool(start and found.start != int(start))
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    host, _, _ = _parts(process)
    return host == os.uname().nodename and not has_ended(process)


def _parts(process: str) -> tuple[str, str, str]:
    """Return host, number and start time; lines of earlier versions have no start time."""
    host, _, last = process.rpartition(":")
    before, _, number = host.rpartition(":")
    return (before, number, last) if before and number.isdigit() else (host, last, "")


def why_unattended(hold: Hold, now_ns: int) -> str:
    """Return why a rental that lives is an error, or nothing: it is overdue, or unwatched."""
    if hold.rental is None or hold.state == "gone":
        return ""
    why = []
    deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
    if now_ns > deadline_ns:
        why.append(f"it is past its deadline of {utc_text(deadline_ns)}")
    if has_ended(hold.watcher or hold.by):
        why.append(
            f"its watcher {hold.watcher} is dead" if hold.watcher else "it never had a watcher"
        )
    return " and ".join(why)


def why_stale(hold: Hold, now_ns: int) -> str:
    """Return why a hold wants looking at, or nothing."""
    if hold.rental is not None:
        return why_unattended(hold, now_ns)
    if has_ended(hold.by):
        return f"{hold.by} opened it and is gone"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
