"""Files and directories whose names survive a power failure, and reading them without doubt."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outlay.files import open_own, write_whole
from outlay.guard.chain import GENESIS, Head
from outlay.guard.head import NO_SLOTS, Slots, parse, record
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
    """A file that holds the furthest line known of a log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)

    def read(self) -> Slots:
        """Return what the file says; one that is not there says nothing."""
        return parse(read_small(self._name) or b"")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open it for writing; it is made if need be."""
        file = open_own(self._name, os.O_WRONLY | os.O_CREAT)
        try:
            yield file
        finally:
            os.close(file)

    def begin(self) -> None:
        """Write the head of a log without a line, to disk: from here on no head is never right."""
        with self.opened() as file:
            os.pwrite(file, record(Head(0, GENESIS)), 0)
            os.fsync(file)

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

    def seen(self) -> Slots:
        """Return what was seen; nothing where that can't be read."""
        try:
            return self.read()
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
                with self.opened() as file:
                    os.pwrite(file, record(head), known.next_at)

    def replace(self, head: Head) -> None:
        """Forget what was seen: a person has accepted what is there now."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, record(head))
