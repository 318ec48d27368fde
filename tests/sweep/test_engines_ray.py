"""The Ray engine without a cluster: options, Ray's answers, the process on the node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlay.clock import ManualClock
from outlay.decoding import read_document
from outlay.proc.exit_record import ExitRecord, exit_path
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.named_jobs import NamedJobsEngine
from outlay.sweep.engines.ray.jobs_api import JobInfo, JobsApi, remote_status
from outlay.sweep.engines.ray.ray_engine import RayEngine, jobs_in
from outlay.sweep.engines.ray.ray_options import RayOptions, ray_options
from outlay.sweep.engines.remote.job_spec import read_mark, read_times, spec_path, write_mark
from outlay.sweep.engines.remote.spec_writer import spec_of, write_spec
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.files import plan_file
from outlay.sweep.plan.plan import SweepPlan

HEAD = "http://head:8265"


# -- options --------------------------------------------------------------------------------


def plan(tmp_path: Path, **more: Any) -> SweepPlan:
    path = tmp_path / "grid.json"
    grid = {"engine": "ray", "ray": {"address": HEAD}, "grid": [{"params": {"x": 1}}]}
    path.write_text(json.dumps(grid | more, indent=0))
    return plan_file(path)


def test_an_entrys_options_override_the_grids(tmp_path: Path) -> None:
    own = {"num_gpus": 0.5, "label_selector": {"type": "a100"}}
    (run,) = plan(tmp_path, grid=[{"params": {}, "ray": own}]).runs
    options = ray_options(run.entry.options)
    assert (options.address, options.num_gpus, options.num_cpus) == (HEAD, 0.5, 1)
    assert (options.gpus_on_node, options.partition) == (1, "type=a100")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ray": {"adress": HEAD}}, "unknown key 'adress'"),
        ({"ray": {"address": "head:8265"}}, "the dashboard's, such as http://head:8265"),
        ({"ray": {"address": "http://u:p@head"}}, "the dashboard's"),
        ({"ray": {"address": HEAD, "num_gpus": -1}}, "a number, 0 or more"),
        ({"ray": {"address": HEAD, "resources": {"tpu": "x"}}}, "a number, 0 or more"),
        ({"ray": {}}, "engine: ray needs `ray: {address: ...}`"),
        ({"nnodes": 2}, "engine: ray runs each run on one node"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidGrid, match=re.escape(message)):
        plan(tmp_path, **more)


def test_a_node_label_has_a_rate_like_a_partition(tmp_path: Path, private_home: Path) -> None:
    (private_home / "rates.json").write_text('{"type=a100": "1.20 USD/h"}')
    (run,) = plan(tmp_path, ray={"address": HEAD, "label_selector": {"type": "a100"}}).runs
    assert run.entry.price is not None
    assert str(run.entry.price.rate) == "1.20 USD/h showback"


def test_the_grace_of_a_stop_is_longer_than_the_notice_of_the_job() -> None:
    request = RayOptions(address=HEAD, runtime_env={"env_vars": {"A": "1"}}).request("s", "true")
    assert request["runtime_env"]["env_vars"] == {"A": "1", "RAY_JOB_STOP_WAIT_TIME_S": "50"}
    assert request["entrypoint_num_cpus"] == 1
    assert "entrypoint_num_gpus" not in request


# -- Ray's answers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        ("PENDING", None, (False, True, "lost")),
        ("RUNNING", None, (False, False, "lost")),
        ("STOPPED", None, (True, False, "exited")),
        ("SUCCEEDED", None, (True, False, "lost")),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", (True, False, "lost")),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_DIED", (True, False, "preempted")),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", (True, False, "not_started")),
        ("FAILED", "RUNTIME_ENV_SETUP_FAILURE", (True, False, "not_started")),
    ],
)
def test_rays_status_is_that_of_a_job_that_recorded_nothing(
    status: str, error: str | None, expected: tuple[bool, bool, str]
) -> None:
    found = remote_status("s", JobInfo(status=status, error_type=error, message="why"))
    assert (found.is_over, found.queued, found.how) == expected


class StandIn(BaseHTTPRequestHandler):
    """Answers like Ray's Jobs API, as far as a test states; for answers that no cluster gives."""

    jobs: dict[str, str]
    answers: list[int | None]
    seen: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        self.seen.append(self.headers.get("Authorization", ""))
        answer, known = self.answers.pop(0), body["submission_id"] in self.jobs
        if answer in (200, None):
            self.jobs[body["submission_id"]] = "RUNNING"
        if answer is None:  # It is done, and nobody hears of it.
            self.close_connection = True
            return
        self._say(500 if known else answer, "already exists" if known else "told so")

    def do_GET(self) -> None:
        status = self.jobs.get(self.path.rpartition("/")[2])
        self._say(404 if status is None else 200, json.dumps({"status": status}))

    def _say(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def stand_in() -> Iterator[tuple[str, type[StandIn]]]:
    class Answers(StandIn):
        """With what this test states."""

    Answers.jobs, Answers.answers, Answers.seen = {}, [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Answers
    server.shutdown()
    server.server_close()
    thread.join()


def task(root: Path, address: str, *command: str, ticket: str = "ray/run/abc") -> Task:
    directory = root / "run"
    directory.mkdir(exist_ok=True)
    return Task(
        name="run", ticket=ticket, command=command or ("true",), env=dict(os.environ), cwd=root,
        directory=directory, log=directory / "sweep.log", options=RayOptions(address=address),
    )  # fmt: skip


def test_a_job_whose_answer_is_lost_is_submitted_once(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path, clock: ManualClock
) -> None:
    address, ray = stand_in
    ray.answers += [None, 200]
    engine = RayEngine(tmp_path, clock)
    engine.submit(task(tmp_path, address))
    assert not engine.all_submitted()
    assert engine.standing("ray/run/abc").queued
    clock.sleep(6)
    engine.wait(0)
    assert engine.all_submitted()
    assert ray.jobs == {"ray-run-abc": "RUNNING"}
    assert jobs_in(tmp_path) == {"ray/run/abc": "ray-run-abc"}
    engine.close()


def test_an_engine_that_cannot_submit_find_and_stop_jobs_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"abstract methods.*_deliver.*_find.*_stop"):
        NamedJobsEngine(tmp_path)  # type: ignore[abstract]


def test_a_variable_that_is_the_same_here_reaches_the_node(
    tmp_path: Path,
    stand_in: tuple[str, type[StandIn]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTLAY_PRICE", "2 USD/h")
    one = task(tmp_path, stand_in[0], "true")
    one = replace(one, env={**os.environ, "OUTLAY_PRICE": "2 USD/h"}, sets=("OUTLAY_PRICE",))
    engine = RayEngine(tmp_path)
    engine.submit(one)
    engine.close()
    spec = msgspec.json.decode(spec_path(one.directory, one.ticket).read_bytes())
    assert spec["env"] == {"OUTLAY_PRICE": "2 USD/h"}


def test_a_task_that_no_cluster_takes_says_why_it_waits(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path
) -> None:
    address, ray = stand_in
    ray.answers += [503]
    engine = RayEngine(tmp_path)
    engine.submit(task(tmp_path, address))
    standing = engine.standing("ray/run/abc")
    engine.close()
    assert standing.queued
    assert standing.text == "not in the queue yet: Ray answered 503: told so"


def test_a_job_of_an_earlier_process_is_found_after_another_was_submitted(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path
) -> None:
    address, ray = stand_in
    ray.answers += [200, 200]
    earlier, one = RayEngine(tmp_path), task(tmp_path, address)
    earlier.submit(one)
    earlier.close()
    later = RayEngine(tmp_path)
    later.submit(task(tmp_path, address, ticket="ray/run/other"))
    assert later.reattach(one) is None
    later.close()


def test_a_refusal_is_a_task_that_did_not_start(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path
) -> None:
    address, ray = stand_in
    ray.answers += [400]
    engine = RayEngine(tmp_path)
    engine.submit(task(tmp_path, address))
    outcome = engine.poll("ray/run/abc")
    engine.close()
    assert outcome is not None
    assert (outcome.how, outcome.reason) == ("not_started", "Ray answered 400: told so")


def test_a_job_that_ray_never_had_is_marked_so_that_it_never_runs(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path
) -> None:
    address, ray = stand_in
    ray.answers += [503]
    engine, one = RayEngine(tmp_path), task(tmp_path, address)
    engine.submit(one)  # And its harness dies here.
    engine.close()
    later = RayEngine(tmp_path)
    outcome = later.reattach(one)
    later.close()
    assert outcome is not None
    assert (outcome.how, outcome.never_ran) == ("lost", True)
    assert read_mark(one.directory, one.ticket) == "cancelled"


def test_a_token_is_sent_as_ray_expects_it(
    stand_in: tuple[str, type[StandIn]], tmp_path: Path
) -> None:
    address, ray = stand_in
    ray.answers += [200, 200, 200]
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    for environ in ({}, {"RAY_AUTH_TOKEN": "stated"}, {"RAY_AUTH_TOKEN_PATH": str(path)}):
        api = JobsApi(address, environ)
        api.submit({"submission_id": "s", "entrypoint": "true"})
        api.close()
    assert ray.seen == ["", "Bearer stated", "Bearer from-a-file"]


# -- on the node ----------------------------------------------------------------------------


def run_node(one: Task) -> int:
    path = write_spec(spec_of(one, notice_ns=10**9))
    command = [sys.executable, "-m", "outlay.sweep.engines.ray.node", str(path)]
    return subprocess.run(command, check=False).returncode


def test_a_marked_job_starts_no_program(tmp_path: Path) -> None:
    one = task(tmp_path, HEAD, "touch", str(tmp_path / "ran"))
    write_mark(one.directory, one.ticket, "cancelled")
    assert run_node(one) == 143
    assert not (tmp_path / "ran").exists()
    assert read_document(exit_path(one.directory), ExitRecord).asked
    assert read_times(one.directory, one.ticket).ran_ns() == 0


def test_the_nodes_own_python_replaces_that_of_the_submitting_machine(tmp_path: Path) -> None:
    one = task(tmp_path, HEAD, "/elsewhere/python", "-c", "import sys; print(sys.executable)")
    spec = spec_of(one, notice_ns=10**9)
    path = write_spec(msgspec.structs.replace(spec, python="/elsewhere/python"))
    subprocess.run([sys.executable, "-m", "outlay.sweep.engines.ray.node", str(path)], check=True)
    assert one.log.read_text() == f"{sys.executable}\n"
