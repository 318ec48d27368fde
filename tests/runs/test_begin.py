"""When a run begins and ends: with its process, its agent, or the supervisor that started it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import scripts
from command_line import in_process
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.ledger import (
    SUPERVISOR,
    Attempt,
    AttemptEnded,
    AttemptStarted,
    derive_attempts,
    read_lives,
    read_run,
)

PRICE = "3600 USD/h"
"""A second costs a dollar, and so a micro-dollar is a thousand nanoseconds."""
SLOW_IMPORT_NS = 300_000_000
TRAINS = """
    import sys, time
    time.sleep(0.3)  # Imports, and data that is loaded.
    import outlay
    for run_dir in sys.argv[1:]:
        with outlay.run("m", dir=run_dir, price="3600 USD/h", gpus=1) as run:
            for _ in run.steps(range(3)):
                pass
"""


def attempts_of(run_dir: Path) -> list[Attempt]:
    return derive_attempts(read_lives(run_dir))


def view_of(run_dir: Path) -> RunView:
    return GoodputFollower(run_dir).view(2**62, alive=False)


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directories of three runs of one process, in order."""
    root = tmp_path_factory.mktemp("runs")
    dirs = [root / name for name in "abc"]
    done = scripts.finish(TRAINS, *dirs)
    assert done.returncode == 0, done.stderr
    return dirs


def test_a_run_begins_with_its_process_and_what_came_before_is_startup(
    three_runs: list[Path],
) -> None:
    (attempt,) = attempts_of(three_runs[0])
    assert attempt.begin == "process"
    assert attempt.segment.start_ns - attempt.start_ns > SLOW_IMPORT_NS
    breakdown = view_of(three_runs[0]).break_down()
    assert breakdown.phases["program_startup"] >= attempt.segment.start_ns - attempt.start_ns
    assert breakdown.cost is not None
    wall_ns = attempt.last_sign_ns - attempt.start_ns
    assert abs(breakdown.cost.micros - wall_ns / 1000) <= 1


def test_only_the_first_run_of_a_process_begins_with_the_process(three_runs: list[Path]) -> None:
    begins = [attempts_of(run_dir)[0].begin for run_dir in three_runs]
    assert begins == ["process", "record", "record"]


def test_a_process_whose_run_was_refused_still_begins_with_its_first_run(tmp_path: Path) -> None:
    program = """
        import sys
        import outlay
        try:
            outlay.run("m", dir=sys.argv[1], budget="iso_cost=1 USD")
        except outlay.OutlayError:
            pass
        outlay.run("m", dir=sys.argv[1]).close()
    """
    done = scripts.finish(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert attempts_of(tmp_path)[-1].begin == "process"


CALLED_FROM = """
    import importlib, os, pathlib, sys
    import outlay
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root))
    for name in sys.argv[2:]:
        module = root.joinpath(*name.split(".")).with_suffix(".py")
        module.parent.mkdir(parents=True)
        for package in module.relative_to(root).parents[:-1]:
            root.joinpath(package, "__init__.py").touch()
        module.write_text("def call(function): return function()")
        if os.fork() == 0:
            importlib.invalidate_caches()
            caller = importlib.import_module(name)
            caller.call(lambda: outlay.run("m", dir=root / "runs" / name).close())
            os._exit(0)
        os.wait()
"""
SERVERS = (
    "ipykernel.zmqshell",
    "IPython.core.interactiveshell",
    "ray._private.worker",
    "distributed.worker",
    "dask.local",
    "optuna.study._optimize",
)


def test_in_a_notebook_or_a_worker_a_run_begins_when_it_is_called(tmp_path: Path) -> None:
    expected = dict.fromkeys(SERVERS, "record") | {"my_training.main": "process"}
    done = scripts.finish(CALLED_FROM, tmp_path, *expected)
    assert done.returncode == 0, done.stderr
    found = {name: attempts_of(tmp_path / "runs" / name)[0].begin for name in expected}
    assert found == expected


def test_at_a_prompt_a_run_begins_when_it_is_called(tmp_path: Path) -> None:
    session = f'import outlay\nwith outlay.run("m", dir={str(tmp_path)!r}): pass\n\n'
    subprocess.run(
        [sys.executable, "-i", "-q"], input=session, text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    assert attempts_of(tmp_path)[0].begin == "record"


def test_spawn_and_reap_by_a_supervisor_bound_the_attempt(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time; time.sleep(0.3)\n"
        "import outlay\n"
        "with outlay.run('m') as run:\n"
        "    for _ in run.steps(range(3)): pass\n"
        "time.sleep(0.2)\n"  # The process lives on after its run.
    )
    run_dir = tmp_path / "run"
    command = (sys.executable, str(script))
    shown = in_process(
        "exec", "--dir", run_dir, "--price", PRICE, "--gpus", "1", "--json", "--", *command
    )
    assert shown.code == 0, shown.err
    (attempt,) = attempts_of(run_dir)
    log = read_run(run_dir).segments
    (supervisor,) = [segment for segment in log if segment.rank == SUPERVISOR]
    (reaped,) = [record for record in log[supervisor] if isinstance(record, AttemptEnded)]
    (inner,) = [record for record in log[attempt.segment] if isinstance(record, AttemptEnded)]
    assert reaped.t_ns - inner.t_ns > 200_000_000
    assert (attempt.begin, attempt.start_ns) == ("supervisor", supervisor.start_ns)
    assert attempt.last_sign_ns == reaped.t_ns
    assert shown.json["run"]["cost"]["micros"] == round((reaped.t_ns - supervisor.start_ns) / 1000)
    startup_ns = view_of(run_dir).break_down().phases["program_startup"]
    assert startup_ns >= attempt.segment.start_ns - supervisor.start_ns > SLOW_IMPORT_NS


def test_the_reap_ends_an_attempt_that_was_killed(tmp_path: Path) -> None:
    dies = (
        "import os, outlay, signal, time\n"
        "run = outlay.run('m')\n"
        "time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = (sys.executable, "-c", dies)
    shown = in_process("exec", "--dir", tmp_path / "r", "--price", PRICE, "--json", "--", *command)
    assert shown.code == 128 + signal.SIGKILL
    (attempt,) = attempts_of(tmp_path / "r")
    assert attempt.end is not None
    assert (attempt.end.status, attempt.end.reason) == ("failed", "SIGKILL")
    assert attempt.last_sign_ns - attempt.segment.start_ns > 200_000_000
    assert [node.ended for node in attempt.nodes] == [True]


def test_exec_passes_on_gpus_only_if_they_were_stated(tmp_path: Path) -> None:
    records = "import outlay; outlay.run('m').close()"
    command = (sys.executable, "-c", records)
    in_process("exec", "--dir", tmp_path / "r", "--", *command, CUDA_VISIBLE_DEVICES="0,1")
    in_process("exec", "--dir", tmp_path / "s", "--gpus", "1/2", "--", *command)
    found, stated = (
        {
            (r.gpus, r.gpus_source)
            for r in read_run(run_dir).records
            if isinstance(r, AttemptStarted)
        }
        for run_dir in (tmp_path / "r", tmp_path / "s")
    )
    assert found == {(2, "visible")}
    assert stated == {("1/2", "stated")}


WORKER = """
import os, sys, time
from pathlib import Path
import outlay
with outlay.run("m", dir=sys.argv[1], price="3600 USD/h") as run:
    for _ in run.steps(range(2)):
        pass
    # The ranks agree on nothing here, and the first to fail ends them all: both have recorded then.
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if sum(path.stat().st_size > 0 for path in Path(sys.argv[1]).glob("ledger/*.jsonl")) == 2:
            os._exit(1)
        time.sleep(0.01)
"""


def test_under_torchrun_the_agent_begins_the_run_and_restarts_begin_by_themselves(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command += ["--nproc-per-node=2", str(script), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = attempts_of(tmp_path / "run")
    records = read_run(tmp_path / "run").records
    headers = [record for record in records if isinstance(record, AttemptStarted)]
    ranks = [h for h in headers if h.launch == first.header.launch]
    restarted = [h for h in headers if h.launch == second.header.launch]
    assert (len(ranks), len(restarted)) == (2, 2)
    assert first.start_ns == min(header.agent_start_ns for header in ranks)
    assert first.start_ns < min(header.process_start_ns for header in ranks)
    assert second.start_ns == max(
        min(header.process_start_ns for header in restarted), first.last_sign_ns
    )
