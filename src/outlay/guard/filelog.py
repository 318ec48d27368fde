"""The spend log in a file: locked, chained, and on disk before the answer.

One appended write and one fsync per transaction. ``spend.head`` is then written, not fsynced: it
is a lower bound. After a killed process it is exact or one line behind; after a power failure it
may be further behind, and never ahead, because the log is on disk before it is written.

A process keeps its fold and reads only what was appended since, so a transaction costs the same
however long the log is; a fresh process folds the log once.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding
from outlay.guard.books import Books, Inconsistent
from outlay.guard.chain import START, Head, Link, Scanned, link_entries, scan
from outlay.guard.disk import is_there, make_directory, read_from, sync_directory
from outlay.guard.entries import AnyEntry, AnyLine, Simple, timestamp
from outlay.guard.errors import SpendLogAltered, SpendLogUnusable
from outlay.guard.head import parse, record
from outlay.guard.posting import Answer, Posting
from outlay.guard.spendlog import Verification

_LOCK_TIMEOUT_S = 30.0
_FIRST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.01


def head_path(log_path: Path) -> Path:
    """Return where the head of a log is kept: ``spend.head`` beside ``spend.jsonl``."""
    return log_path.with_suffix(".head")


class FileSpendLog:
    """``spend.jsonl`` and its head."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM) -> None:
        self.path = path
        self._head_path = head_path(path)
        self._clock = clock
        self._mutex = threading.Lock()
        self._next_head_at = 0
        self._seen: Head | None = None  # the furthest line read or written here, for ever
        self._forget()

    def _forget(self) -> None:
        """Drop the fold, so that the next use reads the file from its start."""
        self._books = Books()
        self._scanned = Scanned(lines=(), link=START, torn=b"", findings=())
        self._identity: tuple[int, int] | None = None

    def transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        """Decide on the whole log, append, fsync, then answer."""
        with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as log:
            head = self._catch_up(log)
            posting = decide(self._books)
            if posting.entries:
                self._append(log, posting.entries)
            elif head is None or head.offset < self._scanned.link.offset:
                # The answer rests on lines that a killed writer may not have made durable.
                os.fsync(log)
            return posting.answer

    def books(self) -> Books:
        """Return the fold of the log as it stands."""
        if self._is_new():
            return Books()
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as log:
            self._catch_up(log)
            return self._books

    def lines(self) -> tuple[AnyLine, ...]:
        """Return every line that counts, in order, read afresh."""
        return tuple(line for _, line in self._read_afresh().lines)

    def verify(self) -> Verification:
        """Check every line; what is wrong becomes a finding."""
        try:
            scanned = self._read_afresh()
            findings = [*scanned.findings, *self._doubts(scanned)]
            lines = [line for _, line in scanned.lines]
        except SpendLogAltered as error:
            where = str(self.path)
            findings = [Finding(source=where, line=error.line, message=error.problem)]
            lines = []
        except SpendLogUnusable as error:
            findings, lines = [Finding(source=str(self.path), message=error.problem)], []
        chained = sum(not isinstance(line, Simple) for line in lines)
        return Verification(lines=len(lines), chained=chained, findings=tuple(findings))

    def _read_afresh(self) -> Scanned:
        fresh = FileSpendLog(self.path, clock=self._clock)
        if self._is_new():
            return fresh._scanned
        with fresh._locked(os.O_RDONLY, fcntl.LOCK_SH) as log:
            fresh._catch_up(log)
        return fresh._scanned

    def _doubts(self, scanned: Scanned) -> Iterator[Finding]:
        """Yield what is not wrong but can't be vouched for."""
        where, link = str(self.path), scanned.link
        if scanned.torn:
            message = f"the last {len(scanned.torn)} bytes were cut off while being written"
            yield Finding(source=where, line=link.lines + 1, message=message, severity="warning")
        if link.lines and self._read_head() is None:
            message = "no spend.head beside it: removed last lines can't be excluded"
            yield Finding(source=where, message=message, severity="warning")
        if link.offset > link.covered + 1:
            message = "its last lines carry no hash; the next chained line will cover them"
            yield Finding(source=where, line=link.lines, message=message, severity="warning")

    # -- the file ---------------------------------------------------------------------------

    def _is_new(self) -> bool:
        """Return whether nothing was ever written; what can't be looked at is no new log."""
        try:
            return self._seen is None and not (is_there(self.path) or is_there(self._head_path))
        except OSError as error:
            raise self._refusal(error) from error

    @contextmanager
    def _locked(self, flags: int, kind: int) -> Iterator[int]:
        """Open and lock the log for one use; whatever fails on the way is a refusal.

        The file is opened each time: a descriptor kept open would share its lock with every
        process forked from this one.
        """
        if not self._mutex.acquire(timeout=_LOCK_TIMEOUT_S):
            raise self._unusable("another thread of this process holds it", "Try again.")
        try:
            log = self._open_and_lock(flags, kind)
            try:
                yield log
            finally:
                os.close(log)
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            self._mutex.release()

    def _open_and_lock(self, flags: int, kind: int) -> int:
        if flags & os.O_CREAT and self._identity is None:
            make_directory(self.path.parent)
        while True:
            log = os.open(self.path, flags | os.O_CLOEXEC, 0o644)
            try:
                self._lock(log, kind)
                if os.path.samestat(os.fstat(log), self.path.stat()):
                    return log
            except BaseException:
                os.close(log)
                raise
            os.close(log)  # replaced while we waited: what is appended there would be lost

    @contextmanager
    def _or_forget(self) -> Iterator[None]:
        """Keep the fold and the file together: what breaks off half-way drops the fold."""
        try:
            yield
        except BaseException:
            self._forget()
            raise

    def _lock(self, log: int, kind: int) -> None:
        """Wait for the lock, at most _LOCK_TIMEOUT_S; the kernel frees a dead process's."""
        deadline_ns = self._clock.monotonic_ns() + round(_LOCK_TIMEOUT_S * 1e9)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                fcntl.flock(log, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise self._unusable(
                        f"another process has held its lock for {_LOCK_TIMEOUT_S:g} s",
                        "Find it with `fuser` or `lsof` on the file.",
                    ) from None
                self._clock.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                return

    def _catch_up(self, log: int) -> Head | None:
        """Fold what was appended since the last use; return the head."""
        with self._or_forget():
            stat, head = os.fstat(log), self._read_head()
            if self._identity != (stat.st_dev, stat.st_ino):
                self._forget()
                self._identity = (stat.st_dev, stat.st_ino)
            link = self._scanned.link
            heads = [known for known in (head, self._seen) if known is not None]
            furthest = max(heads, key=lambda known: known.offset, default=None)
            self._check_known_end(link, furthest, stat.st_size)
            data = read_from(log, link.offset, stat.st_size)
            ahead = furthest if furthest is not None and furthest.offset > link.offset else None
            self._fold(scan(str(self.path), data, link, ahead))
            self._see(self._scanned.link)
            return head

    def _see(self, link: Link) -> None:
        """Remember the last chained line: whatever becomes of the files, it has to stay there."""
        if link.covered and link.offset > link.covered:
            self._seen = Head(link.covered + 1, link.hash)

    def _check_known_end(self, link: Link, head: Head | None, size: int) -> None:
        reached = max(link.offset, head.offset if head else 0)
        if size < reached:
            problem = f"the file ends at byte {size}; acknowledged lines reached {reached}"
            raise SpendLogAltered(str(self.path), link.lines + 1, problem)
        if head and head.offset == link.covered + 1 and head.hash != link.hash:
            raise SpendLogAltered(
                str(self.path), link.lines, "it is not the line that was acknowledged"
            )

    def _fold(self, scanned: Scanned) -> None:
        for number, line in scanned.lines:
            try:
                self._books.apply(line)
            except Inconsistent as error:
                raise SpendLogAltered(str(self.path), number, str(error)) from None
        self._scanned = scanned

    def _append(self, log: int, entries: tuple[AnyEntry, ...]) -> None:
        """Write and fsync; then the head, whose failure would have shown before anything else."""
        before = self._scanned
        blob = link_entries(before, entries, ts=timestamp(self._clock.wall_ns()))
        with self._or_forget(), self._head_opened() as head:
            self._fold(scan(str(self.path), before.torn + blob, before.link, None))
            written = os.write(log, blob)
            if written != len(blob):
                problem = f"only {written} of {len(blob)} bytes could be written"
                raise self._unusable(problem, "Make room on its disk.")
            os.fsync(log)
            if before.link.offset == 0:
                sync_directory(self.path.parent)
            self._see(self._scanned.link)
            assert self._seen is not None
            os.pwrite(head, record(self._seen), self._next_head_at)

    # -- the head ---------------------------------------------------------------------------

    @contextmanager
    def _head_opened(self) -> Iterator[int]:
        head = os.open(self._head_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield head
        finally:
            os.close(head)

    def _read_head(self) -> Head | None:
        try:
            slots = parse(self._head_path.read_bytes())
        except FileNotFoundError:
            slots = parse(b"")
        if not slots.readable:
            raise self._unusable(
                "spend.head can't be read",
                "If `outlay guard verify` finds nothing else wrong, delete spend.head.",
            )
        self._next_head_at = slots.next_at
        return slots.head

    def _refusal(self, error: OSError) -> SpendLogUnusable:
        remedy = "Make it readable and writable, with room on its disk."
        return self._unusable(error.strerror or str(error), remedy)

    def _unusable(self, problem: str, remedy: str) -> SpendLogUnusable:
        return SpendLogUnusable(str(self.path), problem, remedy)
