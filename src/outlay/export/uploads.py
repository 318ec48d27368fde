"""The work of one uploader: ask at an interval, and hand the answer to every sink.

It runs in a process or a thread of its own. Each sink has a thread, so that one that hangs holds up
neither the others nor the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from outlay.clock import SYSTEM
from outlay.export.background import Background, Limits, Outcome
from outlay.export.scalars import FinishedReading
from outlay.export.sinks import BorrowedSink, Destination, Sink, destination_name, open_sink
from outlay.goodput.logs import GoodputLogger, LocalRunLog
from outlay.goodput.readings import GoodputReader, Reading
from outlay.runs.reading import RunReader

_log = logging.getLogger("outlay")


class Goodput(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what has become of the whole job."""

    breakdown: bool = True
    slices: bool = False


class StepDeviation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask how far the new steps are off the ideal."""


class Windows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what became of the last so many seconds, for each of several lengths."""

    sizes_s: tuple[int, ...]
    slices: bool = False


class WholeRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what a run is, has used and has cost: all of its numbers."""


Question = Goodput | StepDeviation | Windows | WholeRun


class UploadLog(msgspec.Struct, frozen=True, tag=True):
    """A run log on disk."""

    run_dir: str


class CloudLog(msgspec.Struct, frozen=True, tag=True):
    """A log in Google Cloud Logging."""

    log_name: str
    project_id: str
    retention_s: float


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """What an uploader does; can be sent to another process."""

    job_name: str
    logger_name: str
    question: Question
    destinations: tuple[Destination, ...]
    interval_s: float
    log: UploadLog | CloudLog | None = None
    using_pathways: bool = False
    ideal_step_time: float | None = None
    cache_dir: str | None = None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many readings arrived and how many were lost, over all sinks, and why the last was."""

    uploaded: int = 0
    lost: int = 0
    trouble: str = ""


def together(tallies: Iterable[Tally]) -> Tally:
    """Return several tallies as one, with the last trouble that any of them had."""
    whole = Tally()
    for tally in tallies:
        whole = Tally(
            uploaded=whole.uploaded + tally.uploaded,
            lost=whole.lost + tally.lost,
            trouble=tally.trouble or whole.trouble,
        )
    return whole


def lost_text(name: str, tally: Tally) -> str:
    """Return the sentence about readings that were lost."""
    return (
        f"{name}: of its readings {tally.uploaded} arrived at trackers and {tally.lost} were lost; "
        f"last: {tally.trouble}"
    )


def tally_of(outcome: Outcome) -> Tally:
    """Return what became of one sink's readings."""
    return Tally(uploaded=outcome.done, lost=outcome.lost, trouble=outcome.trouble)


class _Outlet:
    """A sink that is opened when the first reading comes, and again while that fails."""

    def __init__(self, name: str, open_it: Callable[[], Sink]) -> None:
        self.background: Background[FinishedReading] = Background(
            name, self._write, Limits(waiting=16)
        )
        self._open = open_it
        self._sink: Sink | None = None

    def _write(self, batch: Sequence[FinishedReading]) -> None:
        if self._sink is None:
            self._sink = self._open()
        for reading in batch:
            self._sink.write(reading)

    def close(self, timeout_s: float) -> None:
        """Finish what is waiting, within the time; the rest is lost."""
        if not self.background.drain(timeout_s):
            self.background.abandon()
        elif self._sink is not None:
            self._sink.close()


def _outlets(upload: Upload, lent: Sequence[BorrowedSink]) -> list[_Outlet]:
    job = f"job {upload.job_name}"
    return [
        *(
            _Outlet(f"{job}: {destination_name(place)}", partial(open_sink, place))
            for place in upload.destinations
        ),
        *(_Outlet(f"{job}: a sink of its own", sink.opened) for sink in lent),
    ]


class Uploads:
    """One uploader's loop.

    Args:
        upload: What to ask, how often, and where to put it.
        logger: Where entries are read from; default: what the upload says.
        report: Told the tally after each round.
        lent: Sinks of this process that are written to as well.
    """

    def __init__(
        self,
        upload: Upload,
        logger: GoodputLogger | None = None,
        report: Callable[[Tally], None] = lambda _: None,
        lent: Sequence[BorrowedSink] = (),
    ) -> None:
        self._upload = upload
        self._reader = _reader(upload, logger)
        self._run = RunReader(Path(_run_dir(upload)))
        self._outlets = _outlets(upload, lent)
        self._report = report
        self._failed = 0
        self._trouble = ""
        self._last_step = -1

    @property
    def tally(self) -> Tally:
        """What became of the readings so far; a question that failed is one lost."""
        found = together(tally_of(outlet.background.outcome) for outlet in self._outlets)
        lost = found.lost + self._failed
        return msgspec.structs.replace(found, lost=lost, trouble=found.trouble or self._trouble)

    def run(self, stop: threading.Event, go_on: Callable[[], bool] = lambda: True) -> None:
        """Ask and upload until told to stop, or until ``go_on`` says no."""
        while go_on() and not stop.wait(self._upload.interval_s):
            self.once()

    def finish(self, timeout_s: float, *, final: bool) -> None:
        """Upload a last time if that is wanted, and close the sinks, within the time."""
        deadline_ns = SYSTEM.monotonic_ns() + round(timeout_s * 1e9)
        if final:
            self.once()
        for outlet in self._outlets:
            outlet.close(max(0.0, (deadline_ns - SYSTEM.monotonic_ns()) / 1e9))
        self._report(self.tally)

    def once(self) -> None:
        """Ask once, and hand the answers to the sinks."""
        for ask in self._asks():
            try:
                reading = ask()
            except ValueError as error:  # Nothing was logged yet, or nothing that takes time.
                _log.info("job %s: nothing to upload: %s", self._upload.job_name, error)
            except Exception as error:  # noqa: BLE001 - a monitor goes on; the loss is counted
                self._failed += 1
                self._say(f"cannot read the goodput log: {type(error).__name__}: {error}"[:200])
            else:
                for outlet in self._outlets:
                    outlet.background.offer(reading)
        self._report(self.tally)

    def _asks(self) -> list[Callable[[], FinishedReading]]:
        match self._upload.question:
            case Goodput():
                return [self._goodput]
            case StepDeviation():
                return [self._deviation]
            case Windows(sizes_s=sizes, slices=slices):
                read = self._reader.read_window
                return [partial(read, size_s, slices=slices) for size_s in sizes]
            case WholeRun():
                return [lambda: self._run.read(SYSTEM.wall_ns())]
            case _:
                assert_never(self._upload.question)

    def _goodput(self) -> Reading:
        question = self._upload.question
        assert isinstance(question, Goodput)
        reading = self._reader.read_goodput(self._upload.ideal_step_time, slices=question.slices)
        return reading if question.breakdown else replace(reading, badput_percent={})

    def _deviation(self) -> Reading:
        """Ask for the steps that were not told yet."""
        reading = self._reader.read_deviation(self._last_step, self._upload.ideal_step_time)
        self._last_step = max([self._last_step, *reading.deviations_s])
        return reading

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("job %s: %s", self._upload.job_name, trouble)


def _run_dir(upload: Upload) -> str:
    return upload.log.run_dir if isinstance(upload.log, UploadLog) else ""


def _reader(upload: Upload, logger: GoodputLogger | None) -> GoodputReader:
    return GoodputReader(
        upload.job_name,
        upload.logger_name,
        logger or _logger(upload),
        upload.using_pathways,
        cache_dir=upload.cache_dir,
    )


def _logger(upload: Upload) -> GoodputLogger:
    match upload.log:
        case CloudLog(log_name, project_id, retention_s):
            from outlay.export.cloud import CloudLogger

            retention = timedelta(seconds=retention_s)
            return CloudLogger(upload.job_name, log_name, retention, project_id=project_id)
        case UploadLog(run_dir):
            return LocalRunLog(upload.job_name, run_dir)
        case None:
            return LocalRunLog(upload.job_name)
        case _:
            assert_never(upload.log)
