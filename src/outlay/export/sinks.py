"""Sinks for readings: the protocol, files, TensorBoard, and a monitor's destinations.

A destination is a value that can be sent to another process, which opens its sink.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec

from outlay import plugins
from outlay.clock import utc_datetime
from outlay.decoding import Decoder, csv_records, read_file
from outlay.errors import InvalidValue, MissingExtra, choices
from outlay.escaping import write_csv
from outlay.export.scalars import STEP_DEVIATION, FinishedReading, new_scalars
from outlay.locks import FileLock


class Sink(Protocol):
    """Takes readings, in order. Any exception means that the reading is lost."""

    def write(self, reading: FinishedReading) -> None:
        """Write a reading; it is stored when the call returns."""

    def close(self) -> None:
        """Close files and connections."""


class BorrowedSink:
    """A sink that the caller owns: written by one thread at a time, never closed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()

    def write(self, reading: FinishedReading) -> None:
        """Write a reading."""
        with self._lock:
            self._sink.write(reading)

    def close(self) -> None:
        """Leave it open: its owner and other uploaders may still write."""

    def opened(self) -> Sink:
        """Return the sink, which its owner has opened."""
        return self


class TensorBoard(msgspec.Struct, frozen=True, tag=True):
    """Scalars in an event file in ``logdir``."""

    logdir: str


class CsvFile(msgspec.Struct, frozen=True, tag=True):
    """Rows appended to a CSV file."""

    path: str


class JsonLinesFile(msgspec.Struct, frozen=True, tag=True):
    """JSON objects appended to a file, one per line."""

    path: str


class PluginSink(msgspec.Struct, frozen=True, tag=True):
    """A sink of another package, by its entry point's name, created with the options."""

    name: str
    options: dict[str, str] = {}


class MlflowRun(msgspec.Struct, frozen=True, tag=True):
    """Metrics of an existing MLflow run; "" is MLflow's configured tracking server."""

    run_id: str
    tracking_uri: str = ""


class OtlpEndpoint(msgspec.Struct, frozen=True, tag=True):
    """OpenTelemetry metrics over HTTP; "" is ``OTEL_EXPORTER_OTLP_ENDPOINT``."""

    endpoint: str = ""


Destination = TensorBoard | CsvFile | JsonLinesFile | MlflowRun | OtlpEndpoint | PluginSink


def destination_name(destination: Destination) -> str:
    """Return a destination's name in messages."""
    match destination:
        case TensorBoard():
            return f"TensorBoard in {destination.logdir}"
        case CsvFile() | JsonLinesFile():
            return destination.path
        case MlflowRun():
            return f"MLflow run {destination.run_id}"
        case OtlpEndpoint():
            return "OpenTelemetry"
        case PluginSink():
            return destination.name  # Without its options: a password may be among them.
        case _:
            assert_never(destination)


def open_sink(destination: Destination) -> Sink:
    """Open the sink of a destination; its libraries are loaded now.

    Raises:
        MissingExtra: A library is not installed.
        InvalidValue: No package has a sink of that name.
        BrokenPlugin: The package cannot be loaded.
    """
    match destination:
        case TensorBoard(logdir):
            return TensorBoardSink(logdir)
        case CsvFile(path):
            return CsvSink(Path(path))
        case JsonLinesFile(path):
            return JsonLinesSink(Path(path))
        case MlflowRun(run_id, tracking_uri):
            from outlay.export.tracker_sinks import MlflowSink

            return MlflowSink(run_id, tracking_uri)
        case OtlpEndpoint(endpoint):
            from outlay.export.tracker_sinks import OtlpSink

            return OtlpSink(endpoint)
        case PluginSink(name, options):
            return _open_plugin(name, options)
        case _:
            assert_never(destination)


def _open_plugin(name: str, options: dict[str, str]) -> Sink:
    make = plugins.load(plugins.SINKS, name)
    if make is None:
        known = plugins.names(plugins.SINKS)
        raise InvalidValue("sink", name, choices(known) if known else "a package that announces it")
    sink: Sink = make(**options)
    return sink


# Files: CSV or JSON Lines with ``time``, ``name``, ``value``, ``step``, ``window_s``
#
# Each upload is one write, so that a killed process leaves whole uploads. An existing file is read
# once when it is opened, so that no step's deviation is written twice.

COLUMNS = ("time", "name", "value", "step", "window_s")


class _FileSink(ABC):
    """Appends new rows to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._last_step = self._last_deviation() if path.exists() else -1

    def write(self, reading: FinishedReading) -> None:
        """Append a reading's numbers, each step's deviation once."""
        time = utc_datetime(reading.t_ns).isoformat()
        new, last_step = new_scalars(reading, self._last_step)
        if not new:
            return
        rows = [{"time": time, **msgspec.to_builtins(scalar)} for scalar in new]
        # Several uploaders may share a file.
        with (
            self._path.open("ab", buffering=0) as stream,
            FileLock(os.dup(stream.fileno()), patience_s=None),
        ):
            end = stream.seek(0, io.SEEK_END)
            text = self._encoded(rows, first=end == 0)
            if stream.write(text) != len(text):  # A short write: undo it.
                stream.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._last_step = last_step

    def close(self) -> None:  # noqa: B027 - files are not kept open
        """Do nothing: the file is open only while it is written."""

    @abstractmethod
    def _encoded(self, rows: Sequence[dict[str, Any]], *, first: bool) -> bytes:
        """Encode rows; ``first`` if the file is empty and may need a header."""

    @abstractmethod
    def _last_deviation(self) -> int:
        """Return the last step with a deviation in the file; -1 without one."""


class CsvSink(_FileSink):
    """Appends rows to a CSV file with a header."""

    def _encoded(self, rows: Sequence[dict[str, Any]], *, first: bool) -> bytes:
        text = io.StringIO()
        write_csv(text, COLUMNS, rows, header=first)
        return text.getvalue().encode()

    def _last_deviation(self) -> int:
        with self._path.open(newline="", errors="replace") as stream:
            rows = csv_records(stream)
            steps = (row["step"] for row in rows if row.get("name") == STEP_DEVIATION)
            return max((int(step) for step in steps if step and step.isdecimal()), default=-1)


class _Line(msgspec.Struct):
    name: str
    step: int


class JsonLinesSink(_FileSink):
    """Appends one JSON object per line."""

    def _encoded(self, rows: Sequence[dict[str, Any]], *, first: bool) -> bytes:
        del first
        return msgspec.json.Encoder().encode_lines(rows)

    def _last_deviation(self) -> int:
        lines = Decoder[_Line](_Line).decode_lines(read_file(self._path, largest=1 << 30))
        return max((line.step for line in lines if line.name == STEP_DEVIATION), default=-1)


# TensorBoard scalars, through TensorBoard's own event writer
#
# TensorBoard follows the newest file of a directory, so each uploader has a directory of its own.
# An existing one is read when it is opened, so that no step's deviation is written twice.


class TensorBoardSink:
    """Scalars in an event file.

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

    def write(self, reading: FinishedReading) -> None:
        """Write a reading's numbers, each step's deviation once."""
        new, last_step = new_scalars(reading, self._last_step)
        for scalar in new:
            value = self._summary.Value(tag=scalar.name, simple_value=scalar.value)
            self._writer.add_event(
                self._event(
                    wall_time=reading.t_ns / 1e9,
                    step=scalar.step,
                    summary=self._summary(value=[value]),
                )
            )
        self._writer.flush()
        self._last_step = last_step

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def last_step_of(logdir: str, tag: str) -> int:
    """Return the last step of a tag in a directory's event files; -1 without one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(logdir, size_guidance={"scalars": 1})
    found.Reload()
    if tag not in found.Tags()["scalars"]:
        return -1
    return max(int(event.step) for event in found.Scalars(tag))
