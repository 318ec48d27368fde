"""``spend.index``: the fold of a spend log up to one of its lines, to be looked up by key.

It is written by a process that holds the log's lock, and never read for anything that the log does
not state. Nodes are only appended, and the header, which refers to the root, is written last: a
process that is killed leaves the index as it was. It is not fsynced, since damage is noticed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outlay.decoding import LARGEST_DOCUMENT, BadDocument, Decoder
from outlay.files import draft_of, open_own
from outlay.guard.balance import Books, BooksState, KeptRows, shape_of_rows
from outlay.guard.chain import Position
from outlay.guard.index.trie import (
    NO_NODE,
    DoubtfulIndex,
    NodeRef,
    checked,
    find,
    merge,
    ref_to,
    walk,
)

_START = b"outlay-index 1 "
_HEADER_BYTES = len(_START) + 20 + 1 + 10 + 1 + 8 + 1
_SLACK_BYTES = 1 << 20


class IndexRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The document to which the header refers.

    Attributes:
        shape: Of the rows; another one is of another version of outlay.
        position: The line up to which the log is folded.
        tables: The root node of each table.
        written: The size of the file when it was last written as a whole.
    """

    shape: str
    position: Position
    state: BooksState
    tables: dict[str, NodeRef]
    written: int


_root_decoder = Decoder[IndexRoot](IndexRoot)


def index_path(log_path: Path) -> Path:
    """Return the path of a log's index: ``spend.index`` beside ``spend.jsonl``."""
    return log_path.with_suffix(".index")


def _header(root: NodeRef) -> bytes:
    return _START + b"%020d %010d %08x\n" % root


def _read_header(raw: bytes) -> NodeRef:
    words = raw[len(_START) :].split()
    try:
        offset, length, crc = int(words[0]), int(words[1]), int(words[2], 16)
    except (ValueError, IndexError):
        raise DoubtfulIndex("its header is damaged") from None
    if raw != _header(NodeRef(offset, length, crc)):
        raise DoubtfulIndex("its header is damaged")
    return NodeRef(offset, length, crc)


class IndexReader:
    """One state of an index, which stays readable whatever is written after it."""

    def __init__(self, file: int, ref: NodeRef, root: IndexRoot) -> None:
        self._file = file
        self._ref = ref
        self.root = root
        weakref.finalize(self, os.close, file)

    @classmethod
    def open(cls, path: Path) -> IndexReader | None:
        """Return the current state of a file; None if there is no file.

        Raises:
            DoubtfulIndex: It can't be read, is damaged, or is of another version.
        """
        try:
            file = open_own(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DoubtfulIndex(str(error)) from None
        try:
            return cls._of_file(file)
        except BaseException:
            os.close(file)
            raise

    @classmethod
    def _of_file(cls, file: int) -> IndexReader:
        ref = _read_header(_load_bytes(file, _HEADER_BYTES, 0))
        try:
            root = _root_decoder.decode(_load(file, ref))
        except BadDocument as error:
            raise DoubtfulIndex(str(error)) from None
        if root.shape != shape_of_rows():
            raise DoubtfulIndex("it is of another version of outlay")
        return cls(file, ref, root)

    def load(self, ref: NodeRef) -> bytes:
        """Return a node; raises DoubtfulIndex if it is damaged."""
        return _load(self._file, ref)

    def row(self, table: str, key: str) -> bytes | None:
        """Return one row's JSON; None if there is none."""
        return find(self.load, self.root.tables.get(table, NO_NODE), key)

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield a table's keys and rows, in no order."""
        return walk(self.load, self.root.tables.get(table, NO_NODE))

    def is_current(self, path: Path) -> bool:
        """Return whether nobody has replaced, removed or extended the file since."""
        try:
            same = os.path.samestat(os.fstat(self._file), path.stat())
            return same and _load_bytes(self._file, _HEADER_BYTES, 0) == _header(self._ref)
        except (OSError, DoubtfulIndex):
            return False

    def is_wasteful(self) -> bool:
        """Return whether most of the file is nodes that are no longer referred to."""
        return os.fstat(self._file).st_size > 3 * self.root.written + _SLACK_BYTES


def _load_bytes(file: int, length: int, offset: int) -> bytes:
    if length > 2 * LARGEST_DOCUMENT:
        raise DoubtfulIndex(f"a node of {length:,} bytes")
    try:
        return os.pread(file, length, offset)
    except (OSError, OverflowError) as error:
        raise DoubtfulIndex(str(error)) from None


def _load(file: int, ref: NodeRef) -> bytes:
    return checked(_load_bytes(file, ref.length, ref.offset), ref)


@dataclass(slots=True)
class _Appender:
    """Nodes that are appended to a file, in writes of about a megabyte."""

    file: int
    offset: int
    pending: bytearray

    def store(self, node: bytes) -> NodeRef:
        ref = ref_to(node, self.offset + len(self.pending))
        self.pending += node
        if len(self.pending) >= 1 << 20:
            self.flush()
        return ref

    def flush(self) -> None:
        written = os.pwrite(self.file, self.pending, self.offset)
        if written != len(self.pending):
            raise OSError(f"only {written} of {len(self.pending)} bytes could be written")
        self.offset += written
        self.pending.clear()


def append_to_index(path: Path, base: IndexReader, books: Books, position: Position) -> IndexReader:
    """Extend the file whose current state is ``base``, and on which ``books`` are based.

    Raises:
        OSError: It can't be written; it is as before.
        DoubtfulIndex: Some of it is damaged.
    """
    file = open_own(path, os.O_RDWR)
    try:
        out = _Appender(file, os.fstat(file).st_size, bytearray())
        return _write(out, base, books, position, copy=False)
    except BaseException:
        os.close(file)
        raise


def write_index(
    path: Path, base: IndexReader | None, books: Books, position: Position, *, mode: int
) -> IndexReader:
    """Replace the file by one with everything in ``books``, which are based on ``base``.

    Raises:
        OSError: It can't be written; what was there is as before.
        DoubtfulIndex: Some of ``base`` is damaged.
    """
    with draft_of(path, private=True) as draft:
        draft.chmod(mode)
        file = open_own(draft, os.O_RDWR)
        try:
            out = _Appender(file, _HEADER_BYTES, bytearray())
            reader = _write(out, base, books, position, copy=True)
        except BaseException:
            os.close(file)
            raise
    return reader


def _write(
    out: _Appender, base: IndexReader | None, books: Books, position: Position, *, copy: bool
) -> IndexReader:
    """Store the changed rows and a root, then the header; the reader has the file from then on."""
    before: dict[str, NodeRef] = {} if base is None else base.root.tables
    load: Callable[[NodeRef], bytes] = _nothing if base is None else base.load
    tables = {
        name: merge(load, out.store, before.get(name, NO_NODE), table.changes(), copy=copy)
        for name, table in books.tables().items()
    }
    whole = out.offset + len(out.pending) if copy or base is None else base.root.written
    root = IndexRoot(
        shape=shape_of_rows(), position=position, state=books.state(), tables=tables, written=whole
    )
    ref = out.store(msgspec.json.encode(root))
    out.flush()
    os.pwrite(out.file, _header(ref), 0)
    return IndexReader(out.file, ref, root)


def _nothing(ref: NodeRef) -> bytes:
    raise AssertionError(ref)


def differences(state: BooksState, kept: KeptRows, books: Books) -> Iterator[str]:
    """Yield how kept rows and their state differ from the fold of the same lines.

    Raises:
        DoubtfulIndex: Some of an index is damaged.
    """
    stated: dict[str, Any] = msgspec.structs.asdict(state)
    for name, value in msgspec.structs.asdict(books.state()).items():
        if stated[name] != value:
            yield f"{name} is {stated[name]!r} instead of {value!r}"
    for name, table in books.tables().items():
        found = 0
        for key, raw in kept.rows(name):
            found += 1
            if raw != table.row(key):
                yield f"the row {key!r} of {name} is {raw.decode(errors='replace')}"
        if found != (expected := sum(1 for _ in table.items())):
            yield f"{name} has {found} rows instead of {expected}"
