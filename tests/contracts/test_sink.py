"""The contract of every sink."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from google_stand_ins import Monitoring, monitoring_on_loopback
from ledgers import Segment, dollars
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.compat.ml_goodput_measurement.uploads.cloud_monitoring import CloudMonitoring
from outlay.compat.ml_goodput_measurement.uploads.uploader import JobDestination, open_destination
from outlay.errors import MissingExtra
from outlay.export.sinks import (
    CsvFile,
    JsonLinesFile,
    MlflowRun,
    OtlpEndpoint,
    Sink,
    TensorBoard,
)
from outlay.export.tracker_sinks import WandbSink
from outlay.runs.reading import RunReader
from readings import deviation, goodput

Points = list[tuple[int, float]]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")  # Of SQLAlchemy.


@dataclass
class Place:
    """How to open a sink, and to read back the steps and values under a name."""

    open: Callable[[], Sink]
    found: Callable[[str], Points]


def at(destination: JobDestination, found: Callable[[str], Points]) -> Place:
    return Place(lambda: open_destination(destination), found)


def tensorboard(directory: Path) -> Place:
    def found(name: str) -> Points:
        events = EventAccumulator(str(directory))
        events.Reload()
        if name not in events.Tags()["scalars"]:
            return []
        return [(event.step, event.value) for event in events.Scalars(name)]

    return at(TensorBoard(str(directory)), found)


def csv_file(directory: Path) -> Place:
    path = directory / "below" / "goodput.csv"

    def found(name: str) -> Points:
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        return [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == name]

    return at(CsvFile(str(path)), found)


def json_lines(directory: Path) -> Place:
    path = directory / "below" / "goodput.jsonl"

    def found(name: str) -> Points:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [(row["step"], row["value"]) for row in rows if row["name"] == name]

    return at(JsonLinesFile(str(path)), found)


class WandbRows:
    """The used methods of a W&B run; a real one is read back in test_integrations_trackers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.axes: dict[str, str | None] = {}

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(self, data: dict[str, Any], *, commit: bool) -> None:
        assert commit
        self.rows.append(data)
        self.summary |= data


def wandb_run(_: Path) -> Place:
    run = WandbRows()

    def found(name: str) -> Points:
        return [(row["outlay/step"], row[name]) for row in run.rows if name in row]

    return Place(lambda: WandbSink(run, commit=True), found)


def mlflow_run(_: Path, uri: str) -> Place:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("outlay")
    assert experiment is not None
    run_id = client.create_run(experiment.experiment_id).info.run_id

    def found(name: str) -> Points:
        history = client.get_metric_history(run_id, name)
        return sorted((point.step, point.value) for point in history)

    return at(MlflowRun(run_id, uri), found)


MAKERS: dict[str, Callable[..., Place]] = {
    "tensorboard": tensorboard,
    "csv_file": csv_file,
    "json_lines": json_lines,
    "wandb": wandb_run,
    "mlflow": mlflow_run,
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group("mlflow") if name == "mlflow" else ())
        for name in MAKERS
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    more = [request.getfixturevalue("mlflow_uri")] if request.param == "mlflow" else []
    return MAKERS[request.param](tmp_path, *more)


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


def test_a_reading_is_stored_before_the_sink_is_closed(place: Place) -> None:
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


def test_an_empty_reading_writes_nothing(place: Place) -> None:
    write(place, deviation(0, 0.25), deviation(1))
    assert place.found("step_deviation") == [(0, 0.25)]


def test_a_runs_numbers_are_found_under_their_names(place: Place, tmp_path: Path) -> None:
    segment = Segment(about={"price": dollars(3600), "run_id": "r"}).step(2).step(2).end()
    segment.write(tmp_path / "run")
    write(place, RunReader(tmp_path / "run").read(segment.now_ns))
    assert place.found("outlay/cost_usd") == [(1, 4.0)]
    assert place.found("outlay/cost_usd/step") == place.found("outlay/cost_usd")
    assert place.found("outlay/goodput") == [(1, 1.0)]


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with monitoring_on_loopback(monkeypatch) as service:
        yield service


def test_cloud_monitoring_is_a_sink(monitoring: Monitoring) -> None:
    options = GCPOptions("p", "l")
    sink = open_destination(CloudMonitoring("job", options))
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
        (MlflowRun("run", "sqlite://"), "mlflow.entities", "mlflow"),
        (OtlpEndpoint("http://127.0.0.1:9"), "opentelemetry.sdk.metrics", "otlp"),
    ],
)
def test_a_missing_library_is_named(
    destination: JobDestination, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"outlay\[{extra}\]"):
        open_destination(destination)


def test_torn_and_foreign_lines_do_not_break_a_file(tmp_path: Path) -> None:
    place = json_lines(tmp_path)
    write(place, deviation(0, 0.25))
    path = tmp_path / "below" / "goodput.jsonl"
    path.write_bytes(path.read_bytes() + b'{"other": 1}\n')
    write(place, deviation(0, 0.25, 0.5))
    assert path.read_text().count("step_deviation") == 2
