"""The fold of a book up to one of its entries, as rows in the database, to be looked up by key.

Rows are only added, each with the number of the entry up to which it goes: what a process began
with stays readable, whatever is kept later, until an owner prunes it. A reader is then told so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from outlay.decoding import Decoder
from outlay.guard.balance import (
    HOLD_TABLES,
    Books,
    BooksState,
    Opened,
    RowTable,
    rows_read,
    shape_of_rows,
)
from outlay.guard.chain import Position
from outlay.guard.entries import AnyLine, Held
from outlay.guard.errors import SpendLogUnusable
from outlay.team.session import Batch, Row, bytea_array

SHAPE: Final = shape_of_rows()
"""Of the rows; those of another version of outlay are not used."""
_CHUNK: Final = 2000  # rows in a statement
_ROW: Final = """SELECT value FROM outlay.fold
WHERE book = %s AND shape = %s AND name = %s AND sha256(key) = %s AND seq <= %s
ORDER BY seq DESC LIMIT 1"""
_MANY: Final = """SELECT one.place, kept.value
FROM unnest(%s::text[], %s::bytea[]) WITH ORDINALITY AS one (name, digest, place)
LEFT JOIN LATERAL (
  SELECT value FROM outlay.fold f
  WHERE f.book = %s AND f.shape = %s AND f.name = one.name AND sha256(f.key) = one.digest
    AND f.seq <= %s
  ORDER BY f.seq DESC LIMIT 1
) kept ON true"""
_ALL: Final = """SELECT DISTINCT ON (sha256(key)) key, value FROM outlay.fold
WHERE book = %s AND shape = %s AND name = %s AND seq <= %s
ORDER BY sha256(key), seq DESC"""
_IS_KEPT: Final = "SELECT 1 FROM outlay.snapshot WHERE book = %s AND shape = %s AND seq = %s"
KEEP: Final = "SELECT outlay.keep(%s, %s, %s::text[], %s::bytea[], %s::bytea[], %s)"

Query = Callable[[Batch], list[list[Row]]]


class SnapshotPruned(SpendLogUnusable):
    """An owner removed the rows with which a fold began, while it was in use."""


class FoldRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a snapshot: the entry up to which it goes, and what is in no table."""

    position: Position
    state: BooksState


root_decoder = Decoder[FoldRoot](FoldRoot)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class DatabaseRows:
    """The rows of one snapshot.

    Args:
        query: Runs statements.
        book: The id of the book.
        seq: The entry up to which the snapshot goes.
    """

    def __init__(self, query: Query, book: int, seq: int) -> None:
        self.seq = seq
        self._query = query
        self._book = book
        self._found: dict[tuple[str, str], bytes | None] = {}
        self._tables: dict[str, list[tuple[str, bytes]]] = {}

    def row(self, table: str, key: str) -> bytes | None:
        """Return one row's JSON; None if there is none."""
        if (table, key) in self._found:
            return self._found.pop((table, key))  # The caller remembers it.
        about = (self._book, SHAPE, table, _digest(key), self.seq)
        found = self._rows(_ROW, about)
        return found[0][0] if found else None

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield a table's keys and rows, in no order."""
        if table not in self._tables:
            found = self._rows(_ALL, (self._book, SHAPE, table, self.seq))
            kept = [(key.decode(), value) for key, value in found if value is not None]
            self._tables[table] = kept
        return iter(self._tables[table])

    def prefetch(self, books: Books, lines: Iterable[AnyLine]) -> None:
        """Read the rows that these lines after the snapshot need, and ``books`` lack, at once.

        A hold that such a line opens has no rows yet: the database lets a hold be opened once. One
        that is open, and pays for no rental, has no other row.
        """
        tables, wanted, opened = books.tables(), dict[tuple[str, str], None](), set[str]()
        for line in lines:
            hold = getattr(line, "hold", "")
            if isinstance(line, Held) or _is_plain(tables["open"], hold):
                opened.add(hold)
            for pair in rows_read(line):
                if tables[pair[0]].is_known(pair[1]):
                    continue
                if pair[1] in opened and pair[0] in HOLD_TABLES:
                    self._found[pair] = None
                else:
                    wanted[pair] = None
        if pairs := list(wanted):
            names, digests = [name for name, _ in pairs], [_digest(key) for _, key in pairs]
            about = (names, digests, self._book, SHAPE, self.seq)
            for place, value in self._rows(_MANY, about):
                self._found[pairs[place - 1]] = value

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[Row]:
        """Return rows; if their snapshot is there afterwards, none of them was pruned before."""
        found, kept = self._query([(statement, values), (_IS_KEPT, (self._book, SHAPE, self.seq))])
        if not kept:
            problem = "an owner removed what this process began with"
            raise SnapshotPruned(f"snapshot {self.seq}", problem, "Ask again.")
        return found


def _is_plain(open_holds: RowTable[Opened], hold: str) -> bool:
    """Return whether a hold is known to be open, and to pay for no rental."""
    opened = open_holds.get(hold) if open_holds.is_known(hold) else None
    return opened is not None and opened.hold.rental is None


def keep_batch(book: str, books: Books, position: Position) -> Batch:
    """Return the statements that keep the changes of a fold, whose base is the last snapshot."""
    changes = [
        (name, key.encode(), value)
        for name, table in books.tables().items()
        for key, value in table.changes()
    ]
    root = msgspec.json.encode(FoldRoot(position=position, state=books.state()))
    chunks = [changes[start : start + _CHUNK] for start in range(0, len(changes), _CHUNK)]
    batch = [(KEEP, (book, SHAPE, *_columns(chunk), None)) for chunk in chunks]
    return [*batch, (KEEP, (book, SHAPE, [], [], [], root))]


def _columns(
    rows: list[tuple[str, bytes, bytes | None]],
) -> tuple[list[str], str, str]:
    names, keys, values = zip(*rows, strict=True)
    return list(names), bytea_array(keys), bytea_array(values)
