"""Blocks of a run log whose steps are read in bulk; what they say is what the codec says.

A log is almost all steps, and almost all steps are written alike. Those are read many at a time,
the others one by one. Where anything is out of the ordinary (damage, a gap, a number out of
place) the whole block is left to the codec, so that there is one place that judges it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlay.account.steps import BulkRecords, Ints, StepColumns, uniform
from outlay.ledger import Gap, Record, Step, encode_line
from outlay.ledger.codec import SEAL, SEAL_BYTES, Decoded, decode_block
from outlay.ledger.records import UNWRITTEN

# Step lines of one shape, read all at once.
#
# The lines that a loop writes differ in the digits of their numbers and, run by run, in nothing
# else. A *shape* is one such line with the places of its digits; all lines that fit it are
# checked and read by arithmetic on whole columns of bytes. What does not fit is left to the
# codec. CRC-32 is linear: the checksum of a line is that of the same line with zeros for digits,
# xor what each digit adds by its value and its distance from the end. Four digits are looked up
# at once.

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Bools = NDArray[np.bool_]

_GROUP = 4  # Digits that are read and looked up together.
_MOST_DIGITS = 19
_CRC_OFFSET = len(b',"crc":"')
_TOO_LARGE = 461  # The first three of 19 digits, from which on the codec may refuse them.
_BODY = re.compile(rb'\{"v":1,"seq":[0-9]{1,19},"kind":"step"(?:,"[a-z_]+":[0-9]{1,19})+')
_NUMBER = re.compile(rb',"([a-z_]+)":([0-9]+)')
_TILED = 64  # Lines that are compared at once: NumPy is slow at many short rows.
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype="<u2")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of a line: its digits, and which groups they are; the last digits come first."""

    name: str
    start: int
    end: int
    groups: range

    @property
    def digits(self) -> int:
        """How many digits it has."""
        return self.end - self.start

    @property
    def leading(self) -> int:
        """How many digits the first group has."""
        return (self.digits - 1) % _GROUP + 1

    @property
    def least(self) -> int:
        """The least that the first group may be: no zero stands in front of other digits.

        A record stands for one step at least.
        """
        return 10 ** (self.leading - 1) if self.digits > 1 or self.name == "count" else 0

    @property
    def beyond(self) -> int:
        """What the first group must be less than, so that the codec takes the number."""
        return _TOO_LARGE if self.digits == _MOST_DIGITS else 10**_GROUP


@dataclass(frozen=True, slots=True)
class StepLines:
    """Some lines of one shape: the groups of their digits, by group and line.

    A name that the lines do not have stands for the default of its field.
    """

    shape: StepShape
    groups: Words

    def __len__(self) -> int:
        return len(self.groups[0])

    def values(self, name: str) -> Ints:
        """Return the numbers of a name, a line each."""
        if name not in self.shape.numbers:
            return uniform(1 if name == "count" else 0, len(self))
        groups = self.shape.numbers[name].groups
        found: Ints = self.groups[groups[-1]].astype(np.int64)
        for group in reversed(groups[:-1]):
            found *= 10**_GROUP
            found += self.groups[group]
        return found


class StepShape:
    """A line of a step, and where its digits are.

    ``body`` is the line up to its checksum, with zeros for the digits of its numbers.
    """

    def __init__(self, body: bytes) -> None:
        line = body + SEAL % 0 + b"\n"
        self.width = len(line)
        self.numbers: dict[str, _Number] = {}
        self._ends: list[int] = []
        for match in _NUMBER.finditer(body):
            first = len(self._ends)
            self._ends.extend(range(match.end(2), match.start(2), -_GROUP))
            groups = range(first, len(self._ends))
            name = match[1].decode()
            self.numbers[name] = _Number(name, match.start(2), match.end(2), groups)
        numbers = self.numbers.values()
        self._places = [end - _GROUP for end in self._ends]
        self._first_groups = [number.groups[-1] for number in numbers]
        self._of_digits = _column(
            [_bits_of_digits(n, group) for n in numbers for group in n.groups]
        )
        self._least = _column([number.least for number in numbers])
        self._beyond = _column([number.beyond for number in numbers])
        self._crc_at = len(body) + _CRC_OFFSET
        fixed = self._fixed_bytes()
        self._fixed = np.tile(fixed, _TILED)
        self._line = np.tile(np.frombuffer(line, dtype=np.uint8) & fixed, _TILED)
        self._zeros_crc = np.uint32(crc32(body))
        self._added = [_added(len(body) - end) for end in self._ends]

    def _fixed_bytes(self) -> Bytes:
        """Return a mask of the bytes that every line of the shape has alike."""
        fixed = np.full(self.width, 255, dtype=np.uint8)
        fixed[self._crc_at : self._crc_at + 8] = 0
        for number in self.numbers.values():
            fixed[number.start : number.end] = 0
        return fixed

    def fit(self, rows: Bytes) -> Bools:
        """Return which rows, of ``width`` bytes with the newline, differ in digits alone."""
        tiled = len(rows) // _TILED * _TILED
        if self._are_alike(rows[:tiled].reshape(-1, len(self._line))).all():
            fits = np.ones(len(rows), dtype=np.bool_)  # Faster than row by row, and the usual case.
            fits[tiled:] = self._are_alike(rows[tiled:]).all(axis=1)
            return fits
        return np.asarray(self._are_alike(rows).all(axis=1))

    def _are_alike(self, rows: Bytes) -> Bools:
        """Say byte by byte where rows of one or of many lines are as they must be."""
        width = rows.shape[1]
        return np.asarray((rows & self._fixed[:width]) == self._line[:width])

    def read(self, rows: Bytes) -> tuple[Bools, StepLines]:
        """Return which of the rows that fit are good: their numbers and checksums; and those."""
        groups, good = self._groups(rows)
        good &= self._are_sealed(rows, groups)
        good &= self._are_plain(groups)
        return good, StepLines(self, groups if good.all() else groups[:, good])

    def _groups(self, rows: Bytes) -> tuple[Words, Bools]:
        """Return the value of each group of digits, by group, and which rows have only digits."""
        everywhere = np.ndarray((self.width - 3, len(rows)), "<u4", rows, 0, (1, self.width))
        words = everywhere[self._places]
        words ^= np.uint32(0x30303030)  # A digit becomes its value.
        words &= self._of_digits
        beyond_nine = words + np.uint32(0x76767676)
        beyond_nine |= words
        only_digits = np.bitwise_or.reduce(beyond_nine, axis=0) & np.uint32(0x80808080) == 0
        for factor, shift, kept in ((10, 8, 0x00FF00FF), (100, 16, 0xFFFF)):
            following = words >> np.uint32(shift)
            words *= np.uint32(factor)
            words += following
            words &= np.uint32(kept)
        return words, only_digits

    def _are_plain(self, groups: Words) -> Bools:
        """Say where no number has a needless zero in front, and none is too large."""
        first = groups[self._first_groups]
        return np.asarray(((first >= self._least) & (first < self._beyond)).all(axis=0))

    def _are_sealed(self, rows: Bytes, groups: Words) -> Bools:
        crc = np.full(len(rows), self._zeros_crc)
        for added, group in zip(self._added, groups, strict=True):
            crc ^= added.take(group, mode="clip")  # What is no digit makes any number.
        written = np.ndarray(len(rows), "<u8", rows, self._crc_at, (self.width,))
        sealed: Bools = _HEX.take(crc.astype(">u4").view(np.uint8)).view("<u8") == written
        return sealed


def shape_of(line: bytes) -> StepShape | None:
    """Return the shape of a line, or None where it is no step just as the codec writes it."""
    body = line[:-SEAL_BYTES]
    if _BODY.fullmatch(body) is None:
        return None  # Some number is negative, or not whole, or too long.
    return _shape_of_body(_filled_with(b"0", body))


@lru_cache(maxsize=1024)
def _shape_of_body(zeros: bytes) -> StepShape | None:
    body = _filled_with(b"2", zeros)  # A number that the codec takes, and the default of no field.
    line = body + SEAL % crc32(body) + b"\n"
    match decode_block(line).records:
        case [Step() as step] if _as_written(step) == line:
            return StepShape(zeros)
        case _:
            return None


def _filled_with(digit: bytes, body: bytes) -> bytes:
    """Return the body of a line with one digit in place of all in its numbers."""
    return _NUMBER.sub(lambda number: b',"%b":%b' % (number[1], digit * len(number[2])), body)


def _as_written(step: Step) -> bytes:
    return encode_line(msgspec.structs.replace(step, seq=UNWRITTEN), step.seq)


def _bits_of_digits(number: _Number, group: int) -> int:
    """Return which bits of a group's word are digits, and not what stands before the number."""
    others = _GROUP - number.leading if group == number.groups[-1] else 0
    return 0xFFFFFFFF >> 8 * others << 8 * others  # The first byte of a word is its lowest.


def _column(values: Sequence[int]) -> Words:
    return np.array(values, dtype=np.uint32)[:, None]


@lru_cache(maxsize=256)
def _added(distance: int) -> Words:
    """Return what each group of digits, so many bytes before the end, adds to a checksum."""
    table = np.zeros(1, dtype=np.uint32)
    for behind in range(distance + _GROUP - 1, distance - 1, -1):
        zero = crc32(bytes(behind + 1))
        digits = [crc32(bytes([digit]) + bytes(behind)) ^ zero for digit in range(10)]
        table = (table[:, None] ^ np.array(digits, dtype=np.uint32)).ravel()
    return table


_FEW = 256  # So few lines are read faster one by one.
_MOST_SHAPES = 16  # Of one length, in one block.
_KIND = b',"kind":"step",'
_KIND_BEFORE = 64
np.empty(31 << 20, dtype=np.uint8)  # glibc keeps memory from now on that each block needs anew.


class StepBlock(BulkRecords):
    """The records of a block: as a sequence, in the order in which the codec returns them."""

    def __init__(self, block: bytes, steps: StepColumns, others: Sequence[Record]) -> None:
        super().__init__(steps, others)
        self._block = block

    def _first(self) -> Record:
        return decode_block(self._block[: self._block.index(b"\n") + 1]).records[0]

    def _each(self) -> Sequence[Record]:
        return decode_block(self._block).records


@dataclass(frozen=True, slots=True)
class _Alike:
    """Lines of one shape, and which lines of the block they are."""

    places: Ints
    lines: StepLines


@dataclass(frozen=True, slots=True)
class _Rest:
    """The lines that were read one by one: their places and records."""

    places: list[int]
    records: Sequence[Record]

    @classmethod
    def of(cls, lines: _Lines, places: Ints) -> _Rest | None:
        """Return the records of some lines; None if there is anything to say about one of them."""
        decoded = decode_block(lines.text(places))
        if decoded.complaints or any(type(record) is Gap for record in decoded.records):
            return None
        return cls(places.tolist(), decoded.records)

    @property
    def steps(self) -> dict[int, Step]:
        """Those that are steps, by their places."""
        placed = zip(self.places, self.records, strict=True)
        return {place: record for place, record in placed if type(record) is Step}

    @property
    def others(self) -> list[Record]:
        """Those that are not."""
        return [record for record in self.records if type(record) is not Step]


class _Lines:
    """The lines of a block, by their place."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._bytes = np.frombuffer(block, dtype=np.uint8)
        width = block.index(b"\n") + 1
        beyond = np.arange(width, len(block) + 1, width)
        # Lines of one length, usually. Were there others inside them, these would fit no shape.
        if len(block) % width or not (self._bytes[beyond - 1] == ord("\n")).all():
            beyond = np.flatnonzero(self._bytes == ord("\n")) + 1
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), beyond[:-1]])
        self._lengths = beyond - self._starts

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, places: Ints) -> bytes:
        """Return some lines, one after another."""
        starts = self._starts[places]
        bounds = zip(starts.tolist(), (starts + self._lengths[places]).tolist(), strict=True)
        return b"".join([self._block[start:end] for start, end in bounds])

    def by_length(self) -> list[Ints]:
        """Return the places of the lines of each length."""
        if (self._lengths == self._lengths[0]).all():
            return [np.arange(len(self))]
        lengths = np.flatnonzero(np.bincount(self._lengths))
        return [np.flatnonzero(self._lengths == length) for length in lengths]

    def is_step(self, place: int) -> bool:
        """Say whether a line looks like that of a step."""
        start = int(self._starts[place])
        return self._block.find(_KIND, start, start + _KIND_BEFORE) > 0

    def rows(self, places: Ints) -> Bytes:
        """Return lines of one length as rows of bytes, their newlines included."""
        start, width = int(self._starts[places[0]]), int(self._lengths[places[0]])
        if int(places[-1] - places[0]) == len(places) - 1:  # One after another.
            return self._bytes[start : start + len(places) * width].reshape(-1, width)
        windows = np.ndarray(len(self._bytes) - width + 1, f"V{width}", self._bytes, strides=(1,))
        rows: Bytes = windows[self._starts[places]].view(np.uint8)
        return rows.reshape(len(places), width)


def decode_steps(block: bytes) -> Decoded:
    """Return every record of a block of whole lines, just as the codec does, but faster."""
    return _read(block) or decode_block(block)


def _read(block: bytes) -> Decoded | None:
    """Return the records of a block in which nothing is out of the ordinary, else None."""
    lines = _Lines(block)
    bulk: list[_Alike] = []
    left: list[Ints] = []
    for places in lines.by_length():
        alike, remaining = _alike(lines, places)
        bulk += alike
        left.append(remaining)
    if not bulk:
        return None
    rest = _Rest.of(lines, np.sort(np.concatenate(left)))
    first_seq = int(bulk[0].lines.values("seq")[0] - bulk[0].places[0])
    if rest is None or not _are_consecutive(bulk, rest, first_seq):
        return None
    others = rest.others
    found = StepBlock(block, _joined(bulk, rest.steps), others)
    return Decoded(found, [], first_seq=first_seq, rare=others)


def _alike(lines: _Lines, places: Ints) -> tuple[list[_Alike], Ints]:
    """Return the steps among lines of one length, by shape, and the places of what is left."""
    found: list[_Alike] = []
    for _ in range(_MOST_SHAPES):
        if len(places) < _FEW:
            break
        first = next((place for place in range(len(places)) if lines.is_step(places[place])), None)
        shape = None if first is None else shape_of(lines.text(places[first : first + 1])[:-1])
        if shape is None:
            break
        rows = lines.rows(places)
        fits = shape.fit(rows)
        if not fits.any():
            break
        good, alike = shape.read(rows if fits.all() else rows[fits])
        if not len(alike):
            break
        fits[fits] = good
        found.append(_Alike(places if fits.all() else places[fits], alike))
        places = places[~fits]
    return found, places


def _are_consecutive(bulk: Sequence[_Alike], rest: _Rest, first_seq: int) -> bool:
    """Say whether each record's number is one more than that of the record before."""
    if [record.seq - first_seq for record in rest.records] != rest.places:
        return False
    return all((alike.lines.values("seq") - alike.places == first_seq).all() for alike in bulk)


def _joined(bulk: Sequence[_Alike], rest: dict[int, Step]) -> StepColumns:
    """Return all steps in the order of their lines: those that are alike, and others by place."""
    parts = [(alike.places, StepColumns.read(alike.lines.values)) for alike in bulk]
    if rest:
        parts.append((np.array([*rest]), StepColumns.of([*rest.values()])))
    parts.sort(key=lambda part: int(part[0][0]))  # One after another, usually, and in order then.
    joined = StepColumns.joined([columns for _, columns in parts])
    place = np.concatenate([places for places, _ in parts])
    return joined if (np.diff(place) > 0).all() else joined.at(np.argsort(place))
