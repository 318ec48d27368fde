"""``outlay exec`` with a budget: time and cost are limited from outside, for any program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import in_process
from outlay import read_run as outlay_read
from outlay.budget.limits import COST, TIME, Bound
from outlay.budget.terms import Budget
from outlay.budget.usage import Usage
from outlay.ledger import AttemptEnded, BudgetEvent, read_run
from outlay.runs import command_budget
from outlay.runs.command_budget import CommandTerms, CurrentUse, Ending, next_ending
from process_trees import alive, reaping
from waiting import until

SECOND = 10**9
ENDLESS = ("sleep", "300")
RECORDING = """
import sys, time, outlay
with outlay.run("bert", **eval(sys.argv[1])) as run:
    for number in run.steps(range(int(sys.argv[2])), tokens=1):
        time.sleep(0.05)
    for _ in run.steps(range(3), tokens=1) if run.stop_reason else ():
        raise SystemExit("a step after the stop")
"""


def ends(run: Path) -> list[AttemptEnded]:
    return [record for record in read_run(run).records if isinstance(record, AttemptEnded)]


def walls_ns(run: Path) -> list[int]:
    """Return the wall time of each attempt of a supervisor."""
    segments = read_run(run).segments.values()
    return [records[-1].t_ns - records[0].t_ns for records in segments]


def events(run: Path) -> list[str]:
    return [record.event for record in read_run(run).records if isinstance(record, BudgetEvent)]


def program(options: str, steps: int) -> tuple[str, ...]:
    """Return a command that records; ``options`` are those of ``outlay.run``."""
    return (sys.executable, "-c", RECORDING, options, str(steps))


# -- programs that record nothing ------------------------------------------------------------


def test_a_limit_on_time_of_the_variable_ends_a_program_that_records_nothing(
    tmp_path: Path,
) -> None:
    done = in_process("exec", "--dir", tmp_path / "r", "--", *ENDLESS, OUTLAY_BUDGET="iso_time=1s")
    assert done.code == 3
    last = done.err.splitlines()[-1]
    assert re.match(r"outlay: ended by its budget: time: \S+ of 1\.0s used", last)
    (end,) = ends(tmp_path / "r")
    assert end.status == "terminated"
    assert end.reason.startswith("budget: time: ")


def test_a_report_says_once_that_the_budget_ended_it(tmp_path: Path) -> None:
    run = tmp_path / "r"
    done = in_process("exec", "--dir", run, "--budget", "iso_time=1s", "--", *ENDLESS)
    reason = done.err.splitlines()[-1].removeprefix("outlay: ended by its budget: ")
    verdict = in_process("report", run, COLUMNS="500").out.splitlines()[0]
    assert verdict.endswith(f" Its budget stopped it: {reason}.")
    assert verdict.count("used") == 1
    assert f"stopped by  {reason}" in in_process("budget", run, COLUMNS="500").out
    assert re.search(rf"stopped by\W.*{reason}", (run / "report.html").read_text())
    refused = in_process("exec", "--dir", run, "--budget", "iso_time=1s", "--", *ENDLESS)
    assert refused.code == 3
    verdict = in_process("report", run, COLUMNS="500").out.splitlines()[0]
    assert verdict.endswith("the command was not started.")
    assert verdict.count("used") == 1


def test_a_limit_on_cost_ends_it_and_counts_like_the_books(tmp_path: Path) -> None:
    terms = ("--price", "3600 USD/h", "--budget", "iso_cost=1 USD")
    done = in_process("exec", "--dir", tmp_path / "r", *terms, "--json", "--", *ENDLESS)
    assert done.code == done.json["exit_code"] == 3
    assert re.match(r"cost: \d\S* USD of 1\.00 USD", done.json["budget"]["stop_reason"])
    report = outlay_read(tmp_path / "r").budget
    assert report is not None
    assert report.used.cost_micros == done.json["run"]["cost"]["micros"] >= 10**6


def test_use_counts_over_attempts_and_a_used_up_budget_starts_nothing(tmp_path: Path) -> None:
    budget = ("exec", "--dir", tmp_path / "r", "--budget", "iso_time=5s")
    assert in_process(*budget, "--", "sleep", "1").code == 0
    assert in_process(*budget, "--", *ENDLESS).code == 3
    report = outlay_read(tmp_path / "r").budget
    assert report is not None
    assert report.used.time_ns == sum(walls_ns(tmp_path / "r")) >= 5 * SECOND
    third = in_process(*budget, "--", "touch", tmp_path / "started")
    assert third.code == 3
    assert "budget was exhausted before this start: time: " in third.err
    assert not (tmp_path / "started").exists()


def test_a_run_keeps_the_budget_of_its_first_exec_until_it_is_dropped(tmp_path: Path) -> None:
    first = ("exec", "--dir", tmp_path / "r", "--budget", "iso_time=5s", "--", "true")
    assert in_process(*first).code == 0
    assert in_process("exec", "--dir", tmp_path / "r", "--", *ENDLESS).code == 3
    other = in_process("exec", "--dir", tmp_path / "r", "--budget", "iso_time=5h", "--", "true")
    assert other.code == 2
    assert "allow_change" in other.err
    dropped = ("exec", "--dir", tmp_path / "r", "--budget", "enabled=false", "--", "sleep", "6")
    assert in_process(*dropped).code == 0
    assert events(tmp_path / "r")[-1] == "dropped"


def test_a_program_that_ignores_the_notice_is_killed_with_all_its_processes(
    tmp_path: Path,
) -> None:
    child = f"trap '' TERM; sleep 120 & echo $! > {tmp_path}/pid; wait; sleep 120"
    stubborn = ("sh", "-c", f"trap '' TERM; sh -c '{child}' & wait; sleep 120")
    budget = ("--budget", "iso_time=5s", "--notice", "200ms")
    # In a process of its own: nothing of the group that it shares with others may be killed.
    done = subprocess.run(
        ["sh", "-c", '"$@"; echo "the shell has $?"', "-", sys.executable, "-m", "outlay", "exec",
         "--dir", str(tmp_path / "r"), *budget, "--", *stubborn],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.stdout == "the shell has 3\n"
    assert not alive(int((tmp_path / "pid").read_text()))
    assert ends(tmp_path / "r")[0].exit_code == 128 + signal.SIGKILL


def test_what_a_program_leaves_behind_ends_with_the_budget(tmp_path: Path) -> None:
    child = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"
    leaving = ("sh", "-c", 'sh -c "$1" & wait', "-", child)
    budget = ("--budget", "iso_time=5s", "--notice", "300ms")
    assert in_process("exec", "--dir", tmp_path / "r", *budget, "--", *leaving).code == 3
    assert not alive(int((tmp_path / "pid").read_text()))


def test_what_a_program_leaves_behind_within_its_budget_is_left_alone(tmp_path: Path) -> None:
    leaving = ("sh", "-c", f"sleep 120 >/dev/null 2>&1 & echo $! > {tmp_path}/pid")
    budget = ("--budget", "iso_time=1h")
    with reaping():
        assert in_process("exec", "--dir", tmp_path / "r", *budget, "--", *leaving).code == 0
        left = int((tmp_path / "pid").read_text())
        assert alive(left)
        os.kill(left, signal.SIGKILL)


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["iso_tokens=5k", "iso_time=1h,max_flops=1e18"])
def test_a_limit_that_only_records_count_is_refused_unless_the_program_records(
    tmp_path: Path, limit: str
) -> None:
    words = ("exec", "--dir", tmp_path / "r", "--budget", limit)
    refused = in_process(*words, "--", "true")
    assert refused.code == 2
    assert "--records" in refused.err
    assert not (tmp_path / "r").exists()
    assert in_process(*words, "--records", "--", "true").code == 0


@pytest.mark.parametrize("option", [("--budget", "iso_cost=5 USD"), ()])
def test_a_limit_on_cost_needs_a_price_unless_the_program_records(
    tmp_path: Path, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not option:
        monkeypatch.setenv("OUTLAY_BUDGET", "iso_cost=5 USD")
    words = ("exec", "--dir", tmp_path / "r", *option)
    refused = in_process(*words, "--", "true")
    assert refused.code == 3
    assert "has no price: --price " in refused.err
    assert not (tmp_path / "r").exists()
    assert in_process(*words, "--records", "--", "true").code == 0


def test_an_amount_alone_is_no_budget_and_the_error_shows_one_of_money(tmp_path: Path) -> None:
    refused = in_process("exec", "--dir", tmp_path / "r", "--budget", "5 USD", "--", "true")
    assert refused.code == 2
    assert "got '5 USD'; expected a budget such as \"iso_cost=5 USD\"" in refused.err
    assert not (tmp_path / "r").exists()


def test_the_last_line_says_if_nothing_was_recorded_that_a_limit_counts(tmp_path: Path) -> None:
    done = in_process("exec", "--dir", tmp_path / "r", "--", "true", OUTLAY_BUDGET="iso_tokens=5k")
    assert done.code == 0
    last = "outlay: the program recorded nothing, so max_tokens did not apply; call outlay.run()"
    assert done.err.splitlines()[-1] == last


# -- programs that record ----------------------------------------------------------------------


def test_a_program_that_records_stops_itself_and_keeps_its_exit_code(tmp_path: Path) -> None:
    budget = ("--budget", "iso_time=1s", "--records")
    command = program("{}", 1000)
    done = in_process("exec", "--dir", tmp_path / "r", *budget, "--json", "--", *command)
    assert done.code == 0
    assert done.json["budget"]["stop_reason"] is None
    assert done.json["run"]["status"] == "completed"
    assert "stopped" in events(tmp_path / "r")


def test_time_that_a_recording_program_is_not_charged_does_not_end_it(tmp_path: Path) -> None:
    slow_end = RECORDING + "\ntime.sleep(3)\n"
    command = (sys.executable, "-c", slow_end, "{}", "2")
    done = in_process(
        "exec", "--dir", tmp_path / "r", "--budget", "iso_time=2s", "--records", "--", *command
    )
    assert done.code == 0


def test_a_budget_of_the_programs_own_does_not_replace_that_of_exec(tmp_path: Path) -> None:
    """The program counts tokens alone; exec enforces its limit on time."""
    command = program("{'budget': 'iso_tokens=5M'}", 4000)
    done = in_process("exec", "--dir", tmp_path / "r", "--budget", "iso_time=2s", "--", *command)
    assert done.code == 3, done.err
    assert any(end.reason.startswith("budget: time: ") for end in ends(tmp_path / "r"))


def test_a_recording_program_that_hangs_is_ended_a_notice_after_its_limit_on_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its price is low until it records, so that it does so long before the limit."""
    monkeypatch.setattr(command_budget, "MEASURE_EVERY_NS", SECOND // 10)
    hangs = (
        "import time, outlay\nrun = outlay.run('bert')\nrun.__enter__()\n"
        "run.set_price('3600 USD/h')\ntime.sleep(120)"
    )
    terms = ("--price", "1 USD/h", "--budget", "iso_cost=2 USD", "--notice", "1s")
    done = in_process(
        "exec", "--dir", tmp_path / "r", *terms, "--json", "--", sys.executable, "-c", hangs
    )
    assert done.code == 3
    assert done.json["run"]["cost"]["micros"] >= 3 * 10**6


# -- when the supervisor or the keeper dies ----------------------------------------------------


def exec_in_background(tmp_path: Path, *budget: str) -> subprocess.Popen[bytes]:
    words = ("exec", "--dir", str(tmp_path / "r"), *budget, "--", "sh", "-c")
    script = f"echo $$ > {tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/pid; exec sleep 300"
    started = subprocess.Popen(
        [sys.executable, "-m", "outlay", *words, script],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until((tmp_path / "pid").exists, "the command to start")
    return started


@pytest.mark.parametrize(
    ("limit", "terms"),
    [
        ("time", ("--budget", "iso_time=4s")),
        ("cost", ("--price", "3600 USD/h", "--budget", "iso_cost=4 USD")),
    ],
)
def test_the_budget_is_enforced_after_exec_was_killed(
    tmp_path: Path, limit: str, terms: tuple[str, ...]
) -> None:
    supervisor = exec_in_background(tmp_path, *terms)
    supervisor.kill()
    supervisor.wait()
    until(lambda: ends(tmp_path / "r"), "the end to be recorded")
    (end,) = ends(tmp_path / "r")
    assert (end.status, end.reason[:13]) == ("terminated", f"budget: {limit}:")
    assert not alive(int((tmp_path / "pid").read_text()))


def test_the_keeper_ends_the_command_if_exec_cannot(tmp_path: Path) -> None:
    supervisor = exec_in_background(tmp_path, "--budget", "iso_time=2s", "--notice", "100ms")
    supervisor.send_signal(signal.SIGSTOP)
    command = int((tmp_path / "pid").read_text())
    until(lambda: not alive(command), "the keeper to end the command")
    supervisor.send_signal(signal.SIGCONT)
    assert supervisor.wait(timeout=60) == 3
    assert ends(tmp_path / "r")[0].reason.startswith("budget: time:")


# -- which limit ends the command, and when ----------------------------------------------------


def terms(*, records: bool = False) -> CommandTerms:
    limits = {"max_minutes": "10s", "max_cost_usd": 5}
    return CommandTerms(budget=Budget.of("iso_time", limits), records=records)


def pace(*, used_s: int = 0, micros_per_hour: int = 0) -> CurrentUse:
    return CurrentUse(100 * SECOND, Usage(time_ns=used_s * SECOND), micros_per_hour)


def test_the_first_limit_to_be_reached_ends_the_command() -> None:
    ending = next_ending(terms(), pace(used_s=4), {})
    assert ending == Ending(106 * SECOND, Bound(TIME, 10 * SECOND))
    # 5 USD at 3,600 USD per hour last five seconds.
    ending = next_ending(terms(), pace(used_s=4, micros_per_hour=3600 * 10**6), {})
    assert ending is not None
    assert (ending.t_ns, ending.bound.dimension) == (105 * SECOND, COST)


def test_a_limit_that_is_exceeded_already_ends_it_in_the_past() -> None:
    ending = next_ending(terms(), pace(used_s=14), {})
    assert ending is not None
    assert ending.t_ns == 96 * SECOND


@pytest.mark.parametrize(("own_s", "is_left"), [(9, True), (10, True), (11, False)])
def test_a_limit_on_time_is_left_to_a_program_with_the_same_or_a_lower_one(
    own_s: int, is_left: bool
) -> None:
    ending = next_ending(terms(), pace(), {"max_minutes": own_s * SECOND})
    assert (ending is None) is is_left


def test_time_is_left_to_a_program_that_is_said_to_record() -> None:
    assert next_ending(terms(records=True), pace(), {}) is None


def test_the_recorded_terms_read_as_they_were() -> None:
    stated = terms(records=True)
    assert CommandTerms.stated_in(json.loads(json.dumps(stated.document()))) == stated
