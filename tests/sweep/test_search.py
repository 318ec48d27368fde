"""Sweeps that search: halving, samplers, and what a kill, a ceiling or a failure does to them."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Outcome, outlay
from outlay.clock import SYSTEM
from outlay.ledger import derive_attempts, read_lives
from outlay.runs.reading import read_figures, read_run
from outlay.sweep.run.sweep_guard import SPEND_LOG, guard_of
from outlay.sweep.state.manifest import SweepManifest, read_events, read_manifest
from sweep_process import killed_sweep
from waiting import until

PROGRAM = Path(__file__).parents[1] / "programs" / "searched_run.py"
HALVING = {"first": "20tok", "last": "80tok", "factor": 2}


def write_grid(directory: Path, params: dict[str, Any], **more: Any) -> Path:
    """Write a grid whose runs have ``final`` and ``kind`` as parameters."""
    grid = {
        "engine": "process", "arguments": "none", "output_dir": str(directory / "sweep"),
        "entrypoint": [sys.executable, str(PROGRAM), "{final}", "{kind}"],
        "price": "36 USD/h", "timeout": "2m", "budget": {"target_metric": "loss"},
        "search": {"halving": HALVING},
        "grid": [{"name": "g", "params": {"kind": "plain", **params}, **more.pop("entry", {})}],
        **more,
    }  # fmt: skip
    path = directory / "grid.json"
    path.write_text(json.dumps(grid))
    return path


def run_grid(directory: Path, params: dict[str, Any], **more: Any) -> tuple[Outcome, SweepManifest]:
    """Run such a grid to its end."""
    path = write_grid(directory, params, **more)
    done = outlay("sweep", "run", "--yes", "--json", "--jobs", "2", path)
    return done, read_manifest(directory / "sweep")


def statuses(manifest: SweepManifest) -> dict[Any, str]:
    """Return the status of each run by its final loss, with the seed if it has one."""
    return {
        (run.params["final"], run.params["seed"]) if "seed" in run.params else run.params["final"]:
        manifest.state(name).status
        for name, run in manifest.runs.items()
    }  # fmt: skip


def tokens(manifest: SweepManifest) -> dict[float, int]:
    """Return the tokens that each run recorded, by its final loss."""
    now_ns = SYSTEM.wall_ns()
    return {
        run.params["final"]: read_figures(manifest.root / name, now_ns).tokens
        for name, run in manifest.runs.items()
    }


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, SweepManifest]:
    """One sweep of four configurations that many tests read: the best is the third."""
    directory = tmp_path_factory.mktemp("halved")
    return run_grid(directory, {"final": [0.4, 0.2, 0.1, 0.3]}, ceiling="20 USD")


def test_the_best_goes_to_the_last_rung_and_the_others_are_pruned(
    halved: tuple[Outcome, SweepManifest],
) -> None:
    done, manifest = halved
    assert done.code == 0
    assert statuses(manifest) == {0.4: "pruned", 0.2: "pruned", 0.1: "completed", 0.3: "pruned"}


def test_each_run_trains_up_to_its_rung(halved: tuple[Outcome, SweepManifest]) -> None:
    assert tokens(halved[1]) == {0.4: 20, 0.2: 40, 0.1: 80, 0.3: 20}


def test_a_promoted_run_is_the_same_run_in_a_new_attempt(
    halved: tuple[Outcome, SweepManifest],
) -> None:
    manifest = halved[1]
    starts = [event.rung for event in read_events(manifest.root)
              if event.run == "003_g_02" and event.status == "running"]  # fmt: skip
    assert starts == [0, 1, 2]
    attempts = derive_attempts(read_lives(manifest.root / "003_g_02"))
    assert [one.end.status for one in attempts if one.end] == ["paused", "paused", "completed"]


def test_no_step_is_repeated_after_a_pause(halved: tuple[Outcome, SweepManifest]) -> None:
    phases = read_run(halved[1].root / "003_g_02", SYSTEM.wall_ns()).phases
    assert "wasted_progress" not in phases


def test_the_time_between_rungs_is_the_phase_paused(halved: tuple[Outcome, SweepManifest]) -> None:
    run = read_run(halved[1].root / "003_g_02", SYSTEM.wall_ns())
    assert run.phases["paused"] > 0
    assert "recovery" not in run.phases


def test_a_pause_does_not_lower_goodput(halved: tuple[Outcome, SweepManifest]) -> None:
    run = read_run(halved[1].root / "003_g_02", SYSTEM.wall_ns())
    active_ns = run.breakdown.wall_ns - run.phases["paused"]
    assert run.breakdown.goodput == run.phases["step"] / active_ns


def test_a_pause_costs_nothing(halved: tuple[Outcome, SweepManifest]) -> None:
    run = read_run(halved[1].root / "003_g_02", SYSTEM.wall_ns())
    assert run.breakdown.cost_by_phase["paused"].micros == 0


def test_the_change_of_the_budget_is_recorded(halved: tuple[Outcome, SweepManifest]) -> None:
    run = read_run(halved[1].root / "003_g_02", SYSTEM.wall_ns())
    changed = [event.data for event in run.view.account.budget_events() if event.event == "changed"]
    assert [(one["was"], one["limits"]) for one in changed] == [
        ({"max_tokens": 20}, {"max_tokens": 40}), ({"max_tokens": 40}, {"max_tokens": 80}),
    ]  # fmt: skip


def test_journal_spend_log_and_run_logs_have_the_same_money(
    halved: tuple[Outcome, SweepManifest],
) -> None:
    manifest = halved[1]
    guard = guard_of(manifest)
    assert guard is not None
    assert guard.holds() == ()
    captured = sum(manifest.state(run).cost_micros or 0 for run in manifest.runs)
    assert round(guard.budget_guard.total_spent * 1e6) == captured
    now_ns = SYSTEM.wall_ns()
    figures = [read_figures(manifest.root / run, now_ns) for run in manifest.runs]
    assert sum(one.cost.micros for one in figures if one.cost is not None) == captured


def test_a_pruned_run_says_why(halved: tuple[Outcome, SweepManifest]) -> None:
    reason = halved[1].state("002_g_01").reason
    assert reason == "rung 2 of 3: loss 0.4: 1 other configuration is better"


def test_a_search_may_prefer_the_highest_metric(tmp_path: Path) -> None:
    target = {"target_metric": "loss", "target_direction": "max"}
    _, manifest = run_grid(
        tmp_path, {"final": [0.1, 0.2]}, budget=target,
        search={"halving": {"first": "20tok", "last": "40tok", "factor": 2}},
    )  # fmt: skip
    assert statuses(manifest) == {0.1: "pruned", 0.2: "completed"}


def test_runs_that_fail_record_nothing_or_save_nothing_do_not_go_on(tmp_path: Path) -> None:
    entries = {"final": [0.1], "kind": ["fails", "silent", "unsaved", "plain"]}
    done, manifest = run_grid(tmp_path, entries)
    found = {run.params["kind"]: manifest.state(name) for name, run in manifest.runs.items()}
    assert done.code == 1
    assert {kind: state.status for kind, state in found.items()} == {
        "fails": "error", "silent": "pruned", "unsaved": "pruned", "plain": "completed",
    }  # fmt: skip
    assert "no run of it recorded loss" in found["silent"].reason
    assert "no committed checkpoint" in found["unsaved"].reason


def test_a_run_without_a_checkpoint_goes_on_where_the_grid_says_so(tmp_path: Path) -> None:
    search = {"halving": {"first": "20tok", "last": "40tok", "factor": 2, "repeat": True}}
    _, manifest = run_grid(tmp_path, {"final": [0.1, 0.2], "kind": "unsaved"}, search=search)
    assert statuses(manifest) == {0.1: "completed", 0.2: "pruned"}
    run = read_run(manifest.root / "001_g_00", SYSTEM.wall_ns())
    assert run.phases["wasted_progress"] > 0


def test_configurations_are_compared_by_the_mean_over_their_seeds(tmp_path: Path) -> None:
    program = "final + (0.5 if seed == '1' else 0)"
    command = [sys.executable, "-c", SEEDED.replace("EXPRESSION", program), "{final}", "{seed}"]
    _, manifest = run_grid(
        tmp_path, {"final": [0.1, 0.2]}, entry={"seeds": [1, 2], "entrypoint": command},
        search={"halving": {"first": "20tok", "last": "40tok", "factor": 2}},
    )  # fmt: skip
    assert statuses(manifest) == {
        (0.1, 1): "completed", (0.1, 2): "completed", (0.2, 1): "pruned", (0.2, 2): "pruned",
    }  # fmt: skip


SEEDED = """
import itertools, sys, outlay
final, seed = float(sys.argv[1]), sys.argv[2]
with outlay.run("seeded") as run:
    for step in run.steps(itertools.count(run.resume_step), tokens=10):
        run.metric("loss", EXPRESSION, step)
    run.checkpoint_committed(step)
"""


def test_what_the_ceiling_refuses_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    search = {"halving": {"first": "20tok", "last": "40tok", "factor": 2}}
    settings: dict[str, Any] = {"search": search, "timeout": "1m", "price": "60 USD/h"}
    # Each start holds a minute, 1 USD.
    done, manifest = run_grid(tmp_path, {"final": [0.1, 0.2]}, ceiling="1.0001 USD", **settings)
    assert done.code == 3
    refused = statuses(manifest)
    assert "completed" not in refused.values()
    write_grid(tmp_path, {"final": [0.1, 0.2]}, ceiling="9 USD", **settings)
    again = outlay("sweep", "resume", tmp_path / "sweep", "--yes")
    assert again.code == 0
    assert statuses(read_manifest(tmp_path / "sweep")) == {0.1: "completed", 0.2: "pruned"}


def test_a_probe_decides_nothing(tmp_path: Path) -> None:
    """The probed run is the worse one: alone, it would be the best."""
    search = {"halving": {"first": "20tok", "last": "40tok", "factor": 2}}
    path = write_grid(tmp_path, {"final": [0.2, 0.1]}, search=search, ceiling="20 USD")
    assert outlay("sweep", "run", "--yes", "--probe", path).code == 0
    assert statuses(read_manifest(tmp_path / "sweep")) == {0.2: "pruned", 0.1: "completed"}


def test_a_search_is_not_detached(tmp_path: Path) -> None:
    path = write_grid(tmp_path, {"final": [0.2, 0.1]}, engine="slurm")
    refused = outlay("sweep", "run", "--yes", "--detach", path)
    assert refused.code == 2
    assert "its search starts runs from this process" in refused.err
    assert not (tmp_path / "sweep").exists()


# Programs that do not resume.


def test_a_run_that_cannot_be_paused_is_ended_while_it_runs(tmp_path: Path) -> None:
    halving = {"first": "20tok", "last": "1000tok", "factor": 50, "resumable": False}
    # The worse one would take 100 seconds.
    others = [{"final": 0.1, "kind": "slow"}, {"final": 0.2, "kind": "plain"}]
    _, manifest = run_grid(
        tmp_path, {"final": [0.1, 0.2], "kind": ["plain", "slow"]}, exclude=others,
        search={"halving": halving},
    )  # fmt: skip
    assert statuses(manifest) == {0.1: "completed", 0.2: "pruned"}
    found = tokens(manifest)
    assert found[0.1] == 1000
    assert 20 <= found[0.2] < 1000
    assert [manifest.state(run).attempts for run in manifest.runs] == [1, 1]


# Samplers.


def test_a_sampler_suggests_as_many_configurations_as_stated(tmp_path: Path) -> None:
    search = {"method": "tpe", "trials": 4, "seed": 1}
    budget = {"mode": "iso_tokens", "limit": 20, "target_metric": "loss"}
    done, manifest = run_grid(
        tmp_path, {"final": {"low": 0.0, "high": 1.0}}, search=search, budget=budget
    )
    assert done.code == 0
    assert len({run.params["final"] for run in manifest.runs.values()}) == 4
    assert set(statuses(manifest).values()) == {"completed"}


def test_a_suggestion_is_in_the_manifest_before_its_run_starts(tmp_path: Path) -> None:
    search = {"method": "tpe", "trials": 3, "seed": 1}
    budget = {"mode": "iso_tokens", "limit": 20, "target_metric": "loss"}
    seen = "import json,os,pathlib;d=pathlib.Path(os.environ['OUTLAY_RUN_DIR']);" \
        "m=json.loads((d.parent/'sweep_manifest.json').read_text());" \
        "(d/'known').write_text(str(any(r['id']==d.name for r in m['runs'])))"  # fmt: skip
    _, manifest = run_grid(
        tmp_path, {"final": {"low": 0.0, "high": 1.0}}, search=search, budget=budget,
        entry={"entrypoint": [sys.executable, "-c", seen]},
    )  # fmt: skip
    assert [(manifest.root / run / "known").read_text() for run in manifest.runs] == ["True"] * 3


# Kills.


def decisions(manifest: SweepManifest) -> dict[str, tuple[str, int]]:
    """Return what became of each run, and the rung that it reached."""
    return {run: (manifest.state(run).status, manifest.state(run).rung) for run in manifest.runs}


def killed_and_resumed(directory: Path, path: Path, when: str) -> SweepManifest:
    """Kill the harness once the journal has a line with such a text, then resume."""
    root = directory / "sweep"
    journal = root / "sweep_journal.jsonl"
    with killed_sweep("run", "--yes", "--jobs", "2", path):
        until(lambda: journal.exists() and when in journal.read_text(), f"no {when} in {root}")
    assert outlay("sweep", "resume", root, "--yes", "--jobs", "2").code == 0
    return read_manifest(root)


@pytest.mark.parametrize("when", ['"paused"', '"rung":1', '"rung":2', '"completed"'])
def test_a_killed_search_decides_as_an_undisturbed_one(
    halved: tuple[Outcome, SweepManifest], tmp_path: Path, when: str
) -> None:
    path = write_grid(tmp_path, {"final": [0.4, 0.2, 0.1, 0.3]}, ceiling="20 USD")
    manifest = killed_and_resumed(tmp_path, path, when)
    assert decisions(manifest) == decisions(halved[1])
    assert tokens(manifest) == tokens(halved[1])
    assert (manifest.root / SPEND_LOG).exists()
    guard = guard_of(manifest)
    assert guard is not None
    assert guard.holds() == ()


def test_nothing_that_was_suggested_is_asked_again(tmp_path: Path) -> None:
    search = {"method": "tpe", "trials": 5, "seed": 1}
    budget = {"mode": "iso_tokens", "limit": 20, "target_metric": "loss"}
    path = write_grid(tmp_path, {"final": {"low": 0.0, "high": 1.0}}, search=search, budget=budget)
    manifest = killed_and_resumed(tmp_path, path, '"completed"')
    values = [run.params["final"] for run in manifest.runs.values()]
    assert len(values) == len(set(values)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_search_killed_at_random_moments_decides_as_an_undisturbed_one(
    halved: tuple[Outcome, SweepManifest], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path, root = write_grid(tmp_path, {"final": [0.4, 0.2, 0.1, 0.3]}, ceiling="20 USD"), tmp_path
    command = ["run", "--yes", str(path)]
    for _ in range(6):
        with (
            killed_sweep(*command, "--jobs", "2") as harness,
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            harness.wait(chance.uniform(0.3, 4))
        if (root / "sweep" / "sweep_manifest.json").exists():
            command = ["resume", "--yes", str(root / "sweep")]
    done = outlay("sweep", *command, "--jobs", "2")
    assert done.code == 0, done.err
    manifest = read_manifest(root / "sweep")
    assert decisions(manifest) == decisions(halved[1])
    assert tokens(manifest) == tokens(halved[1])
    guard = guard_of(manifest)
    assert guard is not None
    assert guard.holds() == ()
    assert guard.budget_guard.total_spent <= 20
