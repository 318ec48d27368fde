"""One uploader's loop: what it reads, passes to sinks and counts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from outlay.export.scalars import FinishedReading
from outlay.export.uploads import Tally, Upload, Uploads
from readings import goodput
from waiting import PATIENCE_S

SOON_S = float(PATIENCE_S)


class Memory:
    """A sink that keeps readings; opening it fails ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.readings: list[FinishedReading] = []
        self.closed = False
        self.failures = failures

    def open(self) -> Memory:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not yet")
        return self

    def write(self, reading: FinishedReading) -> None:
        self.readings.append(reading)

    def close(self) -> None:
        self.closed = True


def loop(
    sink: Memory,
    read: Callable[[], FinishedReading] = lambda: goodput(7),
    *,
    interval_s: float = 3600,
) -> Uploads:
    upload = Upload(job_name="job", interval_s=interval_s, finish_s=SOON_S)
    return Uploads(upload, [read], [("memory", sink.open)])


def test_a_sink_that_cannot_be_opened_is_opened_again() -> None:
    uploads = loop(Memory(failures=2))
    for _ in range(2):
        uploads.once()
    uploads.finish(final=True)
    assert uploads.tally == Tally(uploaded=1, lost=2, trouble="ConnectionError: not yet")


def failing(error: Exception) -> FinishedReading:
    raise error


def test_nothing_to_read_yet_is_no_loss() -> None:
    sink = Memory()
    uploads = loop(sink, lambda: failing(ValueError("nothing was logged")))
    uploads.finish(final=True)
    assert uploads.tally == Tally()
    assert sink.readings == []


def test_a_log_that_cannot_be_read_is_a_loss() -> None:
    uploads = loop(Memory(), lambda: failing(OSError("gone")))
    uploads.finish(final=True)
    assert uploads.tally == Tally(lost=1, trouble="cannot read the goodput log: OSError: gone")


def test_without_a_final_upload_nothing_is_read() -> None:
    sink = Memory()
    uploads = loop(sink)
    uploads.once()
    uploads.finish(final=False)
    assert len(sink.readings) == 1
    assert sink.closed


def test_it_reads_at_intervals_until_it_is_stopped() -> None:
    stop, sink = threading.Event(), Memory()
    uploads = loop(sink, interval_s=0.001)
    rounds = iter([True, True, True, False])
    uploads.run(stop, keep_running=lambda: next(rounds))
    uploads.finish(final=False)
    assert len(sink.readings) == 3
