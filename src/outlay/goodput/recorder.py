"""GoodputRecorder and ElasticGoodputRecorder: what ml-goodput-measurement documents.

Loads no numpy. Inside training it never raises for reasons of its own: a logger that fails is
counted, and said once.
"""

from __future__ import annotations

import logging
import operator
import os
from datetime import datetime
from typing import SupportsIndex

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.goodput.logs import GoodputLogger, LocalRunLog
from outlay.record import facts

_log = logging.getLogger("outlay")


class GoodputRecorder:
    """Records when the parts of a job begin and end.

    By default it writes to the local run log (``$OUTLAY_RUN_DIR``, else
    ``$OUTLAY_HOME/runs/<job_name>``), and only rank 0 does. A logger that is handed in is written
    to by every process that enables logging.

    Args:
        job_name: The full name of the job.
        logger_name: The name of the log; the local run log needs none.
        logging_enabled: Without it nothing is written.
        cloud_logger: Where entries go instead.
        background_grace_period_s: Accepted; entries are written at once.
        background_batch_size: Accepted; entries are written at once.
        background_max_latency_s: Accepted; entries are written at once.
        clock: Says when something happened where the caller does not.

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
        """Record that the job is done."""
        self._record("job_end_time", end_time)

    def record_tpu_init_start_time(self, start_time: datetime | None = None) -> None:
        """Record that the accelerators begin to initialise."""
        self._record("tpu_init_start_time", start_time)

    def record_tpu_init_end_time(self, end_time: datetime | None = None) -> None:
        """Record that the accelerators are ready."""
        self._record("tpu_init_end_time", end_time)

    def record_training_preparation_start_time(self, start_time: datetime | None = None) -> None:
        """Record that the preparation of training begins."""
        self._record("training_prep_start_time", start_time)

    def record_training_preparation_end_time(self, end_time: datetime | None = None) -> None:
        """Record that training is prepared."""
        self._record("training_prep_end_time", end_time)

    def record_data_loading_start_time(self, start_time: datetime | None = None) -> None:
        """Record that the loading of data begins."""
        self._record("data_loading_start_time", start_time)

    def record_data_loading_end_time(self, end_time: datetime | None = None) -> None:
        """Record that data is loaded."""
        self._record("data_loading_end_time", end_time)

    def record_custom_badput_event_start_time(
        self, start_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that something of your own begins to hold training up."""
        self._record("custom_badput_event_start_time", start_time, custom_badput_event_type)

    def record_custom_badput_event_end_time(
        self, end_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that it is over."""
        self._record("custom_badput_event_end_time", end_time, custom_badput_event_type)

    def record_checkpoint_progress(
        self, step: SupportsIndex, checkpoint_start_time: datetime | None = None
    ) -> None:
        """Record a checkpoint of everything up to and including ``step``."""
        if self._logger is not None:
            time_s = self._posix(checkpoint_start_time)
            self._write({"checkpoint_step": whole_number(step), "checkpoint_start_time": time_s})

    def flush(self) -> None:
        """Make sure that everything recorded so far is kept."""
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
                f"cannot write to the goodput log: {type(error).__name__}; what is lost "
                "is counted, and training goes on"
            )

    def _posix(self, moment: datetime | None) -> float:
        """Return an instant as POSIX seconds; a datetime without a zone is this machine's time."""
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
    """Return a count as an int, such as a NumPy one.

    Raises:
        InvalidValue: It is no whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidValue(name, value, "a whole number") from None


# ElasticGoodputRecorder: what a job records whose slices come and go.


class ElasticGoodputRecorder(GoodputRecorder):
    """Records how many slices train, and when the job waits for slices or starts anew with them."""

    def record_elastic_slice_counts(
        self,
        active_slices: SupportsIndex,
        total_slices: SupportsIndex,
        available_slices: SupportsIndex,
        timestamp: datetime | None = None,
    ) -> None:
        """Record how many slices train, how many the job has, and how many could train."""
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
        """Record that the job begins to wait: to ``scale_up``, or since a slice is down."""
        self._record_wait("elastic_wait_start_time", event_type, start_time)

    def record_elastic_wait_end_time(
        self, event_type: str, end_time: datetime | None = None
    ) -> None:
        """Record that the wait is over."""
        self._record_wait("elastic_wait_end_time", event_type, end_time)

    def record_elastic_reinit_start_time(self, start_time: datetime | None = None) -> None:
        """Record that the job begins to initialise again with other slices."""
        self._record("elastic_reinit_start_time", start_time)

    def record_elastic_reinit_end_time(self, end_time: datetime | None = None) -> None:
        """Record that the job is ready to go on."""
        self._record("elastic_reinit_end_time", end_time)

    def _record_wait(self, key: str, event_type: str, moment: datetime | None) -> None:
        if self._logger is not None:
            self._write({"elastic_wait_event_type": event_type, key: self._posix(moment)})
