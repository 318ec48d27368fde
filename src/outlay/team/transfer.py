"""Copying a spend log between a file and a book, byte for byte."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from outlay.errors import InvalidValue
from outlay.files import draft_of, read_own
from outlay.guard.chain import Head, chained_lines
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.index.head_file import HeadFile, head_path
from outlay.guard.spend_log import (
    FileSpendLog,
    file_exists,
    read_log_path,
)
from outlay.team.postgres_log import PostgresSpendLog

_CHUNK: Final = 500  # lines in a statement


def export_book(log: PostgresSpendLog, path: Path) -> Head:
    """Write a book as a spend log in a new file, with its head beside it.

    Raises:
        InvalidValue: There is a file or a head already, or the book is empty.
        SpendLogUnusable: The book can't be read.
    """
    path = read_log_path(path)
    if any(map(file_exists, (path, head_path(path)))):
        raise InvalidValue("FILE", str(path), "a path where no spend log is yet")
    with draft_of(path, synced=True, private=True) as draft:
        with draft.open("wb") as file:
            head = log.export(file.write)
        if head is None:
            raise InvalidValue("--log", str(log.name), "a book with lines")
    HeadFile(head_path(path)).replace(head)
    return head


def import_file(path: Path, log: PostgresSpendLog) -> int:
    """Copy a spend log in a file into an empty book, all of it or nothing; return its lines.

    Raises:
        SpendLogUnusable: The file is not sound, or the book is not empty.
    """
    source = FileSpendLog(path)
    if not source.is_known():
        raise InvalidValue("FILE", str(path), "a spend log that exists")
    verification = source.verify()
    if not verification.sound:
        raise SpendLogUnusable(str(path), "it is not sound", "`outlay guard verify` says why.")
    data = read_own(source.path)
    entries = list(chained_lines(data))
    if sum(len(before) + len(line) for before, line in entries) < len(data):
        remedy = "The next line that outlay appends covers them: authorise something, and void it."
        raise SpendLogUnusable(str(path), "its last lines carry no hash", remedy)
    waiting = iter(entries)
    log.fill(iter(lambda: list(islice(waiting, _CHUNK)), []))
    return verification.lines
