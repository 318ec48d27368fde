"""A scheduler's notice: the work is saved between two steps, and the attempt ends preempted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlay
from command_line import python
from outlay.clock import SYSTEM
from outlay.ledger import EndStatus, Step
from outlay.runs.live import Run
from outlay.runs.reading import read_figures
from scripts import start, wait_for


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with outlay.run("m", dir=tmp_path / "run") as run:
        yield run


class SlowGate:
    """Remembers the signal handler that is installed while it finishes."""

    handler: object = None

    def before_step(self, *, tokens: int, samples: int) -> None:
        del tokens, samples

    def after_step(self, step: Step) -> None:
        del step

    def finish(self, status: EndStatus) -> None:
        del status
        self.handler = signal.getsignal(signal.SIGTERM)


def status(run: Run) -> str:
    return read_figures(run.dir, SYSTEM.wall_ns()).status


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_notice_saves_once_after_the_step_that_runs_and_ends_the_loop(
    run: Run, number: signal.Signals
) -> None:
    saved: list[int] = []
    run.on_preemption(lambda: saved.append(run.step_number))
    done = []
    for batch in run.steps(range(10)):
        if batch == 3:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        done.append(batch)
    assert (done, saved) == ([0, 1, 2, 3], [3])
    run.close()
    assert status(run) == "preempted"


def test_the_next_attempt_resumes_from_what_was_saved_on_notice(run: Run) -> None:
    run.on_preemption(run.checkpoint_committed)
    for batch in run.steps(range(10)):
        if batch == 3:
            os.kill(os.getpid(), signal.SIGUSR2)
    run.close()
    with outlay.run("m", dir=run.dir) as again:
        assert again.resume_step == 4


def test_the_previous_handlers_are_restored(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    with outlay.run("m", dir=tmp_path / "run") as run:
        run.on_preemption(lambda: None)
        assert signal.getsignal(signal.SIGUSR2) is not before[signal.SIGUSR2]
    assert {number: signal.getsignal(number) for number in before} == before


def test_the_previous_handlers_are_restored_before_gates_finish_which_may_wait_or_fail(
    run: Run,
) -> None:
    before, gate = signal.getsignal(signal.SIGTERM), SlowGate()
    run.recorder.attach(gate=gate)
    run.on_preemption(lambda: None)
    run.close()
    assert gate.handler == before


def test_without_a_notice_nothing_is_saved_and_the_run_completes(run: Run) -> None:
    saved: list[int] = []
    run.on_preemption(lambda: saved.append(1))
    assert len(list(run.steps(range(3)))) == 3
    run.close()
    assert (saved, status(run)) == ([], "completed")


PROGRAM = """
import itertools, sys, outlay
with outlay.run("m", dir=sys.argv[1]) as run:
    for step in run.steps(itertools.count()):
        if step == 3:
            print("up", flush=True)
            sys.stdin.readline()
print("after the loop")
"""
TWO_NOTICES = """
import os, signal, sys, outlay
with outlay.run("m", dir=sys.argv[1]) as run:
    run.on_preemption(lambda: None)
    for step in run.steps(range(5)):
        os.kill(os.getpid(), signal.SIGUSR2)
os.kill(os.getpid(), signal.SIGUSR2)
"""


def test_a_launchers_signal_ends_a_loop_without_hooks(tmp_path: Path) -> None:
    process = start(PROGRAM, tmp_path / "run", OUTLAY_NOTICE="SIGUSR2")
    wait_for(process, "up")
    process.send_signal(signal.SIGUSR2)
    out, err = process.communicate("\n")
    assert (process.returncode, out) == (0, "after the loop\n"), err
    figures = read_figures(tmp_path / "run", SYSTEM.wall_ns())
    assert (figures.status, figures.steps) == ("preempted", 4)


def test_a_second_notice_does_not_kill_a_run_that_is_ending(tmp_path: Path) -> None:
    done = python(TWO_NOTICES, tmp_path / "run")
    assert done.code == 0, done.err
