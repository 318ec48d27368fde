"""GoodputMonitor: uploads beside training, never blocks it, and counts what it lost."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import outlay
from goodput_log import Job, MemoryLog
from google_stand_ins import REJECTED, Monitoring, logging_on_loopback, monitoring_on_loopback
from outlay.clock import SYSTEM
from outlay.compat.ml_goodput_measurement.cloud import CloudLogger, GCPOptions
from outlay.compat.ml_goodput_measurement.monitoring import GoodputMonitor
from outlay.compat.ml_goodput_measurement.monitoring_elastic import ElasticGoodputMonitor
from outlay.compat.ml_goodput_measurement.recorder import GoodputRecorder, LocalRunLog
from outlay.compat.ml_goodput_measurement.uploads.readings import (
    DeviationReading,
    GoodputReading,
    Reading,
)
from outlay.compat.ml_goodput_measurement.uploads.uploader import JobUpload
from outlay.errors import InvalidValue
from outlay.export.sinks import JsonLinesFile
from outlay.export.uploads import (
    TALLY_BYTES,
    ProcessUploader,
    Tally,
    ThreadUploader,
    encode_tally,
)
from waiting import PATIENCE_S, until

SOON_S = float(PATIENCE_S)
# The error of a sink that never answers. Had stop waited, it would be an error of the sink itself.
GIVEN_UP = ("there was no time left for it", "the uploader ended with -9")
PROGRAM = Path(__file__).parents[1] / "programs" / "monitored.py"
NO_CLOUD = GCPOptions(enable_gcp_goodput_metrics=False, enable_gcp_step_deviation_metrics=False)
CLOUD = GCPOptions("p", "l")


@pytest.fixture(autouse=True)
def not_on_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a metadata service."""
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    with monitoring_on_loopback(monkeypatch) as service:
        yield service


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run uploaders in threads: for behaviour that does not depend on processes."""

    def start(upload: JobUpload) -> ThreadUploader:
        return ThreadUploader(upload.uploads())

    monkeypatch.setattr("outlay.compat.ml_goodput_measurement.monitoring.ProcessUploader", start)


def train(run_dir: Path, steps: int = 20) -> None:
    with outlay.run("model", dir=run_dir) as run:
        for _ in range(steps):
            with run.step():
                SYSTEM.sleep(0.002)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def monitor(run_dir: Path, **options: Any) -> GoodputMonitor:
    settings: dict[str, Any] = {
        "tensorboard_dir": None,
        "upload_interval": 0.05,
        "monitoring_enabled": True,
        "gcp_options": NO_CLOUD,
        "final_flush_timeout_seconds": 60,  # The machine may be busy.
        "run_dir": run_dir,
        **options,
    }
    return GoodputMonitor("job", "log", **settings)


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_goodput_badput_and_step_deviation(tmp_path: Path) -> None:
    train(tmp_path / "run")
    watching = monitor(
        tmp_path / "run",
        tensorboard_dir=tmp_path / "tb",
        include_badput_breakdown=True,
        include_step_deviation=True,
        step_deviation_interval_seconds=0.05,
    )
    watching.start_goodput_uploader()
    watching.start_step_deviation_uploader()
    watching.stop_goodput_uploader()
    watching.stop_step_deviation_uploader()
    shown = scalars(tmp_path / "tb" / "goodput")
    log = LocalRunLog("job", tmp_path / "run")
    expected = outlay.GoodputCalculator("job", "log", log).get_job_goodput()
    step, percent = shown["goodput/goodput"][-1]
    assert step == 19
    assert percent == pytest.approx(expected.goodput, abs=1e-3)
    assert "badput/program_startup" in shown
    steps = [step for step, _ in scalars(tmp_path / "tb/goodput/step_deviation")["step_deviation"]]
    assert steps == list(range(20))


@pytest.mark.usefixtures("in_threads")
def test_without_the_breakdown_badput_is_not_in_tensorboard(tmp_path: Path) -> None:
    train(tmp_path / "run")
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert list(scalars(tmp_path / "tb" / "goodput")) == ["goodput/goodput"]


def test_uploads_are_repeated_while_the_job_runs(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    watching = monitor(tmp_path / "run", sinks=[JsonLinesFile(str(output))])
    with outlay.run("model", dir=tmp_path / "run") as run:
        watching.start_goodput_uploader()
        with run.step():
            pass
        until(lambda: watching.tally.uploaded >= 3, "not uploaded again and again")
        until(lambda: len({row["time"] for row in rows(output)}) >= 3, "uploaded and not written")
    watching.stop_goodput_uploader(skip_final_flush=True)
    assert watching.tally.lost == 0


@pytest.mark.usefixtures("in_threads")
def test_the_cloud_gets_goodput_windows_and_deviation_at_once(
    tmp_path: Path, cloud: Monitoring
) -> None:
    train(tmp_path / "run")
    watching = monitor(
        tmp_path / "run", gcp_options=CLOUD, include_step_deviation=True, upload_interval=30
    )
    watching.start_goodput_uploader()
    watching.start_step_deviation_uploader()
    watching.start_rolling_window_goodput_uploader([600, 7200])
    watching.start_goodput_interval_uploader(window_size_seconds=43200)
    watching.stop_goodput_uploader()
    watching.stop_step_deviation_uploader()
    watching.stop_rolling_window_goodput_uploader()
    watching.stop_goodput_interval_uploader()
    assert cloud.value("max_productive_steps") == 19
    assert cloud.value("step_time_deviation") >= 0
    for size in ("600", "7200", "43200"):
        assert cloud.value("interval_goodput", rolling_window_size=size) > 0
    assert watching.tally.lost == 0


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
def test_rejected_uploads_are_counted_and_other_sinks_continue(
    code: grpc.StatusCode, tmp_path: Path, cloud: Monitoring, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.fault.status = code
    train(tmp_path / "run")
    output = tmp_path / "out.jsonl"
    watching = monitor(tmp_path / "run", gcp_options=CLOUD, sinks=[JsonLinesFile(str(output))])
    watching.start_goodput_uploader()
    with caplog.at_level(logging.WARNING, "outlay"):
        watching.stop_goodput_uploader()
    assert watching.tally.lost >= 1
    assert REJECTED in watching.tally.trouble
    assert re.search(r"readings and lost \d+; last error:", caplog.text)
    assert rows(output)


@pytest.mark.usefixtures("in_threads")
def test_a_sink_that_hangs_does_not_block_stopping(tmp_path: Path, cloud: Monitoring) -> None:
    cloud.fault.hangs = True
    train(tmp_path / "run")
    output = tmp_path / "out.jsonl"
    watching = monitor(
        tmp_path / "run",
        gcp_options=CLOUD,
        sinks=[JsonLinesFile(str(output))],
        final_flush_timeout_seconds=0.5,
    )
    watching.start_goodput_uploader()
    until(lambda: rows(output), "nothing was uploaded")
    watching.stop_goodput_uploader()
    assert watching.tally.lost >= 1
    assert watching.tally.trouble in GIVEN_UP


@pytest.mark.usefixtures("in_threads")
def test_outside_google_cloud_an_error_is_logged_and_training_continues(tmp_path: Path) -> None:
    train(tmp_path / "run")
    watching = monitor(tmp_path / "run", gcp_options=GCPOptions())
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert "project_id" in watching.tally.trouble


def test_a_disabled_monitor_does_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run")
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb", monitoring_enabled=False)
    watching.start_goodput_uploader()
    watching.start_rolling_window_goodput_uploader([60])
    watching.stop_goodput_uploader()
    watching.stop_rolling_window_goodput_uploader()
    assert not (tmp_path / "tb").exists()


@pytest.mark.parametrize("setting", [("RANK", "3"), ("OUTLAY_DISABLED", "1")])
def test_only_rank_0_monitors_and_only_where_outlay_is_on(
    setting: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run")
    monkeypatch.setenv(*setting)
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert not (tmp_path / "tb").exists()


def test_step_deviation_must_be_included_to_be_uploaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_step_deviation_uploader()
    watching.stop_step_deviation_uploader()
    assert "include_step_deviation is not set" in caplog.text


@pytest.mark.usefixtures("in_threads")
def test_either_cloud_upload_can_be_switched_off(tmp_path: Path, cloud: Monitoring) -> None:
    train(tmp_path / "run")
    options = GCPOptions("p", "l", enable_gcp_goodput_metrics=False)
    watching = monitor(tmp_path / "run", gcp_options=options, include_step_deviation=True)
    watching.start_goodput_uploader()
    watching.start_step_deviation_uploader()
    watching.stop_goodput_uploader()
    watching.stop_step_deviation_uploader()
    names = {series.metric.type.rpartition("/")[2] for series in cloud.series()}
    assert names == {"step_time_deviation"}


@pytest.mark.usefixtures("in_threads")
def test_an_uploader_may_be_started_before_the_first_record(tmp_path: Path) -> None:
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_goodput_uploader()
    train(tmp_path / "run")
    watching.stop_goodput_uploader()
    assert scalars(tmp_path / "tb" / "goodput")["goodput/goodput"][-1][0] == 19
    assert watching.tally.lost == 0


@pytest.mark.usefixtures("in_threads")
def test_starting_or_stopping_twice_has_no_effect(tmp_path: Path) -> None:
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_goodput_uploader()
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    watching.stop_goodput_uploader()
    assert watching.tally.lost == 0


def test_a_log_that_only_this_process_can_read_is_uploaded_by_a_thread(tmp_path: Path) -> None:
    log = MemoryLog(Job("job").start(0).steps(0, 11, at=0).end(11).payloads)
    output = tmp_path / "out.jsonl"
    watching = monitor(tmp_path, cloud_logger=log, sinks=[JsonLinesFile(str(output))])
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert [row["value"] for row in rows(output) if row["name"] == "goodput/goodput"] == [100]


class Collecting:
    """A sink that keeps what it is given, as a user would write one."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.closed = False

    def write(self, reading: Reading) -> None:
        self.readings.append(reading)

    def close(self) -> None:
        self.closed = True


def test_a_sink_that_only_this_process_has_is_written_to_by_a_thread(tmp_path: Path) -> None:
    train(tmp_path / "run")
    sink = Collecting()
    watching = monitor(tmp_path / "run", sinks=[sink], include_step_deviation=True)
    watching.start_goodput_uploader()
    watching.start_step_deviation_uploader()
    watching.stop_goodput_uploader()
    watching.stop_step_deviation_uploader()
    assert {type(reading) for reading in sink.readings} == {GoodputReading, DeviationReading}
    assert watching.tally.lost == 0
    assert not sink.closed


def test_a_users_sink_that_raises_is_counted_and_others_continue(tmp_path: Path) -> None:
    class Refusing(Collecting):
        def write(self, reading: Reading) -> None:
            raise ConnectionError(f"no {type(reading).__name__}")

    train(tmp_path / "run")
    output = tmp_path / "out.jsonl"
    sinks = [Refusing(), JsonLinesFile(str(output))]
    watching = monitor(tmp_path / "run", sinks=sinks, upload_interval=3600)
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert watching.tally.lost == 1
    assert watching.tally.trouble == "ConnectionError: no GoodputReading"
    assert rows(output)


def test_a_log_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    class Broken(MemoryLog):
        def read_cloud_logging_entries(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("gone")

    watching = monitor(
        tmp_path, cloud_logger=Broken(), sinks=[JsonLinesFile(str(tmp_path / "out"))]
    )
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert watching.tally.lost == 1
    assert "ConnectionError: gone" in watching.tally.trouble


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_must_be_positive(interval: float, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a positive number of seconds"):
        monitor(tmp_path, upload_interval=interval)


def test_a_log_in_the_cloud_is_watched_by_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    with logging_on_loopback(monkeypatch):
        log = CloudLogger("job", "log", project_id="p")
        for payload in Job("job").start(0).steps(0, 11, at=0).end(11).payloads:
            log.write_cloud_logging_entry(payload)
        log.flush()
        watching = monitor(
            tmp_path,
            cloud_logger=log,
            cache_dir=str(tmp_path / "cache"),
            sinks=[JsonLinesFile(str(output))],
        )
        watching.start_goodput_uploader()
        watching.stop_goodput_uploader()
    assert {row["value"] for row in rows(output) if row["name"] == "goodput/goodput"} == {100}
    assert (tmp_path / "cache" / "job_timeline.jsonl").exists()


@pytest.mark.usefixtures("in_threads")
def test_an_elastic_monitor_uploads_slice_efficiency(tmp_path: Path, cloud: Monitoring) -> None:
    with outlay.run("model", dir=tmp_path / "run") as run:
        run.set_slices(1, 4, 2)
        for _ in range(5):
            with run.step():
                SYSTEM.sleep(0.002)
    watching = ElasticGoodputMonitor(
        "job",
        "log",
        None,
        30,
        True,
        include_slice_efficiency=True,
        gcp_options=CLOUD,
        final_flush_timeout_seconds=60,
        run_dir=tmp_path / "run",
    )
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert cloud.value("stepping_slice_efficiency", window_type="CUMULATIVE") == 0.25
    assert cloud.value("available_slice_efficiency", rolling_window_size="0") == 0.5


def test_an_uploader_that_dies_is_counted_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out.jsonl"
    train(tmp_path / "run")
    watching = monitor(tmp_path / "run", sinks=[JsonLinesFile(str(output))])
    watching.start_goodput_uploader()
    until(lambda: rows(output), "nothing was uploaded")
    (uploader,) = watching._uploaders.values()
    assert isinstance(uploader, ProcessUploader)
    uploader._process.kill()
    uploader._process.wait()
    watching.stop_goodput_uploader()
    assert watching.tally.trouble == "the uploader ended with -9"
    assert "readings and lost" in caplog.text


def test_a_stopped_uploader_process_is_killed_in_time(tmp_path: Path) -> None:
    watching = monitor(
        tmp_path / "run", tensorboard_dir=tmp_path / "tb", final_flush_timeout_seconds=0.1
    )
    watching.start_goodput_uploader()
    (uploader,) = watching._uploaders.values()
    assert isinstance(uploader, ProcessUploader)
    uploader._process.send_signal(signal.SIGSTOP)
    watching.stop_goodput_uploader()
    assert watching.tally.trouble == "the uploader ended with -9"


def test_an_uploader_that_cannot_be_started_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    watching = monitor(tmp_path / "run", tensorboard_dir=tmp_path / "tb")
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader()
    assert "cannot start the goodput uploader: FileNotFoundError" in watching.tally.trouble


@pytest.mark.parametrize("trouble", ["", '"' * 1000, "\x00\n" * 500, "größer" * 100])
def test_a_tally_always_has_the_same_length(trouble: str) -> None:
    tally = Tally(uploaded=10**12, lost=10**12, trouble=trouble)
    found = msgspec.json.decode(encode_tally(tally), type=Tally)
    assert len(encode_tally(tally)) == TALLY_BYTES
    assert (found.uploaded, found.lost) == (10**12, 10**12)


# Trainings that are killed, or exit without stopping the monitor


def start(run_dir: Path, output: Path, end: str, steps: int = 5) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(run_dir), str(output), str(steps), end]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )


def test_a_killed_training_still_gets_its_last_upload(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with start(tmp_path / "run", output, "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        process.send_signal(signal.SIGKILL)
    until(lambda: any(row["step"] == 4 for row in rows(output)), "the last step was not uploaded")


def test_a_training_that_does_not_stop_its_monitor_exits_at_once(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with start(tmp_path / "run", output, "leave") as process:
        _, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    until(lambda: any(row["step"] == 4 for row in rows(output)), "the last step was not uploaded")


def test_a_sink_that_hangs_does_not_disturb_the_exit(tmp_path: Path, cloud: Monitoring) -> None:
    cloud.fault.hangs = True
    with start(tmp_path / "run", tmp_path / "out.jsonl", "cloud stop") as process:
        text, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    uploaded, lost, trouble = text.splitlines()[1].split(" ", 2)
    assert int(lost) >= 1
    assert int(uploaded) >= 1
    assert trouble in GIVEN_UP


# As in ml-goodput-measurement


@pytest.mark.usefixtures("in_threads")
def test_stopping_what_was_never_started_uploads_once(tmp_path: Path) -> None:
    train(tmp_path)
    goodput, deviation = JsonLinesFile(f"{tmp_path}/g.jsonl"), JsonLinesFile(f"{tmp_path}/d.jsonl")
    monitor(tmp_path, sinks=[goodput]).stop_goodput_uploader()
    monitor(tmp_path, sinks=[deviation], include_step_deviation=True).stop_step_deviation_uploader()
    assert len(rows(tmp_path / "g.jsonl")) == 1
    assert [row["step"] for row in rows(tmp_path / "d.jsonl")] == list(range(20))


@pytest.mark.usefixtures("in_threads")
def test_a_skipped_flush_and_a_second_stop_upload_nothing(tmp_path: Path) -> None:
    train(tmp_path)
    sink = JsonLinesFile(f"{tmp_path}/g.jsonl")
    monitor(tmp_path, sinks=[sink]).stop_goodput_uploader(skip_final_flush=True)
    monitor(tmp_path, sinks=[sink], skip_final_flush=True).stop_goodput_uploader()
    monitor(tmp_path, sinks=[sink], monitoring_enabled=False).stop_goodput_uploader()
    assert rows(tmp_path / "g.jsonl") == []
    once = monitor(tmp_path, sinks=[sink])
    once.stop_goodput_uploader()
    once.stop_goodput_uploader()
    assert len(rows(tmp_path / "g.jsonl")) == 1


def test_a_started_uploader_that_skips_its_flush_uploads_nothing(tmp_path: Path) -> None:
    train(tmp_path)
    output = tmp_path / "g.jsonl"
    watching = monitor(tmp_path, sinks=[JsonLinesFile(str(output))], upload_interval=3600)
    watching.start_goodput_uploader()
    watching.stop_goodput_uploader(skip_final_flush=True)
    assert rows(output) == []


@pytest.mark.usefixtures("in_threads")
def test_the_environments_cache_directory_overrides_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_GOODPUT_CACHE_DIR", str(tmp_path / "cache"))
    with logging_on_loopback(monkeypatch), monitoring_on_loopback(monkeypatch):
        log = CloudLogger("job", "log", project_id="p")
        job_log = GoodputRecorder("job", "log", logging_enabled=True, cloud_logger=log)
        job_log.record_job_start_time()
        for step in range(3):
            job_log.record_step_start_time(step)
        job_log.record_job_end_time()
        log.flush()
        sink = JsonLinesFile(f"{tmp_path}/g.jsonl")
        watched = monitor(tmp_path, cloud_logger=log, cache_dir=str(tmp_path / "no"), sinks=[sink])
        watched.stop_goodput_uploader()
    assert len(rows(tmp_path / "g.jsonl")) == 1
    assert list((tmp_path / "cache").iterdir())
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("stated", "message"), [("120", "not copied"), ("soon", "not a number")])
def test_the_interval_of_copies_to_a_bucket_is_accepted_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    stated: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS", stated)
    monitor(tmp_path)
    assert f"ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS={stated}" in caplog.text
    assert message in caplog.text
