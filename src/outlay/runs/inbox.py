"""The inbox, by which a run registers without a database.

A training process writes a notice to ``$OUTLAY_HOME/inbox``; the next ``outlay`` command reads the
run's log and registers it. One file per run, so that processes do not contend.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.errors import Finding
from outlay.files import make_private, write_whole
from outlay.store import outlay_home


@dataclass(frozen=True, slots=True)
class InboxNotice:
    """A run to be registered, and the file of its notice.

    Attributes:
        started_ns: When the attempt began that wrote it; 0 if unknown.
    """

    run_dir: Path
    path: Path
    started_ns: int = 0


class _NoticeFile(msgspec.Struct):
    dir: str
    started_ns: Int64 = 0


def leave_notice(run_id: str, run_dir: Path, started_ns: int = 0) -> None:
    """Write a notice to the inbox; errors are ignored, since training must not fail for it."""
    inbox = outlay_home() / "inbox"
    notice = _NoticeFile(dir=str(run_dir), started_ns=started_ns)
    with contextlib.suppress(OSError, UnicodeEncodeError):  # A path need not be Unicode.
        make_private(inbox)
        write_whole(inbox / f"{run_id}.json", msgspec.json.encode(notice), private=True)


def notices() -> tuple[list[InboxNotice], list[Finding]]:
    """Return the notices in the inbox; one that cannot be read is a finding, and is deleted."""
    found: list[InboxNotice] = []
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


def _read(path: Path) -> InboxNotice:
    notice = read_document(path, _NoticeFile, largest=MEBIBYTE)
    if not notice.dir or "\0" in notice.dir:
        raise BadDocument("it names no directory")
    return InboxNotice(Path(notice.dir), path, notice.started_ns)
