"""Head files: the last acknowledged line of a spend log, beside it and in the outlay home.

The home also has the paths of the logs that this machine has used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from outlay.files import (
    make_private,
    open_own,
    read_from,
    read_own,
    write_whole,
)
from outlay.guard.chain import (
    GENESIS,
    NO_SLOTS,
    SLOT_BYTES,
    Head,
    Slots,
    encode_slot,
    parse_slots,
)
from outlay.store import outlay_home

USED_LOGS: Final = "logs"
"""The directory in the outlay home with the paths of logs."""


def used_logs() -> tuple[Path, ...]:
    """Return the logs in files that were read or written on this machine, and still exist."""
    return logs_named_in(USED_LOGS)


def logs_named_in(directory: str) -> tuple[Path, ...]:
    """Return the paths of logs that files of a directory of the outlay home have, if they exist."""
    found = []
    for file in sorted((outlay_home() / directory).glob("*.path")):
        with suppress(OSError, ValueError):  # A NUL in it.
            path = Path(os.fsdecode(read_own(file)))
            found += [path] if path.exists() else []
    return tuple(found)


def head_path(log_path: Path) -> Path:
    """Return the path of a log's head: ``spend.head`` beside ``spend.jsonl``."""
    return log_path.with_suffix(".head")


class HeadFile:
    """A file with the last acknowledged line of a log.

    While the log is locked it may stay open between a read and a write; ``release`` closes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file: int | None = None
        self._parsed = (b"", NO_SLOTS)

    def read(self, *, keep: bool = False) -> Slots:
        """Return the slots, empty if there is no file; ``keep`` leaves it open for writing."""
        try:
            raw = self._read_and_keep() if keep else read_own(self._name)
        except FileNotFoundError:
            raw = b""
        known, slots = self._parsed
        if raw != known:
            slots = parse_slots(raw)
            self._parsed = (raw, slots)
        return slots

    def _read_and_keep(self) -> bytes:
        self.release()
        try:
            self._file = open_own(self._name, os.O_RDWR)
        except OSError:
            return read_own(self._name)
        return read_from(self._file, 0, os.fstat(self._file).st_size)

    def open(self) -> None:
        """Open it for writing unless it is open; create it if needed."""
        if self._file is None:
            self._file = open_own(self._name, os.O_WRONLY | os.O_CREAT)

    def release(self) -> None:
        """Close it if it is open."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def write(self, head: Head, after: Slots) -> None:
        """Write one slot, at the offset that ``after``, the last read, names."""
        self.open()
        assert self._file is not None
        at, new = after.next_at, encode_slot(head)
        os.pwrite(self._file, new, at)
        raw, known = self._parsed
        if known == after and (after.head is None or after.head.offset < head.offset):
            # Cache what the next read returns, unless another process writes.
            raw = raw[:at] + new + raw[at + SLOT_BYTES :]
            self._parsed = (raw, Slots(head, SLOT_BYTES - at, readable=True))

    def begin(self) -> Slots:
        """Write and fsync the head of an empty log; from now on a missing head is an error."""
        self.write(Head(0, GENESIS), NO_SLOTS)
        assert self._file is not None
        os.fsync(self._file)
        return Slots(Head(0, GENESIS), SLOT_BYTES, readable=True)

    def replace(self, head: Head) -> None:
        """Replace the file by this head alone."""
        write_whole(self.path, encode_slot(head), synced=True, private=True)


class RememberedHead(HeadFile):
    """The last line of a log that this machine has seen, kept in the outlay home.

    A lower bound like the log's own head, written after the answer and without fsync. If the home
    can't be read or written, nothing is remembered. With ``listed`` the log is one of
    ``used_logs()`` from then on.
    """

    def __init__(self, log_path: Path, *, listed: bool = False) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:16]
        name = f"{log_path.stem}-{digest}"
        super().__init__(outlay_home() / "heads" / f"{name}.head")
        self._unlisted = log_path if listed else None
        self._listing = outlay_home() / USED_LOGS / f"{name}.path"

    def seen(self, *, keep: bool = False) -> Slots:
        """Return the slots; empty if they can't be read."""
        try:
            return self.read(keep=keep)
        except OSError:
            return NO_SLOTS

    def remember(self, head: Head, known: Slots, *, given_up: Collection[str] = ()) -> None:
        """Store a line if it is beyond the known one, or the known one is in ``given_up``."""
        if self._unlisted is not None:
            log_path, self._unlisted = self._unlisted, None
            self._list(log_path)
        if known.head is not None and known.head.hash in given_up:
            self.replace(head)
        elif known.head is None or known.head.offset < head.offset:
            with suppress(OSError):
                if known.head is None:
                    make_private(self.path.parent)
                self.write(head, known)

    def _list(self, log_path: Path) -> None:
        with suppress(OSError):
            if not self._listing.exists():
                make_private(self._listing.parent)
                write_whole(self._listing, os.fsencode(log_path), private=True)

    def replace(self, head: Head) -> None:
        """Replace the file by this head, which a person has accepted."""
        with suppress(OSError):
            make_private(self.path.parent)
            write_whole(self.path, encode_slot(head), private=True)
