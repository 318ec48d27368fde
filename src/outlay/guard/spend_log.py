"""The spend log: its protocol, one in memory and one in a file.

One append and one fsync per transaction. ``spend.head`` is written after that without fsync: a
lower bound, exact or one line behind after a killed process, further behind after a power failure,
never ahead. The outlay home stores the last line that this machine has seen, and the manifest the
log's first line: a log that is behind either, or has lost its head, is refused until a person
accepts it. A process caches its fold and reads only what was appended since.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.files import open_own
from outlay.guard.balance import Books
from outlay.guard.ceilings import MANIFEST_NAME, first_line_of, manifest_path, write_first_line
from outlay.guard.chain import (
    NO_SLOTS,
    NOTHING,
    Head,
    Link,
    MissingLine,
    ScanResult,
    link_entries,
    scan,
)
from outlay.guard.decisions import recheck_decisions
from outlay.guard.entries import Answer, AnyEntry, AnyLine, Posting, Simple, timestamp
from outlay.guard.errors import (
    CeilingUnusable,
    Inconsistent,
    SpendLogAltered,
    SpendLogRolledBack,
    SpendLogUnusable,
)
from outlay.guard.locking import (
    HeadFile,
    LockStuck,
    RememberedHead,
    file_exists,
    local_locks,
    lock,
    lock_excludes,
    make_directory,
    read_from,
    sync_directory,
    turn_at,
    unlock,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of checking a whole log.

    Attributes:
        findings: An ``error`` means that the log can't be trusted.
        head: The hash of the last chained line; empty if there is none.
    """

    lines: int
    chained: int
    findings: tuple[Finding, ...]
    head: str = ""

    @property
    def sound(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


class SpendLog(Protocol):
    """An append-only log in which a decision and its append are atomic."""

    def transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        """Decide, append, fsync, then answer.

        No other writer appends between the decision and the append. When ``decide`` raises,
        nothing is written.

        Raises:
            SpendLogUnusable: The log can't be read, locked or written.
        """

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Query the current fold under the lock."""

    def books(self) -> Books:
        """Return a copy of the current fold."""
        return self.look(Books.copy)

    def head(self) -> str:
        """Return the hash of the last line; empty if there is none."""

    def lines(self) -> tuple[AnyLine, ...]:
        """Return every line that counts, in order."""

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Append the line with which a person accepts a log that misses lines."""

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check the whole log, and that it has a line with the hash ``expect``.

        Captures are compared with the logs of ``runs``, directories by run id.
        """


class MemorySpendLog(SpendLog):
    """A spend log in memory, for tests and rehearsals."""

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
        """Query the fold under the lock."""
        with self._mutex:
            return ask(self._books)

    def head(self) -> str:
        """Return "": lines in memory have no hash."""
        return ""

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Append the line; no line is ever missing."""
        self.transact(lambda books: Posting((entry(books, ()),), None))

    def lines(self) -> tuple[AnyLine, ...]:
        """Return all lines."""
        return tuple(self._lines)

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Return no findings; ``expect`` is invalid, since lines have no hashes."""
        del runs
        if expect:
            raise InvalidValue("--expect", expect, "nothing: a log in memory has no hashes")
        return Verification(lines=len(self._lines), chained=len(self._lines), findings=())


_LOCK_TIMEOUT_S = 30.0
_LEAST_EXPECTED = 8  # digits of a hash that identify a line
_NO_HEAD = "spend.head, which should be beside it, is missing or empty"
_BAD_HEAD = "spend.head can't be read"


def head_path(log_path: Path) -> Path:
    """Return the path of a log's head: ``spend.head`` beside ``spend.jsonl``."""
    return log_path.with_suffix(".head")


def read_log_path(path: str | os.PathLike[str]) -> Path:
    """Return the resolved path of a log.

    Raises:
        InvalidValue: Not a path, or the path of a head or a manifest.
    """
    expected = "the path of a spend log, such as spend.jsonl"
    try:
        resolved = Path(path).resolve()
    except (TypeError, ValueError, OSError, RuntimeError):
        raise InvalidValue("log_path", path, expected) from None
    if resolved.suffix == ".head" or resolved.name in ("", MANIFEST_NAME):
        raise InvalidValue("log_path", str(path), f"{expected}; no .head and no {MANIFEST_NAME}")
    return resolved


class FileSpendLog(SpendLog):
    """``spend.jsonl`` and its head."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM) -> None:
        self.path = read_log_path(path)
        self._head = HeadFile(head_path(self.path))
        self._memory = RememberedHead(self.path)
        self._clock = clock
        self._manifest = manifest_path(self.path)
        self._slots = self._remembered = NO_SLOTS
        self._first_named: str | None = None
        self._seen: Head | None = None  # the last line read or written by this object, ever
        self._locks_checked = False
        self._forget()

    def _forget(self) -> None:
        """Drop the cached fold; the next use reads the whole file."""
        self._books = Books()
        self._scanned = NOTHING
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()

    def transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        """Decide, append, fsync, then answer."""
        create = os.O_CREAT if self._identity is None and self._is_new() else 0
        with self._locked(os.O_RDWR | os.O_APPEND | create, fcntl.LOCK_EX) as log:
            head = self._catch_up(log)
            posting = decide(self._books)
            if posting.entries:
                self._append(log, posting.entries, begin=head is None)
            elif head is None or head.offset < self._scanned.link.offset:
                # The answer depends on lines that a killed writer may not have fsynced.
                os.fsync(log)
            return posting.answer

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Query the current fold under a shared lock."""
        if self._is_new():
            return ask(Books())
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as log:
            self._catch_up(log)
            self._remember()
            return ask(self._books)

    def head(self) -> str:
        """Return the hash of the last chained line; empty if there is none."""
        return self.look(lambda _: self._scanned.link.hash if self._scanned.link.first else "")

    def lines(self) -> tuple[AnyLine, ...]:
        """Read the whole file and return every line that counts, in order."""
        fresh, missing = self._read_whole_file()
        fresh._refuse(missing)
        return tuple(line for _, line in fresh._scanned.lines)

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Accept the log as it is now, although it is behind what was seen.

        ``entry`` makes the line that records it; if it raises, nothing changes.

        Raises:
            SpendLogAltered: The chain itself is broken, which can't be accepted.
        """
        with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as log:
            missing = self._fold_appended(log)
            accepted = entry(self._books, missing)
            self._seen = None
            self._append(log, (accepted,), begin=True)
            assert self._seen is not None
            self._head.replace(self._seen)
            self._memory.replace(self._seen)
            self._name_first_line()

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check every line and every decision; problems become findings."""
        where = str(self.path)
        try:
            fresh, missing = self._read_whole_file()
        except SpendLogUnusable as error:
            finding = Finding(source=error.path, line=error.line, message=error.problem)
            return Verification(lines=0, chained=0, findings=(finding,))
        scanned = fresh._scanned
        findings = [Finding(source=where, line=one.line, message=one.problem) for one in missing]
        findings += (*scanned.findings, *self._warnings(scanned))
        today = timestamp(self._clock.wall_ns())[:10]
        findings += recheck_decisions(scanned.lines, source=where, today=today)
        findings += self._check_expected_hash(scanned, expect)
        if runs:
            from outlay.guard.captures import captured_below_cost  # Here: loads the log reader.

            findings += captured_below_cost(scanned.lines, runs, source=where)
        chained = sum(not isinstance(line, Simple) for _, line in scanned.lines)
        return Verification(
            lines=len(scanned.lines), chained=chained, findings=tuple(findings),
            head=scanned.link.hash if scanned.link.first else "",
        )  # fmt: skip

    def _read_whole_file(self) -> tuple[FileSpendLog, tuple[MissingLine, ...]]:
        fresh = FileSpendLog(self.path, clock=self._clock)
        fresh._seen = self._seen
        if fresh._is_new():
            return fresh, ()
        with fresh._locked(os.O_RDONLY, fcntl.LOCK_SH) as log:
            return fresh, fresh._fold_appended(log)

    def _warnings(self, scanned: ScanResult) -> Iterator[Finding]:
        where, link = str(self.path), scanned.link
        if scanned.torn:
            message = f"the last {len(scanned.torn)} bytes are a torn write"
            yield Finding(source=where, line=link.lines + 1, message=message, severity="warning")
        if link.offset > link.covered + 1:
            message = "its last lines carry no hash; the next chained line will cover them"
            yield Finding(source=where, line=link.lines, message=message, severity="warning")

    def _check_expected_hash(self, scanned: ScanResult, expect: str) -> Iterator[Finding]:
        wanted = expect.strip().lower()
        if not wanted:
            return
        if len(wanted) < _LEAST_EXPECTED or wanted.strip("0123456789abcdef"):
            raise InvalidValue("--expect", expect, "a hash as `outlay guard status` shows it")
        if not any(known.startswith(wanted) for known in scanned.hashes):
            message = (
                f"no line has the hash {wanted}: the log was rolled back or rewritten since then"
            )
            yield Finding(source=str(self.path), message=message)

    # -- the file ---------------------------------------------------------------------------

    def is_known(self) -> bool:
        """Return whether there is a log, or was one as far as this machine knows."""
        return not self._is_new()

    def was_removed(self) -> bool:
        """Return whether there was a log, as far as this machine knows, and it is gone."""
        return self.is_known() and not file_exists(self.path)

    def _is_new(self) -> bool:
        """Return whether there never was a log; a refusal if that can't be determined."""
        try:
            there = file_exists(self.path) or file_exists(self._head.path)
        except OSError as error:
            raise self._refusal(error) from error
        if there or self._seen or self._memory.seen().head:
            return False
        return not first_line_of(self._manifest, self.path.name)

    @contextmanager
    def _locked(self, flags: int, kind: int) -> Iterator[int]:
        """Open and lock the log for one use; any failure is a refusal.

        The file is opened each time: forked processes would share the lock of a descriptor that
        stays open.
        """
        try:
            with turn_at(os.fspath(self.path), _LOCK_TIMEOUT_S):
                if self._pid != os.getpid():
                    self._forget()  # forked, perhaps while another thread used the log
                log = self._open_and_lock(flags, kind)
                try:
                    self._check_locks(kind)
                    yield log
                finally:
                    self._head.release()
                    self._memory.release()
                    unlock(log)
                    os.close(log)
        except LockStuck:
            raise self._unusable(
                f"a process has held its lock for {_LOCK_TIMEOUT_S:g} s and written nothing",
                "Find the process with `fuser` or `lsof` on the file.",
            ) from None
        except OSError as error:
            raise self._refusal(error) from error

    def _open_and_lock(self, flags: int, kind: int) -> int:
        if flags & os.O_CREAT and self._identity is None:
            make_directory(self.path.parent)
        while True:
            try:
                log = open_own(self.path, flags)
            except FileNotFoundError:
                gone = scan(str(self.path), b"", NOTHING.link, self._known_heads()).missing
                self._refuse((*gone, *self._missing_marks(NOTHING.link)))
                raise
            try:
                lock(log, kind, patience_s=_LOCK_TIMEOUT_S, clock=self._clock)
                if os.path.samestat(os.fstat(log), self.path.stat()):
                    return log
            except BaseException:
                os.close(log)
                raise
            os.close(log)  # The file was replaced while we waited: open the new one.

    def _check_locks(self, kind: int) -> None:
        """Refuse a file system whose locks do not exclude others; checked once."""
        if self._locks_checked or kind != fcntl.LOCK_EX:
            return
        remedy = "Keep it on a local disk, or on a file system with locks for all machines."
        remedy += " (Planned: PostgreSQL, for a log that machines share.)"
        if local := local_locks(self.path.parent):
            problem = f"on this file system ({local}) locks do not reach other machines"
            raise self._unusable(problem, remedy)
        if not lock_excludes(self.path):
            raise self._unusable("on this file system flock does not exclude others", remedy)
        self._locks_checked = True

    def _catch_up(self, log: int) -> Head | None:
        """Fold what was appended since the last use; return the head. Refuses missing lines."""
        missing = self._fold_appended(log)
        if missing:
            self._forget()
            self._refuse(missing)
        return self._slots.head

    def _fold_appended(self, log: int) -> tuple[MissingLine, ...]:
        """Fold what was appended since the last use; return missing lines, unless accepted."""
        try:
            self._fold_or_restart(log)
            link = self._scanned.link
            missing = (*self._scanned.missing, *self._missing_marks(link))
            missing = tuple(one for one in missing if one.hash not in self._books.given_up)
            if not missing:
                self._update_seen(link)
            return missing
        except BaseException:
            self._forget()  # the fold may no longer match the file
            raise

    def _fold_or_restart(self, log: int) -> None:
        stat, heads = os.fstat(log), self._known_heads(keep=True)
        same = self._identity == (stat.st_dev, stat.st_ino)
        if not same or stat.st_size < self._scanned.link.offset:
            self._forget()
        try:
            self._fold_from(log, stat.st_size, self._scanned.link, heads)
        except SpendLogAltered:
            if self._scanned is NOTHING:
                raise
            self._forget()  # the lines read before may have been replaced, and accepted
            self._fold_from(log, stat.st_size, NOTHING.link, heads)
        self._identity = (stat.st_dev, stat.st_ino)

    def _known_heads(self, *, keep: bool = False) -> tuple[Head, ...]:
        """Return the heads on record: beside the log, in the home, and in this object."""
        self._slots, self._remembered = self._head.read(keep=keep), self._memory.seen(keep=keep)
        known = (self._slots.head, self._seen, self._remembered.head)
        return tuple(head for head in known if head is not None)

    def _missing_marks(self, link: Link) -> Iterator[MissingLine]:
        """Yield a missing head, or a first line other than the manifest's."""
        if not self._slots.readable:
            yield MissingLine(hash="", line=0, problem=_BAD_HEAD)
        elif self._slots.head is None and link.first:
            yield MissingLine(hash="", line=0, problem=_NO_HEAD)
        self._first_named = first = first_line_of(self._manifest, self.path.name)
        if first and first != link.first:
            problem = f"{MANIFEST_NAME} names another first line: the log is gone or was restarted"
            yield MissingLine(hash=first, line=1, problem=problem)

    def _refuse(self, missing: tuple[MissingLine, ...]) -> None:
        if missing:
            raise SpendLogRolledBack(str(self.path), missing[0].line, missing[0].problem)

    def _update_seen(self, link: Link) -> None:
        """Remember the last chained line, which later reads must still find."""
        if link.covered and link.offset > link.covered:
            self._seen = Head(link.covered + 1, link.hash)

    def _remember(self) -> None:
        if self._seen is not None:
            self._memory.remember(self._seen, self._remembered, given_up=self._books.given_up)

    def _fold_from(self, log: int, size: int, link: Link, heads: tuple[Head, ...]) -> None:
        last = Head(link.covered + 1, link.hash)
        if size == link.offset and all(head == last for head in heads):
            return  # nothing new, the most frequent case
        data = read_from(log, link.offset, size)
        self._fold(scan(str(self.path), data, link, heads))

    def _fold(self, scanned: ScanResult) -> None:
        for number, line in scanned.lines:
            try:
                self._books.apply(line)
            except Inconsistent as error:
                raise SpendLogAltered(str(self.path), number, str(error)) from None
        self._scanned = scanned

    def _append(self, log: int, entries: tuple[AnyEntry, ...], *, begin: bool) -> None:
        """Append and fsync, then write the head, which was opened before, so that can't fail."""
        linked = link_entries(self._scanned, entries, ts=entries[0].ts)
        try:
            if begin:
                self._slots = self._head.begin()
            self._head.open()
            begin = begin or self._scanned.link.offset == 0
            self._fold(linked.after)
            self._write(log, linked.blob)
            if begin:
                sync_directory(self.path.parent)
            self._update_seen(self._scanned.link)
            assert self._seen is not None
            self._head.write(self._seen, self._slots)
            self._remember()
            if self._first_named == "":
                self._name_first_line()
        except BaseException:
            self._forget()  # the fold may no longer match the file
            raise

    def _write(self, log: int, blob: bytes) -> None:
        written = os.write(log, blob)
        if written != len(blob):
            problem = f"only {written} of {len(blob)} bytes could be written"
            raise self._unusable(problem, "Make room on its disk.")
        os.fsync(log)

    def _name_first_line(self) -> None:
        """Write the first line's hash into the manifest, if that is writable."""
        with suppress(OSError, CeilingUnusable):
            write_first_line(self._manifest, self.path.name, self._scanned.link.first)

    def _refusal(self, error: OSError) -> SpendLogUnusable:
        remedy = "Make it readable and writable, with room on its disk."
        problem, path = error.strerror or str(error), str(error.filename or self.path)
        return SpendLogUnusable(path, problem, remedy)

    def _unusable(self, problem: str, remedy: str) -> SpendLogUnusable:
        return SpendLogUnusable(str(self.path), problem, remedy)
