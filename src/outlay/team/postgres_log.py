"""A spend log in PostgreSQL: a book that machines share.

A transaction locks the book, reads what was appended since, decides, appends and commits: two round
trips. While nobody else writes it is one: the decision is made with the entries that are known, and
the database appends its lines only if no other entry has followed these. The bytes of a line, its
hash and the decision are those of a log in a file. The head of the book is compared with what this
process, and this machine, saw last: a server that lacks lines, as after the promotion of a standby,
is refused until a person accepts it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument
from outlay.errors import Finding, OutlayError
from outlay.guard.balance import Books, Hold
from outlay.guard.chain import (
    NO_SLOTS,
    NOTHING,
    START,
    Head,
    Link,
    MissingLine,
    ScanResult,
    link_at,
    link_entries,
    position_of,
    scan,
)
from outlay.guard.entries import (
    Answer,
    AnyEntry,
    AnyLine,
    Decision,
    Simple,
    encode,
    line_kind,
    timestamp,
)
from outlay.guard.errors import (
    BookRolledBack,
    SpendLogAltered,
    SpendLogAway,
    SpendLogUnusable,
)
from outlay.guard.index.head_file import RememberedHead
from outlay.guard.index.index_file import differences
from outlay.guard.spend_log import (
    Login,
    SpendLog,
    Verification,
    apply_line,
    check_lines,
    verification_of,
)
from outlay.membership import Membership
from outlay.proc.identity import has_ended_here
from outlay.team.book_url import PostgresUrl
from outlay.team.kept_folds import (
    SHAPE,
    DatabaseRows,
    FoldRoot,
    SnapshotPruned,
    keep_batch,
    root_decoder,
)
from outlay.team.session import (
    Batch,
    ConnectionLost,
    Declined,
    Patience,
    Row,
    Session,
    Statement,
    bytea_array,
)
from outlay.units import Duration

VERSION: Final = 1
"""Of the tables and functions in the database."""
_RECENT_NS: Final = 5 * 10**9  # so long after a turn its time, teams and settings are used again
_TAIL: Final = 64  # so many entries may follow a snapshot before another one is kept
_CHUNK: Final = 5000  # entries per read of a whole book
_HASH_LINE: Final = 64 + len('"}\n')
_MOST_DIFFERENCES: Final = 5

_WRITE: Final = "BEGIN"
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TURN: Final = "SELECT * FROM outlay.turn(%s, %s, %s, %s, %s)"
_STAMP: Final = "SELECT seq, hash FROM outlay.book WHERE name = %s"
_SNAPSHOT: Final = """SELECT seq, root FROM outlay.snapshot
WHERE book = %s AND shape = %s ORDER BY seq DESC LIMIT 1"""
_ENTRIES: Final = """SELECT seq, before, line FROM outlay.entry
WHERE book = %s AND seq >= %s ORDER BY seq"""
_APPEND_AFTER: Final = "SELECT outlay.append_after(%s, %s, %s, %s, ARRAY[{}])"
_APPEND: Final = "SELECT outlay.append(%s, %s, %s::bytea[], %s::bytea[])"
_COPY: Final = "SELECT outlay.copy(%s, %s, %s::bytea[], %s::bytea[])"
_SEED: Final = "SELECT outlay.seed(%s, %s::json, %s::json, %s::json, %s)"
_TEAMS: Final = "SELECT outlay.teams_of(%s, %s)"
_MEMBERS: Final = """SELECT login, team, since::text, coalesce(until::text, '') FROM outlay.member
ORDER BY login, team, since"""
_COUNTERS: Final = """SELECT of, name, period, captured, held, rate FROM outlay.counter
WHERE book = %s AND (captured, held, rate) <> (0, 0, 0)"""
_OPEN: Final = """SELECT hold, lab, "user", team, day, held, rate FROM outlay.open_hold
WHERE book = %s"""
_HAS: Final = "SELECT 1 FROM outlay.entry WHERE book = %s AND hash = %s"
_WHOLE: Final = """SELECT seq, before, line, hash, kind, hold, key FROM outlay.entry
WHERE book = %s AND seq > %s ORDER BY seq LIMIT %s"""

_BEAT: Final = "SELECT outlay.beat(%s, %s, %s)"
# A rental's process that never beat is silent since its hold; any other may be one that never does.
_SILENT: Final = """SELECT o.hold FROM unnest(%s::text[], %s::text[], %s::boolean[])
  AS o (hold, process, rents)
JOIN outlay.book b ON b.name = %s
JOIN outlay.entry e ON e.book = b.id AND e.hold = o.hold AND e.kind = 'hold'
LEFT JOIN outlay.beat t ON t.book = b.id AND t.hold = o.hold AND t.watcher = o.process
WHERE coalesce(t.at, CASE WHEN o.rents THEN e.at END) < outlay.now() - interval '5 minutes'"""


class NotWritten(SpendLogAway):
    """The connection was lost, and the lines of the transaction were not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookHead:
    """The head row of a book: its last entry, and the size of the same log as a file."""

    id: int
    seq: int
    hash: str
    first: str
    bytes: int
    lines: int

    @classmethod
    def of_row(cls, row: Row) -> BookHead:
        """Return the head of a row."""
        number, seq, digest, first, size, lines = row
        return cls(id=number, seq=seq, hash=digest, first=first, bytes=size, lines=lines)

    def is_after(self, link: Link) -> bool:
        """Return whether a link is the position after the last entry."""
        stated = (self.hash, self.first, self.bytes, self.lines)
        return stated == (link.hash, link.first, link.offset, link.lines)


class PostgresSpendLog(SpendLog):
    """A book in PostgreSQL.

    Args:
        name: Its URL.
        patience: How long anybody may be blocked.
    """

    def __init__(
        self, name: PostgresUrl, *, clock: Clock = SYSTEM, patience: Patience | None = None
    ) -> None:
        self.name = name
        self._clock = clock
        self._patience = patience or Patience()
        self._lock_patience = f"{round(self._patience.lock * 1000)}ms"
        self._idle_patience = f"{round(self._patience.idle * 1000)}ms"
        self._session = Session(name, clock, answer_s=self._patience.answer)
        self._memory = RememberedHead(_remembered_as(name))
        self._remembered = NO_SLOTS
        self._seen: Head | None = None  # the last line read or written by this object, ever
        self._time: tuple[int, int] | None = None  # the database's, and the monotonic clock then
        self._login: Login | None = None
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._forget()

    def _forget(self) -> None:
        """Drop the cached fold; the next use begins with the last snapshot."""
        self._books = Books()
        self._base: DatabaseRows | None = None
        self._scanned: ScanResult = NOTHING
        self._seq = 0
        self._book: int | None = None  # its id; None before the first use
        self._oldest: int | None = None  # the entry of the oldest snapshot
        self._last_kept: int | None = None  # and of the last one
        self._began: int | None = None  # that of the one with which this fold began, if usable
        self._new: list[Row] = []  # what others appended before the last turn
        self._alone_ns: int | None = None  # when a turn last found nothing new; None: others write

    def close(self) -> None:
        """Close the connection; the next use makes another."""
        with self._turn():
            self._session.close()

    def wall_ns(self, clock: Clock) -> int:
        """Return the database's time, as of the last transaction; before that, the machine's."""
        if self._time is None:
            return clock.wall_ns()
        server_ns, then_ns = self._time
        return server_ns + self._clock.monotonic_ns() - then_ns

    def login(self, user: str) -> Login:
        """Return the login, or the user for whom it acts, with the teams of today."""
        if self._login is None:
            self.look(lambda _: None)
        assert self._login is not None
        if user in ("", self._login.user):
            return self._login
        day = timestamp(self.wall_ns(self._clock))[:10]
        ((teams,),) = self._query(_TEAMS, (user, day))
        return Login(user=user, via=self._login.user, teams=tuple(teams))

    def offline_allowance(self) -> Duration:
        """Return how long running operations go on without the database, as an owner stated it."""
        return Duration(self.look(lambda books: books.offline_ns))

    def author(self) -> str:
        """Return the login."""
        return (self.login("")).user

    def transact(self, decide: Callable[[Books], Decision[Answer]]) -> Answer:
        """Decide, append, commit, then answer."""
        with self._turn():
            if self._is_alone() and (decision := self._decide_alone(decide)) is not None:
                return decision.answer
            try:
                return self._transact(decide)
            except NotWritten:
                return self._transact(decide)

    def _transact(self, decide: Callable[[Books], Decision[Answer]]) -> Answer:
        with self._transaction(writes=True) as head:
            self._refuse(self._catch_up(head))
            decision = decide(self._books)
            if decision.entries:
                self._append(head, decision.entries)
            return decision.answer

    def look(self, ask: Callable[[Books], Answer]) -> Answer:
        """Query the fold as of now; waits for no writer."""
        with self._turn(), self._transaction(writes=False) as head:
            self._refuse(self._catch_up(head))
            self._remember()
            return ask(self._books)

    def stamp(self) -> tuple[int, str]:
        """Return number and hash of the last entry, which change with every line."""
        with self._turn():
            found = self._session.run([(_STAMP, (self.name.book,))])[0]
        if not found:
            raise self._unusable("there is no book of this name", "`outlay team init` makes one.")
        seq, digest = found[0]
        return seq, digest

    def memberships(self) -> tuple[Membership, ...]:
        """Return who is, was and will be in which team; all books of a database share them."""
        return tuple(
            Membership(user=user, team=team, since=since, until=until)
            for user, team, since, until in self._query(_MEMBERS, ())
        )

    def head(self) -> str:
        """Return the hash of the last line; empty if there is none."""
        return self.look(lambda _: self._scanned.link.hash if self._scanned.link.first else "")

    def lines(self) -> tuple[AnyLine, ...]:
        """Read the whole book and return every line that counts, in order."""
        with self._turn(), self._transaction(writes=False) as head:
            self._refuse(self._catch_up(head))
            scanned = scan(str(self.name), b"".join(self._blobs(head)), START)
        return tuple(line for _, line in scanned.lines)

    def accept(self, entry: Callable[[Books, tuple[MissingLine, ...]], AnyEntry]) -> None:
        """Accept the book as it is now, although it is behind what was seen."""
        with self._turn(), self._transaction(writes=True) as head:
            missing = self._catch_up(head)
            accepted = entry(self._books, missing)
            self._append(head, (accepted,))
            assert self._seen is not None
            self._memory.replace(self._seen)

    def export(self, write: Callable[[bytes], object]) -> Head | None:
        """Write the bytes of the same log in a file; return its head, None without a line."""
        with self._turn(), self._transaction(writes=False) as head:
            self._refuse(self._catch_up(head))
            for blob in self._blobs(head):
                write(blob)
            return self._seen if head.seq else None

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check every line, every decision, the head and the snapshot; problems become findings."""
        where = str(self.name)
        try:
            scanned, findings = self._check_whole()
        except SpendLogUnusable as error:
            finding = Finding(source=error.path, line=error.line, message=error.problem)
            return Verification(lines=0, chained=0, findings=(finding,))
        today = timestamp(self._clock.wall_ns())[:10]
        findings += check_lines(scanned, source=where, today=today, expect=expect)
        return verification_of(scanned, findings, source=where, runs=runs)

    def fill(self, chunks: Iterable[list[tuple[bytes, bytes]]]) -> None:
        """Fill an empty book with the chained lines of another log, all of them or none.

        Each line has the bytes before it that its hash covers.

        Raises:
            SpendLogUnusable: The book has entries, or a line does not fit into the chain.
        """
        with self._turn(), self._transaction(writes=True) as head:
            self._refuse(self._catch_up(head))
            if head.seq:
                raise self._unusable("it has entries already", "Name a book that is empty.")
            try:
                for chunk in chunks:
                    self._import(chunk)
                self._query(_SEED, (self.name.book, *_seeds(self._books)))
                batch = keep_batch(self.name.book, self._books, position_of(self._scanned.link))
                self._session.run([*batch, ("COMMIT", ())])
            except BaseException:
                self._forget()
                raise
            self._forget()

    def beat(self, hold: str, process: str) -> None:
        """Record, by the database's clock, that the process of a hold runs."""
        self._query(_BEAT, (self.name.book, hold, process))

    def abandoned(self, holds: Iterable[Hold]) -> frozenset[str]:
        """Return the holds whose process has not beaten for five minutes, or has ended here.

        A process of another machine is judged by its beats alone, whatever its name and pid.
        """
        asked = list(holds)
        if not asked:
            return frozenset()
        columns = zip(*((hold.id, hold.process, bool(hold.rental)) for hold in asked), strict=True)
        found = self._query(_SILENT, (*map(list, columns), self.name.book))
        ended = (hold.id for hold in asked if has_ended_here(hold.process))
        return frozenset((*(row[0] for row in found), *ended))

    # -- a whole book -----------------------------------------------------------------------

    def _check_whole(self) -> tuple[ScanResult, list[Finding]]:
        with self._turn(), self._transaction(writes=False) as head:
            rows = [row for chunk in self._chunks(head) for row in chunk]
            scanned = scan(str(self.name), b"".join(row[1] + row[2] for row in rows), START)
            books = Books()
            for number, line in scanned.lines:
                apply_line(str(self.name), books, number, line)
            missing = self._missing(head, scanned.link, books)
            findings = [
                Finding(source=str(self.name), line=one.line, message=one.problem)
                for one in missing
            ]
            findings += (*scanned.findings, *self._check_rows(head, rows, scanned))
            findings += self._check_snapshot(head, rows)
            findings += self._check_counters(head, books)
        return scanned, findings

    def _check_rows(
        self, head: BookHead, rows: list[Row], scanned: ScanResult
    ) -> Iterator[Finding]:
        """Yield findings if the columns, or the head, do not say what the lines say."""
        chained = [line for _, line in scanned.lines if not isinstance(line, Simple)]
        told = zip(rows, scanned.hashes, chained, strict=False)
        for number, (row, digest, line) in enumerate(told, 1):
            key, hold = getattr(line, "key", ""), getattr(line, "hold", "")
            kind = str(type(line).__struct_config__.tag)
            if (row[0], *row[3:]) != (number, digest, kind, hold, key):
                message = f"entry {row[0]}: its columns differ from its line ({line_kind(line)})"
                yield Finding(source=str(self.name), line=number, message=message)
        if not head.is_after(scanned.link) or head.seq != len(rows):
            message = f"its head names entry {head.seq}, and the last one is {len(rows)}"
            yield Finding(source=str(self.name), message=message)

    def _check_snapshot(self, head: BookHead, rows: list[Row]) -> Iterator[Finding]:
        """Yield findings if what a new process begins with is not the fold of the entries."""
        found = self._query(_SNAPSHOT, (head.id, SHAPE))
        if not found:
            return
        seq, raw = found[0]
        source, books = str(self.name), Books()
        data = b"".join(row[1] + row[2] for row in rows[:seq])
        link = scan(source, data, START, take=partial(apply_line, source, books)).link
        try:
            root = root_decoder.decode(raw)
            kept = DatabaseRows(self._query_many, head.id, seq)
            problems = list(islice(differences(root.state, kept, books), _MOST_DIFFERENCES))
        except BadDocument as error:
            problems = [str(error)]
        else:
            if root.position != position_of(link):
                problems.append("it names another entry")
        for problem in problems:
            message = f"its snapshot at entry {seq} does not agree with its lines: {problem}"
            yield Finding(source=source, message=message)

    def _check_counters(self, head: BookHead, books: Books) -> Iterator[Finding]:
        """Yield findings if what limits are compared with does not agree with the lines."""
        kept = set(self._query(_COUNTERS, (head.id,))), set(self._query(_OPEN, (head.id,)))
        for name, rows, true in zip(("counters", "open holds"), kept, counted(books), strict=True):
            if rows != true:
                wrong = ", ".join(sorted({" ".join(map(str, row[:3])) for row in rows ^ true})[:5])
                message = f"its {name} do not agree with its lines: {wrong}"
                yield Finding(source=str(self.name), message=message)

    def _chunks(self, head: BookHead) -> Iterator[list[Row]]:
        seq = 0
        while seq < head.seq and (rows := self._query(_WHOLE, (head.id, seq, _CHUNK))):
            seq = rows[-1][0]
            yield rows

    def _blobs(self, head: BookHead) -> Iterator[bytes]:
        for rows in self._chunks(head):
            yield b"".join(row[1] + row[2] for row in rows)

    def _import(self, chunk: list[tuple[bytes, bytes]]) -> None:
        befores, lines = [before for before, _ in chunk], [line for _, line in chunk]
        self._query(_COPY, (self.name.book, self._seq, befores, lines))
        self._fold(b"".join(before + line for before, line in chunk))
        self._seq += len(chunk)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread at a time use the connection; a forked process makes its own."""
        if self._pid != os.getpid():
            self._mutex, self._pid = threading.RLock(), os.getpid()
            self._session.abandon()
            self._forget()
        with self._mutex:
            yield

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[BookHead]:
        """Begin a transaction, under the book's lock if it writes; roll back what is left open."""
        if not writes:  # Before its snapshot: a line that others remember later is not missing.
            self._remembered = self._memory.seen()
        head = self._begin(writes=writes)
        try:
            if writes:  # Who accepted the book before this turn has replaced the file.
                self._remembered = self._memory.seen(keep=True)
            yield head
        finally:
            self._memory.release()
            self._session.rollback()

    def _begin(self, *, writes: bool) -> BookHead:
        again = self._session.is_open  # A server that restarted has closed the connection.
        try:
            return self._begun(writes=writes)
        except ConnectionLost:
            if not again:
                raise
            return self._begun(writes=writes)
        except BaseException:
            self._session.rollback()
            raise

    def _begun(self, *, writes: bool) -> BookHead:
        about = (self.name.book, writes, self._lock_patience, self._idle_patience, SHAPE)
        batch: list[Statement] = [(_WRITE if writes else _READ, ()), (_TURN, about)]
        if self._book is not None:
            batch.append((_ENTRIES, (self._book, self._seq + 1)))
        _, (row,), *more = self._session.run(batch)
        (self._new,) = more or ([],)
        version, login, fsync, commit, *head, self._oldest, self._last_kept, time, teams = row
        self._time = (time * 1000, self._clock.monotonic_ns())
        self._login = Login(user=login, teams=tuple(teams))
        if version != VERSION:
            problem = f"its tables are of version {version}, and this outlay's of {VERSION}"
            raise self._unusable(problem, "Upgrade outlay, or run `outlay team init` again.")
        if fsync != "on" or commit not in ("on", "remote_apply"):
            problem = f"the server has fsync {fsync} and synchronous_commit {commit}"
            raise self._unusable(problem, "Both must be on, or a power failure loses lines.")
        if login != self._session.login:
            problem = f"the server has {login} as its login, and not {self._session.login}"
            remedy = "A pooler must log in as each client: remove user= from its [databases]."
            raise self._unusable(problem, remedy)
        if head[0] is None:
            raise self._unusable("there is no book of this name", "`outlay team init` makes one.")
        return BookHead.of_row(tuple(head))

    def _query(self, statement: str, values: tuple[object, ...]) -> list[Row]:
        with self._turn():
            return self._session.run([(statement, values)])[0]

    def _query_many(self, batch: Batch) -> list[list[Row]]:
        with self._turn():
            return self._session.run(batch)

    # -- the fold ---------------------------------------------------------------------------

    def _catch_up(self, head: BookHead) -> tuple[MissingLine, ...]:
        """Fold what was appended since the last use; return lines that are missing."""
        try:
            is_known = self._book == head.id and not self._is_behind(head) and self._is_kept()
            is_continued = is_known and self._continue(head)
            if not is_continued:
                self._start_over(head)
            is_alone = is_continued and not self._new
            self._alone_ns = self._clock.monotonic_ns() if is_alone else None
            link, known = self._scanned.link, self._remembered.head
            is_doubtful = not is_continued or (known is not None and known.offset > link.offset)
            if is_doubtful and (missing := self._missing(head, link, self._books)):
                return missing
            self._update_seen(link)
        except BaseException:
            self._forget()
            raise
        return ()

    def _is_behind(self, head: BookHead) -> bool:
        """Return whether a snapshot is due, and this fold began before the last one."""
        is_due = head.seq + 1 - (self._last_kept or 0) >= _TAIL
        return is_due and self._last_kept != self._began

    def _is_kept(self) -> bool:
        """Return whether the snapshot with which this fold began is there, if it began with one."""
        oldest = self._oldest
        return self._began is None or (oldest is not None and self._began >= oldest)

    def _continue(self, head: BookHead) -> bool:
        """Fold what follows the last known line; False if the book no longer has that line."""
        try:
            self._fold_rows(self._new)
        except SpendLogAltered:
            return False  # The lines read before may have been replaced, and accepted.
        return head.is_after(self._scanned.link) and head.seq == self._seq

    def _start_over(self, head: BookHead) -> None:
        """Fold from the last snapshot on."""
        self._forget()
        self._begin_with_snapshot(head)
        self._fold_rows(self._query(_ENTRIES, (head.id, self._seq + 1)))
        self._book = head.id
        if not head.is_after(self._scanned.link) or head.seq != self._seq:
            problem = f"its head names entry {head.seq}, and the last one is {self._seq}"
            raise SpendLogAltered(str(self.name), 0, problem)

    def _begin_with_snapshot(self, head: BookHead) -> None:
        """Begin with the last snapshot; without one, or on any doubt, with the first entry."""
        found = self._query(_SNAPSHOT, (head.id, SHAPE))
        self._last_kept = self._began = found[0][0] if found else None
        seq, root = (found[0][0], _root(found[0][1])) if found else (0, None)
        if root is None:
            return
        last = self._query(f"{_ENTRIES} LIMIT 1", (head.id, seq))
        link = link_at(root.position, last[0][2][-_HASH_LINE:]) if last else None
        if link is not None and last[0][0] == seq:
            self._base = DatabaseRows(self._query_many, head.id, seq)
            self._books = Books(self._base, root.state)
            self._scanned, self._seq = replace(NOTHING, link=link), seq

    def _fold_rows(self, rows: list[Row]) -> None:
        if rows:
            self._fold(b"".join(row[1] + row[2] for row in rows))
            self._seq = rows[-1][0]

    def _fold(self, data: bytes) -> None:
        self._apply(scan(str(self.name), data, self._scanned.link))

    def _apply(self, scanned: ScanResult) -> None:
        """Fold lines, after reading the rows that they need at once."""
        if self._base is not None:
            self._base.prefetch(self._books, [line for _, line in scanned.lines])
        for number, line in scanned.lines:
            apply_line(str(self.name), self._books, number, line)
        self._scanned = replace(scanned, lines=(), hashes=())

    def _missing(self, head: BookHead, link: Link, books: Books) -> tuple[MissingLine, ...]:
        """Return the lines that this process or this machine has seen, and the book lacks."""
        known = {seen for seen in (self._seen, self._remembered.head) if seen is not None}
        unknown = [seen for seen in known if seen.hash not in (link.hash, *books.given_up)]
        problem = "it ends at byte {}; lines up to byte {} were seen"
        return tuple(
            MissingLine(
                hash=seen.hash, line=head.lines, problem=problem.format(head.bytes, seen.offset)
            )
            for seen in unknown
            if not self._query(_HAS, (head.id, seen.hash))
        )

    def _refuse(self, missing: tuple[MissingLine, ...]) -> None:
        if missing:
            self._forget()
            raise BookRolledBack(str(self.name), missing[0].line, missing[0].problem)

    def _update_seen(self, link: Link) -> None:
        if link.first:
            self._seen = Head(link.covered + 1, link.hash)

    def _remember(self) -> None:
        if self._seen is not None:
            self._memory.remember(self._seen, self._remembered, given_up=self._books.given_up)

    # -- appending --------------------------------------------------------------------------

    def _is_alone(self) -> bool:
        """Return whether the last turn was just now, and nobody else had written before it."""
        since_ns = self._alone_ns
        if since_ns is None or self._clock.monotonic_ns() - since_ns > _RECENT_NS:
            return False
        return self._session.is_quiet

    def _decide_alone(self, decide: Callable[[Books], Decision[Answer]]) -> Decision[Answer] | None:
        """Decide with the entries that are known, and append if the book has no others.

        None if nothing was appended, for whatever reason: then it is decided under the lock. So is
        a refusal, since what it is based on may have changed.
        """
        try:
            self._remembered = self._memory.seen(keep=True)
            decision = self._decided_now(decide)
            if decision is None or not self._write(decision.entries, self._append_after):
                return None
        except (NotWritten, Declined, SnapshotPruned):
            return None
        else:
            return decision
        finally:
            self._memory.release()
            self._session.rollback()

    def _decided_now(self, decide: Callable[[Books], Decision[Answer]]) -> Decision[Answer] | None:
        """Return a decision that may be appended without a turn, if there is one."""
        known = self._remembered.head
        if known is not None and known.offset > self._scanned.link.offset:
            return None
        try:
            decision = decide(self._books)
        except OutlayError:
            return None
        is_due = self._seq + len(decision.entries) - (self._last_kept or 0) >= _TAIL
        return None if is_due or not decision.entries else decision

    def _append_after(self, seq: int, link: Link, lines: list[bytes]) -> bool:
        about = (self._book, seq, link.hash, self._lock_patience, *lines)
        statement = _APPEND_AFTER.format(", ".join(["%b"] * len(lines)))
        ((is_written,),) = self._session.call(statement, about)
        if not is_written:
            self._forget()
        return bool(is_written)

    def _append(self, head: BookHead, entries: tuple[AnyEntry, ...]) -> None:
        """Append and commit in the present transaction, with another snapshot if one is due."""

        def send(seq: int, _: Link, lines: list[bytes]) -> bool:
            arrays = bytea_array([b""] * len(lines)), bytea_array(lines)
            keep = self._snapshot_batch()
            batch = [(_APPEND, (self.name.book, seq, *arrays)), *keep, ("COMMIT", ())]
            self._session.run(batch)
            if keep:
                self._base = DatabaseRows(self._query_many, head.id, self._seq)
                self._began = self._last_kept = self._seq
                self._books.rebase(self._base)
            return True

        self._write(entries, send)

    def _write(
        self, entries: tuple[AnyEntry, ...], send: Callable[[int, Link, list[bytes]], bool]
    ) -> bool:
        """Fold entries and send their lines, which follow a number and a link.

        An unknown outcome is resolved by asking for the last line. Returns what ``send`` does:
        whether they were written.
        """
        seq, link = self._seq, self._scanned.link
        linked = link_entries(self._scanned, entries, ts=entries[0].ts)
        lines = linked.blob.splitlines(keepends=True)
        try:
            self._apply(linked.after)
            self._seq += len(lines)
            is_written = send(seq, link, lines)
        except ConnectionLost as error:
            self._forget()
            self._resolve(linked.after.link, error)
            is_written = True
        except BaseException:
            self._forget()
            raise
        if is_written:
            self._update_seen(linked.after.link)
            self._remember()
        return is_written

    def _snapshot_batch(self) -> Batch:
        """Return what keeps another snapshot, if one is due and this fold continues the last."""
        last = self._last_kept or 0
        if self._seq - last < _TAIL or last != (0 if self._base is None else self._base.seq):
            return ()
        return keep_batch(self.name.book, self._books, position_of(self._scanned.link))

    def _resolve(self, link: Link, lost: ConnectionLost) -> None:
        """Return if a line is in the book; the lock waits for a transaction that is not over.

        Raises:
            NotWritten: It is not.
            SpendLogUnusable: The server did not come back: it is unknown.
        """
        try:
            self._session.wait(self._patience.away)
            head = self._begun(writes=True)
            found = self._query(_HAS, (head.id, link.hash))
            self._session.rollback()
        except SpendLogUnusable:
            problem = f"{lost.problem}; whether the line was written is unknown"
            remedy = "Ask again with the same idempotency key once the server is back."
            raise SpendLogAway(str(self.name), problem, remedy) from None
        if not found:
            raise NotWritten(str(self.name), f"{lost.problem}; nothing was written", "Try again.")

    def _unusable(
        self, problem: str, remedy: str = "`outlay guard verify` checks it."
    ) -> SpendLogUnusable:
        return SpendLogUnusable(str(self.name), problem, remedy)


def _root(raw: bytes) -> FoldRoot | None:
    try:
        return root_decoder.decode(raw)
    except BadDocument:
        return None


def counted(books: Books) -> tuple[set[Row], set[Row]]:
    """Return the counters and the open holds of a fold, as rows of the database."""
    totals = {
        (of, name, period, *total)
        for (of, period, name), total in books.totals().items()
        if any(total)
    }
    holds = {
        (hold.id, *hold.payer, hold.day, hold.amount.micros, hold.rate)
        for hold in books.open_holds()
    }
    return totals, holds


def _seeds(books: Books) -> tuple[str, str, str, str]:
    """Return the arguments of ``outlay.seed``."""
    totals, holds = counted(books)
    of_total = ("of", "name", "period", "captured", "held", "rate")
    of_hold = ("hold", "lab", "user", "team", "day", "held", "rate")
    lines = [line for row in books.limit_lines() for line in row if line is not None]
    return (
        json.dumps([dict(zip(of_total, row, strict=True)) for row in totals]),
        json.dumps([dict(zip(of_hold, row, strict=True)) for row in holds]),
        f"[{','.join(encode(line).decode() for line in lines)}]",
        books.latest_day,
    )


def _remembered_as(name: PostgresUrl) -> Path:
    """Return a path that stands for a book in the outlay home; of the URL it has only a digest."""
    parts = urlsplit(name.server)
    where = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Path("/") / sha256(where.encode()).hexdigest() / name.book


def open_postgres(url: str, *, clock: Clock = SYSTEM) -> PostgresSpendLog:
    """Return the book of a URL; nothing is connected before its first use."""
    return PostgresSpendLog(PostgresUrl.parse(url), clock=clock)
