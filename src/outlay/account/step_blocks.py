"""A block of a run log whose steps are read in bulk; what it says is what the codec says.

A log is almost all steps, and almost all steps are written alike. Those are read many at a time,
the others one by one. Where anything is out of the ordinary (damage, a gap, a number out of place)
the whole block is left to the codec, so that there is one place that judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from outlay.account.columns import Ints
from outlay.account.step_shapes import Bytes, StepLines, shape_of
from outlay.account.steps import StepColumns
from outlay.ledger import Gap, Record, Step
from outlay.ledger.codec import Decoded, decode_block

_FEW = 256  # So few lines are read faster one by one.
_MOST_SHAPES = 16  # Of one length, in one block.
_KIND = b',"kind":"step",'
_KIND_BEFORE = 64
_PADDING = 8


class StepBlock(Sequence[Record]):
    """The records of a block, in order: the steps by column, the others as they are.

    As a sequence it is the same as what the codec returns, and is decoded when it is looked at.
    """

    def __init__(
        self, block: bytes, length: int, steps: StepColumns, others: Sequence[Record]
    ) -> None:
        self.steps = steps
        self.others = others
        self._block = block
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if index == 0:
            return decode_block(self._block[: self._block.index(b"\n") + 1]).records[0]
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._decoded())

    def _decoded(self) -> Sequence[Record]:
        return decode_block(self._block).records


@dataclass(frozen=True, slots=True)
class _Alike:
    """Lines of one shape, and which lines of the block they are."""

    places: Ints
    lines: StepLines


@dataclass(frozen=True, slots=True)
class _Rest:
    """The lines that were read one by one: their places and records."""

    places: Ints
    records: Sequence[Record]

    @classmethod
    def of(cls, lines: _Lines, places: Ints) -> _Rest | None:
        """Return the records of some lines; None if there is anything to say about one of them."""
        decoded = decode_block(b"".join([lines.text(place) + b"\n" for place in places.tolist()]))
        if decoded.complaints or any(type(record) is Gap for record in decoded.records):
            return None
        return cls(places, decoded.records)

    @property
    def steps(self) -> list[Step]:
        """Those that are steps."""
        return [record for record in self.records if type(record) is Step]

    @property
    def step_places(self) -> Ints:
        """Where the steps are."""
        return self.places[[type(record) is Step for record in self.records]]

    @property
    def others(self) -> list[Record]:
        """Those that are not."""
        return [record for record in self.records if type(record) is not Step]


class _Lines:
    """The lines of a block, by their place."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._bytes = np.frombuffer(block + bytes(_PADDING), dtype=np.uint8)
        ends = np.flatnonzero(self._bytes == ord("\n"))
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1] + 1])
        self._lengths = ends - self._starts

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, place: int) -> bytes:
        """Return a line without its newline."""
        start = int(self._starts[place])
        return self._block[start : start + int(self._lengths[place])]

    def by_length(self) -> list[Ints]:
        """Return the places of the lines of each length."""
        if (self._lengths == self._lengths[0]).all():
            return [np.arange(len(self))]
        return [np.flatnonzero(self._lengths == length) for length in np.unique(self._lengths)]

    def is_step(self, place: int) -> bool:
        """Say whether a line looks like that of a step."""
        start = int(self._starts[place])
        return self._block.find(_KIND, start, start + _KIND_BEFORE) > 0

    def rows(self, places: Ints, width: int) -> Bytes:
        """Return lines as rows of ``width`` bytes, beyond their ends where they are shorter."""
        windows = np.ndarray(len(self._bytes) - width + 1, f"V{width}", self._bytes, strides=(1,))
        rows: Bytes = windows[self._starts[places]].view(np.uint8)
        return rows.reshape(len(places), width)


def without_bulk(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records that were not read in bulk: all that may be something else than steps."""
    return records.others if isinstance(records, StepBlock) else records


def decode_steps(block: bytes) -> Decoded:
    """Return every record of a block of whole lines, just as the codec does, but faster."""
    found = _read(block)
    if found is None:
        return decode_block(block)
    return Decoded(found, [], first_seq=found[0].seq)


def _read(block: bytes) -> StepBlock | None:
    """Return the records of a block in which nothing is out of the ordinary, else None."""
    lines = _Lines(block)
    bulk: list[_Alike] = []
    left: list[Ints] = []
    for places in lines.by_length():
        alike, others = _alike(lines, places)
        bulk += alike
        left.append(others)
    if not bulk:
        return None
    rest = _Rest.of(lines, np.sort(np.concatenate(left)))
    if rest is None or not _are_consecutive(bulk, rest):
        return None
    return StepBlock(block, len(lines), _joined(bulk, rest), rest.others)


def _alike(lines: _Lines, places: Ints) -> tuple[list[_Alike], Ints]:
    """Return the steps among lines of one length, by shape, and the places of what is left."""
    found: list[_Alike] = []
    for _ in range(_MOST_SHAPES):
        if len(places) < _FEW:
            break
        first = next((place for place in places.tolist() if lines.is_step(place)), None)
        shape = None if first is None else shape_of(lines.text(first))
        if shape is None:
            break
        rows = lines.rows(places, shape.width)
        fits = shape.fit(rows)
        good, alike = shape.read(rows if fits.all() else rows[fits])
        if not len(alike):
            break
        found.append(_Alike(places[fits][good], alike))
        fits[fits] = good
        places = places[~fits]
    return found, places


def _are_consecutive(bulk: Sequence[_Alike], rest: _Rest) -> bool:
    """Say whether each record's number is one more than that of the record before."""
    first_seq = int(bulk[0].lines.values("seq")[0] - bulk[0].places[0])
    if [record.seq for record in rest.records] != (rest.places + first_seq).tolist():
        return False
    return all((alike.lines.values("seq") - alike.places == first_seq).all() for alike in bulk)


def _joined(bulk: Sequence[_Alike], rest: _Rest) -> StepColumns:
    """Return all steps in the order of their lines."""
    columns = [_columns(alike.lines) for alike in bulk]
    places = [alike.places for alike in bulk]
    if steps := rest.steps:
        columns.append(StepColumns.of(steps))
        places.append(rest.step_places)
    joined, place = StepColumns.joined(columns), np.concatenate(places)
    return joined if (np.diff(place) > 0).all() else joined.at(np.argsort(place))


def _columns(lines: StepLines) -> StepColumns:
    end = lines.values("t_ns")
    return StepColumns(
        number=lines.values("step"),
        start=end - lines.values("dur_ns"),
        end=end,
        wait=lines.values("wait_ns"),
        count=lines.values("count", default=1),
        tokens=lines.values("tokens"),
        samples=lines.values("samples"),
        energy_mj=lines.values("energy_mj"),
        comm_bytes=lines.values("comm_bytes"),
        flops=lines.values("flops"),
    )
