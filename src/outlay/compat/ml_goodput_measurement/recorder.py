"""GoodputRecorder and the logs that it writes to; the default is the local run log.

Needs no account and no network, and loads no numpy: a training process imports this. It does not
raise into training because of a log: failed writes are counted and reported once. ``payloads`` of
``outlay.account`` interprets what is written.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, SupportsIndex
from urllib.parse import quote

from msgspec.structs import replace

from outlay.clock import SYSTEM, Clock, utc_datetime, wall_ns_of
from outlay.errors import InvalidValue
from outlay.ledger import (
    AttemptEnded,
    Payload,
    Price,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    claim_identity,
    ledger_dir,
    read_run,
    segment_paths,
)
from outlay.ledger.price import is_price_name, typed_price
from outlay.machine import gpu_model, visible_gpus
from outlay.record import facts
from outlay.store import outlay_home

_log = logging.getLogger("outlay")

# Logs of payloads.

Entry = dict[str, Any]
EntryInfo = tuple[datetime | None, str | None]


class GoodputLogger(Protocol):
    """A log of entries that can be read back in order."""

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Append an entry."""

    def flush(self) -> None:
        """Make everything written so far durable."""

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        """Return the entries in an interval, or after the last one seen, and the new last one."""


def run_dir_of_job(job_name: str) -> Path:
    """Return the directory of a job: ``$OUTLAY_RUN_DIR``, else ``$OUTLAY_HOME/runs/<job_name>``.

    Raises:
        InvalidValue: The job has no name.
    """
    if not str(job_name).strip():
        raise InvalidValue("job_name", job_name, "a non-empty name")
    if chosen := os.environ.get("OUTLAY_RUN_DIR"):
        return Path(chosen).expanduser().absolute()
    name = quote(job_name, safe=" ")
    return outlay_home() / "runs" / (name.replace(".", "%2E") if name.strip(".") == "" else name)


def plain(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinities become strings."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, float) or hasattr(value, "__float__"):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return str(value)


class LocalRunLog:
    """A job's entries in a run log on this machine.

    Args:
        job_name: Entries of other jobs are dropped.
        run_dir: The run's directory; default: ``run_dir_of_job``.
        clock: Timestamps entries.

    Raises:
        InvalidValue: The job has no name, or ``OUTLAY_PRICE`` or ``OUTLAY_GPUS`` is invalid.
    """

    def __init__(
        self, job_name: str, run_dir: Path | str | None = None, *, clock: Clock = SYSTEM
    ) -> None:
        self.job_name = job_name
        self.run_dir = run_dir_of_job(job_name) if run_dir is None else Path(run_dir)
        self._clock = clock
        self._price = _price_from(os.environ)
        self._gpus = _gpus_from(os.environ)
        self._writer: SegmentWriter | None = None

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Append an entry; once this returns, it survives a kill of the process."""
        if entry is None or not self._is_mine(entry):
            return
        writer = self._writer = self._writer or self._new_segment()
        now_ns = self._clock.wall_ns()
        writer.append(Payload(t_ns=now_ns, data=plain(entry)))
        if "job_end_time" in entry:
            writer.append(AttemptEnded(t_ns=now_ns, status="completed"))
            writer.sync()

    def flush(self) -> None:
        """Fsync everything written so far."""
        if self._writer is not None:
            self._writer.sync()

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        """Return the entries written after ``start_time`` and up to ``end_time``, and the last one.

        With ``last_entry_info``, which an earlier call returned, only later entries are returned.
        """
        after = _place(start_time, "~") if last_entry_info is None else _place(*last_entry_info)
        until = (math.inf, "") if end_time is None else _place(end_time, "~")
        log = read_run(self.run_dir).segments if segment_paths(self.run_dir) else {}
        found = sorted(
            ((record.t_ns // 1000, f"{segment.file_name}:{record.seq:012d}"), record.data)
            for segment, records in log.items()
            for record in records
            if isinstance(record, Payload) and self._is_mine(record.data)
        )
        chosen = [(place, data) for place, data in found if after < place <= until]
        if not chosen:
            return [], last_entry_info or (None, None)
        micros, entry_id = chosen[-1][0]
        return [data for _, data in chosen], (utc_datetime(micros * 1000), entry_id)

    def _is_mine(self, entry: Entry) -> bool:
        return bool(entry.get("job_name", self.job_name) == self.job_name)

    def _new_segment(self) -> SegmentWriter:
        about = facts.gather(os.environ)
        now_ns = self._clock.wall_ns()
        identity = RunIdentity(
            run_id=uuid.uuid4().hex, model=self.job_name, name=self.job_name, created_ns=now_ns
        )
        with contextlib.suppress(OSError):  # The writer gets the same error and reports it.
            identity = claim_identity(self.run_dir, identity)
        header = replace(
            about,
            t_ns=now_ns,
            run_id=identity.run_id,
            model=identity.model,
            name=identity.name,
            gpus=self._gpus,
            price=self._price,
        )
        path = ledger_dir(self.run_dir) / SegmentId.of(header).file_name
        return SegmentWriter(path, header, self._clock)


def _place(moment: datetime | None, entry_id: str | None) -> tuple[float, str]:
    """Return the sort key of an entry in the log; the instant is in microseconds."""
    return (-1.0 if moment is None else wall_ns_of(moment) // 1000, entry_id or "")


def _price_from(environ: Mapping[str, str]) -> Price | None:
    text = environ.get("OUTLAY_PRICE")
    if not text:
        return None
    if is_price_name(text):
        from outlay.prices.current import resolve_price  # Loaded only if the price is a name.

        gpu, gpus = gpu_model(), visible_gpus(environ)
        name = "OUTLAY_PRICE"
        return resolve_price(text, name=name, environ=environ, gpu=gpu, gpus=gpus).price
    return typed_price(text, name="OUTLAY_PRICE", source="environment")


def _gpus_from(environ: Mapping[str, str]) -> int:
    text = environ.get("OUTLAY_GPUS")
    if not text:
        return facts.world_size(environ)
    if not text.isdecimal() or not int(text):
        raise InvalidValue("OUTLAY_GPUS", text, "a whole number of GPUs for the whole run")
    return int(text)


# Recorders, with the interface of ml-goodput-measurement.


class GoodputRecorder:
    """Records when the parts of a job begin and end.

    By default rank 0 writes to the local run log (``$OUTLAY_RUN_DIR``, else
    ``$OUTLAY_HOME/runs/<job_name>``), and other ranks write nothing. To a ``cloud_logger`` every
    process with logging enabled writes.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; ignored by the local run log.
        logging_enabled: If false, nothing is written.
        cloud_logger: The log to write to; default: the local run log.
        background_grace_period_s: Ignored: entries are written immediately.
        background_batch_size: Ignored: entries are written immediately.
        background_max_latency_s: Ignored: entries are written immediately.
        clock: Gives the time of an event if the caller does not.

    Raises:
        InvalidValue: The job has no name.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        logging_enabled: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        cloud_logger: GoodputLogger | None = None,
        *,
        background_grace_period_s: float = 5.0,
        background_batch_size: int = 100,
        background_max_latency_s: float = 2.0,
        clock: Clock = SYSTEM,
    ) -> None:
        del background_grace_period_s, background_batch_size, background_max_latency_s
        self.job_name = job_name
        self.logger_name = logger_name
        self.lost = 0
        self._clock = clock
        self._warned: set[str] = set()
        self._logger: GoodputLogger | None = None
        if logging_enabled and cloud_logger is not None:
            self._logger = cloud_logger
        elif logging_enabled and facts.rank(os.environ) == 0:
            self._logger = LocalRunLog(job_name, clock=clock)

    def record_step_start_time(
        self, step: SupportsIndex, start_time: datetime | None = None
    ) -> None:
        """Record that a step begins."""
        if self._logger is not None:
            self._write(
                {"step_count": whole_number(step), "step_start_time": self._posix(start_time)}
            )

    def record_job_start_time(self, start_time: datetime | None = None) -> None:
        """Record that the job starts, for the first time or again."""
        self._record("job_start_time", start_time)

    def record_job_end_time(self, end_time: datetime | None = None) -> None:
        """Record that the job completed."""
        self._record("job_end_time", end_time)

    def record_tpu_init_start_time(self, start_time: datetime | None = None) -> None:
        """Record that initialisation of the accelerators begins."""
        self._record("tpu_init_start_time", start_time)

    def record_tpu_init_end_time(self, end_time: datetime | None = None) -> None:
        """Record that the accelerators are initialised."""
        self._record("tpu_init_end_time", end_time)

    def record_training_preparation_start_time(self, start_time: datetime | None = None) -> None:
        """Record that preparation of training begins."""
        self._record("training_prep_start_time", start_time)

    def record_training_preparation_end_time(self, end_time: datetime | None = None) -> None:
        """Record that preparation of training ended."""
        self._record("training_prep_end_time", end_time)

    def record_data_loading_start_time(self, start_time: datetime | None = None) -> None:
        """Record that data loading begins."""
        self._record("data_loading_start_time", start_time)

    def record_data_loading_end_time(self, end_time: datetime | None = None) -> None:
        """Record that data loading ended."""
        self._record("data_loading_end_time", end_time)

    def record_custom_badput_event_start_time(
        self, start_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that a custom event begins to block training."""
        self._record("custom_badput_event_start_time", start_time, custom_badput_event_type)

    def record_custom_badput_event_end_time(
        self, end_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that a custom event ended."""
        self._record("custom_badput_event_end_time", end_time, custom_badput_event_type)

    def record_checkpoint_progress(
        self, step: SupportsIndex, checkpoint_start_time: datetime | None = None
    ) -> None:
        """Record a checkpoint of all steps up to and including ``step``."""
        if self._logger is not None:
            time_s = self._posix(checkpoint_start_time)
            self._write({"checkpoint_step": whole_number(step), "checkpoint_start_time": time_s})

    def flush(self) -> None:
        """Flush the log."""
        if self._logger is not None:
            try:
                self._logger.flush()
            except Exception as error:  # noqa: BLE001 - a logger must not end a training
                self._warn(f"cannot flush the goodput log: {type(error).__name__}")

    def _record(self, key: str, moment: datetime | None, event_type: str | None = None) -> None:
        if self._logger is not None:
            named = {} if event_type is None else {"custom_badput_event_type": event_type}
            self._write({**named, key: self._posix(moment)})

    def _write(self, entry: dict[str, object]) -> None:
        assert self._logger is not None
        try:
            self._logger.write_cloud_logging_entry({"job_name": self.job_name, **entry})
        except Exception as error:  # noqa: BLE001 - a logger must not end a training
            self.lost += 1
            self._warn(
                f"cannot write to the goodput log: {type(error).__name__}; lost entries are "
                "counted, and training continues"
            )

    def _posix(self, moment: datetime | None) -> float:
        """Return POSIX seconds; a datetime without a time zone is local time."""
        if moment is None:
            return self._clock.wall_ns() / 1e9
        if not isinstance(moment, datetime):
            raise InvalidValue("time", moment, "a datetime, or None for now")
        if moment.tzinfo is None:
            self._warn(
                "a datetime without a time zone was recorded as local time; pass "
                "datetime.now(timezone.utc), or nothing for now"
            )
        return moment.timestamp()

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("job %s: %s", self.job_name, message)


def whole_number(value: SupportsIndex, name: str = "step") -> int:
    """Return an integer of any type, such as NumPy's, as an int.

    Raises:
        InvalidValue: It is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidValue(name, value, "a whole number") from None


class ElasticGoodputRecorder(GoodputRecorder):
    """Also records slice counts, waits for slices, and reinitialisation with other slices."""

    def record_elastic_slice_counts(
        self,
        active_slices: SupportsIndex,
        total_slices: SupportsIndex,
        available_slices: SupportsIndex,
        timestamp: datetime | None = None,
    ) -> None:
        """Record how many slices train, how many the job has, and how many are available."""
        if self._logger is not None:
            self._write(
                {
                    "active_slices": whole_number(active_slices, "active_slices"),
                    "total_slices": whole_number(total_slices, "total_slices"),
                    "available_slices": whole_number(available_slices, "available_slices"),
                    "elastic_slice_counts_timestamp": self._posix(timestamp),
                }
            )

    def record_elastic_wait_start_time(
        self, event_type: str, start_time: datetime | None = None
    ) -> None:
        """Record that the job waits: for a ``scale_up``, or because a slice is down."""
        self._record_wait("elastic_wait_start_time", event_type, start_time)

    def record_elastic_wait_end_time(
        self, event_type: str, end_time: datetime | None = None
    ) -> None:
        """Record that the wait ended."""
        self._record_wait("elastic_wait_end_time", event_type, end_time)

    def record_elastic_reinit_start_time(self, start_time: datetime | None = None) -> None:
        """Record that reinitialisation with other slices begins."""
        self._record("elastic_reinit_start_time", start_time)

    def record_elastic_reinit_end_time(self, end_time: datetime | None = None) -> None:
        """Record that reinitialisation ended."""
        self._record("elastic_reinit_end_time", end_time)

    def _record_wait(self, key: str, event_type: str, moment: datetime | None) -> None:
        if self._logger is not None:
            self._write({"elastic_wait_event_type": event_type, key: self._posix(moment)})
