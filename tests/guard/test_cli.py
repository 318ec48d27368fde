"""``outlay guard``, as it is typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import vendor_stand_in
from command_line import Outcome, in_process
from command_line import outlay as in_own_process
from outlay import run as begin_run
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import CeilingManifest, read_manifest
from outlay.proc.identity import all_processes, command_line
from waiting import until


def outlay(*words: object) -> Outcome:
    """Call a command; what it says on either stream stands in ``out``."""
    said = in_process("guard", *words)
    return replace(said, out=said.out + said.err)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The document's plan: five dollars, three for lab 02, nothing for lab 03, two to spare."""
    directory = tmp_path / "plan"
    said = outlay(
        "init", directory, "--ceiling", 5, "--lab", "02=3.00", "--lab", "03=0", "--buffer", "2.00"
    )
    assert said.code == 0
    return directory


class TestInit:
    def test_the_three_pages_are_written_and_nothing_else(self, plan: Path) -> None:
        names = sorted(path.name for path in plan.iterdir())
        assert names == ["budget.md", "manifest.json", "pre-flight-checklist.md"]

    def test_the_budget_shows_the_table_and_the_reasoning(self, plan: Path) -> None:
        text = (plan / "budget.md").read_text()
        assert "| Lab 02 | ≤ $3.00 |" in text
        assert "| Lab 03 (no cloud) | = $0.00 |" in text
        assert "**$5.00 ≤ $5.00**" in text
        assert "2 x $0.35/h x 3 h = $2.10; the cap of $3.00 leaves 42.9 %" in text
        assert "an assumption that nobody looked up" in text

    def test_the_checklist_has_the_documents_figures(self, plan: Path) -> None:
        text = (plan / "pre-flight-checklist.md").read_text()
        for figure in ("alert at $2.40", "auto-termination at 4h", "$2.80", "$3.15 remaining"):
            assert figure in text

    def test_the_manifest_has_the_documented_keys(self, plan: Path) -> None:
        manifest = json.loads((plan / "manifest.json").read_text())
        assert list(manifest) == list(CeilingManifest.__struct_fields__[:10])
        assert manifest["ceiling_per_lab"] == {"02": 3.0, "03": 0.0, "buffer": 2.0}
        assert (manifest["seed"], manifest["ceiling_usd"]) == (35000, 5.0)
        assert read_manifest(plan / "manifest.json") is not None

    def test_caps_on_days_and_months_are_written_and_bind(self, tmp_path: Path) -> None:
        said = outlay("init", tmp_path, "--ceiling", 5, "--buffer", 5, "--day", 1, "--month", "2.5")
        assert said.code == 0
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        assert manifest["ceiling_per_day_usd"] == 1.0
        assert manifest["ceiling_per_month_usd"] == 2.5
        page = (tmp_path / "budget.md").read_text()
        assert "at most $1.00 a day and $2.50 a month (UTC)" in page
        assert outlay("authorize", "x", "1.00", "--log", tmp_path).code == 0
        assert outlay("authorize", "y", "0.01", "--log", tmp_path).code == 3

    @pytest.mark.parametrize("cap", ["-1", "1 EUR", "much"])
    def test_a_cap_on_days_that_is_no_amount_is_refused(self, tmp_path: Path, cap: str) -> None:
        said = outlay("init", tmp_path / "x", "--ceiling", 5, f"--day={cap}")
        assert said.code == 2
        assert not (tmp_path / "x").exists()

    def test_caps_that_exceed_the_ceiling_are_refused(self, tmp_path: Path) -> None:
        said = outlay("init", tmp_path / "x", "--ceiling", 5, "--lab", "02=4", "--buffer", 2)
        assert said.code == 2
        assert "6.00 USD in caps and buffer" in said.out
        assert not (tmp_path / "x").exists()

    def test_a_plan_is_replaced_only_on_purpose(self, plan: Path) -> None:
        again = ("init", plan, "--ceiling", 20)
        assert outlay(*again).code == 1
        assert outlay(*again, "--replace").code == 0

    def test_a_survey_goes_into_the_manifest(self, tmp_path: Path) -> None:
        said = outlay(
            "init", tmp_path, "--ceiling", 5, "--lab", "02=3", "--vendor", "runpod",
            "--survey-date", "2026-11-15", "--survey-price", "runpod=0.34", "--price", "0.34",
        )  # fmt: skip
        assert said.code == 0
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        assert manifest["vendor"] == "runpod"
        assert manifest["vendor_snapshot_prices"] == {"runpod": "0.34"}
        assert "vendor-survey.md" in (tmp_path / "budget.md").read_text()


class TestTheBooks:
    def test_authorising_within_the_cap_and_beyond_it(self, plan: Path) -> None:
        assert outlay("authorize", "lab02-tp-spinup", "3.00", "--log", plan).code == 0
        refused = outlay("authorize", "hypothetical-lab", "10.00", "--log", plan)
        assert refused.code == 3
        assert "project buffer" in refused.out

    def test_a_hold_as_json_can_be_settled_by_its_id(self, plan: Path) -> None:
        hold = outlay("authorize", "lab02-a", "2 USD", "--log", plan, "--json").json
        said = outlay("record", "lab02-a", "1.5", "--hold", hold["id"], "--log", plan)
        assert f"settles hold {hold['id']}" in said.out

    def test_a_hold_made_by_a_person_is_not_stale(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        assert "no hold needs to be settled by hand" in outlay("reconcile", "--log", plan).out

    def test_status_shows_every_scope_with_its_bar(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        outlay("record", "lab02-a", "1.50", "--log", plan)
        said = outlay("status", "--log", plan).out
        assert "project 02" in said
        assert f"{'█' * 10}{'·' * 10}" in said

    def test_status_as_json_carries_whole_micro_units(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        status = outlay("status", "--log", plan, "--json").json
        assert status["scopes"][0]["remaining"] == {"micros": 3_000_000, "currency": "USD"}
        assert status["holds"][0]["op_label"] == "lab02-a"

    def test_voiding_and_correcting(self, plan: Path) -> None:
        hold = outlay("authorize", "lab02-a", "2 USD", "--log", plan, "--json").json
        assert outlay("void", hold["id"], "--reason", "no pod", "--log", plan).code == 0
        outlay("record", "lab02-a", "1", "--log", plan)
        corrected = outlay("correct", "lab02-a", "--reason", "bill", "--log", plan, "--", "-0.25")
        assert corrected.code == 0
        assert BudgetGuard.of_log(plan / "spend.jsonl").total_spent == 0.75

    def test_verify_exits_3_with_the_line_when_the_log_was_edited(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        assert outlay("verify", "--log", plan).code == 0
        log = plan / "spend.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"estimated":2.00', b'"estimated":0.20'))
        said = outlay("verify", "--log", plan)
        assert said.code == 3
        assert "spend.jsonl:1:" in said.out

    @pytest.mark.parametrize("command", ["verify", "history"])
    def test_a_missing_log_is_an_error(self, tmp_path: Path, command: str) -> None:
        said = outlay(command, "--log", tmp_path / "gone.jsonl")
        assert said.code == 2
        assert "a spend log that exists" in said.out

    def test_amounts_in_the_history_have_their_currency(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        assert "2.00 USD" in outlay("history", "--log", plan).out

    @pytest.mark.parametrize("how", [("--actual", "1"), ("--void", "no pod"), ("--as-held",)])
    def test_settling_without_a_hold_id_is_refused(self, plan: Path, how: tuple[str, ...]) -> None:
        said = outlay("reconcile", *how, "--log", plan)
        assert said.code == 2
        assert "the id of a hold" in said.out

    def test_a_negative_total_shows_an_empty_bar(self, plan: Path) -> None:
        outlay("correct", "lab02-a", "--reason", "bill", "--log", plan, "--", "-1")
        assert f" {'·' * 20}\n" in outlay("status", "--log", plan).out

    def test_history_shows_every_line(self, plan: Path) -> None:
        outlay("authorize", "lab02-a", "2 USD", "--log", plan)
        outlay("record", "lab02-a", "1", "--log", plan)
        kinds = [row["kind"] for row in outlay("history", "--log", plan, "--json").json]
        assert kinds == ["hold", "capture"]
        assert "capture" in outlay("history", "--log", plan, "--label", "lab02-a").out

    def test_what_people_stated_is_shown_beside_what_was_measured(self, plan: Path) -> None:
        BudgetGuard.of_log(plan / "spend.jsonl").record_actual("lab02-a", "0.50")
        assert "stated" not in outlay("status", "--log", plan).out
        outlay("record", "lab02-b", "1", "--log", plan)
        hold = outlay("authorize", "lab02-c", "1 USD", "--log", plan, "--json").json["id"]
        outlay("reconcile", hold, "--actual", "0.25", "--log", plan)
        outlay("correct", "lab02-b", "--reason", "bill", "--log", plan, "--", "-0.10")
        sums = "spent: 0.50 USD measured, 1.25 USD stated by people, -0.10 USD corrected"
        for command in ("status", "history"):
            assert sums in outlay(command, "--log", plan).out
        found = outlay("status", "--log", plan, "--json").json
        amounts = {basis: each["micros"] for basis, each in found["spent_by_basis"].items()}
        assert amounts == {"measured": 500_000, "stated": 1_250_000, "corrected": -100_000}
        assert found["scopes"][0]["spent"]["micros"] == sum(amounts.values())

    def test_the_history_of_an_operation_sums_up_that_one(self, plan: Path) -> None:
        outlay("record", "lab02-a", "1", "--log", plan)
        outlay("record", "lab02-b", "2", "--log", plan)
        said = outlay("history", "--label", "lab02-a", "--log", plan).out
        assert "spent: 1.00 USD stated by people" in said

    def test_reconcile_lists_what_a_dead_process_left_and_settles_it(self, plan: Path) -> None:
        script = (
            "import sys; from outlay.guard.budget_guard import BudgetGuard; "
            "print(BudgetGuard.of_log(sys.argv[1]).authorize('lab02-a', 2).id)"
        )
        log = str(plan / "spend.jsonl")
        command = [sys.executable, "-c", script, log]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        hold = done.stdout.strip()
        assert f"hold {hold}: 2.00 USD" in outlay("reconcile", "--log", plan).out
        assert outlay("reconcile", hold, "--log", plan).code == 2
        assert outlay("reconcile", hold, "--as-held", "--log", plan).code == 0
        assert BudgetGuard.of_log(log).total_spent == 2.0

    def test_without_a_log_or_a_ceiling_the_error_says_what_to_do(self, tmp_path: Path) -> None:
        said = outlay("authorize", "a", "1", "--log", tmp_path / "spend.jsonl")
        assert said.code == 3
        assert "--ceiling" in said.out


class TestFlights:
    CONFIRMED = ("others", "alert", "auto-termination", "instance-type")

    def preflight(self, plan: Path, *more: str, estimate: str = "2.10") -> Outcome:
        return outlay(
            "preflight", "--label", "lab02-tp", "--estimate", estimate, "--log", plan, *more
        )

    def confirmations(self) -> list[str]:
        return [word for name in self.CONFIRMED for word in ("--confirm", name)]

    def test_everything_confirmed_passes_and_stamps_the_start(self, plan: Path) -> None:
        assert self.preflight(plan, *self.confirmations()).code == 0
        (line,) = (plan / "spend.jsonl").read_text().splitlines()
        assert json.loads(line)["detail"]["start"].startswith("20")

    def test_what_is_not_confirmed_fails(self, plan: Path) -> None:
        said = self.preflight(plan, "--json")
        assert said.code == 3
        open_checks = [c["name"] for c in said.json["checks"] if c["passed"] is None]
        assert tuple(open_checks) == self.CONFIRMED
        assert not (plan / "spend.jsonl").exists()

    def test_the_lab_that_pays_can_be_named(self, plan: Path) -> None:
        said = self.preflight(plan, *self.confirmations(), "--lab", "03")
        assert said.code == 3
        assert "project 03 has 0.00 USD of 0.00 USD left" in said.out

    def test_a_lab_without_a_cap_has_nothing(self, plan: Path) -> None:
        said = self.preflight(plan, *self.confirmations(), "--lab", "07")
        assert said.code == 3
        assert "project 07 has 0.00 USD of 0.00 USD left" in said.out

    def test_a_days_cap_that_would_refuse_the_launch_fails(self, tmp_path: Path) -> None:
        assert outlay("init", tmp_path, "--ceiling", 5, "--lab", "02=5", "--day", 1).code == 0
        said = self.preflight(tmp_path, *self.confirmations(), estimate="1.01")
        assert said.code == 3
        assert "has 1.00 USD of 1.00 USD left; the estimate is 1.01 USD" in said.out

    def test_too_little_headroom_fails(self, plan: Path) -> None:
        outlay("authorize", "x", "2.00", "--log", plan)
        said = self.preflight(plan, *self.confirmations(), estimate="2.10")
        assert said.code == 3
        assert "3.00 USD remaining; the estimate and 50 % are 3.15 USD" in said.out

    def test_an_altered_log_fails(self, plan: Path) -> None:
        outlay("authorize", "x", "1", "--log", plan)
        log = plan / "spend.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"x"', b'"y"'))
        assert self.preflight(plan, *self.confirmations()).code == 3

    def test_a_timer_that_costs_more_than_the_cap_fails(self, plan: Path) -> None:
        said = self.preflight(plan, *self.confirmations(), "--rate", "0.80 USD/h")
        assert said.code == 3
        assert "3.20 USD, more than 3.00 USD" in said.out

    def test_postflight_records_the_proof(self, plan: Path, tmp_path: Path) -> None:
        outlay("authorize", "lab02-tp", "2", "--log", plan)
        proof = tmp_path / "proof-terminated.png"
        proof.write_bytes(b"picture")
        words = ("postflight", "--label", "lab02-tp", "--proof", proof, "--log", plan)
        assert outlay(*words).code == 3
        outlay("record", "lab02-tp", "1.9", "--log", plan)
        assert outlay(*words).code == 0
        last = json.loads((plan / "spend.jsonl").read_text().splitlines()[-1])
        assert last["detail"]["proof"] == "proof-terminated.png"
        assert len(last["detail"]["sha256"]) == 64


class TestRunning:
    """Real processes: what they print and how they exit passes through."""

    def run(self, plan: Path, *command: str) -> Outcome:
        return in_own_process(
            "guard", "run", "--label", "lab02-x", "--rate", "0.70 USD/h", "--max-hours", "3",
            "--log", plan, "--", *command,
        )  # fmt: skip

    def test_output_and_exit_code_pass_through_and_the_bound_is_stated(self, plan: Path) -> None:
        done = self.run(plan, sys.executable, "-c", "import sys; print('trained'); sys.exit(5)")
        assert (done.out, done.code) == ("trained\n", 5)
        assert "worst overshoot 0.064167 USD (slice 5m00s + notice 30.0s)" in done.err
        assert re.search(r"; head (\w{12}) \(outlay guard verify --expect \1 finds", done.err)
        assert BudgetGuard.of_log(plan / "spend.jsonl").holds() == ()

    def test_a_limit_that_only_pays_for_the_notice_is_refused_as_a_limit(self, plan: Path) -> None:
        words = ("--label", "lab02-x", "--rate", "36 USD/h", "--limit", "0.10 USD", "--log", plan)
        done = outlay("run", *words, "--", "true")
        assert done.code == 2
        assert "--limit: got '0.10 USD'; expected more than 0.30 USD" in done.out
        assert "max-hours" not in done.out

    def test_no_overshoot_is_stated_where_all_that_it_may_cost_is_held(self, plan: Path) -> None:
        words = ("--rate", "36 USD/h", "--limit", "0.10 USD", "--notice", "2s", "--log", plan)
        done = in_own_process("guard", "run", "--label", "lab02-x", *words, "--", "true")
        assert "at most 10.0s = 0.10 USD, all of it held" in done.err
        assert "overshoot" not in done.err

    def test_what_is_not_held_yet_can_overshoot_by_no_more_than_all_of_it(self, plan: Path) -> None:
        outlay("authorize", "lab02-other", "2.95 USD", "--log", plan)
        words = ("--rate", "36 USD/h", "--limit", "0.10 USD", "--notice", "2s", "--log", plan)
        done = in_own_process("guard", "run", "--label", "lab02-x", *words, "--", "true")
        assert "worst overshoot 0.10 USD (all that it may cost)" in done.err

    def test_a_message_to_a_closed_stderr_does_not_change_the_exit_code(self) -> None:
        """Whatever of it stays in a buffer is flushed once more on exit."""
        reader, writer = os.pipe()
        os.close(reader)
        program = (
            "import sys; from outlay.cli.guard.options import say; say('one');"
            "sys.stderr.buffer.write(b'rest'); say('two'); sys.stderr.buffer.write(b'rest')"
        )
        try:
            done = subprocess.run([sys.executable, "-c", program], stderr=writer, check=False)
        finally:
            os.close(writer)
        assert done.returncode == 0

    def test_a_closed_stderr_does_not_stop_the_command(self, plan: Path) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        words = ["--label", "lab02-x", "--rate", "0.70 USD/h", "--log", str(plan)]
        command = [sys.executable, "-c", "print('trained')"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "outlay", "guard", "run", *words, "--", *command],
                stdout=subprocess.PIPE, stderr=writer, text=True, check=False,
            )  # fmt: skip
        finally:
            os.close(writer)
        assert (done.stdout, done.returncode) == ("trained\n", 0)
        assert BudgetGuard.of_log(plan / "spend.jsonl").holds() == ()

    def test_a_ceiling_below_the_first_slice_pays_for_what_fits_it(self, plan: Path) -> None:
        outlay("authorize", "lab02-all", "2.99", "--log", plan)
        done = self.run(plan, sys.executable, "-c", "print('trained')")
        assert (done.out, done.code) == ("trained\n", 0)

    def test_no_room_is_exit_3_and_nothing_starts(self, plan: Path) -> None:
        outlay("authorize", "lab02-all", "3", "--log", plan)
        done = self.run(plan, sys.executable, "-c", "print('trained')")
        assert (done.out, done.code) == ("", 3)


class TestRenting:
    def words(self, directory: Path) -> list[str]:
        base = f"{sys.executable} -S -E {vendor_stand_in.__file__} {directory}"
        return [
            "--label", "lab02-pod", "--limit", "2 USD", "--rate", "0.70 USD/h",
            "--create", f"{base} create {{name}}", "--list", f"{base} list",
            "--terminate", f"{base} terminate {{id}}", "--id-from", "json:.id", "--poll", "50ms",
        ]  # fmt: skip

    def test_rent_reap_and_down(self, plan: Path, tmp_path: Path) -> None:
        said = outlay("rent", *self.words(tmp_path), "--log", plan)
        assert said.code == 0, said.out
        assert "is pod-1" in said.out
        assert "running" in outlay("reap", "--log", plan).out
        ended = outlay("down", "lab02-pod", "--pause", "50ms", "--log", plan)
        assert ended.code == 0
        guard = BudgetGuard.of_log(plan / "spend.jsonl")
        until(lambda: guard.held == 0.0, what="the hold to be settled")
        assert "verified gone" in (plan / "spend.jsonl").read_text()
        assert "nothing is rented" in outlay("reap", "--log", plan).out
        # Its log is removed after the test, and a watcher without a log goes on.
        log = str(plan / "spend.jsonl")
        until(lambda: not any(log in command_line(pid) for pid in all_processes()), "its watcher")

    def test_a_vendor_or_its_commands_are_needed(self, plan: Path) -> None:
        said = outlay(
            "rent", "--label", "a", "--limit", "1", "--rate", "1", "--create", "x {name}",
            "--log", plan,
        )  # fmt: skip
        assert said.code == 2
        assert "both --list and --terminate" in said.out

    def test_down_without_anything_rented_says_so(self, plan: Path) -> None:
        assert outlay("down", "lab02-pod", "--log", plan).code == 2


class TestTheHeadInReports:
    """Whatever shows the guard's money names the log's head, which `verify --expect` looks for."""

    GRID: ClassVar = {
        "engine": "process", "arguments": "none", "price": "36 USD/h", "ceiling": "5 USD",
        "timeout": "1m", "entrypoint": [sys.executable, "-c", "pass"],
        "grid": [{"params": {"x": [1, 2]}}],
    }  # fmt: skip

    @staticmethod
    def heads_in(text: str) -> set[str]:
        return set(re.findall(r"\b[0-9a-f]{64}\b", text))

    def assert_expected(self, log: Path, text: str) -> None:
        """Hold a report to the log: its head is a line of it, and of no log that was cut before."""
        (head,) = self.heads_in(text)
        BudgetGuard.of_log(log).authorize("later", 0)
        assert outlay("verify", "--log", log, "--expect", head).code == 0
        hashes = [json.loads(line)["hash"] for line in log.read_text().splitlines()]
        elsewhere = log.parent / "elsewhere" / "spend.jsonl"
        elsewhere.parent.mkdir(exist_ok=True)
        cut = log.read_text().splitlines(keepends=True)[: hashes.index(head)]
        elsewhere.write_text("".join(cut))
        done = outlay("verify", "--log", elsewhere, "--expect", head)
        assert done.code == 3
        assert f"no line has the hash {head}" in done.out

    @pytest.mark.parametrize("words", [["report", "--json"], ["report", "--md"]], ids=" ".join)
    @pytest.mark.parametrize("how", ["guard run", "outlay.run"])
    def test_the_report_of_a_run_names_it(self, how: str, words: list[str], tmp_path: Path) -> None:
        log, run_dir = tmp_path / "spend.jsonl", tmp_path / "run"
        if how == "guard run":
            said = outlay(
                "run", "--label", "x", "--rate", "36 USD/h", "--ceiling", 5, "--log", log,
                "--dir", run_dir, "--", "true",
            )  # fmt: skip
            assert said.code == 0, said.out
        else:
            with begin_run("m", dir=run_dir, price="36 USD/h", guard=BudgetGuard(5, log)) as run:
                for _ in run.steps(range(2)):
                    pass
        command, form = words
        done = in_process(command, run_dir, form)
        assert done.code == 0
        pages = [path.read_text() for path in run_dir.glob("report.md")]
        self.assert_expected(log, done.out if form == "--json" else "".join(pages))

    def test_the_end_of_guard_run_names_it(self, tmp_path: Path) -> None:
        log = tmp_path / "spend.jsonl"
        said = in_process(
            "guard", "run", "--label", "x", "--rate", "36 USD/h", "--ceiling", 5, "--log", log,
            "--dir", tmp_path / "run", "--json", "--", "true",
        )  # fmt: skip
        assert said.json["head"] == BudgetGuard.of_log(log).head
        self.assert_expected(log, json.dumps(said.json["head"]))

    def test_every_report_of_a_sweep_names_it(self, tmp_path: Path) -> None:
        grid, root = tmp_path / "grid.json", tmp_path / "sweep"
        grid.write_text(json.dumps(self.GRID))
        swept = in_process("sweep", "run", grid, "--output-dir", root, "--yes", "--json")
        assert swept.code == 0, swept.err
        head = BudgetGuard.of_log(root / "spend.jsonl").head
        assert swept.json["head"] == head
        assert in_process("sweep", "status", root, "--json").json["head"] == head
        assert f"head {head[:12]} (" in in_process("sweep", "status", root).out
        summary = in_process("sweep", "aggregate", root, "--allow-missing", "--json").json
        assert summary["head"] == head
        for page in ("html", "markdown"):
            assert head in Path(summary[page]).read_text().replace("<wbr>", "")
        self.assert_expected(root / "spend.jsonl", head)

    def test_a_sweep_without_a_ceiling_names_none(self, tmp_path: Path) -> None:
        grid, root = tmp_path / "grid.json", tmp_path / "sweep"
        grid.write_text(json.dumps({k: v for k, v in self.GRID.items() if k != "ceiling"}))
        swept = in_process("sweep", "run", grid, "--output-dir", root, "--yes", "--json")
        assert swept.json["head"] == ""
        assert not (root / "spend.jsonl").exists()
        assert "head" not in in_process("sweep", "status", root).out
