"""Tables of a fold: the rows changed here, over rows that are kept elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from outlay.decoding import Decoder

V = TypeVar("V")


class KeptRows(Protocol):
    """Rows of an earlier fold, by table and key: in a file, or in a database."""

    def row(self, table: str, key: str) -> bytes | None:
        """Return one row's JSON; None if there is none."""

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield a table's keys and rows, in no order."""


class _NoRows:
    """The rows before the first line."""

    def row(self, table: str, key: str) -> bytes | None:
        del table, key
        return None

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        del table
        return iter(())


NO_ROWS: Final[KeptRows] = _NoRows()
_UNREAD: Final[Any] = object()


class RowTable(Generic[V]):
    """Values by key; a value is never changed in place, and None means that there is no row."""

    def __init__(self, name: str, decoder: Decoder[V], kept: KeptRows) -> None:
        self.name = name
        self._decoder = decoder
        self._kept = kept
        self._changed: dict[str, V | None] = {}
        self._read: dict[str, V | None] = {}  # of the kept rows
        self._shared = False  # whether a copy has the same dictionary of changes

    def copy(self) -> RowTable[V]:
        """Return an independent copy; the changes are copied when one of both changes."""
        other = RowTable(self.name, self._decoder, self._kept)
        other._changed, other._read = self._changed, self._read
        self._shared = other._shared = True
        return other

    def rebase(self, kept: KeptRows) -> None:
        """Continue on rows that are kept with the changes of this table."""
        self._kept, self._read = kept, dict(self._changed)
        self._changed, self._shared = {}, False

    def is_known(self, key: str) -> bool:
        """Return whether the value of a key was changed here, or read before."""
        return key in self._changed or key in self._read

    def get(self, key: str) -> V | None:
        """Return the value of a key."""
        found = self._changed.get(key, _UNREAD)
        if found is _UNREAD:
            if self._kept is NO_ROWS:
                return None
            found = self._read.get(key, _UNREAD)
            if found is _UNREAD:
                raw = self._kept.row(self.name, key)
                found = self._read[key] = None if raw is None else self._decoder.decode(raw)
        value: V | None = found
        return value

    def put(self, key: str, value: V | None) -> None:
        """Set the value of a key, or remove it."""
        if self._shared:
            self._changed, self._shared = dict(self._changed), False
        self._changed[key] = value

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all keys and values, in no order."""
        for key, raw in self._kept.rows(self.name):
            if key not in self._changed:
                yield key, self._decoder.decode(raw)
        for key, value in self._changed.items():
            if value is not None:
                yield key, value

    def row(self, key: str) -> bytes | None:
        """Return the JSON of a key's value."""
        value = self.get(key)
        return None if value is None else msgspec.json.encode(value)

    def changes(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield the rows that differ from the kept ones; None for those that are removed."""
        for key, value in self._changed.items():
            yield key, None if value is None else msgspec.json.encode(value)
