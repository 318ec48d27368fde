"""The bytes of ``spend.head``: two slots, written in turn, each checked by itself. Pure.

Two, so that a write cut off half-way leaves the one before it: an older lower bound, never none.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from outlay.guard.chain import Head

_START = b"outlay-head 1 "
SLOT_BYTES = len(_START) + 20 + 1 + 64 + 1 + 8 + 1


@dataclass(frozen=True, slots=True)
class Slots:
    """What a head file says, and where its next record goes.

    Attributes:
        head: The furthest acknowledged line, or None when no record is whole.
        next_at: The byte at which to write the next record.
        readable: False when there are bytes and none of them can be what we wrote.
    """

    head: Head | None
    next_at: int
    readable: bool


def record(head: Head) -> bytes:
    """Return one slot's bytes."""
    text = _START + f"{head.offset:020d} {head.hash} ".encode()
    return text + f"{zlib.crc32(text):08x}\n".encode()


def _slot(raw: bytes) -> Head | None:
    words = raw.split()
    if len(raw) != SLOT_BYTES or len(words) != 5 or not words[2].isdigit():
        return None
    if not raw.startswith(_START) or words[4] != b"%08x" % zlib.crc32(raw[:-9]):
        return None
    return Head(int(words[2]), words[3].decode("latin-1"))


def parse(raw: bytes) -> Slots:
    """Return what a head file's bytes say."""
    slots = [_slot(raw[:SLOT_BYTES]), _slot(raw[SLOT_BYTES:])]
    whole = [(slot.offset, index) for index, slot in enumerate(slots) if slot is not None]
    if whole:
        _, best = max(whole)
        return Slots(slots[best], (1 - best) * SLOT_BYTES, readable=True)
    # The very first record may itself have been cut off; anything else was not written by us.
    first_cut_off = len(raw) < SLOT_BYTES and (raw.startswith(_START) or _START.startswith(raw))
    return Slots(None, 0, readable=first_cut_off)


NO_SLOTS = parse(b"")
