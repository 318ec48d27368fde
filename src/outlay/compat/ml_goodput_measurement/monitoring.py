"""``monitoring``: GoodputMonitor uploads goodput, badput and step deviation while a job runs.

It starts and stops uploaders. Their errors are never raised here, and none of their work is on the
path of a training step.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from outlay.compat.ml_goodput_measurement.cloud import CloudLogger, GCPOptions
from outlay.compat.ml_goodput_measurement.recorder import (
    GoodputLogger,
    LocalRunLog,
    run_dir_of_job,
)
from outlay.compat.ml_goodput_measurement.uploads.cloud_monitoring import CloudMonitoring
from outlay.compat.ml_goodput_measurement.uploads.uploader import (
    CloudLog,
    Goodput,
    JobDestination,
    JobUpload,
    Question,
    StepDeviation,
    Windows,
)
from outlay.errors import InvalidValue
from outlay.export.sinks import BorrowedSink, Sink, TensorBoard
from outlay.export.uploads import ProcessUploader, Tally, ThreadUploader, Uploader, sum_tallies
from outlay.record import facts

__all__ = ["GCPOptions", "GoodputMonitor"]

_log = logging.getLogger("outlay")
FLUSH_TIMEOUT_S = 10.0
_CACHE_VARIABLE = "ML_GOODPUT_CACHE_DIR"
_SYNC_VARIABLE = "ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS"


class GoodputMonitor:
    """Uploads a job's goodput at intervals, beside its training.

    Only rank 0 monitors, and only if enabled; ``OUTLAY_DISABLED=1`` disables it. Each uploader is a
    separate process; for a ``cloud_logger`` that only this process can read, or a sink that only it
    can write, it is a thread.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; the local run log needs none.
        tensorboard_dir: TensorBoard's log directory; scalars go to ``goodput`` below it.
        upload_interval: Seconds between two uploads.
        monitoring_enabled: False: nothing is uploaded.
        pathway_enabled: One controller outlives its workers; see ``GoodputCalculator``.
        include_badput_breakdown: Whether badput goes to TensorBoard too.
        include_step_deviation: Whether the step deviation uploader may be started.
        configured_ideal_step_time: Seconds of an ideal step; default: measured.
        step_deviation_interval_seconds: Seconds between two uploads of step deviation.
        gcp_options: Which metrics go to Google Cloud Monitoring, and as which workload.
        skip_final_flush: Whether stopping skips the last upload.
        final_flush_timeout_seconds: Timeout of stopping.
        gcs_sync_interval_seconds: Accepted, as is ``ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS``; the
            cache is not copied to a bucket.
        cache_dir: Cache of Cloud Logging entries for the next monitor; ``ML_GOODPUT_CACHE_DIR``
            overrides it.
        max_logs_retention_period: How far back a Cloud Logging log is read.
        cloud_logger: The source of entries; default: the job's local run log.
        run_dir: The directory of that log; default: from the job's name.
        sinks: Further destinations: a ``CsvFile``, a ``PluginSink`` of another package, or any
            object with the methods of a ``Sink``, which the caller closes.
        include_slice_efficiency: Whether Google Cloud gets the slice efficiency of an elastic job.

    Raises:
        InvalidValue: The job has no name, or an interval is not positive.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str | Path | None,
        upload_interval: float,
        monitoring_enabled: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        pathway_enabled: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        include_step_deviation: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: float = 10,
        gcp_options: GCPOptions | None = None,
        skip_final_flush: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        final_flush_timeout_seconds: float | None = FLUSH_TIMEOUT_S,
        gcs_sync_interval_seconds: float = 3600,
        cache_dir: str | None = None,
        max_logs_retention_period: timedelta | None = None,
        *,
        cloud_logger: GoodputLogger | None = None,
        run_dir: str | Path | None = None,
        sinks: Sequence[JobDestination | Sink] = (),
        include_slice_efficiency: bool = False,
    ) -> None:
        _note_sync_interval(os.environ.get(_SYNC_VARIABLE, gcs_sync_interval_seconds))
        self.job_name = job_name
        self._log = _portable_log(job_name, cloud_logger, run_dir, max_logs_retention_period)
        self._logger = cloud_logger if self._log is None else None
        self._logger_name = logger_name
        self._enabled = (
            monitoring_enabled and facts.rank(os.environ) == 0 and not facts.is_disabled(os.environ)
        )
        self._pathways = pathway_enabled
        self._breakdown = include_badput_breakdown
        self._deviation = include_step_deviation
        self._ideal_step_time = configured_ideal_step_time
        self._interval_s = _positive("upload_interval", upload_interval)
        self._deviation_interval_s = _positive(
            "step_deviation_interval_seconds", step_deviation_interval_seconds
        )
        self._tensorboard_dir = str(tensorboard_dir) if tensorboard_dir else None
        self._gcp = gcp_options or GCPOptions()
        self._skip_final = skip_final_flush
        self._finish_s = final_flush_timeout_seconds or FLUSH_TIMEOUT_S
        self._cache_dir = os.environ.get(_CACHE_VARIABLE, cache_dir)
        self._sinks = tuple(sink for sink in sinks if isinstance(sink, JobDestination))
        self._local_sinks = [
            BorrowedSink(sink) for sink in sinks if not isinstance(sink, JobDestination)
        ]
        self._slices = include_slice_efficiency
        self._uploaders: dict[str, Uploader] = {}
        self._started: set[str] = set()
        self._ended = Tally()
        atexit.register(self._detach_all)

    @property
    def tally(self) -> Tally:
        """What all uploaders have uploaded and lost, and the last error."""
        return sum_tallies([self._ended, *(each.tally() for each in self._uploaders.values())])

    def start_goodput_uploader(self) -> None:
        """Start uploading the job's goodput and badput."""
        question = Goodput(breakdown=self._breakdown, slices=self._slices)
        cloud = self._gcp.enable_gcp_goodput_metrics
        self._start("goodput", question, self._destinations("goodput", cloud=cloud))

    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """Stop it after a last upload, unless skipped; if never started, upload once."""
        self._stop("goodput", skip_final_flush, self.start_goodput_uploader)

    def start_step_deviation_uploader(self) -> None:
        """Start uploading the deviation of steps from the ideal step time."""
        if not self._deviation:
            _log.warning(
                "job %s: step deviation is not uploaded: include_step_deviation is not set",
                self.job_name,
            )
            return
        cloud = self._gcp.enable_gcp_step_deviation_metrics
        places = self._destinations("goodput/step_deviation", cloud=cloud)
        self._start("step_deviation", StepDeviation(), places, self._deviation_interval_s)

    def stop_step_deviation_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """Stop it after a last upload, unless skipped; if never started, upload once."""
        start = self.start_step_deviation_uploader if self._deviation else None
        self._stop("step_deviation", skip_final_flush, start)

    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: Sequence[int]) -> None:
        """Start uploading the goodput of rolling windows, one per length.

        Goes to Google Cloud Monitoring and to ``sinks``, not to TensorBoard.
        """
        checked = [_positive("rolling_windows_seconds", size) for size in rolling_windows_seconds]
        self._start_windows("rolling_window", checked)

    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """Stop it after a last upload, unless skipped."""
        self._stop("rolling_window", skip_final_flush)

    def start_goodput_interval_uploader(self, window_size_seconds: int) -> None:
        """Start uploading the goodput of the last ``window_size_seconds``.

        Goes to Google Cloud Monitoring and to ``sinks``, not to TensorBoard.
        """
        self._start_windows("interval", [_positive("window_size_seconds", window_size_seconds)])

    def stop_goodput_interval_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """Stop it after a last upload, unless skipped."""
        self._stop("interval", skip_final_flush)

    def _start_windows(self, name: str, sizes_s: Sequence[float]) -> None:
        question = Windows(sizes_s=tuple(map(int, sizes_s)), slices=self._slices)
        cloud = self._gcp.enable_gcp_goodput_metrics
        self._start(name, question, self._destinations(None, cloud=cloud))

    def _destinations(self, below: str | None, *, cloud: bool) -> tuple[JobDestination, ...]:
        places: list[JobDestination] = []
        if below is not None and self._tensorboard_dir is not None:
            places.append(TensorBoard(f"{self._tensorboard_dir.rstrip('/')}/{below}"))
        if cloud:
            places.append(CloudMonitoring(self.job_name, self._gcp))
        return (*places, *self._sinks)

    def _start(
        self,
        name: str,
        question: Question,
        destinations: tuple[JobDestination, ...],
        interval_s: float | None = None,
    ) -> None:
        if not self._enabled or name in self._uploaders or not (destinations or self._local_sinks):
            return
        self._started.add(name)
        upload = JobUpload(
            job_name=self.job_name,
            logger_name=self._logger_name,
            question=question,
            destinations=destinations,
            interval_s=interval_s or self._interval_s,
            finish_s=self._finish_s,
            log=self._log,
            using_pathways=self._pathways,
            ideal_step_time=self._ideal_step_time,
            cache_dir=self._cache_dir if isinstance(self._log, CloudLog) else None,
        )
        try:
            self._uploaders[name] = self._uploader(upload)
        except Exception as error:  # noqa: BLE001 - a monitor must not end a training
            trouble = f"cannot start the {name} uploader: {type(error).__name__}: {error}"
            self._ended = sum_tallies([self._ended, Tally(lost=1, trouble=trouble)])
            _log.warning("job %s: %s", self.job_name, trouble)

    def _uploader(self, upload: JobUpload) -> Uploader:
        if self._logger is not None or self._local_sinks:
            return ThreadUploader(
                upload.uploads(local_sinks=self._local_sinks, logger=self._logger)
            )
        return ProcessUploader(upload)

    def _stop(
        self,
        name: str,
        skip_final_flush: bool | None,  # noqa: FBT001
        start: Callable[[], None] | None = None,
    ) -> None:
        """Stop an uploader; one that was never started is started first, to upload once."""
        skip = self._skip_final if skip_final_flush is None else skip_final_flush
        if start is not None and name not in self._started and not skip:
            start()
        uploader = self._uploaders.pop(name, None)
        if uploader is None:
            return
        uploader.stop(self._finish_s, final=not skip)
        tally = uploader.tally()
        self._ended = sum_tallies([self._ended, tally])
        if tally.lost:
            _log.warning(
                "job %s: the %s uploader uploaded %d readings and lost %d; last error: %s",
                self.job_name,
                name,
                tally.uploaded,
                tally.lost,
                tally.trouble,
            )

    def _detach_all(self) -> None:
        """At exit, do not wait for uploaders that were not stopped."""
        for uploader in self._uploaders.values():
            uploader.detach()


def _portable_log(
    job_name: str,
    logger: GoodputLogger | None,
    run_dir: str | Path | None,
    retention: timedelta | None,
) -> str | CloudLog | None:
    """Describe a log so that another process can open it; None if only this one can."""
    if isinstance(logger, CloudLogger):
        seconds = (retention or logger.retention).total_seconds()
        return CloudLog(logger.log_name, logger.project_id, seconds)
    if isinstance(logger, LocalRunLog):
        return str(logger.run_dir.absolute())
    if logger is not None:
        return None
    return str(Path(run_dir).absolute() if run_dir else run_dir_of_job(job_name))


def _note_sync_interval(stated: float | str) -> None:
    """Warn that the environment variable for copying the cache to a bucket is not used."""
    if isinstance(stated, str):
        known = stated.isascii() and stated.isdecimal()
        problem = (
            "the cache is not copied to a bucket" if known else "it is not a number of seconds"
        )
        _log.warning("%s=%s is not used: %s", _SYNC_VARIABLE, stated, problem)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise InvalidValue(name, value, "a positive number of seconds")
    return value
