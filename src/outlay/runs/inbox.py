"""How a training process registers its run without opening a database.

It leaves a note in ``$OUTLAY_HOME/inbox``; the next ``outlay`` command reads the run's own log and
registers it. One file per run, so any number of processes may leave theirs at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, read_document
from outlay.errors import Finding
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


def notices() -> tuple[list[Notice], list[Finding]]:
    """Return the notices that wait; one that cannot be read is a finding, and is dropped."""
    found: list[Notice] = []
    findings: list[Finding] = []
    for path in sorted((outlay_home() / "inbox").glob("*.json")):
        try:
            found.append(Notice(_run_dir(path), path))
        except FileNotFoundError:  # Another command was faster.
            continue
        except (OSError, BadDocument) as error:
            message = f"is no notice of a run, and was left out: {error}"
            findings.append(Finding(source=str(path), message=message, severity="warning"))
            with contextlib.suppress(OSError):  # A directory stays, for its owner to look at.
                path.unlink()
    return found, findings


def _run_dir(path: Path) -> Path:
    named = read_document(path, dict[str, str], largest=MEBIBYTE).get("dir", "")
    if not named or "\0" in named:
        raise BadDocument("it names no directory")
    return Path(named)
