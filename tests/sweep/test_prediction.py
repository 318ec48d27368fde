"""Predictions of runs, their upper bounds, and the terms of their leases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outlay
from outlay.cli.app import app
from outlay.clock import ManualClock
from outlay.sweep.plan.plan import Prediction, at_most, measured, terms_of
from outlay.units import Duration, Money, Rate

SECOND = 10**9
DOLLAR_A_SECOND = Rate.parse("3600 USD/h")


def test_the_longest_finished_run_predicts_the_next() -> None:
    found = measured(DOLLAR_A_SECOND, [1 * SECOND, 3 * SECOND, 2 * SECOND])
    assert (found.ns, found.cost) == (3 * SECOND, Money.parse("3 USD"))


def test_without_finished_runs_there_is_no_prediction() -> None:
    assert measured(DOLLAR_A_SECOND, []) == Prediction()


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 1000 + 100 + 120), ("5m", 300)])
def test_a_remote_run_gets_its_timeout_or_a_tenth_and_two_minutes_more(
    timeout: str | None, seconds: int
) -> None:
    stated = None if timeout is None else Duration.parse(timeout)
    found = at_most(DOLLAR_A_SECOND, Prediction(ns=1000 * SECOND), stated)
    assert (found.ns, found.cost) == (seconds * SECOND, Money.parse(seconds))


@pytest.mark.parametrize(
    ("predicted", "slice", "notice"),
    [("0s", "1s", "1s"), ("40s", "10s", "5s"), ("10h", "5m", "11s")],
)
def test_the_hold_for_ending_a_run_includes_the_reaction_time(
    predicted: str, slice: str, notice: str
) -> None:
    terms = terms_of(DOLLAR_A_SECOND, Duration.parse(predicted).ns)
    assert (terms.slice, terms.notice) == (Duration.parse(slice), Duration.parse(notice))


def earlier_run(run_dir: Path, clock: ManualClock, seconds: int) -> None:
    """A run with this start-up time."""
    with outlay.run("m", dir=run_dir, clock=clock) as run:
        clock.advance(seconds * SECOND)
        for _ in run.steps(range(3), tokens=1):
            clock.advance(SECOND)


def earlier_sweep(root: Path, clock: ManualClock, seconds: Callable[[int], float]) -> None:
    """Six runs of a sweep, the tokens of each twice those of the one before."""
    runs = []
    for index in range(6):
        name, tokens = f"00{index + 1}_a_0{index}", 1000 * 2**index
        with outlay.run("m", dir=root / name, clock=clock) as run:
            for _ in run.steps(range(4), tokens=tokens // 4):
                clock.advance(round(seconds(tokens) * SECOND) // 4)
        runs.append({"id": name, "params": {"tokens": tokens, "x": 1}, "metadata": {}})
    (root / "sweep_manifest.json").write_text(json.dumps({"schema": 1, "runs": runs}))


def test_the_cost_of_runs_without_a_budget_is_predicted_from_earlier_ones(
    at: Path, clock: ManualClock
) -> None:
    earlier_sweep(at / "runs" / "tries_20260101_000000", clock, lambda tokens: tokens / 100)
    params = {"x": 1, "tokens": [4000, 64000]}
    found = planned(at, params=params, price="36 USD/h")
    first, last = found["runs"]
    assert first["likely_hours"] == pytest.approx(40 / 3600, rel=0.1)
    assert last["likely_hours"] == pytest.approx(640 / 3600, rel=0.2)
    low, cost, high = (
        float(last[f"likely_cost{end}"].partition(" ")[0]) for end in ("_low", "", "_high")
    )
    assert low < 6.4 < high
    assert cost == pytest.approx(last["likely_hours"] * 36, rel=0.01)
    assert "from 6 runs (" in found["likely_from"]
    assert ", by tokens, gpus: median error" in found["likely_from"]
    assert "; extrapolates tokens: 2 times the largest (32,000)" in found["likely_from"]
    shown = CliRunner().invoke(
        app, ["sweep", "plan", str(at / "tries.json")], env={"COLUMNS": "400"}
    )
    assert "2 runs likely: " in shown.stdout
    assert f"~{cost:.2f} USD" in shown.stdout


def test_what_a_budget_or_no_history_decides_is_not_predicted(at: Path, clock: ManualClock) -> None:
    params = {"x": 1, "tokens": [4000]}
    assert planned(at, params=params)["likely_from"] == ""
    earlier_sweep(at / "runs" / "tries_20260101_000000", clock, lambda _: 60)
    assert "no cost better than the median" in planned(at, params=params)["likely_from"]
    limited = planned(at, params=params, budget={"mode": "iso_time", "limit": "1h"})
    assert "likely_hours" not in limited["runs"][0]
    assert limited["likely_from"] == ""


def planned(directory: Path, ceiling: str | None = None, **entry: object) -> dict[str, Any]:
    """The output of ``outlay sweep plan`` for a grid of one entry."""
    grid = directory / "tries.json"
    entries = [{"name": "a", "params": {"x": 1}, "entrypoint": "train.py", **entry}]
    grid.write_text(json.dumps({"ceiling": ceiling, "grid": entries}))
    done = CliRunner().invoke(app, ["sweep", "plan", str(grid), "--json"], catch_exceptions=False)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_includes_the_start_up_of_earlier_runs(at: Path, clock: ManualClock) -> None:
    for index, seconds in enumerate((30, 40, 900)):
        earlier_run(at / "runs" / "tries_20260101_000000" / f"00{index}_a", clock, seconds)
    found = planned(at, budget={"mode": "iso_time", "limit": "1h"}, price="3.6 USD/h")
    assert (found["start_up_seconds"], found["start_up_attempts"]) == (40.0, 3)
    assert found["predicted_hours"] == (3600 + 40) / 3600
    assert found["predicted_cost"] == "3.64 USD"
    assert found["warnings"] == []


def test_a_cost_budget_includes_start_up(at: Path, clock: ManualClock) -> None:
    earlier_run(at / "runs" / "tries_20260101_000000" / "001_a", clock, 40)
    found = planned(at, budget={"mode": "iso_cost", "limit": "5 USD"}, price="3.6 USD/h")
    assert found["predicted_cost"] == "5.00 USD"


def test_an_unmeasured_start_up_is_shown_as_unknown(at: Path) -> None:
    found = planned(at, budget={"mode": "iso_time", "limit": "1h"})
    assert found["start_up_seconds"] is None
    done = CliRunner().invoke(app, ["sweep", "plan", str(at / "tries.json")])
    assert "Start-up is unknown" in done.stdout


@pytest.mark.parametrize(
    ("budget", "warned"),
    [
        ({"mode": "iso_time", "limit": "100s"}, True),
        ({"mode": "iso_time", "limit": "401s"}, False),
        ({"mode": "iso_cost", "limit": "0.1 USD"}, True),
        ({"mode": "iso_cost", "limit": "0.401 USD"}, False),
        ({"mode": "iso_tokens", "limit": 5}, False),
    ],
    ids=str,
)
def test_a_start_of_more_than_a_tenth_of_a_budget_is_warned_of(
    at: Path, clock: ManualClock, budget: dict[str, object], *, warned: bool
) -> None:
    earlier_run(at / "runs" / "tries_20260101_000000" / "001_a", clock, 40)
    warnings = planned(at, budget=budget, price="3.6 USD/h")["warnings"]
    assert any("a: starting takes" in warning for warning in warnings) == warned


@pytest.mark.parametrize(
    ("ceiling", "start_up", "enough", "said"),
    [
        ("9.9 USD", None, False, "not enough for all"),
        ("999 USD", None, None, "whether it is enough for all is unknown, as start-up is"),
        ("9.9 USD", 40, False, "not enough for all"),
        ("20 USD", 40, False, "not enough for all and for ending them"),
        ("21 USD", 40, True, "enough for all"),
    ],
)
def test_a_ceiling_is_enough_only_if_start_up_is_known_and_ending_is_paid(
    at: Path, clock: ManualClock, ceiling: str, start_up: int | None, said: str,
    *, enough: bool | None,
) -> None:  # fmt: skip
    if start_up is not None:
        earlier_run(at / "runs" / "tries_20260101_000000" / "001_a", clock, start_up)
    budget = {"mode": "iso_cost", "limit": "10 USD"}
    found = planned(at, ceiling=ceiling, params={"x": [1, 2]}, budget=budget, price="36 USD/h")
    assert (found["trials"], found["predicted_cost"]) == (2, "20.00 USD")
    assert (found["enough"], found["most_cost"]) == (enough, str(Money.parse(ceiling)))
    shown = CliRunner().invoke(
        app, ["sweep", "plan", str(at / "tries.json")], env={"COLUMNS": "200"}
    )
    assert f"ceiling {Money.parse(ceiling)}: {said}\n" in shown.stdout
    assert f"At most {Money.parse(ceiling)} can be spent: the ceiling." in shown.stdout


@pytest.mark.parametrize(
    ("entry", "ceiling", "most", "said"),
    [
        ({}, None, None, "Nothing limits what can be spent"),
        ({"timeout": "100s"}, None, "2.22 USD", "can be spent: all timeouts."),
        ({"timeout": "100s", "retries": 1}, None, "4.44 USD", "can be spent: all timeouts."),
        ({"timeout": "100s"}, "9 USD", "2.22 USD", "can be spent: all timeouts."),
        ({"timeout": "100s"}, "1 USD", "1.00 USD", "can be spent: the ceiling."),
    ],
)
def test_a_plan_states_the_most_that_can_be_spent(
    at: Path, entry: dict[str, object], ceiling: str | None, most: str | None, said: str
) -> None:
    found = planned(at, ceiling=ceiling, params={"x": [1, 2]}, price="36 USD/h", **entry)
    assert found["most_cost"] == most
    assert said in CliRunner().invoke(app, ["sweep", "plan", str(at / "tries.json")]).stdout


@pytest.mark.parametrize(("ceiling", "enough"), [("22 USD", False), ("25.1 USD", True)])
def test_runs_on_a_cluster_need_money_for_what_they_may_take_longer(
    at: Path, clock: ManualClock, ceiling: str, *, enough: bool
) -> None:
    """Each of 1,000 s holds a tenth, two minutes, and eleven seconds more."""
    earlier_run(at / "runs" / "tries_20260101_000000" / "001_a", clock, 1)
    found = planned(
        at, ceiling=ceiling, params={"x": [1, 2]}, engine="slurm", price="36 USD/h",
        budget={"mode": "iso_cost", "limit": "10 USD"},
    )  # fmt: skip
    assert found["enough"] == enough


def test_a_ceiling_in_another_currency_or_without_a_price_is_compared_with_nothing(
    at: Path,
) -> None:
    for more in ({"price": "1 EUR/h", "timeout": "1h"}, {"timeout": "1h"}):
        found = planned(at, ceiling="5 USD", **more)
        assert (found["enough"], found["most_cost"]) == (None, "5.00 USD")
        shown = CliRunner().invoke(app, ["sweep", "plan", str(at / "tries.json")])
        assert "enough" not in shown.stdout
