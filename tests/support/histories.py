"""Random histories of a run: attempts, rollbacks, hangs, spans that cross, ranks, prices, losses.

Times are small integers of ticks, so that a brute-force oracle can visit each of them; stretched by
``tick_ns``, the same history has a realistic length. Hypothesis draws only the size and the seed of
a history: a draw per field would take longer than the test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from outlay.goodput.follower import RunView, view_of
from outlay.goodput.timeline import TimelineBuilder
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    EndStatus,
    Heartbeat,
    KnownRecord,
    Price,
    PriceChanged,
    Record,
    SegmentId,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)

SPAN_NAMES = ("checkpoint_save", "evaluation", "data_loading", "custom:sync", "debug")
STATUSES: tuple[EndStatus, ...] = (
    "completed",
    "failed",
    "interrupted",
    "terminated",
    "preempted",
    "paused",
)
LAUNCHES = ("", "slurm-42-0", "slurm-42-1", "torchelastic-x-0", "torchelastic-x-1")


@dataclass(frozen=True)
class History:
    """The records of a run by segment, and the arguments of a query."""

    segments: dict[SegmentId, list[Record]]
    now_ns: int
    alive: bool | None
    dead_after_ns: int

    @property
    def start_ns(self) -> int:
        """When the first process began."""
        return min(segment.start_ns for segment in self.segments)


@dataclass(frozen=True)
class _Timed:
    """A record, and for a span's end the entry that began it."""

    record: KnownRecord
    begins: _Timed | None = None


def histories(tick_ns: int = 1) -> st.SearchStrategy[History]:
    """Return any history; every duration in it is a multiple of ``tick_ns``."""
    return st.builds(
        lambda seed, attempts, steps, spans: _HistoryGenerator(
            random.Random(seed), tick_ns, steps, spans
        ).history(attempts),
        seed=st.integers(0, 2**63),
        attempts=st.integers(1, 4),
        steps=st.integers(0, 9),
        spans=st.integers(0, 4),
    )


@dataclass(frozen=True)
class _HistoryGenerator:
    """Generates one history, with at most so many steps and spans in each attempt."""

    chance: random.Random
    tick_ns: int
    steps: int
    spans: int

    def history(self, attempts: int) -> History:
        """Return attempts one after the other, some with a second rank or a supervisor."""
        segments: dict[SegmentId, list[Record]] = {}
        start = self._up_to(10) + 10
        for pid in range(1, attempts + 1):
            segment, records = self._process(start, rank=0, pid=pid)
            segments[segment] = records
            if self._once_in(4):
                segments |= [self._process(start + self._up_to(4), rank=1, pid=pid + 100)]
            if self._once_in(4):
                segments |= [self._supervisor(start - self._up_to(5), pid=pid + 200)]
            last = max(record.t_ns for record in records) // self.tick_ns
            # A negative gap is a clock that was set back, or two attempts at once.
            start = max(last + self.chance.randint(-12, 25), 6)
        last_ns = max(record.t_ns for records in segments.values() for record in records)
        return History(
            segments,
            now_ns=last_ns + self.chance.randint(-10, 40) * self.tick_ns,
            alive=self.chance.choice([None, None, True, False]),
            dead_after_ns=self.chance.choice([5, 30]) * self.tick_ns,
        )

    def _process(self, start: int, *, rank: int, pid: int) -> tuple[SegmentId, list[Record]]:
        """One process with steps, spans anywhere, and perhaps no recorded end."""
        at = _Axis(self.tick_ns)
        timed = [_Timed(record) for record in self._steps(start, at)]
        last = max([start, *(entry.record.t_ns // self.tick_ns for entry in timed)])
        for _ in range(self._up_to(self.spans)):
            timed += self._span(start, last, at)
        for _ in range(self._up_to(2)):
            t_ns = at(self.chance.randint(start, last))
            change = PriceChanged(t_ns=t_ns, price=self._price(), gpus=self._up_to(3))
            timed.append(_Timed(change))
        for _ in range(self._up_to(2)):
            timed.append(_Timed(self._slices(at(self.chance.randint(start, last)))))
        if self._once_in(2):
            timed.append(_Timed(Heartbeat(t_ns=at(last + self._up_to(9)))))
        if self._once_in(2):
            last_ns = max([at(start), *(entry.record.t_ns for entry in timed)])
            timed.append(_Timed(AttemptEnded(t_ns=last_ns, status=self.chance.choice(STATUSES))))
        header = AttemptStarted(
            t_ns=at(start), rank=rank, pid=pid, **self._about(), **self._origin(start, at)
        )
        # A full disk loses records in the middle; the header is always written.
        lost = {self.chance.randint(1, 40) for _ in range(self._up_to(2))}
        return _id(header), [r for r in _numbered(header, timed) if r.seq not in lost]

    def _supervisor(self, start: int, *, pid: int) -> tuple[SegmentId, list[Record]]:
        at = _Axis(self.tick_ns)
        header = AttemptStarted(
            t_ns=at(start), rank=-1, pid=pid, nodes=self.chance.choice([0, 1]), price=self._price()
        )
        last_ns = at(start + self._up_to(60))
        timed = [_Timed(Heartbeat(t_ns=last_ns))]
        if self._once_in(2):
            timed.append(_Timed(AttemptEnded(t_ns=last_ns, status=self.chance.choice(STATUSES))))
        return _id(header), _numbered(header, timed)

    def _steps(self, start: int, at: _Axis) -> Iterator[Step]:
        """Steps of mostly a few ticks; some hang, some roll back, some overlap others."""
        now, number, usual = start, self._up_to(4), self._up_to(5)
        for _ in range(self._up_to(self.steps)):
            count = self.chance.choice([1, 1, 1, 2, 3])
            duration = count * usual + self.chance.choice([0, 0, 0, 1])
            wait = self.chance.choice([0, 0, 1, 4])
            kind = self._up_to(11)
            if kind == 0:
                duration += self.chance.randint(10, 40)  # A hang.
            if kind == 1:
                number = self._up_to(number + 3)  # A rollback, or steps that were not recorded.
            now += self.chance.choice([0, 0, 1, 3]) + wait + duration
            if kind == 2:
                duration += self._up_to(8)  # Recorded as begun before the last one ended.
            if kind == 3:
                now = max(now - self._up_to(6), start)  # Recorded as ended before the last one.
            durations = {"dur_ns": at.length(duration), "wait_ns": at.length(wait)}
            yield Step(t_ns=at(now), step=number, count=count, **durations)
            number += count

    def _span(self, start: int, last: int, at: _Axis) -> list[_Timed]:
        """A span that may nest in another, cross it, lie beside the work, or never end."""
        begin = self.chance.randint(start, last + 3)
        name, overlapped = self.chance.choice(SPAN_NAMES), self._once_in(6)
        begun = _Timed(SpanBegun(t_ns=at(begin), name=name, overlapped=overlapped))
        if self._once_in(5):
            return [begun]
        end = at(begin + self._up_to(15))
        return [begun, _Timed(SpanEnded(t_ns=end, begun=-1), begins=begun)]

    def _about(self) -> dict[str, Any]:
        """The price, the GPUs and the machine."""
        return {
            "price": None if self._once_in(3) else self._price(),
            "stopped_price": self._price() if self._once_in(3) else None,
            "gpus": self.chance.choice([0, 1, 2, 3, "1/7"]),
            "boot_id": self.chance.choice(["", "b1", "b2"]),
            "slurm_job": self.chance.choice(["", "", "42"]),
            "launch": self.chance.choice(LAUNCHES),
        }

    def _origin(self, start: int, at: _Axis) -> dict[str, Any]:
        """The node and start of the process; half of the logs are from before that was recorded."""
        if self._once_in(2):
            return {}
        before = start - 6 if start > 6 else start
        return {
            "nodes": self.chance.randint(1, 3),
            "node": self._up_to(1),
            "host": self.chance.choice(["", "h1", "h2"]),
            "node_gpus": self.chance.choice([0, 1, 2, "1/3"]),
            "gpus_source": self.chance.choice(["stated", "visible", "slurm", "world_size"]),
            "process_start_ns": self.chance.choice([0, at(self.chance.randint(before, start))]),
            "agent_start_ns": self.chance.choice([0, 0, at(self.chance.randint(1, start))]),
            "init_start": self.chance.choice(["", "24", "99"]),
            "instance_id": self.chance.choice(["", "", "i1", "i2"]),
            "slurm_restart": self.chance.choice(["", "0", "1"]),
            "stopped_machine_price": self._price() if self._once_in(4) else None,
        }

    def _slices(self, t_ns: int) -> SlicesChanged:
        total = self.chance.randint(1, 4)
        available = self._up_to(total)
        return SlicesChanged(
            t_ns=t_ns, active=self._up_to(available), total=total, available=available
        )

    def _price(self) -> Price:
        """A price at which even a nanosecond costs about a micro-dollar."""
        currency = "EUR" if self._once_in(6) else "USD"
        return Price(micros_per_hour=self._up_to(8 * 10**12), currency=currency)

    def _up_to(self, most: int) -> int:
        return self.chance.randint(0, most)

    def _once_in(self, times: int) -> bool:
        return self.chance.randrange(times) == 0


@dataclass(frozen=True)
class _Axis:
    """Ticks as nanoseconds."""

    tick_ns: int

    def __call__(self, tick: int) -> int:
        """Return the instant of a tick, with an offset: clocks are never round."""
        return tick * self.tick_ns + (tick * 7919) % self.tick_ns

    def length(self, ticks: int) -> int:
        """Return a duration."""
        return ticks * self.tick_ns


def _id(header: AttemptStarted) -> SegmentId:
    return SegmentId(start_ns=header.t_ns, rank=header.rank, host=header.host, pid=header.pid)


def _numbered(header: AttemptStarted, timed: Sequence[_Timed]) -> list[Record]:
    """Return the records in the order of time, each with its sequence number."""
    ordered = sorted(timed, key=lambda entry: entry.record.t_ns)
    place = {id(entry): seq for seq, entry in enumerate(ordered, 1)}
    records: list[Record] = [msgspec.structs.replace(header, seq=0)]
    for seq, entry in enumerate(ordered, 1):
        fields: dict[str, int] = {"seq": seq}
        if entry.begins is not None:
            fields["begun"] = place[id(entry.begins)]
        records.append(msgspec.structs.replace(entry.record, **fields))
    return records


def at_one_price(history: History, price: Price, gpus: int) -> History:
    """Return the history on one machine of as many GPUs, at a price that never changes.

    Without other ranks: a node whose process ends earlier is not paid to the end.
    """
    about = {"price": price, "gpus": gpus, "gpus_source": "stated"}

    def priced(record: Record) -> Record | None:
        if isinstance(record, AttemptStarted):
            return msgspec.structs.replace(record, **about, nodes=1, node_gpus=gpus)
        if isinstance(record, PriceChanged):
            return msgspec.structs.replace(record, price=price, gpus=gpus)
        return None if isinstance(record, SlicesChanged) else record

    segments = {
        segment: [kept for kept in map(priced, records) if kept is not None]
        for segment, records in history.segments.items()
        if segment.rank <= 0
    }
    return replace(history, segments=segments)


def view_at_once(history: History) -> RunView:
    """Fold all records at once."""
    builder = TimelineBuilder()
    for segment, records in history.segments.items():
        builder.account.fold(segment, records)
    return build_view(builder, history)


def build_view(builder: TimelineBuilder, history: History) -> RunView:
    """Return the run at the present of its history."""
    timeline = builder.build(
        history.now_ns, alive=history.alive, dead_after_ns=history.dead_after_ns
    )
    assert timeline is not None
    return view_of(timeline, builder.account)
