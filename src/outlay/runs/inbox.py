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
    """A run that wants to be registered, and the file that says so.

    Attributes:
        started_ns: When the attempt began that left it; 0 where the notice does not say.
    """

    run_dir: Path
    path: Path
    started_ns: int = 0


class _NoticeFile(msgspec.Struct):
    dir: str
    started_ns: int = 0


def leave_notice(run_id: str, run_dir: Path, started_ns: int = 0) -> None:
    """Ask for a run to be registered; says nothing when that is not possible."""
    inbox = outlay_home() / "inbox"
    notice = _NoticeFile(dir=str(run_dir), started_ns=started_ns)
    with contextlib.suppress(OSError, UnicodeEncodeError):  # A path need not be Unicode.
        inbox.mkdir(parents=True, exist_ok=True)
        write_whole(inbox / f"{run_id}.json", msgspec.json.encode(notice))


def notices() -> Iterator[Notice]:
    """Yield the notices that wait, and drop those that cannot be read."""
    for path in sorted((outlay_home() / "inbox").glob("*.json")):
        try:
            notice = msgspec.json.decode(path.read_bytes(), type=_NoticeFile)
            yield Notice(Path(notice.dir), path, notice.started_ns)
        except (OSError, msgspec.MsgspecError):
            path.unlink(missing_ok=True)
