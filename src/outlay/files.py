"""Atomic file replacement, and opening of regular files only.

Also for plain JSON lines: a killed writer leaves at most one torn line, which readers skip
(``Decoder.decode_lines``) and the next writer terminates (``seal_of``). The run log and the spend
log have their own formats and writers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


@contextlib.contextmanager
def draft_of(path: Path, *, synced: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces the file when the block ends without an exception.

    Args:
        path: The file to replace; its directory must exist.
        synced: Whether to fsync before the rename, so that a power loss leaves the old content or
            the new.
        private: Whether to create it with mode 0600.
    """
    # A random name: other processes, threads and signal handlers may write the same file.
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.draft")
    try:
        if private:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield draft
        if synced:
            with draft.open("rb") as written:
                os.fsync(written.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes, *, synced: bool = False, private: bool = False) -> None:
    """Replace a file's content atomically; on OSError it is unchanged."""
    with draft_of(path, synced=synced, private=private) as draft:
        draft.write_bytes(content)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Return a descriptor of one of outlay's files; opening never blocks.

    Raises:
        OSError: It cannot be opened, or is a directory, a FIFO, a device or a socket.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):  # A socket, or a FIFO without a reader.
            raise _irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return descriptor


def _irregular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_own(path: str | os.PathLike[str]) -> bytes:
    """Return the content of one of outlay's files; raises like ``open_own``."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
        return stream.read()


def seal_of(descriptor: int) -> bytes:
    """Return the newline that terminates a torn last line of an open file, or ``b""``."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


class FileStamp(NamedTuple):
    """The total size of some files, and their latest modification time."""

    size_bytes: int
    mtime_ns: int


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # A dangling link.
        return entry.stat(follow_symlinks=False)


def stamp_of(directory: str, *, suffix: str) -> FileStamp | None:
    """Return the stamp of a directory's files without opening them; None if there are none.

    Appending to any of them changes the stamp.
    """
    found: list[os.stat_result] = []
    # No permission, or a name that no directory can have.
    with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
        found = [_stat(entry) for entry in entries if entry.name.endswith(suffix)]
    if not found:
        return None
    return FileStamp(sum(file.st_size for file in found), max(file.st_mtime_ns for file in found))
