"""Bulk decoding of steps and metrics in blocks of a run log, with the same result as the codec.

Almost all lines of a log are steps and metrics, and almost all of a kind have the same fields.
Those are decoded as columns, other lines one by one. If anything is unusual (damage, a gap, a
sequence number out of order) the whole block is left to the codec, which alone decides what is
damaged.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import (
    NO_STEP,
    BulkRecords,
    Ints,
    MetricColumns,
    StepColumns,
    uniform,
)
from outlay.ledger import Gap, Metric, Record, Step, encode_line
from outlay.ledger.codec import SEAL, SEAL_BYTES, Decoded, decode_block, decode_values
from outlay.ledger.records import UNWRITTEN

# Lines of one shape, decoded as columns.
#
# The step lines of a run differ only in the digits of their numbers, and so do the lines of a
# metric whose values have as many digits. A *shape* is such a line with the positions of its
# digits; all lines of a shape are checked and decoded by arithmetic on whole columns of bytes.
# Other lines are left to the codec. CRC-32 is linear: the checksum of a line is that of the same
# line with zeros for digits, xor a term for each digit that depends on its value and its distance
# from the end. A table lookup covers four digits. Only the texts of a metric's values are joined
# and read as the codec reads them, since a fraction in decimal digits is rounded.

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_GROUP = 4  # Digits per table lookup.
_MAX_DIGITS = 19
_CRC_OFFSET = len(b',"crc":"')
_TOO_LARGE = 461  # The codec may refuse 19 digits that start with this or more.
_STEP = re.compile(rb'\{"v":1,"seq":[0-9]{1,19},"kind":"step"(?:,"[a-z_]+":[0-9]{1,19})+')
_METRIC = re.compile(
    rb'\{"v":1,"seq":[0-9]{1,19},"kind":"metric","t_ns":[0-9]{1,19},"name":"([^"\\]*)"'
    rb',"value":(-?[0-9]{1,19}(?:\.[0-9]{1,19})?(?:e-?[0-9]{1,3})?)(?:,"step":[0-9]{1,19})?'
)
_DIGITS = re.compile(rb"[0-9]")
_NUMBER = re.compile(rb',"([a-z_]+)":-?([0-9]+)(?:\.([0-9]+))?')
_FRACTION = "after the point"
_TILE = 64  # Lines that are compared as one row: NumPy is slow at many short rows.
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype="<u2")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a line: the span of its digits, and its groups of digits, the last ones first."""

    name: str
    start: int
    end: int
    groups: range

    @property
    def digits(self) -> int:
        return self.end - self.start

    @property
    def leading_digits(self) -> int:
        """Digits of the first group; the others are full."""
        return (self.digits - 1) % _GROUP + 1

    @property
    def least(self) -> int:
        """The lowest valid first group: no leading zeros, and a count is at least 1."""
        if self.name == _FRACTION:
            return 0
        return 10 ** (self.leading_digits - 1) if self.digits > 1 or self.name == "count" else 0

    @property
    def beyond(self) -> int:
        """The first group must be below this for the codec to accept the number."""
        is_whole = self.name != _FRACTION
        return _TOO_LARGE if is_whole and self.digits == _MAX_DIGITS else 10**_GROUP


@dataclass(frozen=True, slots=True)
class ShapedLines:
    """Lines of one shape: their indices in the block, and the values of their digit groups.

    ``values_read`` are the values of lines of a metric, as the codec reads them.
    """

    shape: LineShape
    indices: Ints
    groups: Words
    values_read: Floats

    def __len__(self) -> int:
        return len(self.indices)

    def values(self, name: str) -> Ints:
        """Return the numbers of a field, one per line; its default if the lines lack the field."""
        if name not in self.shape.numbers:
            return uniform(1 if name == "count" else 0, len(self))
        groups = self.shape.numbers[name].groups
        found: Ints = self.groups[groups[-1]].astype(np.int64)
        for group in reversed(groups[:-1]):
            found *= 10**_GROUP
            found += self.groups[group]
        return found


class LineShape:
    """The form of a line of a step or of a metric, and the positions of its digits.

    ``body`` is the line up to its checksum, with zeros for the digits of its numbers; ``metric`` is
    the name of the metric of such a line.
    """

    def __init__(self, body: bytes, metric: str | None = None) -> None:
        line = body + SEAL % 0 + b"\n"
        self.width = len(line)
        self.metric = metric
        self.numbers: dict[str, _Number] = {}
        self._ends: list[int] = []
        for match in _NUMBER.finditer(body):
            self._add_number(match[1].decode(), *match.span(2))
            if match[3] is not None:
                self._add_number(_FRACTION, *match.span(3))
        found = _METRIC.fullmatch(body)
        self._value = slice(*found.span(2)) if found is not None else slice(0)
        numbers = self.numbers.values()
        self._offsets = [end - _GROUP for end in self._ends]
        self._first_groups = [number.groups[-1] for number in numbers]
        self._digit_masks = _column([_digit_mask(n, group) for n in numbers for group in n.groups])
        self._least = _column([number.least for number in numbers])
        self._beyond = _column([number.beyond for number in numbers])
        self._crc_at = len(body) + _CRC_OFFSET
        fixed = self._fixed_bytes()
        self._fixed = np.tile(fixed, _TILE)
        self._line = np.tile(np.frombuffer(line, dtype=np.uint8) & fixed, _TILE)
        self._zeros_crc = np.uint32(crc32(body))
        self._crc_tables = [_crc_table(len(body) - end) for end in self._ends]

    def _add_number(self, name: str, start: int, end: int) -> None:
        first = len(self._ends)
        self._ends.extend(range(end, start, -_GROUP))
        self.numbers[name] = _Number(name, start, end, range(first, len(self._ends)))

    def _fixed_bytes(self) -> Bytes:
        """Return a mask of the bytes that are equal in every line of the shape."""
        fixed = np.full(self.width, 255, dtype=np.uint8)
        fixed[self._crc_at : self._crc_at + 8] = 0
        for number in self.numbers.values():
            fixed[number.start : number.end] = 0
        return fixed

    def match(self, rows: Bytes) -> Bools:
        """Return which rows, of ``width`` bytes with the newline, differ in digits alone."""
        tiled = len(rows) // _TILE * _TILE
        if self._match_bytes(rows[:tiled].reshape(-1, len(self._line))).all():
            matches = np.ones(len(rows), dtype=np.bool_)  # The usual case, faster than by row.
            matches[tiled:] = self._match_bytes(rows[tiled:]).all(axis=1)
            return matches
        return np.asarray(self._match_bytes(rows).all(axis=1))

    def _match_bytes(self, rows: Bytes) -> Bools:
        """Return byte by byte which are valid, given rows of one or of ``_TILE`` lines."""
        width = rows.shape[1]
        return np.asarray((rows & self._fixed[:width]) == self._line[:width])

    def read(self, rows: Bytes) -> tuple[Bools, Words]:
        """Return which of the matching rows have valid numbers and checksums, and their groups."""
        groups, good = self._groups(rows)
        good &= self._have_valid_crc(rows, groups)
        good &= self._have_valid_numbers(groups)
        return good, groups if good.all() else groups[:, good]

    def read_values(self, rows: Bytes) -> Floats:
        """Return the values in lines of a metric, read as by the codec."""
        if self.metric is None:
            return np.empty(0)
        texts = np.full((len(rows), self._value.stop - self._value.start + 1), ord(","), np.uint8)
        texts[:, :-1] = rows[:, self._value]
        return np.array(decode_values(texts.tobytes()[:-1]))

    def _groups(self, rows: Bytes) -> tuple[Words, Bools]:
        """Return the value of each group of digits, by group, and which rows have only digits."""
        everywhere = np.ndarray((self.width - 3, len(rows)), "<u4", rows, 0, (1, self.width))
        words = everywhere[self._offsets]
        words ^= np.uint32(0x30303030)  # A digit becomes its value.
        words &= self._digit_masks
        beyond_nine = words + np.uint32(0x76767676)
        beyond_nine |= words
        only_digits = np.bitwise_or.reduce(beyond_nine, axis=0) & np.uint32(0x80808080) == 0
        for factor, shift, kept in ((10, 8, 0x00FF00FF), (100, 16, 0xFFFF)):
            following = words >> np.uint32(shift)
            words *= np.uint32(factor)
            words += following
            words &= np.uint32(kept)
        return words, only_digits

    def _have_valid_numbers(self, groups: Words) -> Bools:
        """Return which rows have no leading zeros and no number that is too large."""
        first = groups[self._first_groups]
        return np.asarray(((first >= self._least) & (first < self._beyond)).all(axis=0))

    def _have_valid_crc(self, rows: Bytes, groups: Words) -> Bools:
        crc = np.full(len(rows), self._zeros_crc)
        for table, group in zip(self._crc_tables, groups, strict=True):
            crc ^= table.take(group, mode="clip")  # Non-digits give any number.
        written = np.ndarray(len(rows), "<u8", rows, self._crc_at, (self.width,))
        valid: Bools = _HEX.take(crc.astype(">u4").view(np.uint8)).view("<u8") == written
        return valid


def shape_of(line: bytes) -> LineShape | None:
    """Return the shape of a line; None unless it is as the codec writes a step or a metric."""
    body = line[:-SEAL_BYTES]
    if _STEP.fullmatch(body) is None and _METRIC.fullmatch(body) is None:
        return None  # A number is negative, fractional or too long, or a value is not a number.
    return _shape_of_body(_fill_digits(b"0", body))


@lru_cache(maxsize=1024)
def _shape_of_body(zeros: bytes) -> LineShape | None:
    body = _fill_digits(b"2", zeros)  # Valid for the codec, and the default of no field.
    line = body + SEAL % crc32(body) + b"\n"
    match decode_block(line).records:
        case [Step() as step] if _encode(step) == line:
            return LineShape(zeros)
        case [Metric(name=name)]:
            return LineShape(zeros, name)
        case _:
            return None


def _fill_digits(digit: bytes, body: bytes) -> bytes:
    """Return the body of a line with every digit of its numbers replaced, but for exponents."""
    return _NUMBER.sub(lambda number: _DIGITS.sub(digit, number[0]), body)


def _encode(step: Step) -> bytes:
    return encode_line(msgspec.structs.replace(step, seq=UNWRITTEN), step.seq)


def _digit_mask(number: _Number, group: int) -> int:
    """Return the bits of a group's word that are digits of the number."""
    others = _GROUP - number.leading_digits if group == number.groups[-1] else 0
    return 0xFFFFFFFF >> 8 * others << 8 * others  # Little-endian: the first byte is the lowest.


def _column(values: Sequence[int]) -> Words:
    return np.array(values, dtype=np.uint32)[:, None]


@lru_cache(maxsize=256)
def _crc_table(distance: int) -> Words:
    """Return the checksum term of each group of digits, ``distance`` bytes before the end."""
    table = np.zeros(1, dtype=np.uint32)
    for behind in range(distance + _GROUP - 1, distance - 1, -1):
        zero = crc32(bytes(behind + 1))
        digits = [crc32(bytes([digit]) + bytes(behind)) ^ zero for digit in range(10)]
        table = (table[:, None] ^ np.array(digits, dtype=np.uint32)).ravel()
    return table


# Blocks of lines.

_MIN_LINES = 256  # Fewer are decoded faster one by one.
_MAX_SHAPES = 16  # Of one length, in one block.
_KINDS = b',"kind":"step",', b',"kind":"metric",'
_KIND_BEFORE = 64
np.empty(31 << 20, dtype=np.uint8)  # Raises glibc's mmap threshold: blocks reuse freed memory.


class StepBlock(BulkRecords):
    """The records of a block; as a sequence, in the codec's order."""

    def __init__(
        self,
        block: bytes,
        steps: StepColumns,
        others: Sequence[Record],
        metrics: Mapping[str, MetricColumns],
    ) -> None:
        super().__init__(steps, others, metrics)
        self._block = block

    def _first(self) -> Record:
        return decode_block(self._block[: self._block.index(b"\n") + 1]).records[0]

    def _each(self) -> Sequence[Record]:
        return decode_block(self._block).records


@dataclass(frozen=True, slots=True)
class _OtherLines:
    """Lines that the codec decoded one by one: their indices and records."""

    indices: list[int]
    records: Sequence[Record]

    @classmethod
    def decode(cls, lines: _Lines, indices: Ints) -> _OtherLines | None:
        """Return the records of some lines; None on any complaint or gap."""
        decoded = decode_block(lines.text(indices))
        if decoded.complaints or any(type(record) is Gap for record in decoded.records):
            return None
        return cls(indices.tolist(), decoded.records)

    @property
    def steps(self) -> dict[int, Step]:
        """The steps by index of their line."""
        indexed = zip(self.indices, self.records, strict=True)
        return {index: record for index, record in indexed if type(record) is Step}

    @property
    def metrics(self) -> dict[int, Metric]:
        """The metrics by index of their line."""
        indexed = zip(self.indices, self.records, strict=True)
        return {index: record for index, record in indexed if type(record) is Metric}

    @property
    def others(self) -> list[Record]:
        return [record for record in self.records if type(record) not in (Step, Metric)]


class _Lines:
    """The lines of a block, by index."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._bytes = np.frombuffer(block, dtype=np.uint8)
        width = block.index(b"\n") + 1
        beyond = np.arange(width, len(block) + 1, width)
        # Usually all lines have one length. Newlines inside of such rows would match no shape.
        if len(block) % width or not (self._bytes[beyond - 1] == ord("\n")).all():
            beyond = np.flatnonzero(self._bytes == ord("\n")) + 1
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), beyond[:-1]])
        self._lengths = beyond - self._starts

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, indices: Ints) -> bytes:
        """Return the concatenated lines at ``indices``."""
        starts = self._starts[indices]
        bounds = zip(starts.tolist(), (starts + self._lengths[indices]).tolist(), strict=True)
        return b"".join([self._block[start:end] for start, end in bounds])

    def by_length(self) -> list[Ints]:
        """Return the indices of the lines of each length."""
        if (self._lengths == self._lengths[0]).all():
            return [np.arange(len(self))]
        lengths = np.flatnonzero(np.bincount(self._lengths))
        return [np.flatnonzero(self._lengths == length) for length in lengths]

    def may_have_shape(self, index: int) -> bool:
        """Return whether a line looks like a step or a metric."""
        start = int(self._starts[index])
        return any(self._block.find(kind, start, start + _KIND_BEFORE) > 0 for kind in _KINDS)

    def rows(self, indices: Ints) -> Bytes:
        """Return lines of one length as rows of bytes, newlines included."""
        start, width = int(self._starts[indices[0]]), int(self._lengths[indices[0]])
        if int(indices[-1] - indices[0]) == len(indices) - 1:  # Consecutive.
            return self._bytes[start : start + len(indices) * width].reshape(-1, width)
        windows = np.ndarray(len(self._bytes) - width + 1, f"V{width}", self._bytes, strides=(1,))
        rows: Bytes = windows[self._starts[indices]].view(np.uint8)
        return rows.reshape(len(indices), width)


def decode_steps(block: bytes) -> Decoded:
    """Return the records of a block of whole lines: the codec's result, but faster."""
    return _decode_in_bulk(block) or decode_block(block)


def _decode_in_bulk(block: bytes) -> Decoded | None:
    """Return the records of a block; None if anything in it is unusual, or nothing is in bulk."""
    lines = _Lines(block)
    bulk: list[ShapedLines] = []
    left: list[Ints] = []
    for indices in lines.by_length():
        shaped, remaining = _match_shapes(lines, indices)
        bulk += shaped
        left.append(remaining)
    if not bulk:
        return None
    rest = _OtherLines.decode(lines, np.sort(np.concatenate(left)))
    first_seq = int(bulk[0].values("seq")[0] - bulk[0].indices[0])
    if rest is None or not _are_consecutive(bulk, rest, first_seq):
        return None
    others = rest.others
    steps = _join_steps([each for each in bulk if each.shape.metric is None], rest.steps)
    metrics = _join_metrics([each for each in bulk if each.shape.metric is not None], rest.metrics)
    found = StepBlock(block, steps, others, metrics)
    return Decoded(found, [], first_seq=first_seq, rare=others)


def _match_shapes(lines: _Lines, indices: Ints) -> tuple[list[ShapedLines], Ints]:
    """Return lines of one length by shape, and the indices of the other lines."""
    found: list[ShapedLines] = []
    for _ in range(_MAX_SHAPES):
        if len(indices) < _MIN_LINES:
            break
        every = range(len(indices))
        first = next((at for at in every if lines.may_have_shape(indices[at])), None)
        shape = None if first is None else shape_of(lines.text(indices[first : first + 1])[:-1])
        if shape is None:
            break
        rows = lines.rows(indices)
        matches = shape.match(rows)
        if not matches.any():
            break
        good, groups = shape.read(rows if matches.all() else rows[matches])
        if not good.any():
            break
        matches[matches] = good
        try:
            values = shape.read_values(rows if matches.all() else rows[matches])
        except msgspec.MsgspecError:
            break  # A value is too large.
        chosen = indices if matches.all() else indices[matches]
        found.append(ShapedLines(shape, chosen, groups, values))
        indices = indices[~matches]
    return found, indices


def _are_consecutive(bulk: Sequence[ShapedLines], rest: _OtherLines, first_seq: int) -> bool:
    """Return whether the sequence numbers of all lines are consecutive."""
    if [record.seq - first_seq for record in rest.records] != rest.indices:
        return False
    return all((each.values("seq") - each.indices == first_seq).all() for each in bulk)


def _join_steps(bulk: Sequence[ShapedLines], rest: dict[int, Step]) -> StepColumns:
    """Return all steps in the order of their lines; ``rest`` is by index of the line."""
    if not bulk:
        return StepColumns.of([*rest.values()])
    parts = [(each.indices, StepColumns.read(each.values)) for each in bulk]
    if rest:
        parts.append((np.array([*rest]), StepColumns.of([*rest.values()])))
    parts.sort(key=lambda part: int(part[0][0]))  # Usually enough to have all in order.
    joined = StepColumns.joined([columns for _, columns in parts])
    index = np.concatenate([indices for indices, _ in parts])
    return joined if (np.diff(index) > 0).all() else joined.take(np.argsort(index))


def _join_metrics(bulk: Sequence[ShapedLines], rest: dict[int, Metric]) -> dict[str, MetricColumns]:
    """Return the values of each metric in the order of their lines; metrics by their first line."""
    parts = defaultdict[str, list[_MetricPart]](list)
    for each in bulk:
        assert each.shape.metric is not None
        parts[each.shape.metric].append(_MetricPart.of(each))
    left = defaultdict[str, dict[int, Metric]](dict)
    for index, metric in rest.items():
        left[metric.name][index] = metric
    for name, metrics in left.items():
        parts[name].append(_MetricPart.of_records(metrics))
    joined = {name: _MetricPart.joined(each) for name, each in parts.items()}
    in_order = sorted(joined.items(), key=lambda item: int(item[1].indices[0]))
    return {name: part.columns() for name, part in in_order}


@dataclass(frozen=True, slots=True)
class _MetricPart:
    """Some values of a metric: the indices of their lines, and what these say."""

    indices: Ints
    t_ns: Ints
    value: Floats
    step: Ints

    @classmethod
    def of(cls, lines: ShapedLines) -> _MetricPart:
        has_step = "step" in lines.shape.numbers
        step = lines.values("step") if has_step else uniform(NO_STEP, len(lines))
        return cls(lines.indices, lines.values("t_ns"), lines.values_read, step)

    @classmethod
    def of_records(cls, metrics: Mapping[int, Metric]) -> _MetricPart:
        columns = MetricColumns()
        for metric in metrics.values():
            columns.append(metric)
        read = map(np.array, (columns.t_ns, columns.value, columns.step))
        return cls(np.array([*metrics]), *read)

    @classmethod
    def joined(cls, parts: Sequence[_MetricPart]) -> _MetricPart:
        rows = zip(*((p.indices, p.t_ns, p.value, p.step) for p in parts), strict=True)
        indices, *columns = map(np.concatenate, rows)
        order = np.argsort(indices)
        return cls(indices[order], *(column[order] for column in columns))

    def columns(self) -> MetricColumns:
        columns = MetricColumns()
        columns.t_ns.frombytes(self.t_ns.tobytes())
        columns.value.frombytes(self.value.tobytes())
        columns.step.frombytes(self.step.tobytes())
        return columns
