"""A supervised command ends with its money, whichever process dies first."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from command_line import Background, start_python
from outlay.clock import SYSTEM
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.lease import Terms
from outlay.guard.supervise import CommandOutcome, Supervisor
from outlay.proc.supervisor import CommandNotStarted, KeptEvent, ProcessSupervisor
from outlay.units import Duration, Money, Rate
from process_trees import alive, keepers_of
from waiting import until

RATE = Rate.parse("3600 USD/h")  # one dollar a second
ENVIRON = dict(os.environ)

STUBBORN_TREE = """
import os, signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import signal, os;"
    "[signal.signal(n, signal.SIG_IGN) for n in (15, 2, 1)];"
    "open(__import__('sys').argv[1], 'w').write(str(os.getpid()));"
    "signal.pause()"]
directory = sys.argv[1]
subprocess.Popen([*sleeper, directory + "/in-group"])
subprocess.Popen([*sleeper, directory + "/own-session"], start_new_session=True)
open(directory + "/leader", "w").write(str(os.getpid()))
while True:
    signal.pause()
"""
TREE = ("leader", "in-group", "own-session")

SUPERVISED = """
import os, sys
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.lease import Terms
from outlay.guard.supervise import Supervisor
from outlay.units import Duration, Rate
slice, notice, log, *command = sys.argv[1:]
terms = Terms(rate=Rate.parse("3600 USD/h"), slice=Duration.parse(slice),
              notice=Duration.parse(notice))
outcome = Supervisor(BudgetGuard(1000, log), "lab02-x", terms).run(command, os.environ)
sys.exit(outcome.exit_code)
"""


def terms(slice: str = "1s", notice: str = "1s", most: str | None = None) -> Terms:
    longest = Duration.parse(most) if most else None
    return Terms(
        rate=RATE, slice=Duration.parse(slice), notice=Duration.parse(notice), most=longest
    )


def supervise(
    guard: BudgetGuard, terms: Terms, *command: str, said: list[str] | None = None
) -> CommandOutcome:
    say = (lambda _: None) if said is None else said.append
    return Supervisor(guard, "lab02-x", terms, say=say).run(list(command), ENVIRON)


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


@pytest.fixture
def guard(tmp_path: Path) -> BudgetGuard:
    return BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})


def process_tree(directory: Path) -> list[int]:
    def ready() -> bool:
        files = [directory / name for name in TREE]
        return all(file.exists() and file.read_text() for file in files)

    until(ready, what="the process tree to start")
    return [int((directory / name).read_text()) for name in TREE]


def test_a_command_that_ends_by_itself_costs_its_time(guard: BudgetGuard) -> None:
    outcome = supervise(guard, terms(), *python("import sys; sys.exit(7)"))
    assert (outcome.exit_code, outcome.stopped_because) == (7, "")
    assert outcome.actual == terms().cost(outcome.elapsed_ns)
    assert guard.total_spent == float(outcome.actual.amount)
    assert guard.holds() == ()


def test_a_command_ended_by_a_signal_has_a_shells_exit_code(guard: BudgetGuard) -> None:
    killed = supervise(guard, terms(), *python("import os; os.kill(os.getpid(), 9)"))
    assert killed.exit_code == 128 + 9


def test_a_long_command_has_its_hold_extended(guard: BudgetGuard) -> None:
    ends_once_extended = (
        "import pathlib, sys, time; log = pathlib.Path(sys.argv[1]); size = log.stat().st_size\n"
        "while log.stat().st_size == size: time.sleep(0.02)"
    )
    command = python(ends_once_extended, str(guard.log_path))
    outcome = supervise(guard, terms("2s", "120s"), *command)
    assert (outcome.exit_code, outcome.stopped_because) == (0, "")


def test_when_the_money_ends_so_does_the_command(tmp_path: Path) -> None:
    guard = BudgetGuard(2, tmp_path / "spend.jsonl", environ={})
    said: list[str] = []
    outcome = supervise(guard, terms(), *python("import signal; signal.pause()"), said=said)
    assert outcome.exit_code == 3
    assert "whole" in outcome.stopped_because
    assert outcome.actual <= Money.parse("2 USD") + terms().overshoot()
    assert any("no more money" in line for line in said)
    assert any("50 % of its time or money used" in line for line in said)


def test_a_command_that_fits_its_ceiling_finishes(tmp_path: Path) -> None:
    guard = BudgetGuard("122.70", tmp_path / "spend.jsonl", environ={})
    lasting = python("import threading; threading.Event().wait(1.7)")
    # After a second 0.70 more is held, less than a slice; it may end during its notice.
    outcome = supervise(guard, terms("2s", "120s"), *lasting)
    assert (outcome.exit_code, outcome.stopped_because) == (0, "")
    assert guard.total_spent > 1.7


def test_a_ceiling_below_the_first_slice_pays_for_a_command_that_fits_it(tmp_path: Path) -> None:
    guard = BudgetGuard(6, tmp_path / "spend.jsonl", environ={})
    assert supervise(guard, terms("60s"), *python("")).exit_code == 0
    assert guard.holds() == ()


SAVES_ON_SIGTERM = (
    "import pathlib, signal, sys; "
    "signal.signal(15, lambda *_: (pathlib.Path(sys.argv[1]).write_text('saved'), sys.exit(0))); "
    "signal.pause()"
)


def test_a_sigterm_handler_runs_while_there_is_money_for_saving(tmp_path: Path) -> None:
    guard, saved = BudgetGuard(121, tmp_path / "spend.jsonl", environ={}), tmp_path / "saved"
    outcome = supervise(guard, terms("1s", "120s"), *python(SAVES_ON_SIGTERM, str(saved)))
    assert saved.read_text() == "saved"
    assert outcome.exit_code == 3
    assert "whole" in outcome.stopped_because


def test_when_its_longest_time_ends_so_does_the_command_and_it_is_warned_of(
    guard: BudgetGuard,
) -> None:
    said: list[str] = []
    short = terms(most="3s", notice="1s", slice="1s")
    outcome = supervise(guard, short, *python("import signal; signal.pause()"), said=said)
    assert "longest time of 3.0s" in outcome.stopped_because
    warned = [line.split(" ")[0] for line in said if "time or money used" in line]
    assert warned == ["50", "75", "90"]
    assert outcome.actual <= short.cost(3 * 10**9) + short.overshoot()


WRITES_ITS_PID = (
    "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"
)


class BreaksOnce:
    """The clocks of this machine, until a file is written."""

    def __init__(self, written: Path) -> None:
        self._written = written

    def wall_ns(self) -> int:
        return SYSTEM.wall_ns()

    def sleep(self, seconds: float) -> None:
        SYSTEM.sleep(seconds)

    def monotonic_ns(self) -> int:
        if self._written.exists() and self._written.read_text():
            raise RuntimeError("a bug")
        return SYSTEM.monotonic_ns()


def test_when_the_supervisor_fails_the_command_ends_and_the_hold_stays(
    guard: BudgetGuard, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    supervisor = Supervisor(guard, "lab02-x", terms("60s"), clock=BreaksOnce(pid_file))
    with pytest.raises(RuntimeError, match="a bug"):
        supervisor.run(python(WRITES_ITS_PID, str(pid_file)), ENVIRON)
    assert not alive(int(pid_file.read_text()))
    assert [hold.op_label for hold in guard.holds()] == ["lab02-x"]


def test_a_closed_terminal_does_not_stop_the_command(guard: BudgetGuard) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    command = python("import sys; sys.exit(7)")
    assert Supervisor(guard, "lab02-x", terms(), say=gone).run(command, ENVIRON).exit_code == 7
    assert guard.holds() == ()


def test_nothing_starts_without_room_for_the_first_slice(tmp_path: Path) -> None:
    guard, started = BudgetGuard(1, tmp_path / "spend.jsonl", environ={}), tmp_path / "started"
    with pytest.raises(BudgetGuardExceeded):
        supervise(guard, terms(), *python("import sys; open(sys.argv[1], 'w')", str(started)))
    assert not started.exists()


def test_a_program_that_does_not_exist_releases_its_hold(guard: BudgetGuard) -> None:
    with pytest.raises(CommandNotStarted, match="No such file"):
        supervise(guard, terms(), "/no/such/program")
    assert guard.committed == 0.0


def test_a_process_tree_that_ignores_every_signal_is_killed_after_the_notice(
    tmp_path: Path,
) -> None:
    guard = BudgetGuard(3, tmp_path / "spend.jsonl", environ={})
    outcome = supervise(guard, terms(), *python(STUBBORN_TREE, str(tmp_path)))
    assert outcome.exit_code == 3
    assert [pid for pid in process_tree(tmp_path) if alive(pid)] == []


@pytest.mark.timeout(60)
def test_leftovers_that_end_with_the_command_are_not_waited_for(
    guard: BudgetGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = ProcessSupervisor.wait

    def see_both_at_once(processes: ProcessSupervisor, timeout_s: float) -> list[KeptEvent]:
        events = wait(processes, timeout_s)
        while any(e.left for e in events) and not any(e.event == "gone" for e in events):
            events += wait(processes, timeout_s)
        return events

    monkeypatch.setattr(ProcessSupervisor, "wait", see_both_at_once)
    leaves = "import subprocess; subprocess.Popen(['sleep', '0.5'], start_new_session=True)"
    said: list[str] = []
    assert supervise(guard, terms(), *python(leaves), said=said).exit_code == 0
    assert not any("left processes behind" in text for text in said)


def start_supervisor(tmp_path: Path, *command: str, slice: str = "60s") -> Background:
    # In a session of its own: a stopped member of an orphaned group makes the kernel hang up all.
    return start_python(SUPERVISED, slice, "1s", tmp_path / "spend.jsonl", *command)


def test_when_the_supervisor_is_frozen_its_process_tree_dies_once_the_paid_time_is_over(
    tmp_path: Path,
) -> None:
    supervisor = start_supervisor(tmp_path, *python(STUBBORN_TREE, str(tmp_path)), slice="1s")
    pids = process_tree(tmp_path)
    supervisor.send_signal(signal.SIGSTOP)
    try:
        until(lambda: not any(map(alive, pids)), what="the process tree to die")
    finally:
        supervisor.send_signal(signal.SIGCONT)
        supervisor.wait()
    assert supervisor.returncode == 3
    assert BudgetGuard(1000, tmp_path / "spend.jsonl", environ={}).holds() == ()


def test_a_command_that_the_keeper_ends_after_its_notice_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is late only once the notice has begun."""
    wait, said = ProcessSupervisor.wait, list[str]()

    def late(processes: ProcessSupervisor, timeout_s: float) -> list[KeptEvent]:
        command = processes.process_of("command")
        if command is not None and any("ending it" in text for text in said):
            until(lambda: not alive(command.pid), what="the keeper to end the command")
        return wait(processes, timeout_s)

    monkeypatch.setattr(ProcessSupervisor, "wait", late)
    guard = BudgetGuard(3, tmp_path / "spend.jsonl", environ={})
    outcome = supervise(guard, terms(), *python("import time; time.sleep(60)"), said=said)
    assert (outcome.exit_code, bool(outcome.stopped_because)) == (3, True)


def test_a_keeper_that_is_killed_is_replaced(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, *python(STUBBORN_TREE, str(tmp_path)))
    pids = process_tree(tmp_path)
    until(lambda: bool(keepers_of(supervisor.pid)), what="a keeper")
    (first,) = keepers_of(supervisor.pid)
    os.kill(first, signal.SIGKILL)
    until(
        lambda: [pid for pid in keepers_of(supervisor.pid) if pid != first] != [],
        what="another keeper",
    )
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    until(lambda: not any(map(alive, pids)), what="the process tree to die")


def test_a_signal_to_the_supervisor_reaches_the_command_and_the_spend_is_recorded(
    tmp_path: Path,
) -> None:
    obedient = (
        "import os, signal, sys; signal.signal(15, lambda *_: sys.exit(5)); "
        "open(sys.argv[1], 'w').write('ready'); signal.pause()"
    )
    supervisor = start_supervisor(tmp_path, *python(obedient, str(tmp_path / "ready")))
    until(lambda: (tmp_path / "ready").exists(), what="the command to start")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait() == 5
    guard = BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})
    assert guard.total_spent > 0
    assert guard.held == 0.0


def test_a_nested_supervisor_joins_the_hold(tmp_path: Path) -> None:
    log = tmp_path / "spend.jsonl"
    inner = python(SUPERVISED, "1s", "1s", str(log), *python("import sys; sys.exit(4)"))
    guard = BudgetGuard(1000, log, environ={})
    outcome = supervise(guard, terms("30s"), *inner)
    assert outcome.exit_code == 4
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["hold", "capture"]


def test_a_failed_capture_leaves_the_hold_open_and_is_reported(
    tmp_path: Path,
) -> None:
    log = tmp_path / "spend.jsonl"
    guard = BudgetGuard(1000, log, environ={})
    said: list[str] = []
    spoil = f"open({str(log)!r}, 'ab').write(b'nonsense\\n')"
    outcome = supervise(guard, terms("30s"), *python(spoil), said=said)
    assert (outcome.exit_code, outcome.recorded) == (0, False)
    assert "stays open" in said[-1]
