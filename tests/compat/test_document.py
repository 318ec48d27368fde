"""Every example that ml-goodput-measurement prints in its document, on the drop-in.

Only the import line differs. What the examples take for granted (a configuration, JAX, a batch) is
set up before them; uploads go to a Google Cloud on loopback.
"""
# ruff: noqa: T201 - the document prints

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from google_stand_ins import Monitoring, monitoring_on_loopback, serve_metadata
from outlay.compat.ml_goodput_measurement import goodput, goodput_utils, monitoring
from waiting import PATIENCE_S

MACHINE = {
    "project/project-id": "metadata-project",
    "instance/zone": "projects/123/zones/us-east5-b",
    "instance/machine-type": "projects/123/machineTypes/ct5p-hightpu-4t",
}


class Config:
    run_name = "bert-base"
    steps = 6
    monitor_goodput = True
    goodput_upload_interval_seconds = 30
    tensorboard_dir = ""


class Jax:
    def process_index(self) -> int:
        return 0


jax = Jax()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config()
    config.tensorboard_dir = str(tmp_path / "tensorboard")
    return config


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    with monitoring_on_loopback(monkeypatch) as service, serve_metadata(MACHINE) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        yield service


def load_next_batch(data_iterator: object, example_batch: int, config: Config) -> int:
    del data_iterator
    return example_batch + config.steps


def train(config: Config) -> None:
    """Run the document's recorder, job times and training loop."""
    start_step, data_iterator = 0, iter(())
    goodput_logger_name = f"goodput_{config.run_name}"
    # fmt: off
    goodput_recorder = goodput.GoodputRecorder(job_name=config.run_name, logger_name=goodput_logger_name, logging_enabled=(jax.process_index() == 0))  # noqa: E501
    # fmt: on

    def train_loop(config: Config, state: object = None) -> object:
        example_batch = 0
        goodput_recorder.record_tpu_init_start_time()
        goodput_recorder.record_tpu_init_end_time()
        goodput_recorder.record_training_preparation_start_time()
        goodput_recorder.record_training_preparation_end_time()

        for step in np.arange(start_step, config.steps):
            goodput_recorder.record_data_loading_start_time()
            example_batch = load_next_batch(data_iterator, example_batch, config)
            goodput_recorder.record_data_loading_end_time()
            goodput_recorder.record_step_start_time(step)

        return state

    goodput_recorder.record_job_start_time(datetime.datetime.now())  # noqa: DTZ005, TID251
    train_loop(config)
    goodput_recorder.record_job_end_time(datetime.datetime.now())  # noqa: DTZ005, TID251


def calculator_of(config: Config) -> goodput.GoodputCalculator:
    goodput_logger_name = f"goodput_{config.run_name}"
    return goodput.GoodputCalculator(job_name=config.run_name, logger_name=goodput_logger_name)


def test_retrieving_goodput(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    train(config)
    goodput_calculator = calculator_of(config)
    total_goodput, _, _ = goodput_calculator.get_job_goodput()
    print(f"Total job goodput: {total_goodput:.2f}%")
    assert 0 < total_goodput <= 100
    assert capsys.readouterr().out == f"Total job goodput: {total_goodput:.2f}%\n"


def test_a_calculator_with_pathways(config: Config) -> None:
    train(config)
    goodput_logger_name = f"goodput_{config.run_name}"
    # fmt: off
    goodput_calculator = goodput.GoodputCalculator(job_name=config.run_name, logger_name=goodput_logger_name, using_pathways=True)  # noqa: E501
    # fmt: on
    assert goodput_calculator.get_job_goodput().last_step == 5


BREAKDOWN = """
goodput, badput_breakdown, last_step = goodput_calculator.get_job_goodput(include_badput_breakdown=True)
print(f"Last step recorded: {last_step}")
print(f"Goodput: {goodput:.2f}%")
print(f"Badput due to TPU initialization: {badput_breakdown[goodput.BadputType.TPU_INITIALIZATION]:.2f}%")
print(f"Badput due to training preparation: {badput_breakdown[goodput.BadputType.TRAINING_PREP]:.2f}%")
print(f"Badput due to program startup: {badput_breakdown[goodput.BadputType.PROGRAM_STARTUP]:.2f}%")
print(f"Badput due to data loading: {badput_breakdown[goodput.BadputType.DATA_LOADING_SYNC]:.2f}%")
print(f"Badput due to disruption and wasted progress: {badput_breakdown[goodput.BadputType.WASTED_PROGRESS_FROM_DISRUPTION]:.2f}%")
print(f"Badput due to checkpoint save: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME]:.2f}%")
print(f"Badput due to checkpoint restore: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME]:.2f}%")
print(f"Badput from unknown source: {badput_breakdown[goodput.BadputType.OTHER]:.2f}%")
"""  # noqa: E501


def test_retrieving_the_breakdown(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """It calls the share ``goodput``, over its module, and then asks it for ``BadputType``."""
    train(config)
    exec(BREAKDOWN, {"goodput": goodput, "goodput_calculator": calculator_of(config)})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Last step recorded: 5"
    assert len(lines) == 10


def convert_pst_to_utc(text: str) -> datetime.datetime:
    pacific = ZoneInfo("America/Los_Angeles")
    moment = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=pacific)
    return moment.astimezone(datetime.UTC)


def test_the_interval_query(config: Config) -> None:
    start = convert_pst_to_utc("2024-12-16 1:00:00")
    recorder = goodput.GoodputRecorder(config.run_name, "log", True)
    recorder.record_job_start_time(start)
    for step in range(100):
        recorder.record_step_start_time(step, start + datetime.timedelta(minutes=15 * step))
    recorder.record_job_end_time(start + datetime.timedelta(hours=25))
    goodput_calculator = calculator_of(config)
    # fmt: off
    start_time_str = "2024-12-16 1:05:00"
    start_time_utc = convert_pst_to_utc(start_time_str)
    end_time_str = "2024-12-17 2:00:00"
    end_time_utc = convert_pst_to_utc(end_time_str)
    current_goodput, badput_breakdown, last_step, total_time, disruptions = goodput_calculator.get_job_goodput_interval(start_time_utc, end_time_utc)  # noqa: E501
    # fmt: on
    assert (current_goodput, last_step, disruptions) == (100, 99, 0)
    assert total_time == (24 * 60 + 55) * 60
    assert badput_breakdown[goodput.BadputType.OTHER] == 0


GCP_OPTIONS = goodput_utils.GCPOptions(
    project_id=None,
    location=None,
    replica_id="0",
    acc_type=None,
    enable_gcp_goodput_metrics=True,
    enable_gcp_step_deviation_metrics=True,
)
GCP_OFF = goodput_utils.GCPOptions(
    project_id=None,
    location=None,
    replica_id="0",
    acc_type=None,
    enable_gcp_goodput_metrics=False,
    enable_gcp_step_deviation_metrics=False,
)
GCP_INTERVAL = goodput_utils.GCPOptions(
    project_id=None,
    location=None,
    replica_id="0",
    acc_type=None,
    enable_gcp_goodput_metrics=True,
)
DEVIATION: dict[str, Any] = {"include_step_deviation": True, "configured_ideal_step_time": None}


def monitor_of(config: Config, **more: Any) -> monitoring.GoodputMonitor:
    """Return the document's monitor; ``more`` is what each of its examples adds."""
    logger_name = f"goodput_{config.run_name}"
    return monitoring.GoodputMonitor(
        job_name=config.run_name,
        logger_name=logger_name,
        tensorboard_dir=config.tensorboard_dir,
        upload_interval=config.goodput_upload_interval_seconds,
        monitoring_enabled=True,
        include_badput_breakdown=True,
        final_flush_timeout_seconds=PATIENCE_S,
        **more,
    )


def tags(config: Config, below: str) -> set[str]:
    events = EventAccumulator(f"{config.tensorboard_dir}/{below}")
    events.Reload()
    return set(events.Tags()["scalars"])


@pytest.mark.usefixtures("cloud")
def test_the_goodput_uploader(config: Config) -> None:
    """The plain one and that for Pathways, side by side."""
    train(config)
    plain = monitor_of(config)
    config.tensorboard_dir += "-pathways"
    pathways = monitor_of(config, pathway_enabled=True)
    for goodput_monitor in (plain, pathways):
        goodput_monitor.start_goodput_uploader()
    for goodput_monitor in (plain, pathways):
        goodput_monitor.stop_goodput_uploader()
    uploaded = tags(config, "goodput")
    assert {"goodput/goodput", "badput/tpu_initialization"} <= uploaded
    config.tensorboard_dir = config.tensorboard_dir.removesuffix("-pathways")
    assert tags(config, "goodput") == uploaded


def test_uploads_to_the_cloud_are_the_default(config: Config, cloud: Monitoring) -> None:
    train(config)
    goodput_monitor = monitor_of(config, **DEVIATION, gcp_options=GCP_OPTIONS)
    goodput_monitor.start_goodput_uploader()
    goodput_monitor.start_step_deviation_uploader()
    goodput_monitor.stop_goodput_uploader()
    goodput_monitor.stop_step_deviation_uploader()
    assert cloud.value("max_productive_steps", accelerator_type="TPU-v5p") == 5
    assert cloud.value("step_time_deviation") >= 0
    assert cloud.requests[0].name == "projects/metadata-project"
    assert cloud.series()[0].resource.labels["location"] == "us-east5-b"
    assert tags(config, "goodput/step_deviation") == {"step_deviation"}


def test_uploads_to_the_cloud_can_be_switched_off(config: Config, cloud: Monitoring) -> None:
    train(config)
    goodput_monitor = monitor_of(config, **DEVIATION, gcp_options=GCP_OFF)
    goodput_monitor.start_goodput_uploader()
    goodput_monitor.start_step_deviation_uploader()
    goodput_monitor.stop_goodput_uploader()
    goodput_monitor.stop_step_deviation_uploader()
    assert cloud.requests == []
    assert "goodput/goodput" in tags(config, "goodput")


def test_the_interval_uploader(config: Config, cloud: Monitoring) -> None:
    train(config)
    goodput_monitor = monitor_of(config, gcp_options=GCP_INTERVAL)
    # Set the window size to be 12h
    goodput_monitor.start_goodput_interval_uploader(window_size_seconds=43200)
    goodput_monitor.stop_goodput_interval_uploader()
    assert cloud.value("interval_goodput", rolling_window_size="43200") > 0
    assert not Path(config.tensorboard_dir).exists()
