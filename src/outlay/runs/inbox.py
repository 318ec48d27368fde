"""How a training process registers its run without opening a database.

It leaves a note in ``$OUTLAY_HOME/inbox``; the next ``outlay`` command reads the run's own log and
registers it. One file per run, so any number of processes may leave theirs at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.errors import Finding
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
    started_ns: Int64 = 0


def leave_notice(run_id: str, run_dir: Path, started_ns: int = 0) -> None:
    """Ask for a run to be registered; says nothing when that is not possible."""
    inbox = outlay_home() / "inbox"
    notice = _NoticeFile(dir=str(run_dir), started_ns=started_ns)
    with contextlib.suppress(OSError, UnicodeEncodeError):  # A path need not be Unicode.
        inbox.mkdir(parents=True, exist_ok=True)
        write_whole(inbox / f"{run_id}.json", msgspec.json.encode(notice))


def notices() -> tuple[list[Notice], list[Finding]]:
    """Return the notices that wait; one that cannot be read is a finding, and is dropped."""
    found: list[Notice] = []
    findings: list[Finding] = []
    for path in sorted((outlay_home() / "inbox").glob("*.json")):
        try:
            found.append(_read(path))
        except FileNotFoundError:  # Another command was faster.
            continue
        except (OSError, BadDocument) as error:
            message = f"is no notice of a run, and was left out: {error}"
            findings.append(Finding(source=str(path), message=message, severity="warning"))
            with contextlib.suppress(OSError):  # A directory stays, for its owner to look at.
                path.unlink()
    return found, findings


def _read(path: Path) -> Notice:
    notice = read_document(path, _NoticeFile, largest=MEBIBYTE)
    if not notice.dir or "\0" in notice.dir:
        raise BadDocument("it names no directory")
    return Notice(Path(notice.dir), path, notice.started_ns)
