"""Which parts of a run's cost are charged to its budget."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outlay
from ledgers import fold_segments
from outlay.budget.config import as_text, read_budget
from outlay.budget.fold import CostedRun
from outlay.budget.report import budget_report
from outlay.budget.terms import Budget
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import CostParts
from outlay.cli.app import app
from outlay.clock import ManualClock
from outlay.goodput.follower import read_view
from outlay.ledger import (
    AttemptStarted,
    Price,
    PriceChanged,
    Record,
    SegmentId,
    SpanBegun,
    SpanEnded,
    Step,
    derive_attempts,
)
from outlay.rates import Basis, RateFunction, RatePiece
from outlay.units import Money, Unit
from trackers import tracker_of

SECOND = 10**9
PRICE = "3.6 USD/h"  # A thousandth of a dollar a second.


def document(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "budget.json").read_text())
    return content


def attempt(run_dir: Path, budget: Budget, clock: ManualClock, steps: int = 5) -> None:
    """Ten seconds of start-up, some steps of two, an evaluation of three; then a crash."""
    with (
        contextlib.suppress(ZeroDivisionError),
        outlay.run("m", dir=run_dir, budget=budget, price=PRICE, clock=clock) as run,
    ):
        clock.advance(10 * SECOND)
        for number in run.steps(range(100), tokens=1):
            clock.advance(2 * SECOND)
            if number == steps - 1:
                break
        with run.span("evaluation"):
            clock.advance(3 * SECOND)
        _ = 1 / 0


def shown(run_dir: Path) -> str:
    return CliRunner().invoke(app, ["budget", "show", str(run_dir)], catch_exceptions=False).stdout


def test_a_cost_budget_is_charged_all_that_the_run_costs(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("5 USD")
    attempt(tmp_path, budget, clock)
    clock.advance(100 * SECOND)
    attempt(tmp_path, budget, clock)
    cost = document(tmp_path)["cost"]
    assert {name: part["usd"] for name, part in cost["parts"].items()} == {
        "training": 0.020, "start_up": 0.020, "evaluation": 0.006, "checkpoint": 0, "logging": 0,
        "other": 0, "down": 0.100, "assumed": 0,
    }  # fmt: skip
    assert cost["charged_usd"] == cost["cost_usd"] == document(tmp_path)["totals"]["cost_usd"]


def test_charging_training_leaves_out_start_up_evaluation_and_time_between_attempts(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("5 USD", charge="training")
    attempt(tmp_path, budget, clock)
    clock.advance(100 * SECOND)
    attempt(tmp_path, budget, clock)
    content = document(tmp_path)
    assert content["totals"]["cost_usd"] == content["cost"]["charged_usd"] == 0.020
    assert content["cost"]["cost_usd"] == 0.146
    charged = [name for name, part in content["cost"]["parts"].items() if part["charged"]]
    assert charged == ["training"]


@pytest.mark.parametrize("charge", [None, "training", "all"])
def test_what_is_charged_live_is_what_its_log_replays_to(
    tmp_path: Path, clock: ManualClock, charge: str | None
) -> None:
    budget = outlay.iso_cost("5 USD", charge=charge)
    for _ in range(3):
        attempt(tmp_path, budget, clock, steps=3)
        clock.advance(7 * SECOND)
    live = document(tmp_path)
    report = budget_report(read_view(tmp_path, clock.wall_ns() - 7 * SECOND))
    assert report is not None
    assert report.document()["totals"] == live["totals"]
    assert report.document()["cost"] == live["cost"]


def test_a_time_budget_is_charged_training_alone_and_its_cap_on_money_everything(
    tmp_path: Path, clock: ManualClock
) -> None:
    attempt(tmp_path, outlay.iso_time("1h", max_cost_usd=5), clock)
    totals = document(tmp_path)["totals"]
    assert totals["time_ms"] == 10_000
    assert totals["cost_usd"] == 0.023


def test_an_exhausted_start_reports_which_limit_and_why(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    budget = outlay.iso_cost("0.10 USD")
    attempt(tmp_path, budget, clock)
    clock.advance(100 * SECOND)
    with (
        caplog.at_level(logging.WARNING, logger="outlay"),
        outlay.run("m", dir=tmp_path, budget=budget, price=PRICE, clock=clock) as run,
    ):
        assert list(run.steps(range(5), tokens=1)) == []
    text = (
        "budget was exhausted before this start: cost: 0.123 USD of 0.10 USD used, "
        "of which 0.10 USD while down between attempts"
    )
    assert run.stop_reason == text
    assert text in caplog.text
    assert document(tmp_path)["stop_reason"]["text"] == text
    assert text in " ".join(shown(tmp_path).split())


def test_show_lists_each_cost_part_and_the_time_between_attempts(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("5 USD", charge="training")
    attempt(tmp_path, budget, clock)
    clock.advance(100 * SECOND)
    attempt(tmp_path, budget, clock)
    lines = [" ".join(line.replace("│", " ").split()) for line in shown(tmp_path).splitlines()]
    assert "start-up 0.02 USD not charged" in lines
    assert "evaluation 0.006 USD not charged" in lines
    assert "down between attempts 0.10 USD not charged" in lines
    assert "training 0.02 USD charged" in lines


def test_the_page_lists_the_time_between_attempts(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_cost("5 USD")
    attempt(tmp_path, budget, clock)
    clock.advance(100 * SECOND)
    attempt(tmp_path, budget, clock)
    command = ["report", str(tmp_path), "--md"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "down between attempts | 0.10 USD" in (tmp_path / "report.md").read_text()


def two_attempts() -> dict[SegmentId, list[Record]]:
    """Two attempts of one step each, with ten seconds between them."""
    log: dict[SegmentId, list[Record]] = {}
    for start_s in (100, 120):
        header = AttemptStarted(t_ns=start_s * SECOND, price=Price(3_600_000))
        step = Step(seq=1, t_ns=(start_s + 10) * SECOND, step=0, dur_ns=10 * SECOND)
        log[SegmentId(start_s * SECOND)] = [header, step]
    return log


def test_money_that_is_assumed_is_shown_and_never_charged() -> None:
    spends = {spend.life.segment: spend for spend in fold_segments(two_attempts())}
    attempts = derive_attempts(spend.life for spend in spends.values())
    gap = RatePiece(110 * SECOND, 120 * SECOND, 3_600_000, Basis.ASSUMED)
    running = [RatePiece(s * SECOND, (s + 10) * SECOND, 3_600_000) for s in (100, 120)]
    pieces = (running[0], gap, running[1])
    parts = CostedRun(attempts, spends, RateFunction(pieces, Unit()), 130 * SECOND).parts()
    assert parts.micros()["assumed"] == 10_000
    assert parts.micros()["down"] == 0
    assert CostParts(training=parts.charged("all")).micros()["training"] == 20_000
    assert ("assumed", Money(10_000, "USD"), "not charged") in parts.rows("all", "USD")


def test_each_part_is_paid_at_the_price_of_its_time() -> None:
    header = AttemptStarted(t_ns=0, price=Price(3_600_000))
    records: list[Record] = [
        header,
        SpanBegun(seq=1, t_ns=0, name="checkpoint_restore"),
        SpanEnded(seq=2, t_ns=4 * SECOND, begun=1),
        PriceChanged(seq=3, t_ns=20 * SECOND, price=Price(7_200_000), gpus=1),
        Step(seq=4, t_ns=30 * SECOND, step=0, dur_ns=15 * SECOND),
    ]
    spends = {spend.life.segment: spend for spend in fold_segments({SegmentId(0): records})}
    attempts = derive_attempts(spend.life for spend in spends.values())
    pieces = (RatePiece(0, 20 * SECOND, 3_600_000), RatePiece(20 * SECOND, 30 * SECOND, 7_200_000))
    parts = CostedRun(attempts, spends, RateFunction(pieces, Unit()), 30 * SECOND).parts().micros()
    assert parts["checkpoint"] == 4_000
    assert parts["start_up"] == 11_000
    assert parts["training"] == 5_000 + 20_000
    assert parts["other"] == 0


@pytest.mark.parametrize("charge", [None, "training", "all"])
def test_the_charge_is_part_of_the_text_for_started_processes(charge: str | None) -> None:
    budget = outlay.iso_cost("5 USD", charge=charge)
    assert read_budget(as_text(budget)) == budget


def test_terms_without_charge_cost_charge_all_cost() -> None:
    stated = {"mode": "iso_cost", "limits": {"max_cost_usd": 5}, "charge": "training"}
    assert Budget.stated_in(stated) == outlay.iso_cost("5 USD")


def test_a_tracker_charges_no_money_of_an_evaluation_where_training_alone_counts(
    clock: ManualClock,
) -> None:
    limits = {"max_cost_usd": 3}
    tracker = BudgetTracker("iso_cost", limits, charge="training", rate="2 USD/h", clock=clock)
    with tracker.spend("evaluation"):
        clock.advance(3600 * SECOND)
    assert tracker.totals["cost_usd"] == 0
    assert tracker.clocks_ns["evaluation"] == 3600 * SECOND


def plan(run_dir: Path, mode: str, limit: str) -> dict[str, Any]:
    command = ["budget", "plan", "--mode", mode, "--limit", limit, "--from", str(run_dir)]
    done = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_a_plan_pays_for_one_start_and_not_for_a_share_of_it_at_every_step(
    tmp_path: Path, clock: ManualClock
) -> None:
    attempt(tmp_path, outlay.iso_tokens(100), clock)
    # A start-up of 0.010, then 0.010 and an evaluation of 0.003 for five steps.
    found = plan(tmp_path, "iso_cost", "0.270 USD")
    assert found["steps"] == 100
    assert found["use"]["cost_usd"] == 0.270
    assert found["start_up"] == {"seconds": 10.0, "cost_usd": 0.01, "attempts": 1}
    assert found["findings"] == []


@pytest.mark.parametrize(
    ("mode", "limit", "share"), [("iso_time", "50s", "20%"), ("iso_cost", "0.05 USD", "20%")]
)
def test_a_plan_warns_of_a_start_that_takes_more_than_a_tenth_of_a_budget(
    tmp_path: Path, clock: ManualClock, mode: str, limit: str, share: str
) -> None:
    attempt(tmp_path, outlay.iso_tokens(100), clock)
    (finding,) = plan(tmp_path, mode, limit)["findings"]
    assert "start-up takes" in finding
    assert share in finding


def test_a_plan_does_not_pay_again_for_the_time_between_attempts(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_tokens(100)
    attempt(tmp_path, budget, clock)
    clock.advance(1000 * SECOND)
    attempt(tmp_path, budget, clock)
    assert plan(tmp_path, "iso_cost", "0.270 USD")["steps"] == 100


@pytest.mark.parametrize(
    "budget",
    [outlay.iso_cost("5 USD", charge="training"), outlay.iso_time("1h", charge="all")],
    ids=["cost of training", "all time"],
)
def test_report_forecasts_at_the_pace_of_what_is_charged(
    tmp_path: Path, clock: ManualClock, budget: Budget
) -> None:
    with outlay.run("m", dir=tmp_path, budget=budget, price=PRICE, clock=clock) as run:
        clock.advance(100 * SECOND)
        for number in run.steps(range(4), tokens=1):
            clock.advance(2 * SECOND)
            if number == 2:
                with run.span("evaluation"):
                    clock.advance(5 * SECOND)
        live = tracker_of(run).forecast()
    report = budget_report(read_view(tmp_path, clock.wall_ns()))
    assert report is not None
    assert report.forecast == live


def test_an_evaluation_inside_the_first_step_is_not_taken_from_start_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, budget="iso_cost=99", price="3.6 USD/h", clock=clock) as run:
        clock.advance(100 * SECOND)
        for _ in run.steps(range(1)):
            clock.advance(10 * SECOND)
            with run.span("evaluation"):
                clock.advance(40 * SECOND)
    report = budget_report(read_view(tmp_path, clock.wall_ns()))
    assert report is not None
    assert report.cost is not None
    assert report.cost.micros()["start_up"] == 100_000
    written = json.loads((tmp_path / "budget.json").read_text())["cost"]
    assert written["parts"]["start_up"] == {"usd": 0.1, "charged": True}


def test_a_running_attempt_divides_its_cost_as_a_report_does(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, budget="iso_cost=99", price="3.6 USD/h", clock=clock) as run:
        clock.advance(7 * SECOND)
        for number in run.steps(range(12)):
            if number:
                report = budget_report(read_view(tmp_path, clock.wall_ns()))
                assert report is not None
                assert run._budget_gate is not None
                run._budget_gate.refresh()
                written = json.loads((tmp_path / "budget.json").read_text())["cost"]
                assert report.document()["cost"] == written
            clock.advance(3 * SECOND)
            if number % 3 == 1:
                run.set_price(f"{number}.5 USD/h")
            if number % 4 == 2:
                with run.span("evaluation"):
                    clock.advance(5 * SECOND)
            if number % 5 == 3:
                run.recorder.slices_changed(active=1, total=2, available=1)
