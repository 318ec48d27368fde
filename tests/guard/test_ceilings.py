"""What may loosen a ceiling: nothing but a person who says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import in_process
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded, CeilingUnusable
from outlay.units import Rate

VARIABLES = ["LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD"]


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Where a log is going to be, beside a manifest of five dollars."""
    path = tmp_path / "plan" / "spend.jsonl"
    path.parent.mkdir()
    write_manifest(path)
    return path


def write_manifest(log_path: Path, **changes: object) -> None:
    manifest = {"currency": "USD", "ceiling_usd": 5.0} | changes
    (log_path.parent / "manifest.json").write_text(json.dumps(manifest))


def manifest_of(log_path: Path) -> dict[str, object]:
    manifest: dict[str, object] = json.loads((log_path.parent / "manifest.json").read_text())
    return manifest


def events(log_path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log_path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "note"]


@pytest.mark.parametrize("linked", ["file", "directory"])
def test_a_link_from_another_directory_leads_to_the_same_manifest(
    log_path: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    BudgetGuard(5, log_path, environ={}).authorize("a", 1)
    if linked == "file":
        link = elsewhere / "spend.jsonl"
        link.symlink_to(log_path)
    else:
        (elsewhere / "plan").symlink_to(log_path.parent)
        link = elsewhere / "plan" / "spend.jsonl"
    with pytest.raises(BudgetGuardExceeded):
        BudgetGuard(500, link, environ={}).authorize("b", 5)
    assert list(elsewhere.iterdir()) == [elsewhere / link.relative_to(elsewhere).parts[0]]


def test_an_open_guard_applies_a_tightened_manifest(log_path: Path) -> None:
    guard = BudgetGuard(5, log_path, environ={})
    guard.authorize("a", 1)
    write_manifest(log_path, ceiling_usd=2)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 2)
    assert guard.remaining == 1.0


def test_an_open_guard_applies_an_edit_with_the_same_size_and_times(log_path: Path) -> None:
    guard, path = BudgetGuard(5, log_path, environ={}), log_path.parent / "manifest.json"
    guard.authorize("a", 1)
    before, text = path.stat(), path.read_text()
    with path.open("r+") as file:
        file.write(text.replace("5.0", "1.0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino, before.st_size, before.st_mtime_ns,
    )  # fmt: skip
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 1)


def test_an_open_guard_applies_an_added_cap(log_path: Path) -> None:
    guard = BudgetGuard(5, log_path, environ={})
    write_manifest(log_path, ceiling_per_day_usd=1)
    with pytest.raises(BudgetGuardExceeded, match="day"):
        guard.authorize("b", 2)


def test_an_open_guard_refuses_once_the_manifest_is_invalid(log_path: Path) -> None:
    guard = BudgetGuard(5, log_path, environ={})
    (log_path.parent / "manifest.json").write_text("{")
    with pytest.raises(CeilingUnusable, match=r"manifest\.json"):
        guard.authorize("a", 1)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_does_not_loosen_a_manifest(log_path: Path, variable: str) -> None:
    guard = BudgetGuard(5, log_path, environ={variable: "20"})
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("a", 10)
    assert guard.remaining == 5.0


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_tightens_a_manifest(log_path: Path, variable: str) -> None:
    assert BudgetGuard(5, log_path, environ={variable: "1"}).remaining == 1.0


def test_a_variable_overrides_the_constructor_without_a_manifest(tmp_path: Path) -> None:
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={"OUTLAY_CEILING_USD": "20"})
    assert guard.remaining == 20.0


def test_caps_in_code_do_not_loosen_those_of_a_manifest(log_path: Path) -> None:
    write_manifest(log_path, ceiling_per_lab={"02": 1, "03": 2})
    guard = BudgetGuard(5, log_path, caps={"02": 4, "03": 1, "04": 3}, environ={})
    rows = {str(row.scope): str(row.limit) for row in guard.standings() if row.scope.of == "lab"}
    assert rows == {"project 02": "1.00 USD", "project 03": "1.00 USD"}
    with pytest.raises(BudgetGuardExceeded, match="project 04"):
        guard.authorize("lab04-a", 1)


def test_caps_without_a_common_lab_allow_nothing(log_path: Path) -> None:
    write_manifest(log_path, ceiling_per_lab={"02": 1})
    guard = BudgetGuard(5, log_path, caps={"03": 1}, environ={})
    for label in ("lab02-a", "lab03-a", "a"):
        with pytest.raises(BudgetGuardExceeded):
            guard.authorize(label, "0.01")


class TestSetting:
    """``outlay guard set-ceiling``: raising is a line that names who and why."""

    def set_ceiling(self, log_path: Path, amount: str, reason: str = "agreed on Monday") -> int:
        words = ("set-ceiling", amount, "--reason", reason, "--log", log_path)
        return in_process("guard", *words).code

    def test_it_raises_the_manifest_and_writes_who_and_why(self, log_path: Path) -> None:
        BudgetGuard(5, log_path, environ={}).authorize("a", 5)
        assert self.set_ceiling(log_path, "8 USD") == 0
        assert manifest_of(log_path)["ceiling_usd"] == 8.0
        (line,) = events(log_path)
        detail = line["detail"]
        assert isinstance(detail, dict)
        assert line["event"] == "ceiling-raised"
        assert (detail["from"], detail["to"]) == ("5.00", "8.00")
        assert detail["reason"] == "agreed on Monday"
        assert " on " in detail["by"]

    def test_what_it_raised_is_authorised_and_no_finding_of_verify(self, log_path: Path) -> None:
        BudgetGuard(5, log_path, environ={}).authorize("a", 5)
        self.set_ceiling(log_path, "8")
        guard = BudgetGuard.of_log(log_path, environ={})
        guard.authorize("b", 3)
        assert guard.verify().findings == ()
        assert "agreed on Monday" in str(guard.findings()[0])

    def test_an_open_guard_of_the_log_applies_it(self, log_path: Path) -> None:
        live = BudgetGuard.of_log(log_path, environ={})
        self.set_ceiling(log_path, "8")
        assert live.remaining == 8.0

    def test_a_lower_ceiling_in_code_still_applies(self, log_path: Path) -> None:
        live = BudgetGuard(5, log_path, environ={})
        self.set_ceiling(log_path, "8")
        assert live.remaining == 5.0

    def test_without_a_manifest_the_line_states_it(self, tmp_path: Path) -> None:
        path = tmp_path / "spend.jsonl"
        BudgetGuard(5, path, environ={}).authorize("a", 5)
        assert self.set_ceiling(path, "8") == 0
        assert BudgetGuard.of_log(path, environ={}).remaining == 3.0
        assert len(events(path)) == 1

    def test_lowering_is_a_line_and_no_finding(self, log_path: Path) -> None:
        assert self.set_ceiling(log_path, "4") == 0
        guard = BudgetGuard.of_log(log_path, environ={})
        assert (guard.remaining, guard.findings()) == (4.0, ())
        assert events(log_path)[0]["event"] == "ceiling-lowered"

    @pytest.mark.parametrize(("amount", "reason"), [("8", " "), ("lots", "x"), ("5", "x")])
    def test_invalid_input_changes_nothing(self, log_path: Path, amount: str, reason: str) -> None:
        assert self.set_ceiling(log_path, amount, reason) != 0
        assert manifest_of(log_path)["ceiling_usd"] == 5.0
        assert not log_path.exists() or log_path.read_bytes() == b""


def test_test_mode_is_announced_on_stderr_once(tmp_path: Path) -> None:
    script = (
        "from outlay import BudgetGuard\n"
        f"BudgetGuard(5, {str(tmp_path / 'a.jsonl')!r}).authorize('a', 1)\n"
        f"BudgetGuard(5, {str(tmp_path / 'b.jsonl')!r}).authorize('a', 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env=os.environ | {"BUDGET_GUARD_TEST_MODE": "1"},
    )  # fmt: skip
    assert done.stderr.count("BUDGET_GUARD_TEST_MODE=1") == 1
    assert "nothing is written" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "asked", "says"),
    [
        ({"user": "me", "day": 2}, 3, "user me day"),
        ({"user": "*", "month": 2}, 3, "user me month"),
        ({"team": "vision", "all": 2}, 3, "team vision:"),
        ({"project": "lab02", "day": 2}, 3, "project 02 day"),
        ({"month": 2}, 3, "month"),
    ],
)
def test_a_manifest_limits_users_teams_and_projects(
    log_path: Path, limit: dict[str, object], asked: int, says: str
) -> None:
    write_manifest(log_path, ceiling_scopes=[limit])
    guard = BudgetGuard(5, log_path, user="me", team="vision", environ={})
    with pytest.raises(BudgetGuardExceeded, match=says):
        guard.authorize("lab02-a", asked)
    guard.authorize("lab02-a", 2)


def test_a_manifest_limits_what_open_holds_cost_per_hour(log_path: Path) -> None:
    write_manifest(log_path, ceiling_scopes=[{"hour": 4}])
    guard = BudgetGuard(5, log_path, environ={})
    guard.authorize("a", 1, rate=Rate.parse("3 USD/h"))
    with pytest.raises(BudgetGuardExceeded, match=r"hour: 3.00 USD/h of open holds"):
        guard.authorize("b", 1, rate=Rate.parse("2 USD/h"))


@pytest.mark.parametrize(
    "scopes",
    [
        [{"user": "a", "team": "b", "day": 1}],
        [{"user": "a", "day": 1}, {"user": "a", "day": 2}],
        [{"user": "a", "week": 1}],
        [{"user": "a", "day": -1}],
        [{"user": "a", "day": 1, "enforce": "maybe"}],
    ],
)
def test_a_scope_of_a_manifest_that_makes_no_sense_refuses_everything(
    log_path: Path, scopes: list[dict[str, object]]
) -> None:
    write_manifest(log_path, ceiling_scopes=scopes)
    with pytest.raises(CeilingUnusable):
        BudgetGuard(5, log_path, environ={})
