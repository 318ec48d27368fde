"""A run's numbers in trackers, read back from real ones: W&B offline, MLflow on SQLite, OTLP."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import outlay
import scripts
from command_line import in_process
from outlay.clock import SYSTEM, ManualClock
from outlay.export.scalars import FinishedReading
from outlay.export.sinks import MlflowRun, OtlpEndpoint
from outlay.integrations import trackers
from outlay.integrations.wandb import attach as attach_wandb
from outlay.integrations.wandb_files import TrackedRun, read_offline_run
from outlay.runs.collect import collect
from outlay.runs.reading import RunReader
from outlay.store import open_store
from process_trees import reaping
from waiting import PATIENCE_S, until

PROGRAM = Path(__file__).parents[1] / "programs" / "train_with_wandb.py"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
SECOND = 10**9


# W&B


class Offline:
    """Two attempts of one run under W&B, the first of them killed in the midst of its steps."""

    def __init__(self, home: Path) -> None:
        self.run_dir = home / "run"
        self.attempts = [self._train(home, "60", "killed"), self._train(home, "80", "whole")]

    def _train(self, home: Path, steps: str, how: str) -> TrackedRun:
        settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(home), "WANDB_SILENT": "true"}
        known = set(home.rglob("run-*.wandb"))
        done = subprocess.run(
            [sys.executable, PROGRAM, self.run_dir, steps, how],
            env=os.environ | settings, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == (-9 if how == "killed" else 0), done.stderr
        (path,) = {
            each for each in home.rglob("run-*.wandb") if "latest-run" not in str(each)
        } - known
        # W&B's own process writes on after finish() has returned; of a run that is killed it leaves
        # what fills its blocks.
        is_there = attrgetter("history" if how == "killed" else "exit_code")
        until(lambda: is_there(_readable(path)) not in (None, []), f"{path} was not finished")
        return read_offline_run(path)


def _readable(path: Path) -> TrackedRun:
    try:
        return read_offline_run(path)
    except outlay.OutlayError:
        return TrackedRun()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    return Offline(tmp_path_factory.mktemp("wandb"))


def values(run: TrackedRun, name: str) -> list[float]:
    found = (row.values.get(name) for row in run.history)
    return [value for value in found if isinstance(value, int | float)]


def test_the_dollar_axis_never_goes_back_over_a_kill_and_a_resume(offline: Offline) -> None:
    killed, resumed = (values(run, "outlay/cost_usd") for run in offline.attempts)
    assert min(len(killed), len(resumed)) > 2
    assert [*killed, *resumed] == sorted([*killed, *resumed])
    # W&B's own process may have torn the file, or not.
    assert {finding.severity for finding in offline.attempts[0].findings} <= {"warning"}


class WandbRunStandIn:
    """What a W&B run is asked to do, and by which thread."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.calls: list[tuple[int, str]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.calls.append((threading.get_ident(), f"define {name} by {step_metric}"))

    def log(self, data: dict[str, Any], *, commit: bool) -> None:
        has_cost = "outlay/cost_usd" in data
        self.calls.append((threading.get_ident(), f"log cost: {has_cost}, commit: {commit}"))


def test_the_cost_axis_is_defined_after_its_first_value_and_before_attach_returns(
    tmp_path: Path,
) -> None:
    """W&B writes 0 into rows between the definition of an axis and its first value."""
    tracked = WandbRunStandIn()
    with outlay.run("m", dir=tmp_path / "run", price="1 USD/h") as run:
        attach_wandb(run, tracked, every="1h", against_cost=["loss"])
        here = [call for thread, call in tracked.calls if thread == threading.get_ident()]
    assert here[-2:] == ["log cost: True, commit: False", "define loss by outlay/cost_usd"]


def test_what_the_training_logs_keeps_its_own_steps(offline: Offline) -> None:
    rows = [row for run in offline.attempts for row in run.history if "loss" in row.values]
    assert [row.values["loss"] for row in rows] == [1 / (row.step + 1) for row in rows]
    assert [row.step for row in rows][-20:] == list(range(60, 80))


def test_the_final_figures_are_those_of_outlay_cost_at_their_instant(offline: Offline) -> None:
    final = offline.attempts[-1].summary
    at_ns = round(float(final["outlay/read_at_s"] or 0) * 1e9)
    reading = outlay.read_run(offline.run_dir, at_ns)
    assert reading.cost.cost is not None
    assert final["outlay/cost_usd"] == float(reading.cost.cost.amount)
    assert final["outlay/goodput"] == reading.goodput.goodput
    assert (final["outlay/steps"], final["outlay/status"]) == (80, "completed")


def test_metrics_have_their_own_axis_and_loss_has_dollars(offline: Offline) -> None:
    axes = offline.attempts[-1].axes
    assert axes["outlay/*"] == "outlay/step"
    assert axes["loss"] == "outlay/cost_usd"


def test_the_w_and_b_runs_of_one_run_are_imported_as_its_attempts(offline: Offline) -> None:
    words = ["import", "wandb", offline.run_dir.parent, "--price", "2 USD/h", "--json"]
    done = in_process(*words).json
    assert (len(done["imported"]), len(set(done["imported"])), done["failed"]) == (2, 1, [])
    run = outlay.read_run(done["imported"][0])
    assert run.figures.run_id == outlay.read_run(offline.run_dir).figures.run_id
    assert (run.status, run.figures.attempts, run.figures.steps) == ("completed", 2, 80)
    points = {point.step: point.value for point in run.metrics["loss"]}
    assert [points[n] for n in range(60, 80)] == [1 / (n + 1) for n in range(60, 80)]
    assert run.cost.cost is not None


@pytest.mark.usefixtures("private_home")
def test_a_run_that_outlay_recorded_itself_is_not_imported_from_w_and_b(offline: Offline) -> None:
    collect(open_store(), [offline.run_dir], SYSTEM.wall_ns())
    done = in_process("import", "wandb", offline.run_dir.parent, "--json").json
    assert (done["imported"], done["recorded"]) == ([], 2)
    assert [run.dir for run in outlay.list_runs()] == [str(offline.run_dir)]


def test_no_run_is_made_unless_asked(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path / "run", clock=clock) as run:
        attachment = attach_wandb(run)
    assert attachment.tally.lost == 1
    assert "there is no W&B run; call wandb.init() first" in caplog.text
    assert not list(tmp_path.rglob("*.wandb"))


def test_a_missing_library_is_counted_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with outlay.run("m", dir=tmp_path / "run", clock=clock) as run:
        attachment = attach_wandb(run)
        assert list(run.steps("ab")) == ["a", "b"]
    assert "outlay[wandb]" in attachment.tally.trouble


# Trackers that fail


class Refusing:
    def write(self, reading: FinishedReading) -> None:
        del reading
        raise ConnectionRefusedError("nobody is there")

    def close(self) -> None:
        pass


class Hanging(Refusing):
    def __init__(self) -> None:
        self.release = threading.Event()

    def write(self, reading: FinishedReading) -> None:
        del reading
        self.release.wait()


@pytest.mark.parametrize("sink", [Refusing(), Hanging()], ids=["refuses", "hangs"])
def test_a_tracker_that_fails_is_counted_and_never_holds_up_the_end(
    tmp_path: Path, sink: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path / "run") as run:
        attachment = trackers.attach(run, sink, every="10ms", finish_s=0.2)
        assert list(run.steps("ab")) == ["a", "b"]
    assert attachment.tally.lost >= 1
    assert "readings were uploaded to trackers and" in caplog.text
    assert outlay.read_run(tmp_path / "run").status == "completed"
    if isinstance(sink, Hanging):
        sink.release.set()


REFUSED = """
    import sys
    import outlay
    from outlay.export.sinks import OtlpEndpoint, PluginSink
    from outlay.integrations import trackers
    with outlay.run("m", dir=sys.argv[1]) as run:
        trackers.attach(run, OtlpEndpoint(sys.argv[2]), PluginSink("nowhere"), every="1h")
        assert list(run.steps("ab")) == ["a", "b"]
"""


def test_what_a_process_loses_after_the_training_ended_is_counted_and_shown(
    tmp_path: Path, receiver: Receiver
) -> None:
    """The standard error of the training is the uploader's, too: it outlives the training."""
    receiver.answer = 400
    done = scripts.finish(REFUSED, tmp_path / "run", receiver.url)
    assert done.returncode == 0
    assert "m: 0 readings were uploaded to trackers and 2 were lost; last error: " in done.stderr


def test_the_training_ends_while_a_receiver_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, (tmp_path / "err").open("w") as err:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/metrics"
        program = [sys.executable, "-c", textwrap.dedent(REFUSED), str(tmp_path / "run"), url]
        assert subprocess.run(program, check=False, stderr=err).returncode == 0
        asking, _ = deaf.accept()
        assert asking.recv(4) == b"POST"  # The uploader, which the training did not wait for.
        asking.sendall(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
        asking.close()
        until(lambda: "were lost; last error: " in (tmp_path / "err").read_text(), "no warning")


LOADED = """
    import sys
    import outlay

    def loaded(*names):
        return sorted({name.partition(".")[0] for name in sys.modules} & set(names))

    heavy = "sqlalchemy", "httpx2", "rich", "typer", "wandb", "mlflow", "opentelemetry", "starlette"
    with outlay.run("m", dir=sys.argv[1], price="1 USD/h", gpus=1, budget="iso_time=1h") as run:
        for _ in run.steps("abc"):
            run.metric("loss", 1.0)
        ours = {name.split(".")[1] for name in sys.modules if name.startswith("outlay.")}
        print(sorted(ours & {"alerts", "cli", "export", "integrations", "report", "web"}))
        print(loaded("numpy", *heavy))
        run.summary(numbers=True)
        from outlay.export.sinks import JsonLinesFile
        from outlay.integrations import trackers, wandb
        trackers.attach(run, JsonLinesFile(sys.argv[1] + "/numbers.jsonl"), every="1h")
    print(loaded(*heavy))
"""


def test_training_loads_nothing_for_trackers_and_no_library_of_an_attached_one(
    tmp_path: Path,
) -> None:
    done = scripts.finish(LOADED, tmp_path / "run")
    assert done.stdout.splitlines() == ["[]", "[]", "[]"], done.stderr


def test_only_rank_0_uploads_to_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with outlay.run("m", dir=tmp_path / "run") as run:
        attachment = trackers.attach(run, Refusing(), every="10ms")
    assert attachment.tally.lost == 0


# MLflow


@pytest.mark.xdist_group("mlflow")
def test_mlflow_is_written_by_a_process_that_training_does_not_wait_for(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr(trackers, "_PROCESS_FINISH_S", PATIENCE_S)  # MLflow loads slowly.
    client = MlflowClient(mlflow_uri)
    experiment = client.get_experiment_by_name("outlay")
    assert experiment is not None
    run_id = client.create_run(experiment.experiment_id).info.run_id
    with reaping(), outlay.run("m", dir=tmp_path / "run", price="3600 USD/h", gpus=1) as run:
        trackers.attach(run, MlflowRun(run_id, mlflow_uri), every="1h")
        for _ in run.steps("abc", tokens=10):
            pass
    until(lambda: "outlay/cost_usd" in client.get_run(run_id).data.metrics, "MLflow has no cost")
    until(lambda: "outlay/status" in client.get_run(run_id).data.tags, "there are no tags")
    found = client.get_run(run_id).data
    reading = outlay.read_run(tmp_path / "run", round(found.metrics["outlay/read_at_s"] * 1e9))
    assert reading.cost.cost is not None
    assert found.metrics["outlay/cost_usd"] == float(reading.cost.cost.amount)
    assert found.metrics["outlay/tokens"] == 30
    assert found.tags["outlay/status"] == "completed"


# OpenTelemetry


class Receiver:
    """An OTLP receiver on loopback that decodes what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(receiver.answer)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"

    @property
    def metrics(self) -> dict[str, Any]:
        (resource,) = self.requests[-1].resource_metrics
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_receiver_decodes_a_run_in_units_at_its_instant(
    receiver: Receiver, tmp_path: Path, clock: ManualClock
) -> None:
    from outlay.export.sinks import open_sink

    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1, clock=clock) as run:
        for _ in run.steps("ab", tokens=5):
            clock.advance(10 * SECOND)
    sink = open_sink(OtlpEndpoint(receiver.url))
    reading = RunReader(tmp_path / "run").read(clock.wall_ns())
    sink.write(reading)
    sink.close()
    cost = receiver.metrics["outlay.run.cost"]
    (point,) = cost.sum.data_points
    assert (cost.unit, cost.sum.is_monotonic) == ("{USD}", True)
    assert (point.as_double, point.time_unix_nano) == (0.2, reading.t_ns)
    assert receiver.metrics["outlay.run.goodput"].gauge.data_points[0].as_double == 1.0
    (phase,) = receiver.metrics["outlay.run.phase.duration"].gauge.data_points
    assert (phase.as_double, phase.attributes[0].value.string_value) == (20.0, "step")


def test_a_reading_that_a_receiver_refuses_is_lost(
    receiver: Receiver, tmp_path: Path, clock: ManualClock
) -> None:
    from outlay.export.tracker_sinks import OtlpRefused, OtlpSink

    receiver.answer = 400
    with outlay.run("m", dir=tmp_path / "run", clock=clock):
        pass
    reading = RunReader(tmp_path / "run").read(clock.wall_ns())
    with pytest.raises(OtlpRefused):
        OtlpSink(receiver.url).write(reading)
