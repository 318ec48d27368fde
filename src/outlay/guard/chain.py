"""The hash chain of the spend log, and the format of its head file. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from outlay.decoding import LARGEST_DOCUMENT, BadDocument
from outlay.errors import Finding
from outlay.guard.entries import SCHEMA, AnyEntry, AnyLine, Sealed, decode, decode_simple, encode
from outlay.guard.errors import SpendLogAltered

# ``spend.head``: two slots, written in turn, each with a checksum. A torn write leaves the other
# slot: an older lower bound, never none.

_START = b"outlay-head 1 "
SLOT_BYTES = len(_START) + 20 + 1 + 64 + 1 + 8 + 1


@dataclass(frozen=True, slots=True)
class Slots:
    """A parsed head file.

    Attributes:
        head: The last acknowledged line, or None when no slot is whole.
        next_at: The byte offset of the slot to write next.
        readable: False when there are bytes that outlay cannot have written.
    """

    head: Head | None
    next_at: int
    readable: bool


def encode_slot(head: Head) -> bytes:
    """Return the bytes of one slot."""
    text = _START + f"{head.offset:020d} {head.hash} ".encode()
    return text + f"{zlib.crc32(text):08x}\n".encode()


def _decode_slot(raw: bytes) -> Head | None:
    words = raw.split()
    if len(raw) != SLOT_BYTES or len(words) != 5 or not words[2].isdigit():
        return None
    if not raw.startswith(_START) or words[4] != b"%08x" % zlib.crc32(raw[:-9]):
        return None
    return Head(int(words[2]), words[3].decode("latin-1"))


def parse_slots(raw: bytes) -> Slots:
    """Parse the bytes of a head file."""
    slots = [_decode_slot(raw[:SLOT_BYTES]), _decode_slot(raw[SLOT_BYTES:])]
    whole = [(slot.offset, index) for index, slot in enumerate(slots) if slot is not None]
    if whole:
        _, best = max(whole)
        return Slots(slots[best], (1 - best) * SLOT_BYTES, readable=True)
    # The first write may have been torn; outlay wrote nothing else.
    is_torn = len(raw) < SLOT_BYTES and (raw.startswith(_START) or _START.startswith(raw))
    return Slots(None, 0, readable=is_torn)


NO_SLOTS = parse_slots(b"")


# The hash chain: edits, removals and truncation are detected.
#
# A chained line ends in ``,"hash":"<64 hex digits>"}``. The hash is SHA-256 over the previous hash
# and every byte from the end of the previous chained line up to that comma, so the next chained
# line also covers simple lines before it. A *head* (offset, hash) kept elsewhere proves that the
# last acknowledged line is still there.

_MARK = b',"hash":"'
_SUFFIX_BYTES = len(_MARK) + 64 + len(b'"}')
_OUR_START = b'{"kind":"'
GENESIS = hashlib.sha256(b"outlay spend log").hexdigest()


@dataclass(frozen=True, slots=True)
class Head:
    """The end offset and hash of the last acknowledged line: a lower bound of the log."""

    offset: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The position up to which a log was read, and the chain's state there.

    Attributes:
        hash: The hash of the last chained line.
        covered: The end of that line's closing brace; the next hash covers the bytes from here.
        offset: The end of the last good line, its newline included.
        lines: The number of lines before ``offset``.
        ended: Whether the byte before ``offset`` is a newline.
        first: The hash of the first chained line; empty if there is none yet.
        hasher: The state of the next hash over every byte up to ``offset``; copied, never updated.
    """

    hash: str
    covered: int
    offset: int
    lines: int
    ended: bool
    first: str
    hasher: hashlib._Hash


def _link_after(digest: str, *, covered: int, lines: int, ended: bool, first: str) -> Link:
    hasher = hashlib.sha256(digest.encode() + b"\n" * ended)
    return Link(
        hash=digest, covered=covered, offset=covered + ended, lines=lines, ended=ended,
        first=first or digest, hasher=hasher,
    )  # fmt: skip


def _hash_on(link: Link, raw: bytes) -> hashlib._Hash:
    hasher = link.hasher.copy()
    hasher.update(raw)
    return hasher


START = Link(
    hash=GENESIS, covered=0, offset=0, lines=0, ended=True, first="",
    hasher=hashlib.sha256(GENESIS.encode()),
)  # fmt: skip


_HASH_END = b'"}'
HASH_BYTES = 64 + len(_HASH_END)
"""The bytes from the hash of a chained line to its closing brace."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A link as a document: with the digest of its hasher instead of the hasher."""

    hash: str
    covered: int
    offset: int
    lines: int
    ended: bool
    first: str
    digest: str


def position_of(link: Link) -> Position:
    """Return a link as a document."""
    return Position(
        hash=link.hash, covered=link.covered, offset=link.offset, lines=link.lines,
        ended=link.ended, first=link.first, digest=link.hasher.hexdigest(),
    )  # fmt: skip


def link_at(position: Position, raw: bytes) -> Link | None:
    """Return the link at a position, or None if the log is another one there.

    ``raw`` are the log's bytes from the hash of the last chained line, ``HASH_BYTES`` before
    ``covered``, or from the log's beginning, to ``offset``.
    """
    known, rest = (raw[:HASH_BYTES], raw[HASH_BYTES:]) if position.covered else (b"", raw)
    expected = position.hash.encode() + _HASH_END if position.covered else b""
    hasher = hashlib.sha256(position.hash.encode() + rest)
    if known != expected or hasher.hexdigest() != position.digest:
        return None
    return Link(
        hash=position.hash, covered=position.covered, offset=position.offset,
        lines=position.lines, ended=position.ended, first=position.first, hasher=hasher,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLine:
    """A line that a head names and the log no longer has."""

    hash: str
    line: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The result of a scan.

    Attributes:
        lines: Every line that counts, in order, with its number.
        torn: The bytes of a torn write at the end.
        findings: Oddities that are no reason to refuse.
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
    """Return whether these bytes can be a torn write of outlay's."""
    return raw.startswith(_OUR_START) or _OUR_START.startswith(raw) or not raw.strip(b"\0")


class _Scan:
    """One pass over the bytes after a link."""

    def __init__(self, path: str, link: Link, heads: Iterable[Head]) -> None:
        self.path = path
        self.link = link
        known = {head for head in heads if head.offset > link.covered}
        self.heads = sorted(known, key=lambda head: head.offset)
        self.torn = b""
        self.findings: list[Finding] = []
        self.missing: list[MissingLine] = []
        self.hashes: list[str] = []
        self._check_heads()

    def altered(self, problem: str, line: int | None = None) -> SpendLogAltered:
        return SpendLogAltered(self.path, line or self.number, problem)

    @property
    def number(self) -> int:
        return self.link.lines + self.torn.count(b"\n") + 1

    def read(self, raw: bytes, *, ended: bool) -> AnyLine | None:
        """Check and decode a line, given without its newline; None if it is torn or blank."""
        claimed = _claimed_hash(raw)
        if claimed is None:
            return self._read_unchained(raw, ended=ended)
        return self._read_chained(raw, claimed, ended=ended)

    def _read_chained(self, raw: bytes, claimed: str, *, ended: bool) -> AnyLine:
        body = raw[:-_SUFFIX_BYTES]
        if _hash_on(self.link, self.torn + body).hexdigest() != claimed:
            raise self.altered(
                "its hash does not match: it or a line that it covers was edited, removed or moved"
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
        self._check_heads()
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
            hasher=_hash_on(link, line),
        )
        self._check_heads()
        return simple

    def _close_torn(self, entry: AnyEntry) -> None:
        if not self.torn:
            return
        start = self.link.offset
        named = (entry.torn_from, entry.torn_bytes) if isinstance(entry, Sealed) else None
        if named != (start, len(self.torn)):
            raise self.altered("it is broken and was never sealed", self.link.lines + 1)
        message = f"a torn write of {len(self.torn)} bytes; it counts nothing"
        self.findings.append(
            Finding(source=self.path, line=self.link.lines + 1, message=message, severity="warning")
        )

    def _check_heads(self) -> None:
        """Check each head once its offset is passed: the line it names must end there."""
        while self.heads and self.heads[0].offset <= self.link.offset:
            head = self.heads.pop(0)
            if head != Head(self.link.covered + 1, self.link.hash):
                problem = "the line that was acknowledged here is missing"
                self.missing.append(
                    MissingLine(hash=head.hash, line=self.link.lines, problem=problem)
                )

    def finish(self) -> None:
        """Report heads beyond the end of the file."""
        size = self.link.offset + len(self.torn)
        for head in self.heads:
            problem = f"the file ends at byte {size}; acknowledged lines reached {head.offset}"
            self.missing.append(MissingLine(hash=head.hash, line=self.number, problem=problem))


def scan(
    path: str,
    data: bytes,
    link: Link,
    heads: Iterable[Head] = (),
    *,
    take: Callable[[int, AnyLine], None] | None = None,
) -> ScanResult:
    """Decode ``data``, the bytes from ``link.offset`` on, checking every line against the chain.

    ``heads`` are lines that were acknowledged or seen; those before ``link.covered`` are ignored.
    Each line goes to ``take``, if given, and else into the result.

    Raises:
        SpendLogAltered: A line was edited, removed or moved.
    """
    if not link.ended and data.startswith(b"\n"):  # the end of the line before, no line itself
        hasher = _hash_on(link, b"\n")
        link, data = replace(link, offset=link.offset + 1, ended=True, hasher=hasher), data[1:]
    state = _Scan(path, link, heads)
    lines = list[tuple[int, AnyLine]]()
    for raw, ended in _split(data):
        number = state.number
        if (line := state.read(raw, ended=ended)) is None:
            continue
        if take is None:
            lines.append((number, line))
        else:
            take(number, line)
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
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end], True
        start = end + 1
    if start < len(data):
        yield data[start:], False


def chained_lines(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bytes before each chained line that its hash covers, and the line.

    Every line ends in a newline. Bytes after the last chained line are left out.
    """
    before = b""
    for raw, _ in _split(data):
        if _claimed_hash(raw) is None:
            before += raw + b"\n"
        else:
            yield before, raw + b"\n"
            before = b""


@dataclass(frozen=True, slots=True)
class LinkedEntries:
    """The bytes to append, and the result that a scan of them would have."""

    blob: bytes
    after: ScanResult


def link_entries(scanned: ScanResult, entries: Iterable[AnyEntry], *, ts: str) -> LinkedEntries:
    """Return the bytes that append ``entries`` to the chain.

    A torn tail is sealed first: it stays, and a seal line marks that it counts nothing.

    Raises:
        BadDocument: A line would be too long to be read back.
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
    hasher = _hash_on(link, torn + blob)
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
