"""ElasticGoodputRecorder: what a job records whose slices come and go."""

from __future__ import annotations

from datetime import datetime
from typing import SupportsIndex

from outlay.goodput.recorder import GoodputRecorder, whole_number


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
