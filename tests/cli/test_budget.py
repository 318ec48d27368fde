"""``outlay budget``: how much is used, and what another budget would allow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlay
from outlay.cli.app import app
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, NotARun

SECOND = 10**9


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["budget", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def finished(tmp_path: Path, clock: ManualClock) -> Path:
    """A run of 10 steps of 5 tokens and 2 seconds at 3.60 USD an hour, stopped by its tokens."""
    budget = outlay.iso_tokens(50, max_minutes=10)
    with outlay.run("net", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(100), tokens=5):
            clock.advance(2 * SECOND)
    return tmp_path


def test_show_has_the_use_of_each_limit_and_the_stop_reason(finished: Path) -> None:
    shown = invoke("show", str(finished))
    assert re.search(r"^tokens +100.0%", shown, re.MULTILINE)
    assert "50 tok" in shown
    assert "100.0%" in shown
    assert re.search(r"^stopped by +tokens: 50 tok of 50 tok used", shown, re.MULTILINE)


def test_cost_is_not_called_charged_without_a_limit_on_money(finished: Path) -> None:
    shown = invoke("show", str(finished))
    (training,) = (line for line in shown.splitlines() if line.startswith("training  "))
    assert training.endswith("not limited")


def test_show_as_json_has_the_keys_of_the_document(finished: Path) -> None:
    shown = json.loads(invoke("show", str(finished), "--json"))
    document = json.loads((finished / "budget.json").read_text())
    for key in ("mode", "limits", "totals", "clocks_ms", "steps_per_epoch", "unmeasured"):
        assert shown[key] == document[key]
    assert shown["remaining"]["max_tokens"] == 0
    assert shown["status"] == "completed"


def test_show_names_unmeasured_limits_without_the_document(finished: Path) -> None:
    (finished / "budget.json").unlink()
    shown = json.loads(invoke("show", str(finished), "--json"))
    assert {"comm_bytes", "flops"} <= set(shown["unmeasured"])
    assert "cost_usd" not in shown["unmeasured"]


def test_show_has_the_epoch_length_of_the_loader(tmp_path: Path) -> None:
    with outlay.run("net", dir=tmp_path, budget=outlay.iso_epochs(2)) as run:
        list(run.steps(range(4)))
    shown = json.loads(invoke("show", str(tmp_path), "--json"))
    assert shown["steps_per_epoch"] == 4
    assert shown["remaining"]["max_epochs"] == 1


def test_show_forecasts_a_running_run(tmp_path: Path) -> None:
    with outlay.run("net", dir=tmp_path, budget=outlay.iso_tokens(50)) as run:
        for _ in run.steps(range(4), tokens=5):
            pass
        shown = json.loads(invoke("show", str(tmp_path), "--json"))
        assert "more steps (estimated)" in invoke("show", str(tmp_path))
    assert shown["forecast"]["steps_left"] == 6
    assert shown["forecast"]["basis"] == "estimated"


def test_plan_estimates_a_budget_at_the_measured_pace(finished: Path) -> None:
    arguments = ("plan", "--mode", "iso_time", "--limit", "2h", "--from", str(finished))
    planned = json.loads(invoke(*arguments, "--json"))
    assert planned["steps"] == 3600
    assert planned["use"]["tokens"] == 18_000
    assert planned["use"]["cost_usd"] == 7.2
    assert planned["measured_steps"] == 10
    assert "Estimated from 10 measured steps of net" in invoke(*arguments)


def test_plan_turns_money_into_steps(finished: Path) -> None:
    arguments = ("plan", "--mode", "iso_cost", "--limit", "5 USD", "--from", str(finished))
    assert json.loads(invoke(*arguments, "--json"))["steps"] == 2500


@pytest.fixture
def in_euros(tmp_path: Path, clock: ManualClock) -> Path:
    """A run of 10 steps of 2 seconds at 3.60 EUR an hour, stopped by its money."""
    budget = outlay.iso_cost("0.02 EUR")
    with outlay.run("net", dir=tmp_path, budget=budget, price="3.6 EUR/h", clock=clock) as run:
        for _ in run.steps(range(100), tokens=5):
            clock.advance(2 * SECOND)
    return tmp_path


def test_show_counts_in_the_currency_of_the_limit(in_euros: Path) -> None:
    text = invoke("show", str(in_euros))
    assert re.search(r"^stopped by +cost: 0.02 EUR of 0.02 EUR used", text, re.MULTILINE)
    assert "USD" not in text
    shown = json.loads(invoke("show", str(in_euros), "--json"))
    assert shown["totals"]["cost_eur"] == 0.02
    assert shown["remaining"] == {"max_cost_eur": 0}
    assert (shown["cost"]["cost_eur"], shown["cost"]["parts"]["training"]["eur"]) == (0.02, 0.02)


def test_plan_turns_euros_into_steps(in_euros: Path) -> None:
    arguments = ("plan", "--mode", "iso_cost", "--limit", "5 EUR", "--from", str(in_euros))
    planned = json.loads(invoke(*arguments, "--json"))
    assert (planned["limit_key"], planned["steps"]) == ("max_cost_eur", 2500)
    assert planned["use"]["cost_eur"] == 5
    assert planned["start_up"]["cost_eur"] == 0
    assert "5.00 EUR" in invoke(*arguments)


def test_plan_in_a_currency_that_was_not_paid_is_refused(in_euros: Path) -> None:
    with pytest.raises(InvalidValue, match=r"--from.*max_cost_usd"):
        invoke("plan", "--mode", "iso_cost", "--limit", "5 USD", "--from", str(in_euros))


def test_plan_refuses_what_was_not_measured(finished: Path) -> None:
    with pytest.raises(InvalidValue, match=r"--from.*max_energy_Wh"):
        invoke("plan", "--mode", "energy_cap", "--limit", "5 Wh", "--from", str(finished))


def test_a_run_without_a_budget_is_refused(tmp_path: Path) -> None:
    with outlay.run("net", dir=tmp_path) as run:
        list(run.steps(range(3)))
    with pytest.raises(InvalidValue, match="started with a budget"):
        invoke("show", str(tmp_path))


def test_a_directory_without_a_log_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        invoke("show", str(tmp_path))
