"""Files and directories whose names survive a power failure, and reading them without doubt."""

from __future__ import annotations

import os
from pathlib import Path


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes of an open file in ``[start, end)``; fewer where it ends before."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


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
