"""Files and directories whose names survive a power failure, and reading them without doubt."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from outlay.files import open_own, write_whole
from outlay.guard.chain import GENESIS, Head
from outlay.guard.head import NO_SLOTS, SLOT_BYTES, Slots, parse, record
from outlay.store import outlay_home


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes of an open file in ``[start, end)``; fewer where it ends before."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def read_small(path: str) -> bytes | None:
    """Return a small file's content, at the least cost; None where there is none.

    Raises:
        OSError: It can't be read, or is no regular file.
    """
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_from(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def is_there(path: Path) -> bool:
    """Return whether a file exists; raises where that can't be said."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each of them to survive a power failure."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make a new file's name survive a power failure as well."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class HeadFile:
    """A file that holds the furthest line known of a log.

    While the log is locked it may be kept open between reading and writing; ``release`` ends that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file: int | None = None
        self._parsed = (b"", NO_SLOTS)

    def read(self, *, keep: bool = False) -> Slots:
        """Return what the file says; one that is not there says nothing.

        Args:
            keep: Leave it open for writing, where it may be written.
        """
        raw = (self._read_and_keep() if keep else read_small(self._name)) or b""
        known, slots = self._parsed
        if raw != known:
            slots = parse(raw)
            self._parsed = (raw, slots)
        return slots

    def _read_and_keep(self) -> bytes | None:
        self.release()
        try:
            self._file = open_own(self._name, os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError:
            return read_small(self._name)
        return read_from(self._file, 0, os.fstat(self._file).st_size)

    def open(self) -> None:
        """Open it for writing, unless it is; it is made if need be."""
        if self._file is None:
            self._file = open_own(self._name, os.O_WRONLY | os.O_CREAT)

    def release(self) -> None:
        """Close it, if it was kept open."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def write(self, head: Head, after: Slots) -> None:
        """Write one record where ``after``, which was read before, leaves room for it."""
        self.open()
        assert self._file is not None
        at, new = after.next_at, record(head)
        os.pwrite(self._file, new, at)
        raw, known = self._parsed
        if known == after and (after.head is None or after.head.offset < head.offset):
            # What the next look will find, unless somebody else writes: no need to parse it.
            raw = raw[:at] + new + raw[at + SLOT_BYTES :]
            self._parsed = (raw, Slots(head, SLOT_BYTES - at, readable=True))

    def begin(self) -> Slots:
        """Write the head of a log without a line, to disk: from here on no head is never right."""
        self.write(Head(0, GENESIS), NO_SLOTS)
        assert self._file is not None
        os.fsync(self._file)
        return Slots(Head(0, GENESIS), SLOT_BYTES, readable=True)

    def replace(self, head: Head) -> None:
        """Forget what was known, and know only this."""
        write_whole(self.path, record(head), synced=True)


class Memory(HeadFile):
    """What this machine has seen of one log, kept in the outlay home, after the answer.

    It is a lower bound like the log's own head, written without a sync. Where the home can't be
    read or written, nothing is remembered.
    """

    def __init__(self, log_path: Path) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:16]
        super().__init__(outlay_home() / "heads" / f"{log_path.stem}-{digest}.head")

    def seen(self, *, keep: bool = False) -> Slots:
        """Return what was seen; nothing where that can't be read."""
        try:
            return self.read(keep=keep)
        except OSError:
            return NO_SLOTS

    def remember(self, head: Head, known: Slots, *, given_up: Collection[str] = ()) -> None:
        """Keep a line if it is further than what is known, or that was given up."""
        if known.head is not None and known.head.hash in given_up:
            self.replace(head)
        elif known.head is None or known.head.offset < head.offset:
            with suppress(OSError):
                if known.head is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                self.write(head, known)

    def replace(self, head: Head) -> None:
        """Forget what was seen: a person has accepted what is there now."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, record(head))
