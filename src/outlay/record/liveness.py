"""Whether an attempt still runs, as far as this host can tell."""

from __future__ import annotations

from pathlib import Path

from outlay.ledger import Attempt, ledger_dir
from outlay.record.facts import boot_id
from outlay.record.lock import is_held


def seems_alive(run_dir: Path, attempt: Attempt) -> bool | None:
    """Say whether a process records the attempt; None where this host cannot tell.

    A lock that is held proves life. One that is free proves death only on the host that recorded:
    the locks of other hosts are not always visible here.
    """
    if attempt.end is not None:
        return False
    try:
        held = is_held(ledger_dir(run_dir), attempt.segment.rank)
    except OSError:
        return None
    recorded_here = attempt.header.boot_id != "" and attempt.header.boot_id == boot_id()
    return held if held or recorded_here else None
