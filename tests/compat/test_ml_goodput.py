"""The drop-in for ml-goodput-measurement: its modules, names, numbers and payload keys."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from goodput_log import START_S, Job, MemoryLog, at
from google_stand_ins import (
    REJECTED,
    Logging,
    Monitoring,
    logging_on_loopback,
    monitoring_on_loopback,
    serve_metadata,
)
from outlay.clock import ManualClock
from outlay.compat import ml_goodput_measurement
from outlay.compat.ml_goodput_measurement import (
    checkpoint_badput_calculator,
    exclusion_utils,
    gcp_metrics,
    goodput,
    goodput_elastic,
    goodput_utils,
)

PACKAGE = "outlay.compat.ml_goodput_measurement"
MODULES = {
    "checkpoint_badput_calculator": "CheckpointBadputCalculator CheckpointLoggerOptions",
    "exclusion_utils": "normalize_intervals get_exclusion_overlap",
    "gcp_metrics": "GCPMetrics ValueType",
    "goodput": "GoodputRecorder GoodputCalculator BadputType _CloudLogger",
    "goodput_cache": "GoodputCache",
    "goodput_elastic": "ElasticGoodputRecorder ElasticGoodputCalculator",
    "goodput_exclusion": "GoodputExclusion",
    "goodput_utils": "BadputType GoodputType GCPOptions GoodputInfo StepInfo MetricType"
    " IntervalMetricType MonitoringWindowType",
    "monitoring": "GoodputMonitor",
    "monitoring_elastic": "ElasticGoodputMonitor",
}


@pytest.mark.parametrize(("module", "names"), MODULES.items())
@pytest.mark.parametrize("below", ["", "src."])
def test_a_module_and_its_names_are_where_users_import_them(
    module: str, names: str, below: str
) -> None:
    importlib.import_module(f"{PACKAGE}.src")
    found = importlib.import_module(f"{PACKAGE}.{below}{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_a_class_is_itself_whichever_way_it_is_imported() -> None:
    below = importlib.import_module(f"{PACKAGE}.src.goodput")
    assert below.GoodputCalculator is goodput.GoodputCalculator


def test_badput_types_have_their_numbers() -> None:
    assert {kind.name: kind.value for kind in goodput_utils.BadputType} == {
        "TPU_INITIALIZATION": 1,
        "TRAINING_PREP": 2,
        "PROGRAM_STARTUP": 3,
        "DATA_LOADING_SYNC": 4,
        "DATA_LOADING_ASYNC": 5,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 6,
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 7,
        "WASTED_PROGRESS_FROM_DISRUPTION": 8,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 9,
        "CUSTOM_BADPUT_EVENTS": 10,
        "OTHER": 11,
        "ELASTIC_SLICE_DOWN": 12,
        "ELASTIC_SCALE_UP": 13,
        "ELASTIC_REINITIALIZATION": 14,
    }


PARAMETERS = {
    "goodput.GoodputRecorder": "job_name logger_name logging_enabled cloud_logger"
    " background_grace_period_s background_batch_size background_max_latency_s",
    "goodput.GoodputCalculator": "job_name logger_name cloud_logger using_pathways"
    " max_logs_retention_period gcs_path cache_dir",
    "goodput._CloudLogger": "job_name log_name max_logs_retention_period"
    " background_grace_period_s background_batch_size background_max_latency_s",
    "goodput_cache.GoodputCache": "job_name cache_dir gcs_path",
    "goodput_utils.GCPOptions": "project_id location replica_id acc_type cluster_name"
    " enable_gcp_goodput_metrics enable_gcp_step_deviation_metrics",
    "monitoring.GoodputMonitor": "job_name logger_name tensorboard_dir upload_interval"
    " monitoring_enabled pathway_enabled include_badput_breakdown include_step_deviation"
    " configured_ideal_step_time step_deviation_interval_seconds gcp_options skip_final_flush"
    " final_flush_timeout_seconds gcs_sync_interval_seconds cache_dir max_logs_retention_period",
    "monitoring_elastic.ElasticGoodputMonitor": "job_name logger_name tensorboard_dir"
    " upload_interval monitoring_enabled include_badput_breakdown include_step_deviation"
    " include_slice_efficiency configured_ideal_step_time step_deviation_interval_seconds"
    " gcp_options skip_final_flush final_flush_timeout_seconds gcs_sync_interval_seconds"
    " cache_dir max_logs_retention_period",
    "checkpoint_badput_calculator.CheckpointLoggerOptions": "job_name logger_name client"
    " use_goodput_logger",
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_arguments_come_in_the_documented_order(name: str, parameters: str) -> None:
    module, _, attribute = name.partition(".")
    target = getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute)
    assert list(inspect.signature(target).parameters)[: len(parameters.split())] == (
        parameters.split()
    )


def sources() -> list[Path]:
    assert ml_goodput_measurement.__file__ is not None
    return sorted(Path(ml_goodput_measurement.__file__).parent.rglob("*.py"))


def test_the_drop_in_has_its_modules() -> None:
    assert set(MODULES) <= {path.stem for path in sources()}


FORMER = [
    ("outlay.export.gcp", "GCPOptions"),
    ("outlay.export.monitor", "GoodputMonitor"),
    ("outlay.goodput.readings", "GoodputReading"),
    ("outlay.goodput.readings", "WindowReading"),
    ("outlay.goodput.readings", "DeviationReading"),
]


@pytest.mark.parametrize(("module", "name"), FORMER)
def test_a_documented_name_is_found_where_it_was(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name).__module__.startswith(PACKAGE)


# Modules that only rename or wrap add no arithmetic; import contracts keep the others from phases


WRAPPERS = {"__init__", "goodput", "goodput_elastic", "goodput_exclusion", "monitoring_elastic"}
COMPUTES = {"abs", "divmod", "len", "max", "min", "pow", "round", "sum"}
LIBRARIES = {"math", "numpy", "statistics", "decimal", "fractions", "operator", "functools"}


def arithmetic(source: str) -> list[str]:
    """Return what in a module computes a number; ``|`` joins types."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=op) | ast.AugAssign(op=op) if not isinstance(op, ast.BitOr):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert()):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
            case ast.Call(func=ast.Name(id=name)) if name in COMPUTES:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
            case ast.Import(names=names):
                found += [name.name for name in names if name.name in LIBRARIES]
            case ast.ImportFrom(module=module) if module in LIBRARIES:
                found.append(module)
    return found


@pytest.mark.parametrize(
    "path", [path for path in sources() if path.stem in WRAPPERS], ids=lambda path: path.name
)
def test_a_wrapper_computes_nothing(path: Path) -> None:
    assert arithmetic(path.read_text()) == []


@pytest.mark.parametrize(
    "text", ["a + b", "a -= 1", "-a", "sum(a)", "import math", "from statistics import mean"]
)
def test_arithmetic_would_be_noticed(text: str) -> None:
    assert arithmetic(text)


# goodput


def test_a_gcs_path_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(Job().start(0).steps(0, 10, at=0).end(10).payloads)
    calculator = goodput.GoodputCalculator("job", "log", log, gcs_path="gs://bucket/dir")
    assert calculator.get_job_goodput().goodput == 100
    assert "not in gs://bucket/dir" in caplog.text


def test_a_logger_needs_only_the_two_documented_methods() -> None:
    class Log:
        def __init__(self) -> None:
            self.entries: list[dict[str, Any]] = []

        def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
            self.entries.append(entry)

        def read_cloud_logging_entries(self, *_: Any, **__: Any) -> Any:
            return self.entries, (None, None)

    log: Any = Log()
    recorder = goodput.GoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    for step in range(5):
        recorder.record_step_start_time(step, at(step))
    recorder.record_job_end_time(at(5))
    recorder.flush()
    assert goodput.GoodputCalculator("job", "log", log).get_job_goodput().goodput == 100


# goodput_utils


def test_a_percentile_is_interpolated() -> None:
    assert goodput_utils.compute_percentile([4.0, 1.0, 3.0, 2.0], 90) == pytest.approx(3.7)
    assert goodput_utils.compute_percentile([], 90) == 0


def test_few_deviations_are_averaged() -> None:
    assert goodput_utils.compute_step_deviation_from_baseline({0: -1.0, 1: 3.0}) == 2


def test_a_spike_is_measured_against_the_baseline() -> None:
    deviations = dict(enumerate([1.0] * 1000 + [1.0] * 80 + [5.0] * 20))
    compute = goodput_utils.compute_step_deviation_from_baseline
    window = goodput_utils.MonitoringWindowType.INTERVAL
    assert compute(deviations) == 4
    assert compute(deviations, window) == 5
    assert compute({step: deviations[step] for step in range(500, 1100)}) == 5


def test_the_ideal_step_time_leaves_anomalies_out_and_takes_short_steps() -> None:
    assert goodput_utils.compute_ideal_step_time([0.5, 0.5, 0.5, 60.0]) == 0.5
    assert goodput_utils.compute_ideal_step_time([]) is None


def test_anomalous_steps_are_separated() -> None:
    times = [1.0, 1.25, 0.75, 1.0, 60.0]
    split = goodput_utils.get_anomalous_and_normal_step_times(times)
    assert split == ([60.0], [1.0, 1.25, 0.75, 1.0])
    assert goodput_utils.get_extra_time_from_anomalous_steps(times) == 59


def test_an_entry_s_first_time_is_its_timestamp() -> None:
    entry = {"job_name": "job", "step_count": 3, "step_start_time": START_S + 3.0}
    assert goodput_utils.get_timestamp_from_log_entry(entry) == at(3)
    assert goodput_utils.get_timestamp_from_log_entry({"step_count": 3}) is None


def test_metadata_comes_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"project/project-id": "p", "instance/zone": "projects/1/zones/z-a"}
    with serve_metadata(values) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert goodput_utils.get_gcp_project_id() == "p"
        assert goodput_utils.get_node_zone() == "z-a"
        assert goodput_utils.get_accelerator_type() == "UNKNOWN"
        assert goodput_utils.get_cluster_name() is None


# Exclusions


def test_intervals_are_sorted_and_merged_and_invalid_ones_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    elsewhere = timezone(timedelta(hours=1))
    found = exclusion_utils.normalize_intervals(
        [
            (at(20), at(30)),
            (at(0), at(10)),
            (at(10), at(12)),
            (at(50), at(40)),
            (at(60).astimezone(elsewhere), at(70)),
        ]
    )
    assert found == [(START_S, START_S + 12), (START_S + 20, START_S + 30)]
    assert caplog.text.count("is ignored") == 2


def test_overlap_is_what_the_intervals_cover() -> None:
    assert exclusion_utils.get_exclusion_overlap(5, 25, [(0, 10), (20, 30)]) == 10
    assert exclusion_utils.get_exclusion_overlap(0, 10, [(2, 8), (4, 9)]) == 7
    assert exclusion_utils.get_exclusion_overlap(0, 10, []) == 0


# Elastic jobs


def elastic_log() -> MemoryLog:
    """10 s of steps with 4 of 4 slices, a wait of 5 s, a start anew of 3 s, 10 s with 2 of 4."""
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    recorder.record_elastic_slice_counts(4, 4, 4, at(0))
    for step in range(11):
        recorder.record_step_start_time(step, at(step))
    recorder.record_elastic_wait_start_time("slice_down", at(10))
    recorder.record_elastic_wait_end_time("slice_down", at(15))
    recorder.record_elastic_slice_counts(2, 4, 3, at(15))
    recorder.record_elastic_reinit_start_time(at(15))
    recorder.record_elastic_reinit_end_time(at(18))
    for step in range(11, 20):
        recorder.record_step_start_time(step, at(8 + step))
    recorder.record_job_end_time(at(28))
    return log


def test_an_elastic_recorder_writes_the_documented_payloads() -> None:
    keys = [tuple(entry) for entry in elastic_log().entries]
    assert ("job_name", "active_slices", "total_slices", "available_slices",
            "elastic_slice_counts_timestamp") in keys  # fmt: skip
    assert ("job_name", "elastic_wait_event_type", "elastic_wait_start_time") in keys
    assert ("job_name", "elastic_wait_event_type", "elastic_wait_end_time") in keys
    assert ("job_name", "elastic_reinit_start_time") in keys
    assert ("job_name", "elastic_reinit_end_time") in keys


def test_waits_and_reinitialisation_have_their_own_badput_types() -> None:
    clock = ManualClock((START_S + 28) * 10**9)
    calculator = goodput_elastic.ElasticGoodputCalculator("job", "log", elastic_log(), clock=clock)
    badput = calculator.get_job_goodput_details()["badput_time"]
    assert badput[goodput.BadputType.ELASTIC_SLICE_DOWN] == 5
    assert badput[goodput.BadputType.ELASTIC_REINITIALIZATION] == 3


def test_what_is_initialised_within_a_reinitialisation_is_part_of_that() -> None:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    for step in range(11):
        recorder.record_step_start_time(step, at(step))
    recorder.record_elastic_reinit_start_time(at(10))
    recorder.record_tpu_init_start_time(at(12))
    recorder.record_tpu_init_end_time(at(17))
    recorder.record_training_preparation_start_time(at(20))
    recorder.record_elastic_reinit_end_time(at(30))
    recorder.record_training_preparation_end_time(at(32))
    recorder.record_step_start_time(11, at(32))
    recorder.record_job_end_time(at(33))
    clock = ManualClock((START_S + 33) * 10**9)
    calculator = goodput_elastic.ElasticGoodputCalculator("job", "log", log, clock=clock)
    badput = calculator.get_job_goodput_details()["badput_time"]
    assert badput[goodput.BadputType.ELASTIC_REINITIALIZATION] == 20
    assert badput[goodput.BadputType.TPU_INITIALIZATION] == 0
    assert badput[goodput.BadputType.TRAINING_PREP] == 2


def test_what_a_reinitialisation_contained_may_be_told_after_its_end() -> None:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    recorder.record_elastic_reinit_start_time(at(10))
    recorder.record_elastic_reinit_end_time(at(30))
    recorder.record_tpu_init_start_time(at(12))
    recorder.record_tpu_init_end_time(at(17))
    recorder.record_training_preparation_start_time(at(20))
    recorder.record_training_preparation_end_time(at(32))
    recorder.record_step_start_time(0, at(32))
    recorder.record_job_end_time(at(40))
    clock = ManualClock((START_S + 40) * 10**9)
    calculator = goodput_elastic.ElasticGoodputCalculator("job", "log", log, clock=clock)
    badput = calculator.get_job_goodput_details()["badput_time"]
    assert badput[goodput.BadputType.ELASTIC_REINITIALIZATION] == 20
    assert badput[goodput.BadputType.TPU_INITIALIZATION] == 0
    assert badput[goodput.BadputType.TRAINING_PREP] == 2


def test_details_include_slice_efficiency() -> None:
    clock = ManualClock((START_S + 28) * 10**9)
    calculator = goodput_elastic.ElasticGoodputCalculator("job", "log", elastic_log(), clock=clock)
    details = calculator.get_job_goodput_details()
    assert details["stepping_slice_efficiency"] == pytest.approx((15 + 13 / 2) / 28)
    assert details["available_slice_efficiency"] == pytest.approx((15 + 13 * 3 / 4) / 28)
    window = calculator.get_interval_metric_details(at(20), at(28))
    assert window["stepping_slice_efficiency"] == 0.5


def test_details_of_a_job_that_is_not_elastic_have_no_slice_efficiency() -> None:
    log = MemoryLog(Job().start(0).steps(0, 5, at=0).end(5).payloads)
    details = goodput_elastic.ElasticGoodputCalculator("job", "log", log).get_job_goodput_details()
    assert "stepping_slice_efficiency" not in details


# Orbax


def save(step: int, directory: str, seconds: float | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"event_type": "save", "step": step, "directory": directory}
    if seconds is not None:
        entry["checkpoint_manager_blocking_duration_secs"] = seconds
        entry["checkpointer_blocking_duration_secs"] = str(seconds / 2)
    return entry


def checkpoints(*entries: dict[str, Any]) -> Any:
    options = checkpoint_badput_calculator.CheckpointLoggerOptions(use_goodput_logger=True)
    calculator = checkpoint_badput_calculator.CheckpointBadputCalculator(options)
    calculator.entries = list(entries)
    return calculator


def test_saves_are_averaged_over_hosts_and_summed_over_steps() -> None:
    calculator = checkpoints(
        save(1, "gs://b", 2.0), save(1, "gs://b", 4.0), save(1, "/local", 1.0), save(2, "gs://b", 5)
    )
    found = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    assert found.total_checkpoint_manager_blocking_time == 3 + 1 + 5
    assert found.average_checkpoint_manager_blocking_time == 3
    assert found.minimum_checkpoint_manager_blocking_time == 1
    assert found.maximum_checkpoint_manager_blocking_time == 5
    assert found.standard_deviation_checkpoint_manager_blocking_time == 2
    assert found.total_checkpointer_blocking_time == 4.5
    assert found.total_wait_for_prev_time == 0


@pytest.mark.parametrize(("kind", "total"), [("local", 1), ("persistent", 8)])
def test_local_and_persistent_saves_are_separated(kind: str, total: float) -> None:
    calculator = checkpoints(save(1, "gs://b", 3), save(1, "/local", 1), save(2, "gs://b", 5))
    found = calculator.calculate_save_operation_checkpoint_manager_blocking_time(kind)
    assert found.total_checkpoint_manager_blocking_time == total


def test_a_save_without_durations_is_tolerated() -> None:
    calculator = checkpoints(save(1, "gs://b", 2.0), save(2, "gs://b", None))
    found = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    assert found.total_checkpoint_manager_blocking_time == 2


def test_restores_are_summed_with_their_broadcast() -> None:
    restore = {"event_type": "restore", "step": 1, "checkpoint_manager_duration_secs": 4.0}
    emergency = {
        "event_type": "emergency_restore",
        "step": 2,
        "checkpoint_manager_duration_secs": 6.0,
        "broadcast_duration_secs": 1.5,
    }
    calculator = checkpoints(restore, emergency, save(1, "/local", 9.0))
    found = calculator.calculate_restore_operation_checkpoint_manager_blocking_time()
    assert found.total_checkpoint_manager_time == 10
    assert found.total_broadcast_time == found.average_broadcast_time == 1.5
    local = calculator.calculate_restore_operation_checkpoint_manager_blocking_time("local")
    assert local.total_checkpoint_manager_time == 6


def test_without_checkpoints_everything_is_zero() -> None:
    found = checkpoints().calculate_save_operation_checkpoint_manager_blocking_time()
    assert found == checkpoint_badput_calculator.SaveCheckpointManagerVerticalStepStats()


@pytest.fixture
def cloud_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logging]:
    metadata = serve_metadata({"project/project-id": "p"})
    with logging_on_loopback(monkeypatch) as service, metadata as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        yield service


@pytest.mark.usefixtures("cloud_log")
def test_checkpoints_are_read_from_cloud_logging() -> None:
    log = goodput._CloudLogger("checkpoint_job", "checkpoint_logger")
    for entry in (save(1, "gs://b", 2.0), {"job_start_time": 1.0}):
        log.write_cloud_logging_entry({"job_name": "checkpoint_job", **entry})
    log.flush()
    calculator = checkpoint_badput_calculator.CheckpointBadputCalculator()
    found = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    assert found.total_checkpoint_manager_blocking_time == 2
    assert len(calculator.entries) == 1


# gcp_metrics


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    with monitoring_on_loopback(monkeypatch) as service:
        yield service


def metric(name: str, value: object, kind: gcp_metrics.ValueType) -> dict[str, Any]:
    return {
        "metric_type": f"custom.googleapis.com/{name}",
        "value": value,
        "value_type": kind,
        "metric_labels": {"a": "b"},
        "resource_type": "global",
        "resource_labels": {"project_id": "p"},
    }


def test_metrics_of_ones_own_are_sent(cloud: Monitoring) -> None:
    sender = gcp_metrics.GCPMetrics("p")
    sender.send_metrics(
        [
            metric("loss", 0.5, gcp_metrics.ValueType.DOUBLE),
            {"metric_type": "half a metric"},
            metric("epoch", 3, gcp_metrics.ValueType.INT),
        ],
        context={"job": "bert"},
    )
    assert (cloud.value("loss", a="b"), cloud.value("epoch")) == (0.5, 3)


def test_a_series_ends_at_the_given_instant(cloud: Monitoring) -> None:
    sender = gcp_metrics.GCPMetrics("p")
    kind = gcp_metrics.ValueType.INT
    series = sender.create_time_series("m", 1, kind, {}, "global", {}, 1_700_000_000, 250_000_000)
    end = series.points[0].interval.end_time
    assert end == datetime.fromtimestamp(1_700_000_000.25, UTC)
    assert cloud.requests == []


def test_rejected_metrics_are_logged(cloud: Monitoring, caplog: pytest.LogCaptureFixture) -> None:
    cloud.fault.status = grpc.StatusCode.PERMISSION_DENIED
    kind = gcp_metrics.ValueType.DOUBLE
    gcp_metrics.GCPMetrics("p").send_metrics([metric("loss", math.pi, kind)])
    assert REJECTED in caplog.text
