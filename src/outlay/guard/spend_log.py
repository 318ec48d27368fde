"""The spend log: its protocol, one in memory and one in a file; opening one by its name.

One append and one fsync per transaction. ``spend.head`` is written after that without fsync: a
lower bound, exact or one line behind after a killed process, further behind after a power failure,
never ahead. The outlay home stores the last line that this machine has seen, and the manifest the
log's first line: a log that is behind either, or has lost its head, is refused until a person
accepts it. A process caches its fold and reads only what was appended since; a new one begins with
the fold in ``spend.index``, if the log still has the line up to which that goes.
"""

from __future__ import annotations

import getpass
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue, choices
from outlay.files import (
    make_private,
    open_own,
    read_from,
    sync_directory,
)
from outlay.guard.balance import Books, Hold
from outlay.guard.ceilings import MANIFEST_NAME, first_line_of, manifest_path, write_first_line
from outlay.guard.chain import (
    HASH_BYTES,
    NO_SLOTS,
    NOTHING,
    START,
    Head,
    Link,
    MissingLine,
    Position,
    ScanResult,
    link_at,
    link_entries,
    position_of,
    scan,
)
from outlay.guard.decisions import recheck_decisions
from outlay.guard.entries import Answer, AnyEntry, AnyLine, Decision, Simple, timestamp
from outlay.guard.errors import (
    CeilingUnusable,
    Inconsistent,
    SpendLogAltered,
    SpendLogRolledBack,
    SpendLogUnusable,
)
from outlay.guard.index.head_file import HeadFile, RememberedHead, head_path
from outlay.guard.index.index_file import (
    IndexReader,
    append_to_index,
    differences,
    index_path,
    write_index,
)
from outlay.guard.index.trie import DoubtfulIndex
from outlay.locks import FileLock, FileLocked, local_locks, lock_excludes, turn_at
from outlay.membership import Membership
from outlay.proc.identity import has_ended
from outlay.store.home import books_dir
from outlay.units import Duration

_SHOWN_DIGITS = 12  # Of a hash; enough to identify it.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who uses a log.

    Attributes:
        user: Whose money new lines are about.
        via: The service that states the user, if that is not the login.
        teams: The teams of the user today, as far as the log knows them.
    """

    user: str
    via: str = ""
    teams: tuple[str, ...] = ()


def head_text(head: str) -> str:
    """Return the hash of a log's last line for people, and what it is good for."""
    short = head[:_SHOWN_DIGITS]
    return f"head {short} (outlay guard verify --expect {short} finds later edits)"


class SpendLog(Protocol):
    """An append-only log in which a decision and its append are atomic."""

    def wall_ns(self, clock: Clock) -> int:
        """Return the time of new lines, UTC nanoseconds: that of the log, else the machine's."""
        return clock.wall_ns()

    def login(self, user: str) -> Login:
        """Return who uses the log, if ``user`` is stated, which may be empty."""
        return Login(user=user or known_login())

    def author(self) -> str:
        """Return who writes, for lines that state who did something."""
        return this_user()

    def transact(self, decide: Callable[[Books], Decision[Answer]]) -> Answer:
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

    def beat(self, hold: str, process: str) -> None:
        """Record that the process of a hold runs; for a log in a file it is asked itself."""
        del hold, process

    def abandoned(self, holds: Iterable[Hold]) -> frozenset[str]:
        """Return the ids of the holds whose watcher, or else opener, is known to be dead."""
        return frozenset(hold.id for hold in holds if has_ended(hold.process))

    def offline_allowance(self) -> Duration:
        """Return how long a lease may run while the log can't be reached; none by default."""
        return Duration(0)


class MemorySpendLog(SpendLog):
    """A spend log in memory, for tests and rehearsals."""

    def __init__(self) -> None:
        self._books = Books()
        self._lines: list[AnyLine] = []
        self._mutex = threading.Lock()

    def transact(self, decide: Callable[[Books], Decision[Answer]]) -> Answer:
        """Decide and append under a lock."""
        with self._mutex:
            decision = decide(self._books)
            for entry in decision.entries:
                self._books.apply(entry)
                self._lines.append(entry)
            return decision.answer

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Query the fold under the lock."""
        with self._mutex:
            return ask(self._books)

    def head(self) -> str:
        """Return "": lines in memory have no hash."""
        return ""

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Append the line; no line is ever missing."""
        self.transact(lambda books: Decision((entry(books, ()),), None))

    def lines(self) -> tuple[AnyLine, ...]:
        """Return all lines."""
        return tuple(self._lines)

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Return no findings; ``expect`` is invalid, since lines have no hashes."""
        del runs
        if expect:
            raise InvalidValue("--expect", expect, "nothing: a log in memory has no hashes")
        return Verification(lines=len(self._lines), chained=len(self._lines), findings=())


@cache
def login_name() -> str:
    """Return the name of the user of this process."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid {os.getuid()}"
    return name.encode(errors="replace").decode()


def known_login() -> str:
    """Return the name of the user of this process; empty if no person is to be recorded."""
    from outlay.record.facts import records_identity  # Here: it loads sockets.

    return login_name() if records_identity(os.environ) else ""


def this_user() -> str:
    """Return the user and the host."""
    return f"{login_name()} on {os.uname().nodename}".encode(errors="replace").decode()


LOG_NAME = "spend.jsonl"
_LOCK_TIMEOUT_S = 30.0
_LEAST_EXPECTED = 8  # digits of a hash that identify a line
_TAIL_LINES, _TAIL_BYTES = 32, 1 << 16  # so much may follow the index before it is extended
_MOST_DIFFERENCES = 5
_NO_HEAD = "spend.head, which should be beside it, is missing or empty"
_BAD_HEAD = "spend.head can't be read"


def _hash_before(log: int, end: int) -> str:
    """Return the hash of the line whose closing brace ends at an offset, if one does."""
    raw = read_from(log, max(end - HASH_BYTES, 0), end)
    return raw[:-2].decode("latin-1") if raw.endswith(b'"}') else ""


def check_lines(scanned: ScanResult, *, source: str, today: str, expect: str) -> Iterator[Finding]:
    """Yield findings about the decisions in lines, and about an expected hash that none has."""
    yield from recheck_decisions(scanned.lines, source=source, today=today)
    wanted = expect.strip().lower()
    if not wanted:
        return
    if len(wanted) < _LEAST_EXPECTED or wanted.strip("0123456789abcdef"):
        raise InvalidValue("--expect", expect, "a hash as `outlay guard status` shows it")
    if not any(known.startswith(wanted) for known in scanned.hashes):
        message = f"no line has the hash {wanted}: the log was rolled back or rewritten since then"
        yield Finding(source=source, message=message)


def verification_of(
    scanned: ScanResult,
    findings: Iterable[Finding],
    *,
    source: str,
    runs: Mapping[str, Path] | None,
) -> Verification:
    """Return the result of a check: the findings, and captures that are below their run's cost."""
    found = list(findings)
    if runs:
        from outlay.guard.captures import captured_below_cost  # Here: loads the log reader.

        found += captured_below_cost(scanned.lines, runs, source=source)
    chained = sum(not isinstance(line, Simple) for _, line in scanned.lines)
    head = scanned.link.hash if scanned.link.first else ""
    return Verification(lines=len(scanned.lines), chained=chained, findings=tuple(found), head=head)


def file_exists(path: Path) -> bool:
    """Return whether a file exists; raises OSError if that can't be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def read_log_path(path: str | os.PathLike[str]) -> Path:
    """Return the resolved path of a log.

    Raises:
        InvalidValue: Not a path, or the path of a head, an index or a manifest.
    """
    expected = "the path of a spend log, such as spend.jsonl"
    try:
        resolved, scheme = Path(path).resolve(), _lost_scheme(Path(path))
    except (TypeError, ValueError, OSError, RuntimeError):
        raise InvalidValue("log_path", path, expected) from None
    if scheme:
        raise InvalidValue("log_path", f"{scheme}//…", f"{expected}; a URL is text")
    if resolved.suffix in (".head", ".index") or resolved.name in ("", MANIFEST_NAME):
        no_log = f"no .head, no .index and no {MANIFEST_NAME}"
        raise InvalidValue("log_path", str(path), f"{expected}; {no_log}")
    return resolved


def apply_line(source: str, books: Books, number: int, line: AnyLine) -> None:
    """Fold a line; one that contradicts those before it was altered."""
    try:
        books.apply(line)
    except Inconsistent as error:
        raise SpendLogAltered(source, number, str(error)) from None


# The log in a file.


class _IndexedRows:
    """The rows of an index; those of the log itself from when the index turns out to be damaged."""

    def __init__(self, index: IndexReader, log_path: Path) -> None:
        self.index = index
        self.instead: Books | None = None
        self._log_path = log_path

    def _fold_again(self) -> Books:
        """Return the fold of the index's lines, from the log."""
        path, position = index_path(self._log_path), self.index.root.position
        if self.index.is_current(path):
            with suppress(OSError):
                path.unlink()
        log = open_own(self._log_path, os.O_RDONLY)
        try:
            data = read_from(log, 0, position.offset)
        finally:
            os.close(log)
        source, books = str(self._log_path), Books()
        scanned = scan(source, data, START, take=partial(apply_line, source, books))
        if position_of(scanned.link) != position:
            problem = "its first lines were replaced while it was read"
            raise SpendLogUnusable(source, problem, "Try again.")
        return books

    def row(self, table: str, key: str) -> bytes | None:
        if self.instead is None:
            try:
                return self.index.row(table, key)
            except DoubtfulIndex:
                self.instead = self._fold_again()
        return self.instead.row(table, key)

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        if self.instead is None:
            try:
                return iter(list(self.index.rows(table)))
            except DoubtfulIndex:
                self.instead = self._fold_again()
        return self.instead.rows(table)


class FileSpendLog(SpendLog):
    """``spend.jsonl``, its head and its index.

    Args:
        path: The log; the others are beside it.
        indexed: Whether to use and to write the index; without it every line is read.
    """

    def __init__(self, path: Path, *, clock: Clock = SYSTEM, indexed: bool = True) -> None:
        self.path = read_log_path(path)
        self._index_path = index_path(self.path)
        self._indexed = indexed
        self._index_fails = False
        self._head = HeadFile(head_path(self.path))
        self._memory = RememberedHead(self.path, listed=True)
        self._clock = clock
        self._manifest = manifest_path(self.path)
        self._slots = self._remembered = NO_SLOTS
        self._first_named: str | None = None
        self._seen: Head | None = None  # the last line read or written by this object, ever
        self._locks_checked = False
        self._login: Login | None = None
        self._forget()

    def login(self, user: str) -> Login:
        """Return who uses the log; that of the process is looked up once."""
        if user:
            return Login(user=user)
        if self._login is None:
            self._login = super().login("")
        return self._login

    def _forget(self) -> None:
        """Drop the cached fold; the next use reads the whole file."""
        self._books = Books()
        self._kept: _IndexedRows | None = None
        self._scanned = NOTHING
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()

    def transact(self, decide: Callable[[Books], Decision[Answer]]) -> Answer:
        """Decide, append, fsync, then answer."""
        create = os.O_CREAT if self._identity is None and self._is_new() else 0
        with self._locked(os.O_RDWR | os.O_APPEND | create) as log:
            head = self._catch_up(log)
            decision = decide(self._books)
            if decision.entries:
                self._append(log, decision.entries, begin=head is None)
            elif head is None or head.offset < self._scanned.link.offset:
                # The answer depends on lines that a killed writer may not have fsynced.
                os.fsync(log)
            self._update_index(log, exclusive=True)
            return decision.answer

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Query the current fold under a shared lock."""
        if self._is_new():
            return ask(Books())
        with self._locked(os.O_RDONLY) as log:
            self._catch_up(log)
            self._remember()
            answer = ask(self._books)
            self._update_index(log, exclusive=False)
            return answer

    def head(self) -> str:
        """Return the hash of the last chained line; empty if there is none."""
        return self.look(lambda _: self._scanned.link.hash if self._scanned.link.first else "")

    def lines(self) -> tuple[AnyLine, ...]:
        """Read the whole file and return every line that counts, in order."""
        fresh, missing, _ = self._read_whole_file()
        fresh._refuse(missing)
        return tuple(line for _, line in fresh._scanned.lines)

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Accept the log as it is now, although it is behind what was seen.

        ``entry`` makes the line that records it; if it raises, nothing changes.

        Raises:
            SpendLogAltered: The chain itself is broken, which can't be accepted.
        """
        with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT) as log:
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
            fresh, missing, index = self._read_whole_file()
        except SpendLogUnusable as error:
            finding = Finding(source=error.path, line=error.line, message=error.problem)
            return Verification(lines=0, chained=0, findings=(finding,))
        scanned = fresh._scanned
        findings = [Finding(source=where, line=one.line, message=one.problem) for one in missing]
        findings += (*scanned.findings, *self._warnings(scanned))
        today = timestamp(self._clock.wall_ns())[:10]
        findings += check_lines(scanned, source=where, today=today, expect=expect)
        findings += index
        return verification_of(scanned, findings, source=where, runs=runs)

    def _read_whole_file(self) -> tuple[FileSpendLog, tuple[MissingLine, ...], Iterator[Finding]]:
        """Return a log with every line, what is missing, and findings about its index."""
        fresh = FileSpendLog(self.path, clock=self._clock, indexed=False)
        fresh._seen = self._seen
        if fresh._is_new():
            return fresh, (), iter(())
        with fresh._locked(os.O_RDONLY) as log:
            missing = fresh._fold_appended(log)
            try:
                index = IndexReader.open(self._index_path)
                if index is not None:
                    self._link_at(log, index.root.position)
            except DoubtfulIndex as error:
                return fresh, missing, iter((self._doubt(error),))
            if index is None:
                return fresh, missing, iter(())
            before = read_from(log, 0, index.root.position.offset).count(b"\n")
        return fresh, missing, self._check_index(fresh._scanned, index, newlines=before)

    def _check_index(
        self, scanned: ScanResult, index: IndexReader, *, newlines: int
    ) -> Iterator[Finding]:
        """Yield findings if an index that would be used is not the fold of the log's lines."""
        where, position, books = str(self._index_path), index.root.position, Books()
        problems = []
        if position.lines != newlines + (not position.ended):
            problems = [f"it counts {position.lines} lines instead of {newlines}"]
        if position.first != (scanned.link.first if position.covered else ""):
            problems.append("it names another first line")
        for number, line in scanned.lines:
            if number <= position.lines:
                books.apply(line)
        try:
            problems += islice(differences(index.root.state, index, books), _MOST_DIFFERENCES)
        except DoubtfulIndex as error:
            yield self._doubt(error)
        for problem in problems:
            message = f"it does not agree with the log: {problem}. Delete it; it is written anew"
            yield Finding(source=where, message=message)

    def _doubt(self, error: DoubtfulIndex) -> Finding:
        message = f"it is not used, and will be written anew: {error}"
        return Finding(source=str(self._index_path), message=message, severity="warning")

    def _warnings(self, scanned: ScanResult) -> Iterator[Finding]:
        where, link = str(self.path), scanned.link
        if scanned.torn:
            message = f"the last {len(scanned.torn)} bytes are a torn write"
            yield Finding(source=where, line=link.lines + 1, message=message, severity="warning")
        if link.offset > link.covered + 1:
            message = "its last lines carry no hash; the next chained line will cover them"
            yield Finding(source=where, line=link.lines, message=message, severity="warning")

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
    def _locked(self, flags: int) -> Iterator[int]:
        """Open and lock the log for one use, shared to read; any failure is a refusal.

        The file is opened each time: forked processes would share the lock of a descriptor that
        stays open.
        """
        try:
            with turn_at(os.fspath(self.path), _LOCK_TIMEOUT_S):
                if self._pid != os.getpid():
                    self._forget()  # forked, perhaps while another thread used the log
                with self._open_and_lock(flags) as lock:
                    try:
                        self._check_locks(flags)
                        yield lock.file
                    finally:
                        self._head.release()
                        self._memory.release()
        except FileLocked:
            raise self._unusable(
                f"a process has held its lock for {_LOCK_TIMEOUT_S:g} s and written nothing",
                "Find the process with `fuser` or `lsof` on the file.",
            ) from None
        except OSError as error:
            raise self._refusal(error) from error

    def _open_and_lock(self, flags: int) -> FileLock:
        if flags & os.O_CREAT and self._identity is None:
            make_private(self.path.parent, synced=True)
        while True:
            try:
                log = open_own(self.path, flags)
            except FileNotFoundError:
                gone = scan(str(self.path), b"", NOTHING.link, self._known_heads()).missing
                self._refuse((*gone, *self._missing_marks(NOTHING.link)))
                raise
            shared = not flags & os.O_RDWR
            lock = FileLock(log, shared=shared, patience_s=_LOCK_TIMEOUT_S, clock=self._clock)
            try:
                if os.path.samestat(os.fstat(log), self.path.stat()):
                    return lock
            except BaseException:
                lock.release()
                raise
            lock.release()  # The file was replaced while we waited: open the new one.

    def _check_locks(self, flags: int) -> None:
        """Refuse a file system whose locks do not exclude others; checked once."""
        if self._locks_checked or not flags & os.O_RDWR:
            return
        remedy = "Keep it on a local disk, or on a file system with locks for all machines."
        remedy += " PostgreSQL keeps a log that machines share: `outlay team init`."
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
        found, heads = os.fstat(log), self._known_heads(keep=True)
        same = self._identity == (found.st_dev, found.st_ino)
        if not same or found.st_size < self._scanned.link.offset:
            self._forget()
        if self._indexed and self._scanned is NOTHING:
            self._begin_with_index(log, heads)
        try:
            self._fold_from(log, found.st_size, self._scanned.link, heads)
        except SpendLogAltered:
            if self._scanned is NOTHING:
                raise
            self._forget()  # the lines read before may have been replaced, and accepted
            self._fold_from(log, found.st_size, NOTHING.link, heads)
        self._identity = (found.st_dev, found.st_ino)

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
        source = str(self.path)
        if self._indexed:  # the lines themselves are not needed
            take = partial(apply_line, source, self._books)
            self._scanned = scan(source, data, link, heads, take=take)
        else:
            self._fold(scan(source, data, link, heads))

    def _fold(self, scanned: ScanResult) -> None:
        for number, line in scanned.lines:
            apply_line(str(self.path), self._books, number, line)
        self._scanned = scanned

    # -- the index --------------------------------------------------------------------------

    def _begin_with_index(self, log: int, heads: tuple[Head, ...]) -> None:
        """Begin with the fold in the index, unless there is a doubt about it."""
        try:
            index = IndexReader.open(self._index_path)
            if index is None:
                return
            link = self._link_at(log, index.root.position)
        except DoubtfulIndex:
            return
        passed = (head for head in heads if 0 < head.offset <= link.covered)
        if all(_hash_before(log, head.offset - 1) == head.hash for head in passed):
            self._rebase(index, replace(NOTHING, link=link))

    def _link_at(self, log: int, position: Position) -> Link:
        """Return the link at an index's position; raises DoubtfulIndex if the log differs."""
        start = max(position.covered - HASH_BYTES, 0)
        link = link_at(position, read_from(log, start, position.offset))
        if link is None or (not position.covered and position.hash != START.hash):
            raise DoubtfulIndex(f"the log has another line {position.lines}")
        return link

    def _rebase(self, index: IndexReader, scanned: ScanResult) -> None:
        """Continue from an index."""
        self._kept = _IndexedRows(index, self.path)
        self._books = Books(self._kept, index.root.state)
        self._scanned = scanned

    def _update_index(self, log: int, *, exclusive: bool) -> None:
        """Write the index if many lines follow it; where that fails, all goes on without it.

        A reader, which shares the log with others, may only replace the file.
        """
        base, link = None if self._kept is None else self._kept.index, self._scanned.link
        start: Position | Link = START if base is None else base.root.position
        # The bytes after the last chained line are read by every process that begins with it.
        lines, size = link.lines - start.lines, link.covered - start.covered
        if not self._indexed or self._index_fails or (lines < _TAIL_LINES and size < _TAIL_BYTES):
            return
        doubted = self._kept is not None and self._kept.instead is not None
        if base is not None and (doubted or not base.is_current(self._index_path)):
            self._forget()  # the next use begins with what another process wrote, or with all lines
            return
        if not exclusive and link.lines < start.lines * 5 // 4:
            return
        try:
            self._write_index(log, base, exclusive=exclusive)
        except (OSError, OverflowError):
            self._index_fails = True
        except DoubtfulIndex:
            with suppress(OSError):
                self._index_path.unlink()
            self._forget()

    def _write_index(self, log: int, base: IndexReader | None, *, exclusive: bool) -> None:
        path, books, link = self._index_path, self._books, self._scanned.link
        if exclusive and base is not None and not base.is_wasteful():
            index = append_to_index(path, base, books, position_of(link))
        else:
            if exclusive:  # so that no other process writes one
                for draft in path.parent.glob(f".{path.name}.*.draft"):
                    draft.unlink(missing_ok=True)
            mode = stat.S_IMODE(os.fstat(log).st_mode) & 0o666
            index = write_index(path, base, books, position_of(link), mode=mode)
        self._rebase(index, replace(self._scanned, lines=(), hashes=()))

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


# How a log is named: by the path of a file, or by the URL of a book in a database. What takes the
# URLs of a scheme is found through ``plugins``: nothing here uses the network.

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


class BookUrl(Protocol):
    """The URL of a book; as text only what may be shown of it."""

    @property
    def url(self) -> str:
        """The URL itself, which may have a password."""

    @property
    def file_name(self) -> str:
        """A name for what this machine keeps about the book; it shows no host and no login."""

    def without_password(self) -> str:
        """Return the URL without a password, by which the book is opened again."""

    def handed_on(self) -> str:
        """Return the URL for another process, which shows it.

        Raises:
            InvalidValue: It has a password.
        """


LogName = Path | BookUrl


class BookLog(SpendLog, Protocol):
    """A spend log that is named by a URL; an entry point of ``outlay.spend_logs`` opens one.

    The entry point's name is the scheme, its object a function of the URL and ``clock``.
    """

    @property
    def name(self) -> BookUrl:
        """Its URL."""

    def stamp(self) -> object:
        """Return a value that changes with every line, by one cheap query."""

    def memberships(self) -> tuple[Membership, ...]:
        """Return who is, was and will be in which team."""


def _lost_scheme(path: Path) -> str:
    """Return the scheme of a URL that a path was made of, which lost a slash; else ""."""
    first = Path(*path.parts[:1])
    return str(first) if _URL.match(f"{first}//") and not first.exists() else ""


def is_url(name: object) -> bool:
    """Return whether a log is named by a URL."""
    return isinstance(name, str) and _URL.match(name) is not None


def open_book(url: str, *, clock: Clock = SYSTEM) -> BookLog:
    """Return the log of a URL; nothing is connected before its first use.

    Raises:
        InvalidValue: No implementation takes the URL.
    """
    from outlay import plugins  # Here: few logs are books.

    found = _URL.match(url)
    assert found is not None
    scheme = found[1].lower()
    opener = plugins.load(plugins.SPEND_LOGS, scheme)
    if opener is None:
        known = choices([f"{name}://" for name in plugins.names(plugins.SPEND_LOGS)])
        expected = f"the path of a spend log, or a URL that begins with {known}"
        raise InvalidValue("log_path", f"{scheme}://…", expected)
    log: BookLog = opener(url, clock=clock)
    return log


def open_log(name: str | os.PathLike[str], *, clock: Clock = SYSTEM) -> FileSpendLog | BookLog:
    """Return the log of a path or of a URL."""
    if isinstance(name, str) and is_url(name):
        return open_book(name, clock=clock)
    return FileSpendLog(Path(name), clock=clock)


def named_log(name: str | Path) -> str | Path:
    """Return the name of a log, given as a URL, a path, or the path of its directory."""
    if is_url(name):
        return name
    path = Path(name)
    return path / LOG_NAME if path.is_dir() else path


def name_for_others(name: LogName) -> str:
    """Return the name by which another process opens the log: an absolute path, or a URL.

    Raises:
        InvalidValue: It is a URL with a password.
    """
    return str(name.absolute()) if isinstance(name, Path) else name.handed_on()


def documents_dir(name: LogName) -> Path:
    """Return the directory of documents about a log: beside a file, in the home for a book."""
    return name.parent if isinstance(name, Path) else books_dir() / name.file_name


def is_named(name: LogName, text: str) -> bool:
    """Return whether a log is the one that ``name_for_others`` named so."""
    return text == (str(name.absolute()) if isinstance(name, Path) else name.url)
