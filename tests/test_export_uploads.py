"""One uploader's loop: what it reads, passes to sinks and counts."""

from __future__ import annotations

import threading

import pytest

from goodput_log import Job, MemoryLog
from outlay.export import uploads
from outlay.export.sinks import CsvFile, Destination
from outlay.export.uploads import Goodput, Question, StepDeviation, Tally, Upload, Uploads, Windows
from outlay.goodput.readings import DeviationReading, Reading, WindowReading

SOON_S = 60.0
AGES_S = 10**9  # The jobs of these tests are of the past.


class Memory:
    """A sink that keeps readings; opening it fails ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.readings: list[Reading] = []
        self.closed = False
        self.failures = failures

    def open(self, _: Destination) -> Memory:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not yet")
        return self

    def write(self, reading: Reading) -> None:
        self.readings.append(reading)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Memory:
    sink = Memory()
    monkeypatch.setattr(uploads, "open_sink", sink.open)
    return sink


def loop(question: Question, log: MemoryLog, *, interval_s: float = 3600) -> Uploads:
    places = (CsvFile("in memory"),)
    upload = Upload(
        job_name="job",
        logger_name="log",
        question=question,
        destinations=places,
        interval_s=interval_s,
    )
    return Uploads(upload, log)


def job() -> MemoryLog:
    return MemoryLog(Job().start(0).steps(0, 11, at=0).payloads)


def test_a_steps_deviation_is_read_once(sink: Memory) -> None:
    log = job()
    uploads_of_job = loop(StepDeviation(), log)
    uploads_of_job.once()
    log.entries += Job().steps(11, 3, at=11).payloads
    uploads_of_job.once()
    uploads_of_job.finish(SOON_S, final=True)
    steps = [list(r.deviations_s) for r in sink.readings if isinstance(r, DeviationReading)]
    assert steps == [list(range(10)), [10, 11, 12], []]


def test_a_window_without_job_time_does_not_stop_the_others(sink: Memory) -> None:
    uploads_of_job = loop(
        Windows(sizes_s=(1, AGES_S)), MemoryLog([*job().entries, *ended().entries])
    )
    uploads_of_job.finish(SOON_S, final=True)
    sizes = [r.window_s for r in sink.readings if isinstance(r, WindowReading)]
    assert sizes == [AGES_S]
    assert uploads_of_job.tally == Tally(uploaded=1)


def ended() -> MemoryLog:
    return MemoryLog(Job().end(11).payloads)


def test_a_sink_that_cannot_be_opened_is_opened_again(sink: Memory) -> None:
    sink.failures = 2
    uploads_of_job = loop(Goodput(), job())
    for _ in range(2):
        uploads_of_job.once()
    uploads_of_job.finish(SOON_S, final=True)
    assert uploads_of_job.tally == Tally(uploaded=1, lost=2, trouble="ConnectionError: not yet")


def test_nothing_logged_yet_is_no_loss(sink: Memory) -> None:
    uploads_of_job = loop(Goodput(), MemoryLog())
    uploads_of_job.finish(SOON_S, final=True)
    assert uploads_of_job.tally == Tally()
    assert sink.readings == []


def test_without_a_final_upload_nothing_is_read(sink: Memory) -> None:
    uploads_of_job = loop(Goodput(), job())
    uploads_of_job.once()
    uploads_of_job.finish(SOON_S, final=False)
    assert len(sink.readings) == 1
    assert sink.closed


def test_it_reads_at_intervals_until_it_is_stopped(sink: Memory) -> None:
    stop = threading.Event()
    uploads_of_job = loop(Goodput(), job(), interval_s=0.001)
    rounds = iter([True, True, True, False])
    uploads_of_job.run(stop, keep_running=lambda: next(rounds))
    uploads_of_job.finish(SOON_S, final=False)
    assert len(sink.readings) == 3
