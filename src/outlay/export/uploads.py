"""One uploader: reads at an interval, and passes the readings to every sink.

It runs in a separate process or thread. Each sink has a thread, so that one that hangs blocks
neither the others nor the end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import decode
from outlay.export.background import Background, Limits
from outlay.export.scalars import FinishedReading
from outlay.export.sinks import BorrowedSink, Destination, Sink, destination_name, open_sink
from outlay.goodput.goodput_recorder import GoodputLogger, LocalRunLog
from outlay.goodput.readings import GoodputReader, Reading
from outlay.runs.reading import RunReader

_log = logging.getLogger("outlay")


class Goodput(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The goodput and badput of the whole job."""

    breakdown: bool = True
    slices: bool = False


class StepDeviation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The deviation of new steps from the ideal step time."""


class Windows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The goodput of the last seconds, for each of several window lengths."""

    sizes_s: tuple[int, ...]
    slices: bool = False


class WholeRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All figures of a run."""


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
    """An uploader's task; can be sent to another process."""

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
    """How many readings were uploaded and lost over all sinks, and why the last was lost."""

    uploaded: int = 0
    lost: int = 0
    trouble: str = ""


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Add up several tallies, with the last trouble."""
    every = list(tallies)
    return Tally(
        uploaded=sum(tally.uploaded for tally in every),
        lost=sum(tally.lost for tally in every),
        trouble=next((tally.trouble for tally in reversed(every) if tally.trouble), ""),
    )


def lost_text(name: str, tally: Tally) -> str:
    """Return the message about lost readings."""
    return (
        f"{name}: {tally.uploaded} readings were uploaded to trackers and {tally.lost} were lost; "
        f"last error: {tally.trouble}"
    )


class _SinkThread:
    """A sink with its thread, opened with the first reading; retried while opening fails."""

    def __init__(self, name: str, open_it: Callable[[], Sink]) -> None:
        self.background: Background[FinishedReading] = Background(
            name, self._write, Limits(waiting=16)
        )
        self._open = open_it
        self._sink: Sink | None = None

    @property
    def tally(self) -> Tally:
        outcome = self.background.outcome
        return Tally(uploaded=outcome.done, lost=outcome.lost, trouble=outcome.trouble)

    def _write(self, batch: Sequence[FinishedReading]) -> None:
        if self._sink is None:
            self._sink = self._open()
        for reading in batch:
            self._sink.write(reading)

    def close(self, timeout_s: float) -> None:
        """Write queued readings within the timeout; the rest is lost."""
        if not self.background.drain(timeout_s):
            self.background.abandon()
        elif self._sink is not None:
            self._sink.close()


def _sinks(upload: Upload, local_sinks: Sequence[BorrowedSink]) -> list[_SinkThread]:
    job = f"job {upload.job_name}"
    return [
        *(
            _SinkThread(f"{job}: {destination_name(place)}", partial(open_sink, place))
            for place in upload.destinations
        ),
        *(_SinkThread(f"{job}: a sink of its own", sink.opened) for sink in local_sinks),
    ]


class Uploads:
    """One uploader's loop.

    Args:
        upload: What to read, how often, and the destinations.
        logger: The source of entries; default: ``upload.log``.
        report: Called with the tally after each round.
        local_sinks: Sinks of this process to write to as well.
    """

    def __init__(
        self,
        upload: Upload,
        logger: GoodputLogger | None = None,
        report: Callable[[Tally], object] = lambda _: None,
        local_sinks: Sequence[BorrowedSink] = (),
    ) -> None:
        self._upload = upload
        self._reader = GoodputReader(
            upload.job_name,
            upload.logger_name,
            logger or _logger(upload),
            upload.using_pathways,
            cache_dir=upload.cache_dir,
        )
        run_dir = upload.log.run_dir if isinstance(upload.log, UploadLog) else ""
        self._run = RunReader(Path(run_dir))
        self._sinks = _sinks(upload, local_sinks)
        self._report = report
        self._failed = 0
        self._trouble = ""
        self._last_step = -1

    @property
    def tally(self) -> Tally:
        """Readings uploaded and lost so far; a failed read is one lost."""
        found = sum_tallies(sink.tally for sink in self._sinks)
        lost = found.lost + self._failed
        return msgspec.structs.replace(found, lost=lost, trouble=found.trouble or self._trouble)

    def run(self, stop: threading.Event, keep_running: Callable[[], bool] = lambda: True) -> None:
        """Read and upload until ``stop`` is set or ``keep_running`` returns False."""
        while keep_running() and not stop.wait(self._upload.interval_s):
            self.once()

    def finish(self, timeout_s: float, *, final: bool) -> None:
        """Upload a last time if ``final``, and close the sinks, within the timeout."""
        deadline_ns = SYSTEM.monotonic_ns() + round(timeout_s * 1e9)
        if final:
            self.once()
        for sink in self._sinks:
            sink.close(max(0.0, (deadline_ns - SYSTEM.monotonic_ns()) / 1e9))
        self._report(self.tally)

    def once(self) -> None:
        """Read once, and pass the readings to the sinks."""
        for read in self._reads():
            try:
                reading = read()
            except ValueError as error:  # Nothing was logged yet, or no time has passed.
                _log.info("job %s: nothing to upload: %s", self._upload.job_name, error)
            except Exception as error:  # noqa: BLE001 - a monitor continues; the loss is counted
                self._failed += 1
                self._warn(f"cannot read the goodput log: {type(error).__name__}: {error}"[:200])
            else:
                for sink in self._sinks:
                    sink.background.offer(reading)
        self._report(self.tally)

    def _reads(self) -> list[Callable[[], FinishedReading]]:
        match self._upload.question:
            case Goodput() as question:
                return [partial(self._goodput, question)]
            case StepDeviation():
                return [self._deviation]
            case Windows(sizes_s=sizes, slices=slices):
                read = self._reader.read_window
                return [partial(read, size_s, slices=slices) for size_s in sizes]
            case WholeRun():
                return [lambda: self._run.read(SYSTEM.wall_ns())]
            case _:
                assert_never(self._upload.question)

    def _goodput(self, question: Goodput) -> Reading:
        reading = self._reader.read_goodput(self._upload.ideal_step_time, slices=question.slices)
        return reading if question.breakdown else replace(reading, badput_percent={})

    def _deviation(self) -> Reading:
        reading = self._reader.read_deviation(self._last_step, self._upload.ideal_step_time)
        self._last_step = max([self._last_step, *reading.deviations_s])
        return reading

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("job %s: %s", self._upload.job_name, trouble)


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


# The process of an uploader: ``python -m outlay.export.uploads``, started by a monitor
#
# The first line of input is its order. A later line ends it: ``stop`` after a last upload, ``quit``
# without one. End of file, which also follows if the monitoring process dies, means ``stop``. The
# tally is at the start of the output, a file.

NICENESS = 10
TALLY_BYTES = 512


class UploadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An uploader's task, and the timeout of its end."""

    upload: Upload
    finish_s: float


def encode_tally(tally: Tally) -> bytes:
    """Encode a tally in a fixed length, so that it can be overwritten in place."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in tally.trouble[:200])
    text = msgspec.json.encode(msgspec.structs.replace(tally, trouble=plain)).ljust(TALLY_BYTES)
    assert len(text) == TALLY_BYTES, "200 characters, each of them escaped, leave room for numbers"
    return text


def main() -> None:
    """Run an uploader's process until its input says to end, or ends."""
    order = decode(sys.stdin.buffer.readline(), UploadOrder)
    logging.basicConfig(format="outlay monitor: %(message)s", level=logging.WARNING)
    os.nice(NICENESS)
    stop = threading.Event()
    commands: list[bytes] = []

    def listen() -> None:
        commands.append(sys.stdin.buffer.readline())
        stop.set()

    parent = os.getppid()
    threading.Thread(target=listen, daemon=True).start()
    report = partial(os.pwrite, sys.stdout.fileno())
    uploads = Uploads(order.upload, report=lambda tally: report(encode_tally(tally), 0))
    # A process forked by the training may hold the input open: check the parent as well.
    uploads.run(stop, keep_running=lambda: os.getppid() == parent)
    uploads.finish(order.finish_s, final=commands != [b"quit\n"])
    if uploads.tally.lost and commands not in ([b"quit\n"], [b"stop\n"]):  # No monitor logs it.
        _log.warning("%s", lost_text(order.upload.job_name, uploads.tally))
    sys.stderr.flush()
    os._exit(0)  # A sink that hangs must not keep the process.


if __name__ == "__main__":
    main()
