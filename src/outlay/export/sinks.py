"""Where readings go: one small protocol, and the destinations that a monitor can be given.

A destination is a value that can be sent to another process, which opens it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from outlay.export.gcp import GCPOptions
from outlay.goodput.readings import Reading


class Sink(Protocol):
    """Takes readings, in order. Anything it raises means that the reading is lost."""

    def write(self, reading: Reading) -> None:
        """Put a reading where it belongs; when the call returns it is there."""

    def close(self) -> None:
        """Let go of files and connections."""


class TensorBoard(msgspec.Struct, frozen=True, tag=True):
    """Scalars in an event file in ``logdir``."""

    logdir: str


class CloudMonitoring(msgspec.Struct, frozen=True, tag=True):
    """Time series in Google Cloud Monitoring, for the workload ``workload_id``."""

    workload_id: str
    options: GCPOptions = GCPOptions()


class CsvFile(msgspec.Struct, frozen=True, tag=True):
    """Rows at the end of a CSV file."""

    path: str


class JsonLinesFile(msgspec.Struct, frozen=True, tag=True):
    """Lines at the end of a file, one JSON object each."""

    path: str


Destination = TensorBoard | CloudMonitoring | CsvFile | JsonLinesFile


def destination_name(destination: Destination) -> str:
    """Return what a destination is called when something is said about it."""
    match destination:
        case TensorBoard():
            return f"TensorBoard in {destination.logdir}"
        case CloudMonitoring():
            return "Google Cloud Monitoring"
        case CsvFile() | JsonLinesFile():
            return destination.path
        case _:
            assert_never(destination)


def open_sink(destination: Destination) -> Sink:
    """Return the sink of a destination; libraries that it needs are loaded now.

    Raises:
        MissingExtra: Such a library is not installed.
    """
    match destination:
        case TensorBoard(logdir):
            from outlay.export.tensorboard import TensorBoardSink

            return TensorBoardSink(logdir)
        case CloudMonitoring(workload_id, options):
            from outlay.export.cloud_monitoring import CloudMonitoringSink

            return CloudMonitoringSink(workload_id, options)
        case CsvFile(path):
            from outlay.export.files import CsvSink

            return CsvSink(Path(path))
        case JsonLinesFile(path):
            from outlay.export.files import JsonLinesSink

            return JsonLinesSink(Path(path))
        case _:
            assert_never(destination)
