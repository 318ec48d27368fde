"""A monitor's uploader: which readings of a job go where, in a process or thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import assert_never

import msgspec

from outlay.compat.ml_goodput_measurement.cloud import CloudLogger
from outlay.compat.ml_goodput_measurement.recorder import GoodputLogger, LocalRunLog
from outlay.compat.ml_goodput_measurement.uploads.cloud_monitoring import (
    CloudMonitoring,
    CloudMonitoringSink,
)
from outlay.compat.ml_goodput_measurement.uploads.readings import GoodputReader, Reading
from outlay.export.sinks import BorrowedSink, Destination, Sink, destination_name, open_sink
from outlay.export.uploads import Report, Upload, Uploads

JobDestination = Destination | CloudMonitoring


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


Question = Goodput | StepDeviation | Windows


class CloudLog(msgspec.Struct, frozen=True):
    """A log in Google Cloud Logging."""

    log_name: str
    project_id: str
    retention_s: float


class JobUpload(Upload, frozen=True, kw_only=True):
    """Uploads figures of a job.

    Attributes:
        log: The directory of its run log, or its log in Google Cloud; None: only this process can
            read its log.
    """

    logger_name: str
    question: Question
    destinations: tuple[JobDestination, ...] = ()
    log: str | CloudLog | None = None
    using_pathways: bool = False
    ideal_step_time: float | None = None
    cache_dir: str | None = None

    def uploads(
        self,
        report: Report = lambda _: None,
        local_sinks: Sequence[BorrowedSink] = (),
        logger: GoodputLogger | None = None,
    ) -> Uploads:
        """Return the loop; ``logger`` is the log to read, default: ``log``."""
        sinks = [(_name_of(each), partial(open_destination, each)) for each in self.destinations]
        reads = list(self._reads(logger or self._logger()))
        return Uploads(self, reads, sinks, local_sinks, report)

    def _logger(self) -> GoodputLogger:
        if isinstance(self.log, CloudLog):
            retention = timedelta(seconds=self.log.retention_s)
            return CloudLogger(
                self.job_name, self.log.log_name, retention, project_id=self.log.project_id
            )
        return LocalRunLog(self.job_name, self.log)

    def _reads(self, logger: GoodputLogger) -> list[Callable[[], Reading]]:
        reader = GoodputReader(
            self.job_name, self.logger_name, logger, self.using_pathways, cache_dir=self.cache_dir
        )
        ideal_s, last_step = self.ideal_step_time, -1

        def goodput(*, breakdown: bool, slices: bool) -> Reading:
            reading = reader.read_goodput(ideal_s, slices=slices)
            return reading if breakdown else replace(reading, badput_percent={})

        def deviation() -> Reading:
            nonlocal last_step
            reading = reader.read_deviation(last_step, ideal_s)
            last_step = max([last_step, *reading.deviations_s])
            return reading

        match self.question:
            case Goodput(breakdown=breakdown, slices=slices):
                return [partial(goodput, breakdown=breakdown, slices=slices)]
            case StepDeviation():
                return [deviation]
            case Windows(sizes_s=sizes, slices=slices):
                return [partial(reader.read_window, size_s, slices=slices) for size_s in sizes]
            case _:
                assert_never(self.question)


def open_destination(place: JobDestination) -> Sink:
    """Open the sink of a destination; its libraries are loaded now."""
    if isinstance(place, CloudMonitoring):
        return CloudMonitoringSink(place.workload_id, place.options)
    return open_sink(place)


def _name_of(place: JobDestination) -> str:
    if isinstance(place, CloudMonitoring):
        return "Google Cloud Monitoring"
    return destination_name(place)
