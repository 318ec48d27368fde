"""Ray Tune and Ray Train with outlay, on a real cluster of three nodes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.budget.measurements import BudgetRefused
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from ray_cluster import RayCluster
from trainer_labs import PROGRAMS
from waiting import until

SECOND = 10**9

pytestmark = pytest.mark.xdist_group("ray")


def entrypoint(program: str, root: Path) -> str:
    return f"{sys.executable} {PROGRAMS / program} {root}"


# -- Tune, on a cluster ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the experiments of the program gave, by name."""
    root = tmp_path_factory.mktemp("tune")
    ray_cluster.ready()
    job = ray_cluster.submit(entrypoint("ray_tune_lab.py", root))
    ended = ray_cluster.ended(job)
    assert ended["status"] == "SUCCEEDED", ray_cluster.logs(job)
    played: dict[str, Any] = json.loads((root / "results.json").read_text())
    return played


def readings(experiment: dict[str, Any]) -> list[outlay.RunReading]:
    """Return the runs of an experiment, in the order of its trials."""
    return [outlay.read_run(each) for each in sorted(Path(experiment["runs"]).iterdir())]


def test_a_trial_is_a_run_of_its_own(tuned: dict[str, Any]) -> None:
    (trial,) = tuned["budget"]["trials"]
    (run,) = readings(tuned["budget"])
    assert Path(tuned["budget"]["runs"], trial["trial_id"]).exists()
    assert run.config == trial["config"]["trial"]
    assert run.status == "completed"


def test_a_trial_stops_at_the_budget_of_its_run(tuned: dict[str, Any]) -> None:
    (trial,) = tuned["budget"]["trials"]
    assert (trial["outlay/tokens"], trial["outlay/must_stop"]) == (30, 1)


def test_all_trials_stop_at_the_total_and_no_further_one_starts(tuned: dict[str, Any]) -> None:
    reported = [trial["outlay/cost_usd"] for trial in tuned["total"]["trials"]]
    assert reported == [8, 4]
    first, second = (run.figures.steps for run in readings(tuned["total"]))
    # A trial that has reported trains on until Tune stops it: one step, as it reports each.
    assert first == 8
    assert second in {4, 5}


def test_asha_compares_trials_at_equal_cost(tuned: dict[str, Any]) -> None:
    ends = [(trial["outlay/cost_usd"], trial["outlay/steps"]) for trial in tuned["asha"]["trials"]]
    assert ends == [(8, 8), (2, 2), (2, 1)]  # A step of the last one costs twice as much.


def test_a_total_without_costs_ends_the_experiment(tuned: dict[str, Any]) -> None:
    assert "give its run a price in USD" in tuned["unpriced"]["error"]
    (run,) = readings({"runs": Path(tuned["total"]["runs"]).parents[1] / "unpriced" / "runs"})
    assert run.figures.steps == 1


# -- Train, on a cluster ---------------------------------------------------------------------------


def test_workers_record_their_ranks_and_a_node_that_is_taken_back(
    ray: RayCluster, tmp_path: Path
) -> None:
    job = ray.submit(
        entrypoint("ray_train_lab.py", tmp_path), entrypoint_resources={"node-head": 1}
    )

    def said(name: str) -> list[str]:
        until(lambda: len(list(tmp_path.glob(f"{name}-?"))) == 2, lambda: ray.logs(job)[-3000:])
        return [path.read_text() for path in sorted(tmp_path.glob(f"{name}-?"))]

    taken = next(node for node in said("node") if ray.node_of(node) != "head")
    drained = ray.run(
        "head", "ray", "drain-node", f"--address={ray.address}", f"--node-id={taken}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
        "--deadline-remaining-seconds=3600",
    )  # fmt: skip
    assert drained.returncode == 0, drained.stderr
    assert all(notice.endswith(taken) for notice in said("notice"))
    ray.kill_node(ray.node_of(taken))
    assert ray.ended(job)["status"] == "SUCCEEDED", ray.logs(job)
    run = outlay.read_run(tmp_path / "run")
    first, second = run.view.timeline.attempts
    assert (first.header.world_size, second.header.world_size) == (2, 2)
    assert first.end is not None
    assert (first.end.status, taken in first.end.reason) == ("preempted", True)
    assert (run.status, run.figures.steps, run.figures.tokens) == ("completed", 6, 2 * 60)


# -- without a cluster -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def integration() -> Any:
    """The module; it takes seconds to import, which other test processes need not."""
    return importlib.import_module("outlay.integrations.ray")


def record(directory: Path, seconds: int) -> None:
    """Record a run of one step that costs a dollar a second."""
    clock = ManualClock()
    with (
        outlay.run("toy", dir=directory, price="3600 USD/h", gpus=1, clock=clock) as run,
        run.step(),
    ):
        clock.advance(seconds * SECOND)


def cost(amount: float, currency: str = "usd") -> dict[str, float]:
    return {f"outlay/cost_{currency}": amount}


@pytest.mark.parametrize("bad", [{"total": 0}, {"total": "-1 USD"}, {"total": "2h"}, {"runs": "."}])
def test_a_bad_total_is_refused(integration: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        integration.BudgetStopper(**bad)


def test_the_last_report_of_each_trial_counts(integration: Any) -> None:
    stopper = integration.BudgetStopper(total="1 EUR")
    for trial, amount in [("a", 0.1), ("a", 0.3), ("b", 0.69)]:
        assert not stopper(trial, cost(amount, "eur"))
    assert (str(stopper.spent), stopper.stop_all()) == ("0.99 EUR", False)
    stopper("b", cost(0.7, "eur"))
    assert stopper.stop_all()


def test_without_a_total_nothing_but_budgets_stops(integration: Any) -> None:
    stopper = integration.BudgetStopper()
    assert [stopper("a", {}), stopper("a", {"outlay/must_stop": 1.0})] == [False, True]
    assert (stopper.spent, stopper.stop_all()) == (None, False)


def test_another_currency_is_no_cost(integration: Any) -> None:
    with pytest.raises(BudgetRefused, match="trial a has no outlay/cost_eur"):
        integration.BudgetStopper(total="1 EUR")("a", cost(1))


def test_trials_that_never_reported_count_once(integration: Any, tmp_path: Path) -> None:
    for trial, seconds in (("crashed", 3), ("reports", 2)):
        record(tmp_path / trial, seconds)
    stopper = integration.BudgetStopper(total="8 USD", runs=tmp_path)
    for amount in (2, 4):
        stopper("reports", cost(amount))
        assert str(stopper.spent) == f"{3 + amount}.00 USD"
    record(tmp_path / "later", 1)
    stopper("reports", cost(4))
    assert stopper.stop_all()
    stopper("later", cost(9))
    assert str(stopper.spent) == "16.00 USD"


def test_figures_say_when_no_further_step_may_be_trained(integration: Any, tmp_path: Path) -> None:
    with outlay.run("toy", dir=tmp_path, gpus=1, budget="iso_tokens=20") as run:
        said = []
        for _ in range(2):
            with run.step(tokens=10):
                pass
            said.append(integration.figures(run)["outlay/must_stop"])
    assert said == [0, 1]


def test_runs_of_trials_and_workers_are_opened_in_them_alone(
    integration: Any, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="Tuner"), pytest.raises(InvalidValue, match="Tuner"):
        integration.trial_run("toy", runs=tmp_path)
    with pytest.raises(InvalidValue, match="trainer"):
        integration.worker_run("toy", dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_ray_without_notices_disturbs_nothing(
    integration: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outlay.run("toy", dir=tmp_path, gpus=1) as run:
        watch = integration.PreemptionWatch(run)
        assert not watch.ask()  # It raises outside of a worker.
        monkeypatch.delattr(integration.ray.train, "get_preemption_info")
        assert not watch.ask()
    assert outlay.read_run(tmp_path).status == "completed"
