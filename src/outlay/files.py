"""Files that change as a whole: a reader sees the old content or the new one, never half of it.

For documents that are rewritten, and for plain JSON lines that are appended: a writer that was
killed leaves at most one torn line, which readers pass over (``Decoder.decode_lines``) and the next
writer ends (``seal_of``). The run log and the spend log have formats and writers of their own.
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
    """Yield a path to write to; what stands there takes the file's place when the block ends well.

    Args:
        path: The file to replace, in a directory that exists.
        synced: Whether the content must be on disk before it takes the place, so that not even a
            power loss leaves less than one of the two.
        private: Whether only its owner may read it.
    """
    # Other processes, threads and signal handlers may be at the same file: no draft is shared.
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
    """Replace a file by one with this content, or leave it as it is and raise OSError."""
    with draft_of(path, synced=synced, private=private) as draft:
        draft.write_bytes(content)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Return a descriptor of a file that outlay keeps; opening never waits for another process.

    Raises:
        OSError: It cannot be opened, or is a directory, a FIFO, a device or a socket.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):  # A socket, a FIFO that nobody reads.
            raise _irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return descriptor


def _irregular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def read_own(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file that outlay keeps; raises like ``open_own``."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
        return stream.read()


def seal_of(descriptor: int) -> bytes:
    """Return what ends the torn last line of a file that can be read, so that only that is bad."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


class FileStamp(NamedTuple):
    """How large some files are together, and when one of them last changed."""

    size_bytes: int
    mtime_ns: int


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    """Return what is known of a file; of a link that leads nowhere, of the link."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)


def stamp_of(directory: str, *, suffix: str) -> FileStamp | None:
    """Return the stamp of the files in a directory without opening them; None without any.

    What is appended to one of them makes another stamp.
    """
    found: list[os.stat_result] = []
    # Nobody may look there, or no directory can have that name.
    with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
        found = [_stat(entry) for entry in entries if entry.name.endswith(suffix)]
    if not found:
        return None
    return FileStamp(sum(file.st_size for file in found), max(file.st_mtime_ns for file in found))
