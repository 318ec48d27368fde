"""What a spend log must do, whatever it is kept in, and one that is kept in memory.

The contract suite in ``tests/contracts`` runs on every implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outlay.errors import Finding, InvalidValue
from outlay.guard.books import Books
from outlay.guard.chain import Missing
from outlay.guard.entries import AnyEntry, AnyLine
from outlay.guard.posting import Answer, Posting


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of checking a whole log.

    Attributes:
        lines: How many lines were read.
        chained: How many of them carry a hash.
        findings: What is wrong or in doubt; an ``error`` means that the log can't be trusted.
        head: The hash of the last chained line; empty where there is none.
    """

    lines: int
    chained: int
    findings: tuple[Finding, ...]
    head: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing in the log is known to be wrong."""
        return all(finding.severity != "error" for finding in self.findings)


class SpendLog(Protocol):
    """An append-only log in which deciding and appending are one step."""

    def transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        """Decide on the whole log, append, make it durable, then answer.

        No other writer's entry comes between the deciding and the appending. When ``decide``
        raises, nothing is written.

        Raises:
            SpendLogUnusable: The log can't be read, locked or written.
        """

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Ask something of the fold as it stands, while nobody changes it."""

    def books(self) -> Books:
        """Return a copy of the fold of the log as it stands."""

    def head(self) -> str:
        """Return the hash of the last line; empty where lines have none."""

    def lines(self) -> tuple[AnyLine, ...]:
        """Return every line that counts, in order."""

    def accept(self, entry: Callable[[Books, tuple[Missing, ...]], AnyEntry]) -> None:
        """Append the line with which a person accepts the log in spite of what is missing."""

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check the whole log, and that a line with the hash ``expect`` is in it.

        Captures are compared with the logs of the runs whose directories are named, by their ids.
        """


class MemorySpendLog:
    """A spend log for tests and rehearsals: it enforces, and forgets with the process."""

    def __init__(self) -> None:
        self._books = Books()
        self._lines: list[AnyLine] = []
        self._mutex = threading.Lock()

    def transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        """Decide and append under a lock."""
        with self._mutex:
            posting = decide(self._books)
            for entry in posting.entries:
                self._books.apply(entry)
                self._lines.append(entry)
            return posting.answer

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Ask something of the fold under the lock."""
        with self._mutex:
            return ask(self._books)

    def books(self) -> Books:
        """Return a copy of the fold so far."""
        return self.look(Books.copy)

    def head(self) -> str:
        """Lines in memory have no hash."""
        return ""

    def accept(self, entry: Callable[[Books, tuple[Missing, ...]], AnyEntry]) -> None:
        """Append the line; nothing is ever missing."""
        self.transact(lambda books: Posting((entry(books, ()),), None))

    def lines(self) -> tuple[AnyLine, ...]:
        """Return what was appended."""
        return tuple(self._lines)

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Nothing in memory can have been edited; nothing there has a hash to be expected."""
        del runs
        if expect:
            raise InvalidValue("--expect", expect, "nothing: a log in memory has no hashes")
        return Verification(lines=len(self._lines), chained=len(self._lines), findings=())
