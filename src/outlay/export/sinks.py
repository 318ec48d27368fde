"""Where readings go: one small protocol, and the destinations that a monitor can be given.

A destination is a value that can be sent to another process, which opens it. Other packages bring
sinks of their own: an entry point of the group ``outlay.sinks`` leads to a function that is called
with the options of a ``PluginSink``, as keywords, and returns a ``Sink``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.export.gcp import GCPOptions
from outlay.goodput.readings import Reading


class Sink(Protocol):
    """Takes readings, in order. Anything it raises means that the reading is lost."""

    def write(self, reading: Reading) -> None:
        """Put a reading where it belongs; when the call returns it is there."""

    def close(self) -> None:
        """Let go of files and connections."""


class LentSink:
    """A sink that belongs to somebody else: written to by one thread at a time, never closed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()

    def write(self, reading: Reading) -> None:
        """Put a reading where it belongs."""
        with self._lock:
            self._sink.write(reading)

    def close(self) -> None:
        """Leave it open: other uploaders may write to it, and so may its owner."""

    def opened(self) -> Sink:
        """Return the sink, which its owner has opened."""
        return self


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


class PluginSink(msgspec.Struct, frozen=True, tag=True):
    """A sink that another package announces under a name, made with the options."""

    name: str
    options: dict[str, str] = {}


Destination = TensorBoard | CloudMonitoring | CsvFile | JsonLinesFile | PluginSink


def destination_name(destination: Destination) -> str:
    """Return what a destination is called when something is said about it."""
    match destination:
        case TensorBoard():
            return f"TensorBoard in {destination.logdir}"
        case CloudMonitoring():
            return "Google Cloud Monitoring"
        case CsvFile() | JsonLinesFile():
            return destination.path
        case PluginSink():
            return destination.name  # Without its options: a password may be among them.
        case _:
            assert_never(destination)


def open_sink(destination: Destination) -> Sink:
    """Return the sink of a destination; libraries that it needs are loaded now.

    Raises:
        MissingExtra: Such a library is not installed.
        InvalidValue: No package announces a sink of that name.
        BrokenPlugin: The package that does cannot be loaded.
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
        case PluginSink(name, options):
            return _announced(name, options)
        case _:
            assert_never(destination)


def _announced(name: str, options: dict[str, str]) -> Sink:
    make = plugins.load(plugins.SINKS, name)
    if make is None:
        known = plugins.names(plugins.SINKS)
        raise InvalidValue("sink", name, choices(known) if known else "a package that announces it")
    sink: Sink = make(**options)
    return sink
