"""Where a recorder's records go: to a segment, or nowhere."""

from __future__ import annotations

from typing import Protocol

from outlay.ledger import KnownRecord


class Writer(Protocol):
    """What a recorder writes to.

    Attributes:
        lost: How many records could not be written.
        gap_numbers: The sequence numbers that it used for gaps, which nobody appended.
    """

    lost: int
    gap_numbers: set[int]

    def append(self, record: KnownRecord) -> int:
        """Write one record and return its sequence number."""

    def sync(self) -> None:
        """Make what was written survive a power loss."""

    def check_place(self) -> None:
        """Look whether what is written still goes where it belongs."""

    def close(self) -> None:
        """Stop writing."""


class NullWriter:
    """A writer that keeps nothing, for when recording is switched off."""

    def __init__(self) -> None:
        self.lost = 0
        self.gap_numbers: set[int] = set()

    def append(self, record: KnownRecord) -> int:
        """Drop the record."""
        del record
        return 0

    def sync(self) -> None:
        """Do nothing."""

    def check_place(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
