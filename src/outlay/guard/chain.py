"""Lines linked by hashes over their raw bytes, and the head of the chain. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from outlay.decoding import LARGEST_DOCUMENT, BadDocument
from outlay.errors import Finding
from outlay.guard.entries import SCHEMA, AnyEntry, AnyLine, Sealed, decode, decode_simple, encode
from outlay.guard.errors import SpendLogAltered

# The bytes of ``spend.head``: two slots, written in turn, each checked by itself.
#
# Two, so that a write cut off half-way leaves the one before it: an older lower bound, never
# none.

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


# Lines linked by hashes over their raw bytes: what was changed, removed or cut off shows.
#
# A chained line ends in ``,"hash":"<64 hex digits>"}``. The hash is SHA-256 over the previous
# hash and every byte from the end of the previous chained line up to that comma, so lines of the
# simple form are covered by the next chained line. A *head* (offset, hash) kept elsewhere tells
# that the last acknowledged line is still there.

_MARK = b',"hash":"'
_SUFFIX_BYTES = len(_MARK) + 64 + len(b'"}')
_OUR_START = b'{"kind":"'
GENESIS = hashlib.sha256(b"outlay spend log").hexdigest()


class Hasher(Protocol):
    """A running SHA-256."""

    def update(self, data: bytes, /) -> None:
        """Feed more bytes."""

    def copy(self) -> Hasher:
        """Return one that can be fed separately."""

    def hexdigest(self) -> str:
        """Return the hash of everything fed so far."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the last acknowledged line ends, and its hash: a lower bound of the log."""

    offset: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How far a log was read.

    Attributes:
        hash: The hash of the last chained line.
        covered: Where that line's closing brace ends; the next hash covers the bytes from here.
        offset: Where the last good line ends, its newline included.
        lines: How many lines stand before ``offset``.
        ended: Whether a newline stands before ``offset``.
        first: The hash of the first chained line; empty before there is one.
        hasher: The next hash, fed with every byte up to ``offset``; copied, never updated.
    """

    hash: str
    covered: int
    offset: int
    lines: int
    ended: bool
    first: str
    hasher: Hasher


def _link_after(digest: str, *, covered: int, lines: int, ended: bool, first: str) -> Link:
    hasher = hashlib.sha256(digest.encode() + b"\n" * ended)
    return Link(
        hash=digest, covered=covered, offset=covered + ended, lines=lines, ended=ended,
        first=first or digest, hasher=hasher,
    )  # fmt: skip


def _fed(link: Link, raw: bytes) -> Hasher:
    hasher = link.hasher.copy()
    hasher.update(raw)
    return hasher


START = Link(
    hash=GENESIS, covered=0, offset=0, lines=0, ended=True, first="",
    hasher=hashlib.sha256(GENESIS.encode()),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLine:
    """A line that was there once and is not any more: its hash, where it was sought, and why."""

    hash: str
    line: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What one stretch of bytes says: its good lines in order, and what trails them.

    Attributes:
        lines: Every line that counts, with its number.
        torn: Bytes at the end that were cut off while being written.
        findings: What is odd about the lines and no reason to refuse.
        missing: Lines that heads name and that are not there.
    """

    lines: tuple[tuple[int, AnyLine], ...]
    link: Link
    torn: bytes
    findings: tuple[Finding, ...]
    missing: tuple[MissingLine, ...] = ()
    hashes: tuple[str, ...] = ()


NOTHING = ScanResult(lines=(), link=START, torn=b"", findings=())


def _claimed_hash(raw: bytes) -> str | None:
    """Return the hash that a line (without newline) carries, or None for the simple form."""
    if len(raw) <= _SUFFIX_BYTES or not raw.endswith(b'"}'):
        return None
    if raw[-_SUFFIX_BYTES : -_SUFFIX_BYTES + len(_MARK)] != _MARK:
        return None
    return raw[-66:-2].decode("latin-1")


def _is_torn(raw: bytes) -> bool:
    """Return whether these bytes can be what is left of a line that we were writing."""
    return raw.startswith(_OUR_START) or _OUR_START.startswith(raw) or not raw.strip(b"\0")


class _Scan:
    """One pass over the bytes that follow a link."""

    def __init__(self, path: str, link: Link, heads: Iterable[Head]) -> None:
        self.path = path
        self.link = link
        known = {head for head in heads if head.offset > link.covered}
        self.heads = sorted(known, key=lambda head: head.offset)
        self.torn = b""
        self.findings: list[Finding] = []
        self.missing: list[MissingLine] = []
        self.hashes: list[str] = []
        self._meet_heads()

    def altered(self, problem: str, line: int | None = None) -> SpendLogAltered:
        return SpendLogAltered(self.path, line or self.number, problem)

    @property
    def number(self) -> int:
        return self.link.lines + self.torn.count(b"\n") + 1

    def read(self, raw: bytes, *, ended: bool) -> AnyLine | None:
        """Take one line (without its newline); return what it says, or None if it is cut off."""
        claimed = _claimed_hash(raw)
        if claimed is None:
            return self._read_unchained(raw, ended=ended)
        return self._read_chained(raw, claimed, ended=ended)

    def _read_chained(self, raw: bytes, claimed: str, *, ended: bool) -> AnyLine:
        body = raw[:-_SUFFIX_BYTES]
        if _fed(self.link, self.torn + body).hexdigest() != claimed:
            raise self.altered(
                "its hash does not fit what stands before it: it, or a line that it covers, "
                "was edited, removed or moved"
            )
        try:
            entry = decode(body + b"}")
        except msgspec.MsgspecError as error:
            raise self.altered(f"it can't be understood ({error})") from None
        self._close_torn(entry)
        covered = self.link.offset + len(self.torn) + len(raw)
        self.link = _link_after(
            claimed, covered=covered, lines=self.number, ended=ended, first=self.link.first
        )
        self.torn = b""
        self.hashes.append(claimed)
        self._meet_heads()
        return entry

    def _read_unchained(self, raw: bytes, *, ended: bool) -> AnyLine | None:
        line = raw + b"\n" * ended
        try:
            simple = decode_simple(raw)
        except msgspec.MsgspecError as error:
            if raw.strip() or not ended:
                if not _is_torn(raw):
                    raise self.altered(f"it can't be understood ({error})") from None
                self.torn += line
                return None
            simple = None
        if self.torn:
            raise self.altered("the line before it is broken and was never sealed")
        link = self.link
        self.link = replace(
            link,
            offset=link.offset + len(line),
            lines=link.lines + 1,
            ended=ended,
            hasher=_fed(link, line),
        )
        self._meet_heads()
        return simple

    def _close_torn(self, entry: AnyEntry) -> None:
        if not self.torn:
            return
        start = self.link.offset
        named = (entry.torn_from, entry.torn_bytes) if isinstance(entry, Sealed) else None
        if named != (start, len(self.torn)):
            raise self.altered("it is broken and was never sealed", self.link.lines + 1)
        message = f"{len(self.torn)} bytes were cut off while being written; they count nothing"
        self.findings.append(
            Finding(source=self.path, line=self.link.lines + 1, message=message, severity="warning")
        )

    def _meet_heads(self) -> None:
        """Look for each line that a head names as soon as the place where it ends is passed."""
        while self.heads and self.heads[0].offset <= self.link.offset:
            head = self.heads.pop(0)
            if head != Head(self.link.covered + 1, self.link.hash):
                problem = "the line that was acknowledged here is not there any more"
                self.missing.append(
                    MissingLine(hash=head.hash, line=self.link.lines, problem=problem)
                )

    def finish(self) -> None:
        """Note the lines that heads name beyond the end."""
        size = self.link.offset + len(self.torn)
        for head in self.heads:
            problem = f"the file ends at byte {size}; acknowledged lines reached {head.offset}"
            self.missing.append(MissingLine(hash=head.hash, line=self.number, problem=problem))


def scan(path: str, data: bytes, link: Link, heads: Iterable[Head] | None = None) -> ScanResult:
    """Read all bytes from ``link.offset`` on, checking every line against the chain.

    ``heads`` are lines that were acknowledged or seen; those before ``link.covered`` are passed
    over.

    Raises:
        SpendLogAltered: A line was edited, removed or moved; says which.
    """
    state = _Scan(path, link, heads or ())
    lines = []
    for raw, ended in _split(data):
        number = state.number
        if (line := state.read(raw, ended=ended)) is not None:
            lines.append((number, line))
    state.finish()
    return ScanResult(
        lines=tuple(lines),
        link=state.link,
        torn=state.torn,
        findings=tuple(state.findings),
        missing=tuple(state.missing),
        hashes=tuple(state.hashes),
    )


def _split(data: bytes) -> Iterator[tuple[bytes, bool]]:
    *whole, rest = data.split(b"\n")
    for raw in whole:
        yield raw, True
    if rest:
        yield rest, False


@dataclass(frozen=True, slots=True)
class LinkedEntries:
    """What is to be appended, and what a scan of it will say."""

    blob: bytes
    after: ScanResult


def link_entries(scanned: ScanResult, entries: Iterable[AnyEntry], *, ts: str) -> LinkedEntries:
    """Return the bytes to append so that ``entries`` follow what was scanned.

    A tail that was cut off is sealed first: it stays, and the next line says that it counts
    nothing.

    Raises:
        BadDocument: A line would be longer than a line that can be read.
    """
    link, torn = scanned.link, scanned.torn
    todo = list(entries)
    blob = b""
    if torn:
        blob += b"" if torn.endswith(b"\n") else b"\n"
        todo.insert(0, _seal(link, torn + blob, ts=ts, currency=todo[0].currency))
    elif not link.ended:
        blob += b"\n"
    lines, hashes, start = list[tuple[int, AnyLine]](), list[str](), link.offset + len(torn)
    number = link.lines + (torn + blob).count(b"\n") if torn else link.lines
    hasher = _fed(link, torn + blob)
    for entry in todo:
        body, number = encode(entry)[:-1], number + 1
        if len(body) >= LARGEST_DOCUMENT:
            raise BadDocument(f"a line of more than {LARGEST_DOCUMENT:,} bytes could not be read")
        hasher.update(body)
        digest = hasher.hexdigest()
        blob += body + _MARK + digest.encode() + b'"}\n'
        lines.append((number, entry))
        hashes.append(digest)
        covered = start + len(blob) - 1
        link = _link_after(digest, covered=covered, lines=number, ended=True, first=link.first)
        hasher = link.hasher.copy()
    after = ScanResult(lines=tuple(lines), link=link, torn=b"", findings=(), hashes=tuple(hashes))
    return LinkedEntries(blob, after)


def _seal(link: Link, torn: bytes, *, ts: str, currency: str) -> Sealed:
    return Sealed(
        v=SCHEMA, ts=ts, op_label="", currency=currency, torn_from=link.offset, torn_bytes=len(torn)
    )
