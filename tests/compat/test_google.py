"""Google Cloud on loopback: series and entries over real gRPC, metadata over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from goodput_log import START_S, Job, at
from google_stand_ins import (
    REJECTED,
    Logging,
    Monitoring,
    logging_on_loopback,
    monitoring_on_loopback,
    serve_metadata,
)
from outlay.clock import ManualClock
from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator
from outlay.compat.ml_goodput_measurement.cloud import (
    CloudLogger,
    GCPOptions,
    accelerator_type,
    completed,
    metadata,
    project_id,
)
from outlay.compat.ml_goodput_measurement.goodput_utils import BadputParts, BadputType
from outlay.compat.ml_goodput_measurement.recorder import GoodputRecorder
from outlay.compat.ml_goodput_measurement.uploads.cloud_monitoring import CloudMonitoringSink
from outlay.compat.ml_goodput_measurement.uploads.readings import (
    DeviationReading,
    GoodputReading,
    WindowReading,
)
from outlay.errors import InvalidValue
from outlay.goodput.timeline import SliceEfficiency

T_NS = START_S * 10**9 + 5
OPTIONS = GCPOptions("my-project", "us-central1-a", "3", "TPU-v5p", "my-cluster")
WORKLOAD = {"location": "us-central1-a", "workload_id": "bert", "replica_id": "3"}
PARTS: BadputParts = {
    BadputType.TPU_INITIALIZATION: 10.0,
    BadputType.DATA_LOADING_ASYNC: 4.0,
    BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 15.0},
}
READING = GoodputReading(
    t_ns=T_NS,
    goodput_percent=75.0,
    badput_percent=PARTS,
    goodput_s=750.0,
    badput_s=PARTS,
    elapsed_s=1000.0,
    last_step=41,
    disruptions=2,
    ideal_step_s=1.5,
    slices=SliceEfficiency(goodput=0.5, stepping=0.5, available=0.75, known_ns=1),
)


@pytest.fixture(autouse=True)
def not_on_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a metadata service."""
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    with monitoring_on_loopback(monkeypatch) as service:
        yield service


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logging]:
    with logging_on_loopback(monkeypatch) as service:
        yield service


def upload(reading: GoodputReading | WindowReading | DeviationReading) -> None:
    sink = CloudMonitoringSink("bert", OPTIONS)
    sink.write(reading)
    sink.close()


# Cloud Monitoring


def test_a_job_has_the_series_of_the_platform(monitoring: Monitoring) -> None:
    upload(READING)
    about = {"accelerator_type": "TPU-v5p", "cluster_name": "my-cluster"}
    cumulative = {**about, "window_type": "cumulative"}
    whole = {**about, "window_type": "CUMULATIVE", "rolling_window_size": "0"}
    assert [
        (series.metric.type.removeprefix("compute.googleapis.com/workload/"),
         dict(series.metric.labels))
        for series in monitoring.series()
    ] == [
        ("goodput_time", {**about, "goodput_source": "TOTAL"}),
        ("badput_time", {**about, "badput_source": "TPU_INITIALIZATION"}),
        ("badput_time", {**about, "badput_source": "CUSTOM_BADPUT_EVENTS.EVAL"}),
        ("disruptions", cumulative),
        ("max_productive_steps", about),
        ("total_elapsed_time", cumulative),
        ("performance", {}),
        ("stepping_slice_efficiency", whole),
        ("available_slice_efficiency", whole),
    ]  # fmt: skip


def test_a_point_has_its_value_its_instant_and_its_workload(monitoring: Monitoring) -> None:
    upload(READING)
    (request,) = monitoring.requests
    series = request.time_series[0]
    assert request.name == "projects/my-project"
    assert series.points[0].value.double_value == 750.0
    assert series.points[0].interval.end_time.timestamp() == pytest.approx(T_NS / 1e9)
    assert series.resource.type == "compute.googleapis.com/Workload"
    assert dict(series.resource.labels) == WORKLOAD


def test_counts_are_whole_numbers_to_the_service(monitoring: Monitoring) -> None:
    upload(READING)
    kinds = {
        series.metric.type.rpartition("/")[2]: series.points[0].value._pb.WhichOneof("value")
        for series in monitoring.series()
    }
    assert {name for name, kind in kinds.items() if kind == "int64_value"} == {
        "disruptions",
        "max_productive_steps",
    }


def test_a_window_is_uploaded_in_percent_with_its_size(monitoring: Monitoring) -> None:
    upload(
        WindowReading(
            t_ns=T_NS, window_s=43200, goodput_percent=60.0, badput_percent=PARTS, last_step=3
        )
    )
    assert monitoring.value("interval_goodput", rolling_window_size="43200") == 60
    assert monitoring.value("interval_badput", badput_source="TPU_INITIALIZATION") == 10


def test_step_deviation_is_one_number(monitoring: Monitoring) -> None:
    upload(DeviationReading(t_ns=T_NS, ideal_step_s=1.5, deviations_s={1: 0.5}, spike_s=0.25))
    assert monitoring.value("step_time_deviation") == 0.25
    assert len(monitoring.series()) == 1


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL], ids=str
)
def test_an_error_of_the_service_is_raised_at_once(
    code: grpc.StatusCode, monitoring: Monitoring
) -> None:
    monitoring.fault.status = code
    with pytest.raises(Exception, match=REJECTED):
        upload(READING)
    assert monitoring.requests == []


# Metadata of this machine


MACHINE = {
    "project/project-id": "metadata-project",
    "instance/zone": "projects/123/zones/us-east5-b",
    "instance/machine-type": "projects/123/machineTypes/a3-highgpu-8g",
    "instance/attributes/cluster-name": "metadata-cluster",
}


def test_missing_options_come_from_the_metadata_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_metadata(MACHINE) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert completed(GCPOptions(replica_id="7")) == GCPOptions(
            "metadata-project", "us-east5-b", "7", "NVIDIA-H100", "metadata-cluster"
        )


def test_stated_options_are_not_queried() -> None:
    assert completed(OPTIONS) == OPTIONS


def test_outside_google_cloud_the_project_must_be_stated() -> None:
    with pytest.raises(
        InvalidValue, match="project_id: got nothing; expected GCPOptions to name it"
    ):
        completed(GCPOptions())


def test_an_unknown_machine_type_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_metadata({"instance/machine-type": "projects/1/machineTypes/e2-micro"}) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert accelerator_type() == "UNKNOWN"


def test_the_project_is_the_environments_before_the_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key.json").write_text('{"type": "service_account", "project_id": "of-the-key"}')
    with serve_metadata(MACHINE) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert project_id() == "metadata-project"
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        assert project_id() == "of-the-key"
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "named")
        assert project_id() == "named"
        assert completed(GCPOptions()).project_id == "named"


def test_a_log_in_the_cloud_is_the_environments_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "named")
    with logging_on_loopback(monkeypatch):
        assert CloudLogger("job", "log").project_id == "named"


def test_credentials_that_cannot_be_read_leave_the_machines_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with serve_metadata(MACHINE) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert project_id() == "metadata-project"
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caplog.text


def test_a_busy_metadata_service_is_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_metadata(MACHINE, failures=[503, 429]) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert metadata("project", "project-id") == "metadata-project"


# Cloud Logging


def logger(name: str = "bert", **options: float) -> CloudLogger:
    return CloudLogger(name, "goodput_bert", project_id="my-project", **options)  # type: ignore[arg-type]


def test_a_calculator_reads_what_a_recorder_wrote_to_cloud_logging(log: Logging) -> None:
    recorder = GoodputRecorder("bert", "goodput_bert", True, logger())
    recorder.record_job_start_time(at(0))
    for step in range(10):
        recorder.record_step_start_time(step, at(step))
    recorder.record_job_end_time(at(10))
    recorder.flush()
    assert len(log.entries) == 12
    clock = ManualClock((START_S + 10) * 10**9)
    calculator = GoodputCalculator("bert", "goodput_bert", logger(), clock=clock)
    clock.step_wall(10**18)  # Entries are dated when they are written, which is now.
    answer = calculator.get_job_goodput()
    assert (answer.goodput, answer.last_step) == (100, 9)
    assert calculator.findings == ()


@pytest.mark.usefixtures("log")
def test_a_second_query_reads_only_what_is_new() -> None:
    writer = logger()
    for entry in Job("bert").steps(0, 7, at=0).payloads:
        writer.write_cloud_logging_entry(entry)
    writer.flush()
    entries, last = logger().read_cloud_logging_entries()
    assert [entry["step_count"] for entry in entries] == list(range(7))
    writer.write_cloud_logging_entry(Job("bert").step(7, 7).payloads[0])
    writer.flush()
    entries, last = logger().read_cloud_logging_entries(last_entry_info=last)
    assert [entry["step_count"] for entry in entries] == [7]
    assert logger().read_cloud_logging_entries(last_entry_info=last) == ([], last)


@pytest.mark.usefixtures("log")
def test_entries_of_other_jobs_are_neither_written_nor_read() -> None:
    mine, other = logger(), logger('ber"t')
    for each in (mine, other):
        each.write_cloud_logging_entry({"job_name": "bert", "job_start_time": 1.0})
        each.write_cloud_logging_entry({"job_name": 'ber"t', "job_start_time": 2.0})
        each.write_cloud_logging_entry(None)
        each.flush()
    assert [entry["job_start_time"] for entry in mine.read_cloud_logging_entries()[0]] == [1.0]
    assert [entry["job_start_time"] for entry in other.read_cloud_logging_entries()[0]] == [2.0]


@pytest.mark.usefixtures("log")
def test_two_loggers_of_one_log_send_an_entry_once() -> None:
    first, second = logger(), logger()
    second.write_cloud_logging_entry({"job_name": "bert", "job_start_time": 1.0})
    first.write_cloud_logging_entry({"job_name": "bert", "job_end_time": 2.0})
    for each in (first, second):
        each.flush()
    entries, _ = first.read_cloud_logging_entries()
    names = ("job_start_time", "job_end_time")
    assert sorted(entry[name] for entry in entries for name in names if name in entry) == [1.0, 2.0]


@pytest.mark.usefixtures("log")
def test_an_interval_bounds_what_is_read() -> None:
    clock = ManualClock()
    writer = CloudLogger("bert", "log", project_id="p", clock=clock)
    for second in range(5):
        writer.write_cloud_logging_entry({"job_name": "bert", "step_count": second})
        clock.advance(10**9)
    writer.flush()
    begin = datetime.fromtimestamp(1_700_000_000, tz=UTC)
    inside, _ = writer.read_cloud_logging_entries(begin, begin + timedelta(seconds=2))
    assert [entry["step_count"] for entry in inside] == [1, 2]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("retention", "found"),
    [(None, [0, 8, 29]), (timedelta(days=7), [29]), (timedelta(hours=1), [])],
)
def test_a_log_is_read_thirty_days_back_by_default(
    retention: timedelta | None, found: list[int]
) -> None:
    day_ns = 24 * 3600 * 10**9
    clock = ManualClock()
    writer = CloudLogger("bert", "log", project_id="p", clock=clock)
    for days in (0, 8, 21):
        clock.advance(days * day_ns)
        today = (clock.wall_ns() - ManualClock().wall_ns()) // day_ns
        writer.write_cloud_logging_entry({"job_name": "bert", "step_count": today})
    writer.flush()
    clock.advance(day_ns // 2)
    reader = CloudLogger("bert", "log", retention, project_id="p", clock=clock)
    entries, _ = reader.read_cloud_logging_entries()
    assert [entry["step_count"] for entry in entries] == found


def test_a_batch_that_is_rejected_once_is_sent_again(log: Logging) -> None:
    log.fault.status, log.fault.times = grpc.StatusCode.UNAVAILABLE, 1
    writer = logger()
    writer.write_cloud_logging_entry({"job_name": "bert", "step_count": 1})
    writer.flush()
    assert len(log.entries) == 1
    assert writer.outcome.lost == 0


def test_a_service_that_keeps_rejecting_only_loses_entries(log: Logging) -> None:
    log.fault.status = grpc.StatusCode.PERMISSION_DENIED
    writer = logger()
    writer.write_cloud_logging_entry({"job_name": "bert", "step_count": 1})
    writer.flush()
    assert writer.outcome.lost == 1
    assert "PermissionDenied" in writer.outcome.trouble


def test_flushing_a_service_that_hangs_ends_in_time(log: Logging) -> None:
    log.fault.hangs = True
    writer = logger(background_grace_period_s=0.05)
    writer.write_cloud_logging_entry({"job_name": "bert", "step_count": 1})
    writer.flush()
    writer._at_exit()
    assert writer.outcome.lost == 1


def test_without_a_project_there_is_no_log() -> None:
    with pytest.raises(InvalidValue, match="project_id: got nothing; expected project_id= or GOOG"):
        CloudLogger("bert", "log")
