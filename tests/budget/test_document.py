"""The sentences about a training loop in the document of runtime budgets.

Those about the tracker alone are in test_budget_tracker, about its settings in test_budget_config,
and about several ranks in test_budget_torchrun.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.ledger import read_run
from signatures import positional_names
from trackers import tracker_of

SECOND = 10**9


def train(run_dir: Path, clock: ManualClock, *, tokens: int, step_s: int, budget: object) -> int:
    """Train for as long as the budget lets us; return the number of steps."""
    with outlay.run("m", dir=run_dir, budget=budget, clock=clock) as run:
        for _ in run.steps(itertools.repeat(0), tokens=tokens):
            clock.advance(step_s * SECOND)
    return run.step_number + 1


def totals(run_dir: Path) -> dict[str, float]:
    written: dict[str, float] = json.loads((run_dir / "budget.json").read_text())["totals"]
    return written


@pytest.mark.parametrize(
    ("budget", "same"),
    [(outlay.iso_tokens(1000), "tokens"), (outlay.iso_time("200s"), "time_ms")],
)
def test_experiments_of_different_shape_get_the_same_budget(
    tmp_path: Path, clock: ManualClock, budget: outlay.Budget, same: str
) -> None:
    small = train(tmp_path / "small", clock, tokens=5, step_s=1, budget=budget)
    large = train(tmp_path / "large", clock, tokens=50, step_s=4, budget=budget)
    assert small != large
    assert totals(tmp_path / "small")[same] == totals(tmp_path / "large")[same]


def test_a_disabled_budget_leaves_training_and_its_log_as_without_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    disabled = {"runtime": {"budget": {"enabled": False, "mode": "iso_tokens", "max_tokens": 10}}}
    kinds = []
    for name, budget in (("none", None), ("disabled", disabled)):
        with outlay.run("m", dir=tmp_path / name, budget=budget, clock=clock) as run:
            assert run.recorder.gates == []
            assert len(list(run.steps(range(5), tokens=10))) == 5
        kinds.append([type(record) for record in read_run(tmp_path / name).records])
        assert [path.name for path in (tmp_path / name).iterdir()] == ["ledger"]
    assert kinds[0] == kinds[1]


def test_the_tracker_counts_every_micro_batch_as_it_ends(
    tmp_path: Path, clock: ManualClock
) -> None:
    seen = []
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(100), clock=clock) as run:
        for _ in run.steps(range(4), tokens=3):
            clock.advance(2 * SECOND)
            seen.append([tracker_of(run).totals[key] for key in ("steps", "tokens", "time_ms")])
    assert seen == [[0, 0, 0], [1, 3, 2000], [2, 6, 4000], [3, 9, 6000]]


def test_the_budget_is_checked_before_the_next_batch_is_fetched_and_before_it_is_used(
    tmp_path: Path,
) -> None:
    fetched = []

    def loader() -> Iterator[int]:
        for number in itertools.count():
            fetched.append(number)
            yield number

    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(20)) as run:
        used = list(run.steps(loader(), tokens=10))
    assert used == fetched == [0, 1]


def test_an_unbounded_loader_has_its_epoch_from_the_limits(tmp_path: Path) -> None:
    budget = outlay.iso_epochs(2, steps_per_epoch=3)
    with outlay.run("m", dir=tmp_path, budget=budget) as run:
        assert len(list(run.steps(itertools.count()))) == 6
    assert totals(tmp_path)["epochs"] == 2


def test_the_first_limit_to_be_reached_stops_the_run(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_tokens(1000, max_minutes=1, max_epochs=1, steps_per_epoch=7)
    assert train(tmp_path, clock, tokens=10, step_s=5, budget=budget) == 7
    written = json.loads((tmp_path / "budget.json").read_text())
    assert written["stop_reason"]["limit_key"] == "max_epochs"


def test_budget_json_has_mode_limits_and_totals(tmp_path: Path, clock: ManualClock) -> None:
    train(tmp_path, clock, tokens=10, step_s=30, budget=outlay.iso_tokens(40, max_energy_Wh=None))
    written = json.loads((tmp_path / "budget.json").read_text())
    assert (written["mode"], written["limits"]) == ("iso_tokens", {"max_tokens": 40})
    assert written["totals"] == {
        "tokens": 40,
        "time_ms": 120_000.0,
        "time_minutes": 2.0,
        "comm_bytes": 0,
        "energy_Wh": 0.0,
        "cost_usd": 0.0,
        "flops": 0,
        "steps": 4,
        "epochs": 0.0,
    }


def test_the_budget_of_a_run_is_the_public_tracker(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(40)) as run:
        assert isinstance(run.budget, outlay.BudgetTracker)
        list(run.steps(range(2), tokens=10))
        assert run.budget.totals["tokens"] == 20


@pytest.mark.parametrize(
    ("method", "documented"),
    [
        ("__init__", ["mode", "limits"]),
        ("update", ["step_samples", "step_wall_ms", "comm_bytes", "energy_Wh"]),
        ("would_exceed", ["step_samples", "step_wall_ms", "comm_bytes", "energy_Wh"]),
        ("should_stop", []),
        ("snapshot", []),
        ("load", ["snapshot"]),
    ],
)
def test_the_tracker_takes_its_documented_arguments_in_their_order(
    method: str, documented: list[str]
) -> None:
    assert positional_names(getattr(outlay.BudgetTracker, method)) == documented
