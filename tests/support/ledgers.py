"""Builders of run logs: what a process would have written, stated in seconds, without a process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from outlay.budget.fold import ProcessSpend
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    CheckpointCommitted,
    EndStatus,
    Heartbeat,
    KnownRecord,
    Price,
    PriceChanged,
    Record,
    SegmentId,
    SegmentLife,
    SpanBegun,
    SpanEnded,
    Step,
    encode_line,
    ledger_dir,
)

START_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def scratch_dir() -> TemporaryDirectory[str]:
    """Return a directory for one example of a law, in memory where there is a tmpfs.

    Hypothesis gives all examples of a test the same ``tmp_path``, and removing a directory from a
    disk can take milliseconds.
    """
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


def ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return round(seconds * SECOND)


def dollars(per_hour: float) -> Price:
    """Return a price per GPU-hour in US dollars."""
    return Price(micros_per_hour=round(per_hour * 1_000_000))


def to_lines(records: Sequence[KnownRecord], *, first_seq: int = 0) -> list[bytes]:
    """Return the records as sealed lines, numbered in order."""
    return [encode_line(record, first_seq + index) for index, record in enumerate(records)]


def numbered(records: Sequence[KnownRecord]) -> list[Record]:
    """Return the records as they read back: each with its place in the segment."""
    return [msgspec.structs.replace(record, seq=index) for index, record in enumerate(records)]


@dataclass
class Segment:
    """One process's log; every method advances its time.

    >>> Segment().step(1.5).step(2, wait=0.5).end()
    """

    start: float = 0.0
    rank: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    records: list[KnownRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now_ns = START_NS + ns(self.start)
        facts: dict[str, Any] = {"rank": self.rank, "host": "node", "pid": 7} | self.about
        self.header = AttemptStarted(t_ns=self.now_ns, **facts)
        self.records.append(self.header)
        self._next_step = 0

    @property
    def id(self) -> SegmentId:
        """The process that wrote it."""
        header = self.header
        return SegmentId(header.t_ns, header.rank, header.host, header.pid)

    def after(self, seconds: float) -> Segment:
        """Let time pass without a record."""
        self.now_ns += ns(seconds)
        return self

    def add(self, record: KnownRecord) -> Segment:
        """Add any record as it is."""
        self.records.append(record)
        return self

    def step(
        self, seconds: float, *, wait: float = 0.0, number: int | None = None, **fields: int
    ) -> Segment:
        """Wait for data, then run one step."""
        self.after(wait + seconds)
        step = self._next_step if number is None else number
        self._next_step = step + fields.get("count", 1)
        durations = {"dur_ns": ns(seconds), "wait_ns": ns(wait)}
        return self.add(Step(t_ns=self.now_ns, step=step, **durations, **fields))

    def span(self, name: str, seconds: float, *, overlapped: bool = False) -> Segment:
        """Spend time in a span."""
        begun = len(self.records)
        self.add(SpanBegun(t_ns=self.now_ns, name=name, overlapped=overlapped))
        return self.after(seconds).add(SpanEnded(t_ns=self.now_ns, begun=begun))

    def checkpoint(self, step: int | None = None) -> Segment:
        """Commit a checkpoint, of the last step unless another is named."""
        committed = self._next_step - 1 if step is None else step
        return self.add(CheckpointCommitted(t_ns=self.now_ns, step=committed))

    def heartbeat(self, after: float = 0.0) -> Segment:
        """Add a heartbeat."""
        return self.after(after).add(Heartbeat(t_ns=self.now_ns))

    def price(self, per_hour: float, *, gpus: int = 1, after: float = 0.0) -> Segment:
        """Change the price."""
        change = PriceChanged(t_ns=self.after(after).now_ns, price=dollars(per_hour), gpus=gpus)
        return self.add(change)

    def end(self, status: EndStatus = "completed", reason: str = "") -> Segment:
        """Record the end."""
        return self.add(AttemptEnded(t_ns=self.now_ns, status=status, reason=reason))

    def life(self) -> SegmentLife:
        """Return the segment folded, as if it had been read."""
        life = SegmentLife(self.id)
        life.fold(numbered(self.records))
        return life

    def write(self, run_dir: Path, *, name: str | None = None) -> Path:
        """Write the segment into a run's directory and return its file."""
        path = ledger_dir(run_dir) / (name or self.id.file_name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(to_lines(self.records)))
        return path


def fold_segments(segments: Mapping[SegmentId, Sequence[Record]]) -> list[ProcessSpend]:
    """Return what each process of a run log used, folded record by record."""
    spends = []
    for segment in sorted(segments):
        spend = ProcessSpend(SegmentLife(segment))
        for record in sorted(segments[segment], key=lambda record: record.seq):
            spend.apply(record)
        spend.finish()
        spends.append(spend)
    return spends
