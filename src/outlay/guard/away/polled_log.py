"""A spend log that screens poll: a file, or a book that may be slow or away.

A book has one connection and one thread. Whoever asks waits for a short time, and then gets the
last answer, with its time and the reason. Nothing is written here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from outlay.clock import SYSTEM, Clock, utc_text
from outlay.errors import Finding, OutlayError
from outlay.files import FileStamp
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.spend_log import BookLog, is_url, open_book

T = TypeVar("T")

PATIENCE_S: Final = 2.0
_RETRY_NS: Final = 5 * 10**9
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(Generic[T]):
    """An answer about a spend log.

    Attributes:
        value: None if there never was one.
        at_ns: When it was read, UTC.
        problem: Why it is not that of now; "" if it is.
    """

    value: T | None
    at_ns: int = 0
    problem: str = ""

    @property
    def as_of(self) -> str:
        """The problem, and of when the value is; "" for one of now."""
        if not self.problem or self.value is None:
            return self.problem
        return f"as of {utc_text(self.at_ns)}, because {self.problem}"

    def findings(self, source: str) -> list[Finding]:
        """Return a finding if the answer is not that of now."""
        return [Finding(source=source, message=self.as_of)] if self.problem else []


@dataclass(slots=True)
class _Job:
    """A question for the thread of a book."""

    key: str
    question: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class PolledLog:
    """One spend log, by its path or URL.

    Args:
        name: The path of a file, or the URL of a book.
        patience_s: How long ``ask`` waits for a book.

    Attributes:
        shown: Its name without any secret.
    """

    def __init__(
        self, name: str | Path, *, clock: Clock = SYSTEM, patience_s: float = PATIENCE_S
    ) -> None:
        self.book: BookLog | None = None
        if isinstance(name, str) and is_url(name):
            self.book = open_book(name, clock=clock)
        self.name = name
        self.shown = str(name if self.book is None else self.book.name)
        self._clock = clock
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: _Job | None = None
        self._answers: dict[str, Polled[Any]] = {}
        self._problem = ""
        self._retry_ns = 0

    def open(self) -> BudgetGuard:
        """Return its guard, over the one connection; only within a question."""
        return BudgetGuard.of_log(self.name, clock=self._clock, log=self.book)

    def open_without_ceiling(self) -> BudgetGuard:
        """Return a guard with a ceiling of 0, for a log that states none."""
        return BudgetGuard(0, self.name, clock=self._clock, environ={}, log=self.book)

    def ask(self, key: str, question: Callable[[], T]) -> Polled[T]:
        """Return the answer, or the last one to ``key`` and why; never raises an OutlayError.

        Questions about a book are answered in its thread, one after the other.
        """
        if self.book is not None:
            return self._ask_thread(key, question)
        try:
            return Polled(value=question(), at_ns=self._clock.wall_ns())
        except (OutlayError, OSError) as error:
            return Polled(value=None, problem=str(error))

    def stamp(self) -> object:
        """Return a value that changes with the log: its size and time, or by one query its head."""
        book = self.book
        if book is not None:
            found = self.ask("stamp", book.stamp)
            return (found.value, bool(found.problem))
        try:
            status = Path(self.name).stat()
        except OSError:
            return None
        return FileStamp(status.st_size, status.st_mtime_ns)

    def last(self, key: str) -> Polled[Any]:
        """Return the last answer to a question."""
        return self._answers.get(key, Polled(value=None))

    def close(self) -> None:
        """End the thread; one that waits for a server ends with the process."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    # -- a book -----------------------------------------------------------------------------

    def _ask_thread(self, key: str, question: Callable[[], T]) -> Polled[T]:
        with self._lock:
            if self._pending is not None and not self._pending.done.is_set():
                return self._earlier(key, "the database has not answered yet")
            if self._clock.monotonic_ns() < self._retry_ns:
                return self._earlier(key, self._problem)
            job = self._submit(_Job(key, question))
            if not job.done.wait(self._patience_s):
                return self._earlier(key, f"no answer within {self._patience_s:g} seconds")
            if job.error is None:
                return self._answers[key]
            if not isinstance(job.error, OutlayError | OSError):
                raise job.error
            self._problem = str(job.error)
            self._retry_ns = self._clock.monotonic_ns() + _RETRY_NS
            return self._earlier(key, self._problem)

    def _earlier(self, key: str, problem: str) -> Polled[Any]:
        last = self.last(key)
        return Polled(value=last.value, at_ns=last.at_ns, problem=problem)

    def _submit(self, job: _Job) -> _Job:
        self._pending = job
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer, name="outlay-book", daemon=True)
            self._thread.start()
        return job

    def _answer(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                at_ns = self._clock.wall_ns()
                self._answers[job.key] = Polled(value=job.question(), at_ns=at_ns)
            except Exception as error:  # noqa: BLE001 - raised where it was asked
                job.error = error
            job.done.set()
