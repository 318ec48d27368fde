"""Readings as TensorBoard scalars, in event files that TensorBoard's own writer makes.

TensorBoard follows the newest file of a directory, so that each uploader has a directory of its
own. One that is opened again is read first, so that no step's deviation is written twice.
"""

from __future__ import annotations

from outlay.errors import MissingExtra
from outlay.export.scalars import STEP_DEVIATION, scalars
from outlay.goodput.readings import Reading


class TensorBoardSink:
    """Scalars in an event file.

    Args:
        logdir: The directory of the event file.

    Raises:
        MissingExtra: TensorBoard is not installed.
    """

    def __init__(self, logdir: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingExtra("writing TensorBoard scalars", "tensorboard") from None
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(logdir)
        self._last_step = last_step_of(logdir, STEP_DEVIATION)

    def write(self, reading: Reading) -> None:
        """Write a reading's numbers, each step's deviation once."""
        for scalar in scalars(reading):
            if scalar.name == STEP_DEVIATION:
                if scalar.step <= self._last_step:
                    continue
                self._last_step = scalar.step
            value = self._summary.Value(tag=scalar.name, simple_value=scalar.value)
            self._writer.add_event(
                self._event(
                    wall_time=reading.t_ns / 1e9,
                    step=scalar.step,
                    summary=self._summary(value=[value]),
                )
            )
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def last_step_of(logdir: str, tag: str) -> int:
    """Return the last step that a directory's event files have under a tag; -1 without one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(logdir, size_guidance={"scalars": 1})
    found.Reload()
    if tag not in found.Tags()["scalars"]:
        return -1
    return max(int(event.step) for event in found.Scalars(tag))
