"""Rentals without a watcher: shown with every figure, watched again, ended, joined by runs.

Watchers are real processes, the vendor a program on this machine.
"""

from __future__ import annotations

import json
import re
import signal
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import outlay as package
import vendor_stand_in
from command_line import Outcome, in_process, start_outlay
from outlay.clock import SYSTEM
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.rental.watch import Reaper, known_logs
from outlay.proc.identity import (
    Process,
    ProcessName,
    all_processes,
    command_line,
    has_ended,
    read_process,
    send,
)
from outlay.units import Money
from process_trees import reaping
from system_parts import in_pid_namespace
from waiting import until


class Bench:
    """A test bench: a spend log, a vendor that runs here, and what was rented from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "books" / "spend.jsonl"
        (directory / "vendor").mkdir()
        self.vendor = f"{sys.executable} -S -E {vendor_stand_in.__file__} {directory / 'vendor'}"

    def rent(self, *words: str, limit: str = "2 USD", rate: str = "0.70 USD/h") -> Outcome:
        return in_process(*self.renting(limit, rate), *words)

    def renting(self, limit: str = "2 USD", rate: str = "0.70 USD/h") -> tuple[str, ...]:
        return (
            "guard", "rent", "--label", "lab02-pod", "--limit", limit, "--rate", rate,
            "--create", f"{self.vendor} create {{name}}", "--list", f"{self.vendor} list",
            "--terminate", f"{self.vendor} terminate {{id}}", "--poll", "100ms",
            "--ceiling", "50", "--log", str(self.log),
        )  # fmt: skip

    @property
    def guard(self) -> BudgetGuard:
        return BudgetGuard(50, self.log, environ={})

    @property
    def hold(self) -> Hold:
        """The hold of the rental."""
        (hold,) = self.guard.log.books().rentals()
        return hold

    def kill_watcher(self) -> None:
        rentals = self.guard.log.books().rentals()
        for hold in (each for each in rentals if each.watcher):
            named = ProcessName.parse(hold.watcher)
            assert named is not None
            send(Process(named.pid, named.start), signal.SIGKILL)
            until(partial(has_ended, hold.watcher), what="the watcher to die")
        until(
            lambda: not self.has_running_commands(),
            what="the vendor's commands that it had started",
        )

    def has_running_commands(self) -> bool:
        """Whether a command of the vendor runs; one that is slow to start outlives its watcher."""
        directory = str(self.directory / "vendor")
        return any(directory in command_line(pid) for pid in all_processes())

    def watchers(self) -> int:
        """Return how many processes watch the rental."""
        words = (command_line(pid) for pid, found in all_processes().items() if not found.is_dead)
        return sum("outlay.guard.rental.watch" in each and self.hold.id in each for each in words)

    def running(self) -> bool:
        return '"dying": null' in (self.directory / "vendor" / "pods.json").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.kill_watcher()


@pytest.fixture
def orphan(bench: Bench) -> Bench:
    """Something rented whose watcher was killed."""
    said = bench.rent()
    assert said.code == 0, said.err
    bench.kill_watcher()
    return bench


def test_the_watcher_is_recorded_with_its_start_time_when_renting_returns(bench: Bench) -> None:
    assert bench.rent().code == 0
    named = ProcessName.parse(bench.hold.watcher)
    assert named is not None
    process = read_process(named.pid)
    assert process is not None
    assert process.start == named.start


class TestADeadWatcher:
    def test_every_view_of_rentals_shows_the_error_and_ends_nothing(self, orphan: Bench) -> None:
        status = in_process("guard", "status", "--log", orphan.log, "--json").json
        (finding,) = status["findings"]
        assert finding["severity"] == "error"
        assert re.search("its watcher .* is dead", finding["message"])
        stale = in_process("guard", "reconcile", "--log", orphan.log).out
        assert "is dead" in stale
        assert "no hold needs to be settled by hand" not in stale
        overview = in_process().out
        assert "Nothing is running" not in overview
        assert "Rented: pod-1 for lab02-pod" in overview
        assert "is dead" in overview
        check = in_process("watch", "--check", "--json", XDG_CONFIG_HOME=str(orphan.directory))
        assert check.code == 3
        assert [each["hold"]["resource"] for each in check.json["rented"]] == ["pod-1"]
        assert orphan.running()

    def test_its_lab_is_blocked_until_it_is_adopted(self, orphan: Bench) -> None:
        refused = in_process("guard", "authorize", "lab02-more", "1", "--log", orphan.log)
        assert (refused.code, "guard adopt" in refused.err) == (3, True)
        assert in_process("guard", "authorize", "lab03-x", "1", "--log", orphan.log).code == 0
        before = orphan.hold.watcher
        adopted = in_process("guard", "adopt", orphan.hold.id, "--log", orphan.log)
        assert adopted.code == 0, adopted.err
        assert orphan.hold.watcher not in ("", before)
        assert orphan.guard.findings() == ()
        assert in_process("guard", "authorize", "lab02-more", "1", "--log", orphan.log).code == 0

    def test_a_watched_rental_is_not_adopted(self, bench: Bench) -> None:
        assert bench.rent().code == 0
        refused = in_process("guard", "adopt", bench.hold.id, "--log", bench.log)
        assert refused.code == 2
        assert "every rental has a watcher" in in_process("guard", "adopt", "--log", bench.log).out

    def test_outlay_watch_starts_a_new_watcher(self, orphan: Bench) -> None:
        assert known_logs() == (orphan.log,)
        assert in_process("watch", "--once").code == 0
        assert orphan.guard.findings() == ()


def test_the_watcher_outlives_the_guarded_command_that_rented(bench: Bench) -> None:
    guarded = ("guard", "run", "--label", "outer", "--rate", "1", "--ceiling", "50")
    renting = [sys.executable, "-m", "outlay", *bench.renting()]
    with reaping():
        done = in_process(*guarded, "--log", bench.directory / "outer.jsonl", "--", *renting)
        assert done.code == 0, done.err
        assert bench.watchers() == 1
        assert not has_ended(bench.hold.watcher)
        bench.kill_watcher()


class TestOneWatcherPerRental:
    def test_of_several_that_are_started_at_once_one_watches(self, orphan: Bench) -> None:
        rounds = [start_outlay("watch", "--once") for _ in range(4)]
        assert [each.wait() for each in rounds] == [0] * 4
        until(lambda: orphan.watchers() == 1, "all but one to end")
        named = ProcessName.parse(orphan.hold.watcher)
        assert named is not None
        assert read_process(named.pid) is not None

    def test_a_watcher_outside_a_container_is_not_replaced_from_inside(self, bench: Bench) -> None:
        assert bench.rent().code == 0
        watcher = bench.hold.watcher
        inside = in_pid_namespace("-m", "outlay", "watch", "--once")
        assert inside.returncode == 0, inside.stderr
        assert "new watcher" not in inside.stderr
        assert (bench.hold.watcher, bench.watchers()) == (watcher, 1)


class TestAnOverdueRental:
    @pytest.fixture
    def overdue(self, bench: Bench) -> Bench:
        """Past its deadline, with a vendor that ignored the watcher until that was killed."""
        mode = bench.directory / "vendor" / "terminate.mode"
        mode.write_text("ignore")
        assert bench.rent("--margin", "900ms", limit="1 USD", rate="3600 USD/h").code == 0
        bench.kill_watcher()
        mode.write_text("ok")
        until(
            lambda: any("past its deadline" in str(each) for each in bench.guard.findings()),
            what="the deadline",
        )
        return bench

    def test_its_cost_grows_in_every_figure(self, overdue: Bench) -> None:
        until(lambda: overdue.guard.held > 1, what="more than was held to be spent")
        status = in_process("guard", "status", "--log", overdue.log, "--json").json
        assert Money(**status["scopes"][0]["held"]) > Money.parse("1 USD")

    def test_outlay_watch_terminates_and_settles_it(
        self, overdue: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reap = Reaper.reap
        monkeypatch.setattr(
            Reaper, "reap", lambda reaper, inventory, **_: reap(reaper, inventory, pause_s=0.05)
        )
        said = in_process("watch", "--once")
        assert said.code == 0
        assert "verified gone" in said.err
        assert not overdue.running()
        assert (overdue.guard.held, overdue.guard.findings()) == (0.0, ())
        assert in_process("watch", "--check").code == 0


class TestWhatTheListDoesNotShow:
    """A vendor whose list ends after 100 rows, and a rental that is the 101st."""

    @pytest.fixture
    def hidden(self, bench: Bench) -> Bench:
        pods = [
            {"id": f"pod-{n}", "name": f"other-{n}", "hidden": 0, "dying": None}
            for n in range(1, 101)
        ]
        (bench.directory / "vendor" / "pods.json").write_text(json.dumps(pods))
        (bench.directory / "vendor" / "list.mode").write_text("page:100")
        return bench

    def test_a_list_that_may_be_a_page_needs_a_statement(self, hidden: Bench) -> None:
        said = hidden.rent()
        assert (said.code, "--list-is-complete" in said.err) == (2, True)
        assert not hidden.log.exists()

    def test_a_rental_that_was_never_listed_stays_held_until_a_person_decides(
        self, hidden: Bench
    ) -> None:
        assert hidden.rent("--list-is-complete", "--max-hours", "100ms").code == 0
        until(lambda: hidden.hold.doubt and hidden.hold.tried, what="the watcher to give up")
        status = in_process("guard", "status", "--log", hidden.log)
        assert "never listed" in status.out
        assert "--gone --reason" in status.out
        check = in_process("watch", "--check", XDG_CONFIG_HOME=str(hidden.directory))
        assert (check.code, "never listed" in check.out) == (3, True)
        assert "never listed" in in_process().out
        reap = in_process("guard", "reap", "--log", hidden.log, "--json")
        assert reap.code == 3
        assert [row["state"] for row in reap.json["rows"] if row["hold"]] == ["never listed"]
        assert hidden.guard.held == 2.0
        reconcile = partial(
            in_process, "guard", "reconcile", hidden.hold.id, "--gone", "--log", hidden.log
        )
        assert reconcile().code == 2
        assert reconcile("--reason", "the console", "--void", "nothing").code == 2
        settled = reconcile("--reason", "the console shows nothing", "--actual", "0.10 USD")
        assert settled.code == 0, settled.err
        assert (hidden.guard.held, hidden.guard.total_spent) == (0.0, 0.1)
        until(partial(has_ended, hidden.hold.watcher), what="the watcher to stop")

    def test_outlay_watch_finds_a_rental_that_came_back(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reap = Reaper.reap
        monkeypatch.setattr(
            Reaper, "reap", lambda reaper, inventory, **_: reap(reaper, inventory, pause_s=0.05)
        )
        assert bench.rent().code == 0
        until(lambda: bench.hold.listed, what="the watcher to see it")
        pods = bench.directory / "vendor" / "pods.json"
        running = pods.read_text()
        assert (
            in_process("guard", "down", "lab02-pod", "--log", bench.log, "--pause", "50ms").code
            == 0
        )
        until(partial(has_ended, bench.hold.watcher), what="the watcher to stop")
        pods.write_text(running)
        said = in_process("watch", "--once")
        assert "IS LISTED AGAIN" in said.err
        assert not bench.running()
        assert bench.guard.held == 0.0
        kinds = [type(line).__name__ for line in bench.guard.log.lines()]
        assert [kind for kind in kinds if kind != "Noted"] == [
            "Held", "Captured", "Corrected", "Held", "Captured",
        ]  # fmt: skip

    def test_a_namesake_is_somebody_elses_if_a_person_says_so(self, bench: Bench) -> None:
        assert bench.rent().code == 0
        assert bench.hold.rental is not None
        vendor_stand_in.answer(
            bench.directory / "vendor", "create", f"{bench.hold.rental.name}-copy"
        )
        until(lambda: bench.hold.namesakes, what="the watcher to see it")
        refused = in_process("guard", "authorize", "lab02-more", "1", "--log", bench.log)
        assert (refused.code, "--not-ours" in refused.err) == (3, True)
        words = ("--not-ours", "--reason", "a colleague's copy")
        said = in_process("guard", "reconcile", bench.hold.id, *words, "--log", bench.log)
        assert said.code == 0, said.err
        assert in_process("guard", "authorize", "lab02-more", "1", "--log", bench.log).code == 0


class TestInstalling:
    @pytest.fixture
    def programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A PATH on which only what a test puts there is found."""
        directory = tmp_path / "bin"
        directory.mkdir()
        monkeypatch.setenv("PATH", str(directory))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        return directory

    def program(self, path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def test_a_systemd_user_unit_is_written_and_started(
        self, programs: Path, tmp_path: Path
    ) -> None:
        self.program(programs / "systemctl", f'echo "$@" >> {tmp_path}/calls')
        assert in_process("watch", "--install").code == 0
        unit = (tmp_path / "config" / "systemd" / "user" / "outlay-watch.service").read_text()
        assert f"ExecStart={sys.executable} -m outlay watch\n" in unit
        assert "KillMode=process" in unit
        calls = (tmp_path / "calls").read_text().splitlines()
        assert calls[-2:] == ["--user daemon-reload", "--user enable --now outlay-watch.service"]

    def test_as_json_it_names_what_was_installed(self, programs: Path, tmp_path: Path) -> None:
        self.program(programs / "systemctl", "exit 0")
        shown = in_process("watch", "--install", "--json").json
        unit = tmp_path / "config" / "systemd" / "user" / "outlay-watch.service"
        assert (shown["unit"], shown["crontab"]) == (str(unit), None)
        assert Path(shown["variables"]).name == "watch.env"

    def test_without_systemd_one_line_of_the_crontab_is_replaced(
        self, programs: Path, tmp_path: Path
    ) -> None:
        table = tmp_path / "table"
        table.write_text("0 1 * * * backup\n")
        script = f'[ "$1" = -l ] && exec /bin/cat {table}; exec /bin/cat > {table}'
        self.program(programs / "crontab", script)
        assert [in_process("watch", "--install").code for _ in range(2)] == [0, 0]
        backup, ours = table.read_text().splitlines()
        assert backup == "0 1 * * * backup"
        assert ours.startswith("*/5 * * * * set -a; ")
        assert ours.endswith("-m outlay watch --once # outlay-watch.service")

    @pytest.mark.usefixtures("programs")
    def test_without_either_it_says_what_to_run(self) -> None:
        said = in_process("watch", "--install")
        assert said.code == 1
        assert "-m outlay watch --once" in said.err


TRAIN = "import time; time.sleep(0.05)"


class TestARunOnIt:
    """Money is held once: a run on a machine that a hold pays for opens none and captures none."""

    def lines(self, bench: Bench) -> list[str]:
        """Return the lines about money; the watcher adds notes while the test runs."""
        names = [type(line).__name__ for line in bench.guard.log.lines()]
        return [name for name in names if name != "Noted"]

    def guard_run(self, bench: Bench, variable: str, value: str) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variable, value)
            return in_process(
                "guard", "run", "--label", "lab02-train", "--rate", "0.70 USD/h", "--log",
                bench.log, "--dir", bench.directory / "run", "--", sys.executable, "-c", TRAIN,
            )  # fmt: skip

    def test_no_run_on_it_holds_or_captures_money(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert bench.rent().code == 0
        assert self.guard_run(bench, "RUNPOD_POD_ID", "pod-1").code == 0
        assert self.guard_run(bench, "OUTLAY_HOLD", f"{bench.hold.id}@{bench.log}").code == 0
        monkeypatch.setenv("RUNPOD_POD_ID", "pod-1")
        directory = bench.directory / "inside"
        with package.run("m", dir=directory, price="0.70 USD/h", gpus=1, guard=bench.guard) as run:
            for _ in run.steps(range(2)):
                SYSTEM.sleep(0.01)
        assert self.lines(bench) == ["Held"]
        assert (bench.guard.held, bench.guard.total_spent) == (2.0, 0.0)

    def test_on_another_machine_it_is_held_and_captured(self, bench: Bench) -> None:
        assert bench.rent().code == 0
        assert self.guard_run(bench, "RUNPOD_POD_ID", "pod-2").code == 0
        assert bench.guard.total_spent > 0

    def test_a_run_ends_before_the_machine_does(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (bench.directory / "vendor" / "terminate.mode").write_text("ignore")
        assert bench.rent("--max-hours", "2s").code == 0
        monkeypatch.setenv("RUNPOD_POD_ID", "pod-1")
        said = in_process(
            "guard", "run", "--label", "lab02-train", "--rate", "0.70 USD/h", "--log", bench.log,
            "--notice", "100ms", "--", sys.executable, "-c", "import time; time.sleep(60)",
        )  # fmt: skip
        assert (said.code, "pays for this machine" in said.err) == (3, True)

    def test_status_shows_what_of_a_rental_is_in_runs_and_in_no_run(self, bench: Bench) -> None:
        assert bench.rent().code == 0
        assert self.guard_run(bench, "RUNPOD_POD_ID", "pod-1").code == 0
        run_cost = package.read_run(bench.directory / "run").cost.cost
        assert run_cost is not None
        (row,) = in_process("guard", "status", "--log", bench.log, "--json").json["holds"]
        cost, in_runs, in_no_run = (Money(**row[name]) for name in ("cost", "in_runs", "in_no_run"))
        assert (in_runs, in_runs + in_no_run) == (run_cost, cost)
        said = in_process("guard", "status", "--log", bench.log).out
        assert "in no run" in said
        spent = in_process("cost", "summary", "--json").json
        outside = sum(each["micros"] for each in spent["rented_in_no_run"])
        assert outside >= in_no_run.micros > 0
        assert spent["totals"]["USD"] == (outside + run_cost.micros) / 10**6


class TestTheSameOptions:
    def run(self, bench: Bench, *words: str, seconds: float = 60) -> Outcome:
        program = f"import time; time.sleep({seconds})"
        return in_process(
            "guard", "run", "--label", "a", "--rate", "3600 USD/h", "--log", bench.log,
            "--ceiling", "50", "--notice", "100ms", "--slice", "1s", *words,
            "--", sys.executable, "-c", program,
        )  # fmt: skip

    def test_a_limit_ends_a_command(self, bench: Bench) -> None:
        said = self.run(bench, "--limit", "1 USD")
        assert (said.code, bench.guard.holds()) == (3, ())
        assert bench.guard.total_spent < 3

    @pytest.mark.parametrize("most", ["3599 USD/h", "0.10 USD/h"])
    def test_a_rate_above_the_highest_runs_nothing(self, bench: Bench, most: str) -> None:
        said = self.run(bench, "--most-rate", most, seconds=0)
        assert (said.code, "--most-rate" in said.err) == (3, True)
        assert not bench.log.exists()

    def test_a_rate_above_the_highest_rents_nothing(self, bench: Bench) -> None:
        said = bench.rent("--most-rate", "0.69 USD/h")
        assert (said.code, "--most-rate" in said.err) == (3, True)
        assert not bench.log.exists()

    def test_a_rate_at_the_highest_is_taken(self, bench: Bench) -> None:
        assert self.run(bench, "--most-rate", "3600 USD/h", seconds=0).code == 0
        assert bench.rent("--most-rate", "0.70 USD/h").code == 0

    def test_hours_alone_are_the_limit_of_a_rental(self, bench: Bench) -> None:
        said = in_process(
            "guard", "rent", "--label", "lab02-pod", "--rate", "0.60 USD/h", "--max-hours", "1",
            "--create", f"{bench.vendor} create {{name}}", "--list", f"{bench.vendor} list",
            "--terminate", f"{bench.vendor} terminate {{id}}", "--log", bench.log,
            "--ceiling", "50",
        )  # fmt: skip
        assert said.code == 0, said.err
        assert bench.hold.amount == Money.parse("0.62 USD")  # an hour, and the margin of 2 minutes

    def test_a_rental_needs_one_of_them(self, bench: Bench) -> None:
        said = in_process(
            "guard", "rent", "--label", "a", "--rate", "0.60 USD/h", "--create", "x {name}",
            "--vendor", "runpod", "--log", bench.log, "--ceiling", "50",
        )  # fmt: skip
        assert (said.code, "--max-hours" in said.err) == (2, True)


def test_the_creation_command_may_contain_the_hold_id(bench: Bench) -> None:
    assert bench.rent("--create", f"{bench.vendor} create {{name}} {{hold}}").code == 0
    calls = (bench.directory / "vendor" / "calls").read_text().splitlines()
    (created,) = (line for line in calls if line.startswith("create"))
    assert created.endswith(f" {bench.hold.id}")
