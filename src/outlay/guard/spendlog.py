"""What a spend log must do, whatever it is kept in, and one that is kept in memory.

The contract suite in ``tests/contracts`` runs on every implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outlay.errors import Finding
from outlay.guard.books import Books
from outlay.guard.entries import AnyLine
from outlay.guard.posting import Answer, Posting


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of checking a whole log.

    Attributes:
        lines: How many lines were read.
        chained: How many of them carry a hash.
        findings: What is wrong or in doubt; an ``error`` means that the guard refuses.
    """

    lines: int
    chained: int
    findings: tuple[Finding, ...]

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

    def books(self) -> Books:
        """Return the fold of the log as it stands; not to be changed."""

    def lines(self) -> tuple[AnyLine, ...]:
        """Return every line that counts, in order."""

    def verify(self) -> Verification:
        """Check the whole log."""


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

    def books(self) -> Books:
        """Return the fold so far."""
        return self._books

    def lines(self) -> tuple[AnyLine, ...]:
        """Return what was appended."""
        return tuple(self._lines)

    def verify(self) -> Verification:
        """Nothing in memory can have been edited."""
        return Verification(lines=len(self._lines), chained=len(self._lines), findings=())
