"""The sentences in the document of the spend guard.

Its refusals are in test_guard_budget_guard, its commands in test_guard_cli.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

import outlay
from outlay.cli.app import app
from outlay.cli.guard.commands import app as guard_commands
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.checklist import LaunchPlan, checklist_page, cost_since_start
from outlay.units import Money, Rate
from signatures import positional_names

HOUR = 3600 * 10**9


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "spend.jsonl"


@pytest.fixture
def guard(log_path: Path, clock: ManualClock) -> outlay.BudgetGuard:
    return outlay.BudgetGuard(ceiling_usd=5.00, log_path=log_path, clock=clock, environ={})


def the_plan() -> LaunchPlan:
    """Five dollars: three for lab 02, nothing for lab 03, two to spare."""
    labs = {"02": Money.parse("3"), "03": Money.parse("0")}
    return LaunchPlan(ceiling=Money.parse("5"), labs=labs, buffer=Money.parse("2"))


def command(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("method", "documented"),
    [
        ("__init__", ["ceiling_usd", "log_path"]),
        ("authorize", ["op_label", "estimated_usd"]),
        ("record_actual", ["op_label", "actual_usd"]),
    ],
)
def test_the_guard_takes_its_documented_arguments_in_their_order(
    method: str, documented: list[str]
) -> None:
    assert positional_names(getattr(outlay.BudgetGuard, method)) == documented


def test_what_was_spent_and_what_remains_are_floats(guard: outlay.BudgetGuard) -> None:
    assert issubclass(outlay.BudgetGuardExceeded, Exception)
    assert (type(guard.total_spent), type(guard.remaining)) == (float, float)


def test_authorize_logs_the_estimate_and_record_actual_the_actual(
    guard: outlay.BudgetGuard, log_path: Path
) -> None:
    keys = ("op_label", "estimated", "actual", "currency")
    guard.authorize("lab02-tp-spinup", 3.00)
    (intent,) = (json.loads(line) for line in log_path.read_text().splitlines())
    assert {key: intent[key] for key in keys if key in intent} == {
        "op_label": "lab02-tp-spinup", "estimated": 3.0, "currency": "USD",
    }  # fmt: skip
    assert intent["ts"].startswith("2023-11-14T")
    guard.record_actual("lab02-tp-spinup", 2.10)
    _, done = (json.loads(line) for line in log_path.read_text().splitlines())
    assert [done[key] for key in keys] == ["lab02-tp-spinup", 3.0, 2.1, "USD"]


def test_a_refusal_writes_nothing(guard: outlay.BudgetGuard, log_path: Path) -> None:
    guard.authorize("a", 3)
    before = log_path.read_bytes()
    with pytest.raises(outlay.BudgetGuardExceeded):
        guard.authorize("b", 3)
    assert log_path.read_bytes() == before


def test_another_guard_reads_the_same_amounts_from_the_log(
    guard: outlay.BudgetGuard, log_path: Path
) -> None:
    guard.authorize("a", 2)
    guard.record_actual("a", 1.5)
    guard.authorize("b", 1)
    another = outlay.BudgetGuard(5.00, log_path, environ={})
    assert (another.total_spent, another.held, another.remaining) == (1.5, 1.0, 2.5)


def test_every_operation_only_appends(guard: outlay.BudgetGuard, log_path: Path) -> None:
    guard.record_actual("z", 0.5)
    written = log_path.read_bytes()
    hold = guard.authorize("a", 1)
    for act in (
        lambda: guard.extend(hold, 0.5),
        lambda: guard.record_actual("a", 1.2),
        lambda: guard.correct("a", -0.2, "invoice"),
        lambda: guard.void(guard.authorize("b", 1), "not needed"),
        lambda: guard.note("preflight", "c"),
    ):
        act()
        now = log_path.read_bytes()
        assert now.startswith(written)
        assert len(now) > len(written)
        written = now


def launched(*_: object, **__: object) -> NoReturn:
    raise AssertionError("planning launched something")


def test_planning_writes_the_four_files_and_launches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.socket.connect"):
        monkeypatch.setattr(name, launched)
    command("survey", "--offline", "-o", str(tmp_path))
    command("guard", "init", str(tmp_path), "--ceiling", "5", "--lab", "02=3", "--buffer", "2")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"vendor-survey.md", "budget.md", "pre-flight-checklist.md", "manifest.json"}


def test_a_plan_with_a_cap_below_nothing_is_refused() -> None:
    labs = {"02": Money.parse("6"), "03": Money(-1_000_000)}
    with pytest.raises(InvalidValue, match="zero or more"):
        LaunchPlan(ceiling=Money.parse("5"), labs=labs, buffer=Money.parse("0"))


class TestTheChecklist:
    """Something that a tired person can do line by line."""

    def steps(self) -> list[str]:
        before, _, after = checklist_page(the_plan()).partition("# After every launch")
        return [*re.findall(r"- \[ \] .*", before), *re.findall(r"- \[ \] .*", after)]

    def test_every_line_is_a_numbered_box_to_tick(self) -> None:
        numbers = [int(re.findall(r"- \[ \] (\d+)\. ", step)[0]) for step in self.steps()]
        assert numbers == [*range(1, 10), *range(1, 5)]

    @pytest.mark.parametrize(
        "words",
        [
            "at least $3.15 remaining",
            "is any other instance running?",
            "is it 2 GPUs, each at most $0.35 an hour?",
            "set a budget alert at $2.40",
            "set auto-termination at 4h00m",
            "Note the start time.",
            "Set an alarm on your phone for 3 hours from now.",
            "Say aloud how you will end it:",
            "Take a screenshot.",
        ],
    )
    def test_it_has_every_step_of_the_routine(self, words: str) -> None:
        assert [step for step in self.steps() if words in step]

    def test_it_expects_a_spot_machine_to_be_reclaimed(self) -> None:
        page = checklist_page(the_plan())
        assert "30 seconds' notice: save results after every measurement" in page

    def test_the_commands_it_names_are_there(self) -> None:
        names = {each.name for each in guard_commands.registered_commands}
        named = set(re.findall(r"`outlay guard (\w+)", checklist_page(the_plan())))
        assert named == {"preflight", "status", "down", "run", "rent", "record", "postflight"}
        assert named <= names


class TestByHand:
    """What is launched without outlay costs the time since its preflight, at its rate."""

    def test_the_actual_is_end_minus_start_times_the_rate(
        self, guard: outlay.BudgetGuard, clock: ManualClock
    ) -> None:
        guard.note("preflight", "lab02-tp", detail={"start": "2026-11-15 10:00:00Z"})
        guard.note("preflight", "lab03-x", detail={"start": "2026-11-15 11:30:00Z"})
        clock.step_wall(1_794_736_800 * 10**9 - clock.wall_ns() + 3 * HOUR)  # 13:00
        cost = cost_since_start(guard, "lab02-tp", Rate.parse("0.70 USD/h"), now_ns=clock.wall_ns())
        assert cost == Money.parse("2.10")

    def test_a_start_that_lies_ahead_is_refused(
        self, guard: outlay.BudgetGuard, clock: ManualClock
    ) -> None:
        guard.note("preflight", "a", detail={"start": "2026-11-15 10:00:00Z"})
        with pytest.raises(InvalidValue, match="a start in the past"):
            cost_since_start(guard, "a", Rate.parse("1 USD/h"), now_ns=clock.wall_ns())

    def test_without_a_preflight_there_is_no_start(self, guard: outlay.BudgetGuard) -> None:
        guard.note("preflight", "a", detail={"remark": "written by something else"})
        guard.note("postflight", "a", detail={"start": "2026-11-15 10:00:00Z"})
        with pytest.raises(InvalidValue, match="whose start a preflight recorded"):
            cost_since_start(guard, "a", Rate.parse("1 USD/h"), now_ns=0)

    def test_it_is_recorded_as_an_estimate(self, log_path: Path) -> None:
        log = ("--log", str(log_path))
        command("guard", "authorize", "lab02-tp", "2 USD", "--ceiling", "5", *log)
        confirmed = ("others", "alert", "auto-termination", "instance-type")
        words = [word for name in confirmed for word in ("--confirm", name)]
        command(
            "guard", "preflight", "--label", "lab02-tp", "--estimate", "2", *words,
            "--ceiling", "5", *log,
        )  # fmt: skip
        command("guard", "record", "lab02-tp", "--rate", "0.70 USD/h", *log)
        last = json.loads(log_path.read_text().splitlines()[-1])
        assert (last["kind"], last["basis"]) == ("capture", "estimated")

    @pytest.mark.parametrize("words", [[], ["1 USD", "--rate", "1 USD/h"]])
    def test_an_amount_and_a_rate_exclude_each_other(
        self, log_path: Path, words: list[str]
    ) -> None:
        with pytest.raises(InvalidValue, match="AMOUNT"):
            command("guard", "record", "a", *words, "--log", str(log_path), "--ceiling", "5")


@pytest.mark.parametrize("columns", [80, 200])
def test_figures_are_never_cut_and_names_where_there_is_no_room_alone(
    log_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.cli.output.console.width", columns)
    label = "tensor-parallel-inference-benchmark-of-the-second-quarter"
    log = ("--log", str(log_path), "--ceiling", "125000")
    command("guard", "authorize", label, "12345.678901", *log)
    command("guard", "record", label, "11345.678901", *log)
    command("guard", "authorize", label, "2345.678901", *log)
    for words in (("status", *log), ("history", "--log", str(log_path))):
        shown = command("guard", *words)
        assert ("…" in shown) <= (columns == 80)
        assert "11,345.68" in shown
        assert "2,345.68" in shown
        assert max(map(len, shown.splitlines())) <= columns
    assert "█" in command("guard", "status", *log)


def test_wrapped_checks_are_indented_below_their_text(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.cli.output.console.width", 80)
    words = ["preflight", "--label", "lab02-tp", "--estimate", "2", "--ceiling", "5"]
    shown = CliRunner().invoke(app, ["guard", *words, "--log", str(log_path)])
    assert shown.exit_code == 3
    assert "\n     (--confirm instance-type)" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
