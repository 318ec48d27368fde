"""How a training process registers its run without opening a database.

It leaves a note in ``$OUTLAY_HOME/inbox``; the next ``outlay`` command reads the run's own log and
registers it. One file per run, so any number of processes may leave theirs at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.files import write_whole
from outlay.store import outlay_home


@dataclass(frozen=True, slots=True)
class Notice:
    """A run that wants to be registered, and the file that says so."""

    run_dir: Path
    path: Path


def leave_notice(run_id: str, run_dir: Path) -> None:
    """Ask for a run to be registered; says nothing when that is not possible."""
    inbox = outlay_home() / "inbox"
    with contextlib.suppress(OSError, UnicodeEncodeError):  # A path need not be Unicode.
        inbox.mkdir(parents=True, exist_ok=True)
        write_whole(inbox / f"{run_id}.json", msgspec.json.encode({"dir": str(run_dir)}))


def notices() -> Iterator[Notice]:
    """Yield the notices that wait, and drop those that cannot be read."""
    for path in sorted((outlay_home() / "inbox").glob("*.json")):
        try:
            notice = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
            yield Notice(Path(notice["dir"]), path)
        except (OSError, KeyError, msgspec.MsgspecError):
            path.unlink(missing_ok=True)
