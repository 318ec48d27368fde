"""GoodputMonitor: uploads goodput, badput and step deviation while a job runs.

It starts uploaders and stops them. It never raises for reasons of theirs, and nothing of theirs
happens on the path of a training step.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Protocol

import msgspec

from outlay.decoding import BadDocument, decode
from outlay.errors import InvalidValue
from outlay.export.cloud import CloudLogger
from outlay.export.gcp import GCPOptions
from outlay.export.sinks import BorrowedSink, CloudMonitoring, Destination, Sink, TensorBoard
from outlay.export.uploads import (
    CloudLog,
    Goodput,
    Question,
    StepDeviation,
    Tally,
    Upload,
    UploadLog,
    Uploads,
    Windows,
    together,
)
from outlay.export.worker import TALLY_BYTES, UploadOrder
from outlay.goodput.recorder import GoodputLogger, LocalRunLog, run_dir_of_job
from outlay.record import facts

# How an uploader runs beside training: in a process of its own, or in a thread.
#
# A process costs the training next to nothing, whatever the length of the run, and takes its
# sinks' libraries and troubles elsewhere. A thread is for a log that only this process can read,
# and for a sink that only it can write to.

MARGIN_S = 0.5  # What a process may take to end beyond the time that it is given.


class Uploader(Protocol):
    """Uploads until it is stopped."""

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""

    def detach(self) -> None:
        """Do not wait: let it end by itself."""


class ProcessUploader:
    """An uploader in a process of its own, which also ends when this process does."""

    def __init__(self, upload: Upload, finish_s: float) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by detach
        self._last = Tally()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlay.export.worker"],
                bufsize=0,  # What a dead process does not read must not wait for the next word.
                stdin=subprocess.PIPE,
                stdout=self._output,
                start_new_session=True,  # Ctrl-C is for the training; this ends after it.
            )
        except OSError:
            self._output.close()
            raise
        self._say(msgspec.json.encode(UploadOrder(upload=upload, finish_s=finish_s)) + b"\n")

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        if not self._output.closed:
            text = os.pread(self._output.fileno(), TALLY_BYTES, 0)
            with contextlib.suppress(BadDocument):  # None yet, or one half replaced.
                self._last = decode(text, Tally)
        return self._last

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""
        self._say(b"stop\n" if final else b"quit\n")
        try:
            self._process.wait(timeout_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode
        self.detach()
        if code:
            lost = self._last.lost + 1
            trouble = f"the uploader ended with {code}"
            self._last = msgspec.structs.replace(self._last, lost=lost, trouble=trouble)

    def detach(self) -> None:
        """Do not wait: its input ends, so that it uploads a last time and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.tally()
        self._output.close()
        self._process.returncode = self._process.poll() or 0  # Nobody waits for it any more.

    def _say(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # It is gone, which its exit code tells.
            self._process.stdin.write(text)


class ThreadUploader:
    """An uploader in a thread of this process."""

    def __init__(
        self,
        upload: Upload,
        finish_s: float,
        logger: GoodputLogger | None,
        lent: Sequence[BorrowedSink] = (),
    ) -> None:
        self._uploads = Uploads(upload, logger, lent=lent)
        self._finish_s = finish_s
        self._final = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlay uploader", daemon=True)
        self._thread.start()

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        return self._uploads.tally

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""
        self._final = final
        self._stop.set()
        self._thread.join(timeout_s + MARGIN_S)

    def detach(self) -> None:
        """Do not wait; a thread ends with its process."""
        self._stop.set()

    def _run(self) -> None:
        self._uploads.run(self._stop)
        self._uploads.finish(self._finish_s, final=self._final)


_log = logging.getLogger("outlay")
FLUSH_TIMEOUT_S = 10.0
_CACHE_VARIABLE = "ML_GOODPUT_CACHE_DIR"
_SYNC_VARIABLE = "ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS"


class GoodputMonitor:
    """Uploads what became of a job, at intervals, beside its training.

    Only rank 0 monitors, and only where it is enabled; ``OUTLAY_DISABLED=1`` disables it. Each
    uploader is a process of its own; for a ``cloud_logger`` that only this process can read, or a
    sink that only it can write to, it is a thread.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; the local run log needs none.
        tensorboard_dir: Where TensorBoard looks; scalars go to ``goodput`` below it.
        upload_interval: Seconds between two uploads.
        monitoring_enabled: Without it nothing is uploaded.
        pathway_enabled: One controller outlives its workers; see ``GoodputCalculator``.
        include_badput_breakdown: Whether badput goes to TensorBoard too.
        include_step_deviation: Whether the step deviation uploader may be started.
        configured_ideal_step_time: Seconds of an ideal step; default: measured.
        step_deviation_interval_seconds: Seconds between two uploads of step deviation.
        gcp_options: What goes to Google Cloud Monitoring, and as which workload.
        skip_final_flush: Whether stopping does without a last upload.
        final_flush_timeout_seconds: How long stopping may take.
        gcs_sync_interval_seconds: Accepted, as is ``ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS``; the
            cache is not copied to a bucket.
        cache_dir: Where entries of a Cloud Logging log are kept for the next monitor;
            ``ML_GOODPUT_CACHE_DIR`` goes before it.
        max_logs_retention_period: How far back a Cloud Logging log is read.
        cloud_logger: Where entries are read from; default: the job's local run log.
        run_dir: Where that is; default: where the job's name leads.
        sinks: Where uploads go besides: a ``CsvFile``, a ``PluginSink`` of another package, or any
            object with the methods of a ``Sink``, which is the caller's to close.
        include_slice_efficiency: Whether Google Cloud is told how an elastic job uses its slices.

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
        sinks: Sequence[Destination | Sink] = (),
        include_slice_efficiency: bool = False,
    ) -> None:
        _note_sync_interval(os.environ.get(_SYNC_VARIABLE, gcs_sync_interval_seconds))
        self.job_name = job_name
        self._log = _described(job_name, cloud_logger, run_dir, max_logs_retention_period)
        self._logger = cloud_logger if self._log is None else None
        self._logger_name = logger_name
        self._enabled = monitoring_enabled and facts.rank(os.environ) == 0 and not _switched_off()
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
        self._sinks = tuple(sink for sink in sinks if isinstance(sink, Destination))
        self._lent = [BorrowedSink(sink) for sink in sinks if not isinstance(sink, Destination)]
        self._slices = include_slice_efficiency
        self._uploaders: dict[str, Uploader] = {}
        self._started: set[str] = set()
        self._ended = Tally()
        atexit.register(self._detach_all)

    @property
    def tally(self) -> Tally:
        """What all uploaders have uploaded and lost, and what the last trouble was."""
        return together([self._ended, *(each.tally() for each in self._uploaders.values())])

    def start_goodput_uploader(self) -> None:
        """Begin to upload the job's goodput and badput."""
        question = Goodput(breakdown=self._breakdown, slices=self._slices)
        cloud = self._gcp.enable_gcp_goodput_metrics
        self._start("goodput", question, self._destinations("goodput", cloud=cloud))

    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """End it, after a last upload unless that is skipped; without a start that upload alone."""
        if self._flushes_alone("goodput", skip_final_flush):
            self.start_goodput_uploader()
        self._stop("goodput", skip_final_flush)

    def start_step_deviation_uploader(self) -> None:
        """Begin to upload how far steps are off the ideal."""
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
        """End it, after a last upload unless that is skipped; without a start that upload alone."""
        if self._deviation and self._flushes_alone("step_deviation", skip_final_flush):
            self.start_step_deviation_uploader()
        self._stop("step_deviation", skip_final_flush)

    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: Sequence[int]) -> None:
        """Begin to upload what became of the last so many seconds, for each of several lengths.

        Goes to Google Cloud Monitoring and to ``sinks``, not to TensorBoard.
        """
        sizes = tuple(
            int(_positive("rolling_windows_seconds", size)) for size in rolling_windows_seconds
        )
        cloud = self._gcp.enable_gcp_goodput_metrics
        question = Windows(sizes_s=sizes, slices=self._slices)
        self._start("rolling_window", question, self._destinations(None, cloud=cloud))

    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """End it, after a last upload unless that is skipped."""
        self._stop("rolling_window", skip_final_flush)

    def start_goodput_interval_uploader(self, window_size_seconds: int) -> None:
        """Begin to upload what became of the last ``window_size_seconds``.

        Goes to Google Cloud Monitoring and to ``sinks``, not to TensorBoard.
        """
        size = int(_positive("window_size_seconds", window_size_seconds))
        cloud = self._gcp.enable_gcp_goodput_metrics
        question = Windows(sizes_s=(size,), slices=self._slices)
        self._start("interval", question, self._destinations(None, cloud=cloud))

    def stop_goodput_interval_uploader(self, skip_final_flush: bool | None = None) -> None:  # noqa: FBT001
        """End it, after a last upload unless that is skipped."""
        self._stop("interval", skip_final_flush)

    def _destinations(self, below: str | None, *, cloud: bool) -> tuple[Destination, ...]:
        places: list[Destination] = []
        if below is not None and self._tensorboard_dir is not None:
            places.append(TensorBoard(f"{self._tensorboard_dir.rstrip('/')}/{below}"))
        if cloud:
            places.append(CloudMonitoring(self.job_name, self._gcp))
        return (*places, *self._sinks)

    def _start(
        self,
        name: str,
        question: Question,
        destinations: tuple[Destination, ...],
        interval_s: float | None = None,
    ) -> None:
        if not self._enabled or name in self._uploaders or not (destinations or self._lent):
            return
        self._started.add(name)
        upload = Upload(
            job_name=self.job_name,
            logger_name=self._logger_name,
            question=question,
            destinations=destinations,
            interval_s=interval_s or self._interval_s,
            log=self._log,
            using_pathways=self._pathways,
            ideal_step_time=self._ideal_step_time,
            cache_dir=self._cache_dir if isinstance(self._log, CloudLog) else None,
        )
        try:
            self._uploaders[name] = self._uploader(upload)
        except Exception as error:  # noqa: BLE001 - a monitor must not end a training
            trouble = f"cannot start the {name} uploader: {type(error).__name__}: {error}"
            self._ended = together([self._ended, Tally(lost=1, trouble=trouble)])
            _log.warning("job %s: %s", self.job_name, trouble)

    def _uploader(self, upload: Upload) -> Uploader:
        if self._logger is not None or self._lent:
            return ThreadUploader(upload, self._finish_s, self._logger, self._lent)
        return ProcessUploader(upload, self._finish_s)

    def _flushes_alone(self, name: str, skip_final_flush: bool | None) -> bool:  # noqa: FBT001
        """Say whether stopping what was never started uploads once."""
        skip = self._skip_final if skip_final_flush is None else skip_final_flush
        return name not in self._started and not skip

    def _stop(self, name: str, skip_final_flush: bool | None) -> None:  # noqa: FBT001
        uploader = self._uploaders.pop(name, None)
        if uploader is None:
            return
        skip = self._skip_final if skip_final_flush is None else skip_final_flush
        uploader.stop(self._finish_s, final=not skip)
        tally = uploader.tally()
        self._ended = together([self._ended, tally])
        if tally.lost:
            _log.warning(
                "job %s: of the %s uploader's readings %d arrived and %d were lost; last: %s",
                self.job_name,
                name,
                tally.uploaded,
                tally.lost,
                tally.trouble,
            )

    def _detach_all(self) -> None:
        """When Python ends, do not wait for what was not stopped."""
        for uploader in self._uploaders.values():
            uploader.detach()


def _described(
    job_name: str,
    logger: GoodputLogger | None,
    run_dir: str | Path | None,
    retention: timedelta | None,
) -> UploadLog | CloudLog | None:
    """Return a log as another process can open it; None when only this one can."""
    if isinstance(logger, CloudLogger):
        seconds = (retention or logger.retention).total_seconds()
        return CloudLog(logger.log_name, logger.project_id, seconds)
    if isinstance(logger, LocalRunLog):
        return UploadLog(str(logger.run_dir.absolute()))
    if logger is not None:
        return None
    return UploadLog(str(Path(run_dir).absolute() if run_dir else run_dir_of_job(job_name)))


def _switched_off() -> bool:
    return facts.is_disabled(os.environ)


def _note_sync_interval(stated: float | str) -> None:
    """Say of a variable for a bucket's copy that there is none, or that it is no number."""
    if isinstance(stated, str):
        known = stated.isascii() and stated.isdecimal()
        problem = "the cache is not copied to a bucket" if known else "it is no number of seconds"
        _log.warning("%s=%s is not used: %s", _SYNC_VARIABLE, stated, problem)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise InvalidValue(name, value, "a positive number of seconds")
    return value
