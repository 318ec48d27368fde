"""Atomic file replacement, opening of regular files only, and the modes of new files.

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

# New files and directories of outlay are their owner's alone, whatever the umask. In a directory
# that a group shares by its mode, they are also the group's. What exists keeps its mode.


def mode_in(directory: str | os.PathLike[str]) -> int:
    """Return the mode of a new file in a directory."""
    return 0o600 | (0o060 if _is_shared(directory) else 0)


def make_private(directory: Path, *, synced: bool = False) -> None:
    """Create a directory and its parents, unless they exist; ``synced``: fsync each of them.

    Raises:
        OSError: One cannot be created, or is a file.
    """
    if directory.is_dir():
        return
    make_private(directory.parent, synced=synced)
    try:
        directory.mkdir(mode=0o700 | (0o070 if _is_shared(directory.parent) else 0))
    except FileExistsError:  # Another process was faster.
        if not directory.is_dir():
            raise
    if synced:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Fsync a directory, so that a new file's name survives a power failure."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _is_shared(directory: str | os.PathLike[str]) -> bool:
    """Return whether a group may write to a directory, or owns what is in it; others may not."""
    try:
        mode = os.stat(directory).st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IWGRP | stat.S_ISGID)) and not mode & stat.S_IWOTH


@contextlib.contextmanager
def draft_of(path: Path, *, synced: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces the file when the block ends without an exception.

    Args:
        path: The file to replace; its directory must exist.
        synced: Whether to fsync before the rename, so that a power loss leaves the old content or
            the new.
        private: Whether a new file gets the mode of ``mode_in``; else that of the umask.
    """
    with _replacing(path) as draft:
        os.close(_create_draft(draft, path, private=private))
        yield Path(draft)
        if synced:
            with open(draft, "rb") as written:
                os.fsync(written.fileno())


def write_whole(path: Path, content: bytes, *, synced: bool = False, private: bool = False) -> None:
    """Replace a file's content atomically; on OSError it is unchanged. Options as ``draft_of``."""
    with _replacing(path) as draft:
        file = _create_draft(draft, path, private=private)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            if synced:
                os.fsync(file)
        finally:
            os.close(file)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[str]:
    """Yield a path that replaces the file in the end; it is removed on an exception."""
    directory, name = os.path.split(path)
    # A random name: other processes, threads and signal handlers may write the same file.
    draft = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.draft")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _create_draft(draft: str, path: Path, *, private: bool) -> int:
    """Return a descriptor of a new file with the mode of the one that it will replace."""
    mode = mode_in(os.path.dirname(draft) or ".") if private else 0o666
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with contextlib.suppress(OSError):  # There is none, or its mode cannot be set.
        os.fchmod(file, stat.S_IMODE(os.stat(path).st_mode))
    return file


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Return a descriptor of one of outlay's files; opening never blocks.

    Raises:
        OSError: It cannot be opened, or is a directory, a FIFO, a device or a socket.
    """
    mode = mode_in(os.path.dirname(path) or ".") if flags & os.O_CREAT else 0
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
    file = open_own(path, os.O_RDONLY)
    try:
        return read_from(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of an open file; fewer if it is shorter."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def first_line(path: str | os.PathLike[str]) -> str:
    """Return the first line of a small text file, stripped; "" if it cannot be read."""
    try:
        with open(path) as stream:
            return stream.readline().strip()
    except (OSError, UnicodeDecodeError):
        return ""


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
