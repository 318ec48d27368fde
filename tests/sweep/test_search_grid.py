"""Ranges, samplers and rungs in a grid: what is read, what is refused, and what a plan states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import SweepPlan, at_rung
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.search.halving import Contest, decide
from outlay.sweep.search.search_options import Halving
from outlay.sweep.state.outcomes import RungReport, RunState
from outlay.units import Money

MONEY = {"halving": {"first": "0.50 USD", "last": "4.50 USD", "factor": 3}}


def plan_of(params: dict[str, Any], search: dict[str, Any], **more: Any) -> SweepPlan:
    grid = {
        "engine": "process", "entrypoint": ["true"], "arguments": "none", "price": "3.60 USD/h",
        "budget": {"target_metric": "loss"}, "search": search, **more,
        "grid": [{"name": "g", "params": params}],
    }  # fmt: skip
    return make_plan(read_grid(json.dumps(grid), source="grid.json", default_name="grid"))


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidGrid) as refused:
        read_grid(text, source="grid.yaml", default_name="grid")
    return [str(finding) for finding in refused.value.findings]


# Ranges.


def test_a_grid_takes_every_value_of_a_range_with_a_step() -> None:
    plan = plan_of({"lr": {"low": 0.1, "high": 0.5, "step": 0.1}}, {"method": "grid"})
    assert [run.params["lr"] for run in plan.runs] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_mapping_as_a_value_is_no_range() -> None:
    plan = plan_of({"lr": {"value": {"low": 1, "high": 2}}}, {"method": "grid"})
    assert [run.params["lr"] for run in plan.runs] == [{"low": 1, "high": 2}]


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_the_points_of_a_method_depend_on_its_seed_alone(method: str) -> None:
    space = {"lr": {"low": 1e-5, "high": 1e-1, "log": True}, "act": ["relu", "gelu"]}

    def points(seed: int) -> list[Any]:
        plan = plan_of(space, {"method": method, "trials": 8, "seed": seed})
        return [run.params for run in plan.runs]

    assert points(0) == points(0)
    assert points(0) != points(1)
    assert all(1e-5 <= one["lr"] <= 1e-1 and one["act"] in ("relu", "gelu") for one in points(0))


def test_points_that_a_grid_excludes_are_replaced_by_others() -> None:
    plan = plan_of(
        {"x": {"low": 1, "high": 9}}, {"method": "random", "trials": 4},
        exclude=[{"x": [1, 2, 3, 4, 5]}],
    )  # fmt: skip
    assert sorted(run.params["x"] for run in plan.runs) == [6, 7, 8, 9]


def test_a_mapping_of_seeds_gives_each_point_a_run_for_each_seed() -> None:
    plan = plan_of({"x": {"low": 1, "high": 9}}, {"method": "random", "trials": 2}, seeds=[1, 2])
    assert [run.params["seed"] for run in plan.runs] == [1, 2, 1, 2]
    assert len({run.configuration for run in plan.runs}) == 2


# Errors.

WRONG = """\
engine: process
entrypoint: "prog {lr}"
arguments: none
grid:
  - name: a
    params:
      lr: {low: 1, high: 0.1}
      width: {low: 64, high: 512, stride: 64}
      depth: {low: 0, high: 1, log: true}
      x: {low: one, high: 2}
      big: {low: 1, high: 100000000}
      every: {low: 0.5, high: 1.5}
    search:
      method: gird
      trials: 0
      colour: red
      halving:
        first: 0.50 USD
        last: 4 USD
        factor: 3
        repat: true
  - name: a
    params: {lr: {low: 1.0, high: 2.0, log: true}}
    search: {method: random}
  - name: b
    params: {lr: [1, 2]}
    search: {method: tpe, trials: 5, halving: {first: 5, last: 1h}}
  - name: c
    params: {lr: 1}
    budget: {mode: iso_time, limit: 1h}
    search: {halving: {first: 1m, last: 2m, factor: 2}}
  - name: d
    params: {lr: 1}
    search: {halving: {last: 10m, factor: 1}}
"""


def test_every_wrong_key_range_and_rung_is_reported_at_once_with_its_line() -> None:
    assert problems(WRONG) == [
        "grid.yaml:7: range: got {'low': 1, 'high': 0.1}; expected low below high",
        "grid.yaml:8: range: got 'stride'; expected one of high, log, low, step",
        "grid.yaml:9: range: got {'low': 0, 'high': 1, 'log': True}; expected low above 0, as log "
        "is true",
        "grid.yaml:10: low: got 'one'; expected a number, as in {low: 1e-5, high: 1e-1, log: true} "
        "or {low: 64, high: 512, step: 64}",
        "grid.yaml:11: big: 100,000,000 values, and a sweep has at most 100,000 runs",
        "grid.yaml:12: every: a grid needs a list or a range with `step`; other methods of "
        "`search` take this one",
        "grid.yaml:14: method: got 'gird'; expected one of grid, random, sobol, tpe",
        "grid.yaml:15: trials: got 0; expected a whole number, 1 or more",
        "grid.yaml:16: unknown key 'colour'; expected one of halving, method, seed, trials",
        "grid.yaml:19: last: got '4.00 USD'; expected first times a power of factor 3, such as "
        "1.50 USD or 4.50 USD",
        "grid.yaml:21: unknown key 'repat'; expected one of factor, first, last, repeat, resumable",
        "grid.yaml:22: name 'a': a search needs one of its own",
        "grid.yaml:24: method random needs `trials`, the number of points to try",
        "grid.yaml:27: 5 trials, and its parameters have 2 points; use method grid",
        'grid.yaml:27: first: got 5; expected an amount with its unit: "0.50 USD", "20min", '
        '"2e9tok" or "1e18FLOP"',
        "grid.yaml:27: its runs are compared while it runs; state `budget: {target_metric: ...}`",
        "grid.yaml:31: halving states the budget of each run; leave only target_ keys in `budget`",
        "grid.yaml:31: its runs are compared while it runs; state `budget: {target_metric: ...}`",
        'grid.yaml:34: expected `first`, an amount with its unit: "0.50 USD", "20min", "2e9tok" or '
        '"1e18FLOP"',
        "grid.yaml:34: factor: got 1, expected 2 or more",
    ]


def test_nothing_is_written_for_a_wrong_search(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(WRONG + f"output_dir: {tmp_path}/sweep\n")
    done = outlay("sweep", "run", "--yes", path)
    assert done.code == 2
    assert not (tmp_path / "sweep").exists()


# Rungs in a plan.


def test_the_plan_states_what_the_rungs_cost() -> None:
    plan = plan_of({"x": {"low": 1, "high": 27}}, MONEY)
    assert plan.predicted_cost == plan.rungs_cost == Money.parse("31.50 USD")


def test_the_plan_prints_its_rungs(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text(
        json.dumps(
            {
                "engine": "process", "entrypoint": ["true"], "arguments": "none",
                "price": "3.60 USD/h", "budget": {"target_metric": "loss"}, "search": MONEY,
                "grid": [{"name": "g", "params": {"x": {"low": 1, "high": 27}}}],
            }
        )
    )  # fmt: skip
    found = outlay("sweep", "plan", path, "--json").json
    assert [(one["budget"], one["runs"], one["most_cost"]) for one in found["rungs"]] == [
        ("0.50 USD", 27, "13.50 USD"), ("1.50 USD", 9, "9.00 USD"), ("4.50 USD", 3, "9.00 USD"),
    ]  # fmt: skip
    shown = outlay("sweep", "plan", path, columns=120).out
    assert "g: 27 → 9 → 3 configurations by loss (low is better)" in shown
    assert "These budgets are 31.50 USD in all" in shown
    assert "all configurations to the last rung: 121.50 USD" in shown


def test_a_promotion_holds_what_is_left_of_its_rung() -> None:
    run = plan_of({"x": [1, 2, 3]}, MONEY).runs[0]
    promoted = at_rung(run, 1, Money.parse("0.52 USD"))
    assert promoted.prediction.cost == Money.parse("0.98 USD")
    assert promoted.fingerprint == run.fingerprint


def test_a_rung_of_time_adds_a_start_up_each_time() -> None:
    from outlay.budget.limits import StartUp

    search = {"halving": {"first": "10min", "last": "30min", "factor": 3}}
    grid = {
        "engine": "process", "entrypoint": ["true"], "arguments": "none", "price": "6 USD/h",
        "budget": {"target_metric": "loss"}, "search": search,
        "grid": [{"name": "g", "params": {"x": [1, 2, 3]}}],
    }  # fmt: skip
    parsed = read_grid(json.dumps(grid), source="grid.json", default_name="grid")
    plan = make_plan(parsed, StartUp(ns=60 * 10**9, attempts=1))
    # Three runs of 11 minutes, and one of 21, at 0.10 USD a minute.
    assert plan.rungs_cost == Money.parse("5.40 USD")


# Decisions.


def test_a_run_that_is_promoted_now_is_waited_for() -> None:
    """When nothing runs, a run at the second rung does not win by the absence of the other."""
    rungs = plan_of({"x": [1]}, MONEY).runs[0].entry.search.halving
    assert rungs is not None
    contest = Contest(halving=Halving(rungs=rungs.rungs, factor=2), size=4,
                      runs={name: [name] for name in "abcd"}, metric="loss")  # fmt: skip
    paused = RungReport(metric=0.1, saved=True)
    states = {
        "a": RunState(status="paused", rung=1, reports={0: paused, 1: paused}),
        "b": RunState(status="paused", reports={0: RungReport(metric=0.2, saved=True)}),
        "c": RunState(status="error"),
        "d": RunState(status="cancelled"),
    }
    assert decide(contest, states, idle=True).promoted == {"b": 1}
