"""The contract of engines: starting, polling, cancelling and reattaching to tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from network import require_hosts
from outlay.clock import SYSTEM, ManualClock
from outlay.proc.exit_record import read_exit
from outlay.proc.identity import Process, end_marked, marked
from outlay.sweep.engines.base import Ended, Engine, Task, engine_named
from outlay.sweep.engines.ports import NoPortFree, Ports
from outlay.sweep.engines.process import ProcessEngine, TorchrunEngine
from outlay.sweep.engines.ray.ray_engine import RayEngine
from outlay.sweep.engines.ray.ray_options import RayOptions
from outlay.sweep.engines.slurm.engine import SlurmEngine
from outlay.sweep.errors import EngineBroken
from process_trees import keepers_of, reaping
from ray_stand_in import RayStandIn, ray_stand_in
from waiting import PATIENCE_S, until

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(tmp_path)
    yield engine
    with contextlib.suppress(EngineBroken):
        engine.close()


ON_RAY = RayOptions()
"""How tasks are submitted to Ray, once there is a cluster."""
RAYS = {"ray": "one_node", "a real ray": "ray"}
"""The fixtures with an address: a cluster takes many seconds for each job."""


@pytest.fixture(
    params=[
        "process",
        "torchrun",
        pytest.param("slurm", marks=pytest.mark.cluster),
        "ray",
        pytest.param("a real ray", marks=(pytest.mark.xdist_group("ray"), pytest.mark.slow)),
    ]
)
def make_engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Engine]:
    """A factory of each kind of engine; a second one is over the same directory."""
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    if request.param in RAYS:
        url = request.getfixturevalue(RAYS[request.param]).url
        monkeypatch.setattr(sys.modules[__name__], "ON_RAY", RayOptions(address=url))
    name = "ray" if request.param in RAYS else request.param
    return lambda: engine_named(name, tmp_path)


@pytest.fixture
def one_node(tmp_path: Path) -> Iterator[RayStandIn]:
    """A Jobs API with one node, which starts outlay's process for each job as Ray does."""
    require_hosts()
    with ray_stand_in(tmp_path / "node") as ray:
        yield ray


@pytest.fixture
def engine(make_engine: Callable[[], Engine]) -> Iterator[Engine]:
    engine = make_engine()
    yield engine
    engine.close()


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[TorchrunEngine]:
    engine = TorchrunEngine(tmp_path)
    yield engine
    engine.close()


def task(engine: Engine, tmp_path: Path, *command: str, name: str = "run", **env: str) -> Task:
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    return Task(
        name=name,
        ticket=engine.new_ticket(name),
        command=command,
        env={**os.environ, **env},
        cwd=tmp_path,
        directory=directory,
        log=directory / "sweep.log",
        options=ON_RAY if isinstance(engine, RayEngine) else None,
    )


def shell(engine: Engine, tmp_path: Path, script: str, **options: str) -> Task:
    return task(engine, tmp_path, "/bin/sh", "-c", script, **options)


def ended(engine: Engine, ticket: str) -> Ended:
    until_ns = SYSTEM.monotonic_ns() + PATIENCE_S * 10**9
    while SYSTEM.monotonic_ns() < until_ns:
        if (outcome := engine.poll(ticket)) is not None:
            return outcome
        engine.wait(0.5)
    raise AssertionError("the task did not end")


def printed(one: Task) -> str:
    """Return the output of a task so far."""
    return one.log.read_text() if one.log.exists() else ""


def until_up(engine: Engine, one: Task) -> None:
    """Wait until a task has printed that it runs."""

    def said() -> bool:
        engine.wait(0)
        return printed(one) == "up\n"

    until(said, "it did not start")


def run(engine: Engine, one: Task) -> Ended:
    engine.submit(one)
    return ended(engine, one.ticket)


def test_a_task_has_its_directory_environment_and_output(engine: Engine, tmp_path: Path) -> None:
    one = shell(engine, tmp_path, 'echo "$WORD"; pwd >&2', WORD="hello")
    outcome = run(engine, one)
    assert (outcome.how, outcome.returncode, outcome.asked) == ("exited", 0, False)
    assert printed(one) == f"hello\n{tmp_path}\n"


def test_an_exit_code_and_a_signal_are_distinguished(engine: Engine, tmp_path: Path) -> None:
    tasks = [
        shell(engine, tmp_path, script, name=name)
        for name, script in {"exits": "exit 3", "dies": "kill -9 $$"}.items()
    ]
    for one in tasks:
        engine.submit(one)
    assert [ended(engine, one.ticket).returncode for one in tasks] == [3, -9]


def test_a_missing_program_is_reported_as_not_started(engine: Engine, tmp_path: Path) -> None:
    outcome = run(engine, task(engine, tmp_path, "./no-such-program"))
    assert outcome.how == "not_started"
    assert "No such file" in outcome.reason


def test_output_is_appended_across_attempts(engine: Engine, tmp_path: Path) -> None:
    one, two = shell(engine, tmp_path, "echo 1"), shell(engine, tmp_path, "echo 2")
    run(engine, one)
    run(engine, two)
    assert printed(two) == "1\n2\n"


def test_cancelling_ends_the_task_and_its_children(engine: Engine, tmp_path: Path) -> None:
    # Where its child is ended first, the shell goes on until it is ended itself.
    one = shell(engine, tmp_path, "sleep 600 & echo up; wait; sleep 600")
    engine.submit(one)
    until_up(engine, one)
    engine.cancel(one.ticket)
    outcome = ended(engine, one.ticket)
    assert (outcome.returncode, outcome.asked) == (-signal.SIGTERM, True)
    until(lambda: not marked(one.ticket), "a child is left")


def test_a_task_that_ignores_sigterm_is_killed_with_force(engine: Engine, tmp_path: Path) -> None:
    one = shell(engine, tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    engine.submit(one)
    until_up(engine, one)
    engine.cancel(one.ticket)
    engine.wait(0.3)
    assert engine.poll(one.ticket) is None
    engine.cancel(one.ticket, force=True)
    outcome = ended(engine, one.ticket)
    # In Slurm, the process that would record the signal is killed too.
    code = None if isinstance(engine, SlurmEngine) else -9
    assert (outcome.returncode, outcome.asked) == (code, True)
    until(lambda: not marked(one.ticket), "a child is left")


def test_orphans_of_a_task_are_killed_with_it(engine: Engine, tmp_path: Path) -> None:
    one = shell(engine, tmp_path, "sleep 600 & exit 0")
    assert run(engine, one).returncode == 0
    until(lambda: not marked(one.ticket), "a child is left")


def test_cancelling_what_has_ended_does_nothing(engine: Engine, tmp_path: Path) -> None:
    one = shell(engine, tmp_path, "exit 0")
    run(engine, one)
    engine.cancel(one.ticket)
    engine.cancel("never/was/")
    assert run(engine, shell(engine, tmp_path, "exit 4")).returncode == 4


def test_closing_ends_tasks_that_left_their_process_group(
    local: ProcessEngine, tmp_path: Path
) -> None:
    one = shell(local, tmp_path, "setsid sleep 600 & echo up; wait")
    local.submit(one)
    until_up(local, one)
    local.close()
    assert marked(one.ticket) == []


def test_a_later_engine_reads_how_a_task_ended(
    engine: Engine, make_engine: Callable[[], Engine], tmp_path: Path
) -> None:
    one = shell(engine, tmp_path, "exit 5")
    run(engine, one)
    later = make_engine()
    outcome = later.reattach(one)
    later.close()
    assert outcome is not None
    assert (outcome.how, outcome.returncode) == ("exited", 5)


def test_a_task_of_which_nothing_is_known_is_lost(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.reattach(shell(engine, tmp_path, "exit 0"))
    assert outcome is not None
    assert outcome.how == "lost"


def test_no_task_outlives_a_harness_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1] / "support")!r}]
from pathlib import Path
from test_engine import shell
from outlay.sweep.engines.process import ProcessEngine
root = Path({str(tmp_path)!r})
engine = ProcessEngine(root)
one = shell(engine, root, "setsid sleep 600 & echo up; wait")
engine.submit(one)
engine.wait(5)
print(one.ticket, flush=True)
engine.wait(1000)
"""
    harness = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    ticket = harness.stdout.readline().strip()
    log = tmp_path / "run" / "sweep.log"
    until(lambda: log.exists() and log.read_text() == "up\n", "it did not start")
    harness.kill()
    harness.wait()
    harness.stdout.close()
    until(lambda: not marked(ticket), "the task outlived its harness")
    until(lambda: read_exit(tmp_path / "run", ticket) is not None, "its end was not written down")


def test_tasks_of_a_killed_keeper_are_ended_and_the_kill_is_reported(
    local: ProcessEngine, tmp_path: Path
) -> None:
    one = shell(local, tmp_path, "echo up; sleep 600")
    local.submit(one)
    until_up(local, one)
    (keeper,) = keepers_of(os.getpid())
    with reaping():
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(EngineBroken, match="was killed"):
            ended(local, one.ticket)
        until(lambda: not marked(one.ticket), "a task outlived the keeper")


# -- torchrun: slow to start, so few launches that show much ----------------------------------


def two_ranks(engine: Engine, tmp_path: Path, script: str, **env: str) -> Task:
    """Return a task of which torchrun starts two processes, each a shell."""
    flags = ("--standalone", "--nproc_per_node=2", "--no-python")
    command = (*TORCHRUN, *flags, "/bin/sh", "-c", script)
    return task(engine, tmp_path, *command, OMP_NUM_THREADS="1", **env)


def test_two_ranks_get_their_environment_and_a_later_engine_reads_that_one_failed(
    torchrun: TorchrunEngine, tmp_path: Path
) -> None:
    script = 'echo "$WORD $RANK of $WORLD_SIZE in $(pwd)"; exit $((RANK * 3))'
    one = two_ranks(torchrun, tmp_path, script, WORD="hello")
    outcome = run(torchrun, one)
    # Whatever its workers exit with, torchrun exits with 1.
    assert (outcome.how, outcome.returncode, outcome.asked) == ("exited", 1, False)
    said = {f"hello {rank} of 2 in {tmp_path}" for rank in range(2)}
    assert said <= set(printed(one).splitlines())
    later = TorchrunEngine(tmp_path).reattach(one)
    assert later is not None
    assert (later.how, later.returncode) == ("exited", 1)


def test_cancelling_ends_two_ranks_and_what_they_started(
    torchrun: TorchrunEngine, tmp_path: Path
) -> None:
    one = two_ranks(torchrun, tmp_path, 'sleep 600 & echo "up $RANK"; wait')
    torchrun.submit(one)
    up = {"up 0", "up 1"}
    until(lambda: up <= set(printed(one).splitlines()), "the ranks did not start")
    # torchrun, and two shells with a child each.
    until(lambda: len(marked(one.ticket)) >= 5, "not all of them carry the mark")
    torchrun.cancel(one.ticket)
    outcome = ended(torchrun, one.ticket)
    assert (outcome.how, outcome.asked) == ("exited", True)
    assert outcome.returncode != 0
    until(lambda: not marked(one.ticket), "a worker is left")


def test_workers_of_a_killed_torchrun_are_ended_though_they_left_its_group(
    torchrun: TorchrunEngine, tmp_path: Path
) -> None:
    one = two_ranks(torchrun, tmp_path, "echo up; exec sleep 600")
    torchrun.submit(one)
    until(lambda: printed(one).splitlines().count("up") == 2, "the ranks did not start")
    commands = {p.pid: Path(f"/proc/{p.pid}/cmdline").read_bytes() for p in marked(one.ticket)}
    (launcher,) = [pid for pid, words in commands.items() if b"torch.distributed.run" in words]
    assert len(commands) == 3
    os.kill(launcher, signal.SIGKILL)  # Leaves its workers running, unless somebody looks.
    assert ended(torchrun, one.ticket).returncode == -signal.SIGKILL
    until(lambda: not marked(one.ticket), "a worker is left")


# -- ports ----------------------------------------------------------------------------------


def test_an_unkillable_process_is_given_up_after_a_timeout(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    stuck = Process(2**22 + 1, 0)
    monkeypatch.setattr("outlay.proc.identity.marked", lambda _: [stuck])
    began_ns = clock.monotonic_ns()
    assert end_marked("none/", clock) == [stuck]
    assert clock.monotonic_ns() - began_ns >= 10 * 10**9


def test_reserved_ports_differ_within_and_between_processes() -> None:
    ours, theirs = Ports(), Ports()
    reserved = [each.reserve() for each in (ours, theirs) for _ in range(20)]
    for port in reserved:
        ours.release(port)
        theirs.release(port)
    assert len(set(reserved)) == 40


def test_a_taken_port_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("outlay.sweep.engines.ports.RANGE", range(port, port + 50))
        monkeypatch.setattr("outlay.sweep.engines.ports.random.choice", lambda ports: ports[0])
        ports = Ports()
        reserved = ports.reserve()
        ports.release(reserved)
        assert reserved > port


def test_the_ports_of_a_harness_that_is_dropped_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("outlay.sweep.engines.ports.RANGE", range(20_000, 20_001))
    monkeypatch.setattr("outlay.sweep.engines.ports._is_free", lambda _: True)
    dropped = Ports()
    assert dropped.reserve() == 20_000
    with pytest.raises(NoPortFree):
        Ports().reserve()
    del dropped
    assert Ports().reserve() == 20_000
