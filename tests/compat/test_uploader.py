"""What a monitor's uploader reads of a job."""

from __future__ import annotations

from goodput_log import Job, MemoryLog
from outlay.compat.ml_goodput_measurement.uploads.readings import (
    DeviationReading,
    WindowReading,
)
from outlay.compat.ml_goodput_measurement.uploads.uploader import (
    Goodput,
    JobUpload,
    Question,
    StepDeviation,
    Windows,
)
from outlay.export.scalars import FinishedReading
from outlay.export.sinks import BorrowedSink
from outlay.export.uploads import Tally, Uploads

SOON_S = 60.0
AGES_S = 10**9  # The jobs of these tests are of the past.


class Memory:
    """A sink that keeps readings."""

    def __init__(self) -> None:
        self.readings: list[FinishedReading] = []

    def write(self, reading: FinishedReading) -> None:
        self.readings.append(reading)

    def close(self) -> None:
        pass


def loop(question: Question, log: MemoryLog, sink: Memory) -> Uploads:
    upload = JobUpload(
        job_name="job", logger_name="log", question=question, interval_s=3600, finish_s=SOON_S
    )
    return upload.uploads(local_sinks=[BorrowedSink(sink)], logger=log)


def job() -> Job:
    return Job().start(0).steps(0, 11, at=0)


def test_a_steps_deviation_is_read_once() -> None:
    log, sink = MemoryLog(job().payloads), Memory()
    uploads = loop(StepDeviation(), log, sink)
    uploads.once()
    log.entries += Job().steps(11, 3, at=11).payloads
    uploads.once()
    uploads.finish(final=True)
    steps = [list(r.deviations_s) for r in sink.readings if isinstance(r, DeviationReading)]
    assert steps == [list(range(10)), [10, 11, 12], []]


def test_a_window_without_job_time_does_not_stop_the_others() -> None:
    sink = Memory()
    uploads = loop(Windows(sizes_s=(1, AGES_S)), MemoryLog(job().end(11).payloads), sink)
    uploads.finish(final=True)
    assert [r.window_s for r in sink.readings if isinstance(r, WindowReading)] == [AGES_S]
    assert uploads.tally == Tally(uploaded=1)


def test_nothing_logged_yet_is_no_loss() -> None:
    sink = Memory()
    uploads = loop(Goodput(), MemoryLog(), sink)
    uploads.finish(final=True)
    assert uploads.tally == Tally()
    assert sink.readings == []
