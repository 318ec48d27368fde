"""A goodput log in memory, and a builder for its entries."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from outlay.clock import ManualClock, utc_datetime
from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator
from outlay.compat.ml_goodput_measurement.recorder import Entry, EntryInfo

START_S = 1_700_000_000


def at(second: float) -> datetime:
    """Return an instant, by seconds after the start of the tests' time."""
    return datetime.fromtimestamp(START_S, tz=UTC) + timedelta(seconds=second)


class MemoryLog:
    """A logger that keeps entries in a list and counts how many were read."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self.given = 0

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        if entry is not None:
            self.entries.append(entry)

    def flush(self) -> None:
        pass

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        del start_time, end_time
        seen = 0 if last_entry_info is None else int(last_entry_info[1] or 0)
        self.given += len(self.entries) - seen
        last = (utc_datetime(len(self.entries)), str(len(self.entries)))
        return self.entries[seen:], last


class Job:
    """Writes payloads by seconds: ``Job().start(0).steps(0, 10, at=5).end(15)``."""

    def __init__(self, name: str = "job") -> None:
        self.name = name
        self.payloads: list[Entry] = []

    def add(self, **fields: object) -> Job:
        self.payloads.append({"job_name": self.name, **fields})
        return self

    def start(self, second: float) -> Job:
        return self.add(job_start_time=START_S + second)

    def end(self, second: float) -> Job:
        return self.add(job_end_time=START_S + second)

    def steps(self, first: int, count: int, *, at: float, each: float = 1.0) -> Job:
        for index in range(count):
            self.step(first + index, at + index * each)
        return self

    def step(self, number: int, second: float) -> Job:
        return self.add(step_count=number, step_start_time=START_S + second)

    def span(self, stem: str, begin: float, end: float) -> Job:
        self.add(**{f"{stem}_start_time": START_S + begin})
        return self.add(**{f"{stem}_end_time": START_S + end})

    def custom(self, kind: str, begin: float, end: float) -> Job:
        for edge, second in (("start", begin), ("end", end)):
            self.add(
                custom_badput_event_type=kind,
                **{f"custom_badput_event_{edge}_time": START_S + second},
            )
        return self

    def calculator(self, *, now: float, using_pathways: bool = False) -> GoodputCalculator:
        clock = ManualClock(wall_ns=round((START_S + now) * 1e9))
        log = MemoryLog(self.payloads)
        return GoodputCalculator(self.name, "log", log, using_pathways, clock=clock)
