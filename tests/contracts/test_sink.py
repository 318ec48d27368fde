"""What every sink must do, whatever is behind it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from google_stand_ins import Monitoring, monitoring_on_loopback
from outlay.errors import MissingExtra
from outlay.export.gcp import GCPOptions
from outlay.export.sinks import (
    CloudMonitoring,
    CsvFile,
    Destination,
    JsonLinesFile,
    Sink,
    TensorBoard,
    open_sink,
)
from readings import deviation, goodput

Points = list[tuple[int, float]]


@dataclass
class Place:
    """A destination, and what its reader finds under a name: steps and values."""

    destination: Destination
    found: Callable[[str], Points]

    def open(self) -> Sink:
        return open_sink(self.destination)


def tensorboard(directory: Path) -> Place:
    def found(name: str) -> Points:
        events = EventAccumulator(str(directory))
        events.Reload()
        if name not in events.Tags()["scalars"]:
            return []
        return [(event.step, event.value) for event in events.Scalars(name)]

    return Place(TensorBoard(str(directory)), found)


def csv_file(directory: Path) -> Place:
    path = directory / "below" / "goodput.csv"

    def found(name: str) -> Points:
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        return [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == name]

    return Place(CsvFile(str(path)), found)


def json_lines(directory: Path) -> Place:
    path = directory / "below" / "goodput.jsonl"

    def found(name: str) -> Points:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [(row["step"], row["value"]) for row in rows if row["name"] == name]

    return Place(JsonLinesFile(str(path)), found)


@pytest.fixture(params=[tensorboard, csv_file, json_lines], ids=lambda make: make.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    return make(tmp_path)


def write(place: Place, *readings: object) -> None:
    sink = place.open()
    for reading in readings:
        sink.write(reading)  # type: ignore[arg-type]
    sink.close()


def test_goodput_is_found_under_its_name_at_its_step(place: Place) -> None:
    write(place, goodput(3, 50.0), goodput(9, 75.0))
    assert place.found("goodput/goodput") == [(3, 50), (9, 75)]


def test_badput_is_found_under_its_type(place: Place) -> None:
    write(place, goodput(3))
    assert place.found("badput/tpu_initialization") == [(3, 10)]


def test_a_custom_event_is_found_below_its_type(place: Place) -> None:
    write(place, goodput(3))
    assert place.found("badput/custom_badput_events/eval") == [(3, 15)]


def test_a_reading_is_there_before_the_sink_is_closed(place: Place) -> None:
    sink = place.open()
    sink.write(goodput(3))
    found = place.found("goodput/goodput")
    sink.close()
    assert found == [(3, 75)]


def test_every_step_has_its_deviation(place: Place) -> None:
    write(place, deviation(0, 0.25, 0.5), deviation(2, 0.125))
    assert place.found("step_deviation") == [(0, 0.25), (1, 0.5), (2, 0.125)]


def test_a_step_is_written_once(place: Place) -> None:
    write(place, deviation(0, 0.25, 0.5), deviation(0, 0.5, 0.5, 0.125))
    assert place.found("step_deviation") == [(0, 0.25), (1, 0.5), (2, 0.125)]


def test_a_step_is_written_once_over_restarts(place: Place) -> None:
    write(place, deviation(0, 0.25, 0.5))
    write(place, deviation(0, 0.5, 0.5, 0.125))
    assert place.found("step_deviation") == [(0, 0.25), (1, 0.5), (2, 0.125)]


def test_nothing_new_is_nothing_written(place: Place) -> None:
    write(place, deviation(0, 0.25), deviation(1))
    assert place.found("step_deviation") == [(0, 0.25)]


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with monitoring_on_loopback(monkeypatch) as service:
        yield service


def test_the_cloud_is_a_sink_like_any_other(monitoring: Monitoring) -> None:
    options = GCPOptions("p", "l")
    sink = open_sink(CloudMonitoring("job", options))
    sink.write(goodput(3))
    assert monitoring.value("goodput_time") == 750
    sink.write(deviation(4, 0.5))
    assert monitoring.value("step_time_deviation") == 0.25
    sink.close()


@pytest.mark.parametrize(
    ("destination", "library", "extra"),
    [
        (TensorBoard("tb"), "tensorboard.compat.proto.event_pb2", "tensorboard"),
        (CloudMonitoring("job", GCPOptions("p", "l")), "google.cloud", "gcp"),
    ],
)
def test_a_missing_library_is_named(
    destination: Destination, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"outlay\[{extra}\]"):
        open_sink(destination)


def test_a_torn_line_and_strange_lines_do_not_stop_a_file(tmp_path: Path) -> None:
    place = json_lines(tmp_path)
    write(place, deviation(0, 0.25))
    path = tmp_path / "below" / "goodput.jsonl"
    path.write_bytes(path.read_bytes() + b'{"other": 1}\n')
    write(place, deviation(0, 0.25, 0.5))
    assert path.read_text().count("step_deviation") == 2
