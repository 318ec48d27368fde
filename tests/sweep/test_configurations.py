"""Configurations of a sweep: which runs are seeds of one, and their labels."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.account.columns import Work
from outlay.clock import ManualClock
from outlay.report.document import to_html, to_markdown
from outlay.report.sweep_document import latex_table, sweep_document
from outlay.sweep.aggregate.comparison import ranked, replicates, verdict
from outlay.sweep.aggregate.rows import RunFacts, Seen, SweepRow, labelled
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import PlannedRun, SweepPlan
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.state import setup
from outlay.sweep.state.manifest import ManifestRun, SweepManifest, read_manifest
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money
from report_builders import run_row, sweep_row

TARGET = {"mode": "iso_tokens", "limit": 100, "target_metric": "acc"}


def plan_of(*entries: dict[str, Any], **shared: Any) -> SweepPlan:
    text = json.dumps({"budget": TARGET, **shared, "grid": list(entries)})
    return make_plan(read_grid(text, source="grid.json", default_name="grid"))


def manifest_of(plan: SweepPlan) -> SweepManifest:
    """Return a sweep's manifest as it is read back from its file."""
    with TemporaryDirectory() as root:
        setup.create(plan, Path(root), {}, ManualClock(), cwd=Path(root))
        return read_manifest(Path(root))


def rows_of(manifest: SweepManifest, metric: str = "acc") -> tuple[SweepRow, ...]:
    """Return the runs as completed, each with a higher metric than the one before."""
    return labelled([
        SweepRow(
            run=run, state=RunState(status="completed"), totals={},
            facts=RunFacts(
                source="ledger", work=Work(steps=1, step_ns=1),
                row=run_row(cost=Money(1_000_000), wall_ns=60 * 10**9),
                metrics={metric: [Seen(number / 10, 10**9, 1)]},
            ),
        )
        for number, run in enumerate(manifest.runs.values(), start=1)
    ])  # fmt: skip


def summary(*entries: dict[str, Any], **shared: Any) -> tuple[SweepRow, ...]:
    return rows_of(manifest_of(plan_of(*entries, **shared)))


def pooled(rows: tuple[SweepRow, ...]) -> dict[str, int]:
    return {one.label: len(one.runs) for one in replicates(rows)}


# -- which belong together -------------------------------------------------------------------


def test_processes_and_environments_are_not_seeds() -> None:
    rows = summary(
        {"name": "base", "params": {"lr": 0.1, "world_size": [1, 2]}, "seeds": [1, 2]},
        {"name": "base", "params": {"lr": 0.1}, "seeds": [1, 2], "env": {"NCCL_ALGO": "Ring"}},
    )
    assert pooled(rows) == {
        "world_size=1": 2,
        "world_size=2": 2,
        "base": 2,
    }


@pytest.mark.parametrize(
    ("difference", "shown"),
    [
        ({"env": {"NCCL_ALGO": "Ring"}}, "lr=1 (NCCL_ALGO=Ring)"),
        ({"overrides": ["optim.nesterov=true"]}, "lr=1 (optim.nesterov=true)"),
        ({"metadata": {"cluster": "east"}}, "lr=1 (cluster=east)"),
        ({"budget": TARGET | {"limit": 200}}, "lr=1 (max_tokens=200)"),
        ({"engine": "process"}, "lr=1 (engine=process)"),
        ({"nnodes": 2}, "lr=1 (nnodes=2)"),
        ({"gpu": "H100"}, "lr=1 (gpu=H100)"),
        ({"price": "2 USD/h"}, "lr=1 (price=2.00 USD/h)"),
        ({"entrypoint": "other.py --fast"}, "lr=1 (other.py --fast)"),
        ({"name": "b"}, "lr=1 (b)"),
        ({"slurm": {"partition": "gpu"}}, "lr=1 (002_a)"),
        ({"env": {"API_TOKEN": "a-secret-value"}}, "lr=1 (API_TOKEN=<redacted>)"),
    ],
)
def test_any_other_difference_makes_another_configuration_named_after_it(
    difference: dict[str, Any], shown: str
) -> None:
    entry = {"name": "a", "params": {"lr": 1}}
    labels = list(pooled(summary(entry, entry | difference)))
    assert labels[1] == shown
    assert labels[0] != labels[1]


def test_retries_and_time_limits_do_not_change_the_configuration() -> None:
    entry = {"name": "a", "params": {"lr": 1}}
    more = entry | {"seeds": [5], "retries": 3, "timeout": "2h"}
    assert pooled(summary(entry | {"seeds": [4]}, more)) == {"lr=1": 2}


def test_parameters_that_all_configurations_share_are_left_out_of_labels() -> None:
    params = {"lr": [1, 2], "kind": "plain", "seed": [1, 2]}
    assert pooled(summary({"name": "a", "params": params})) == {"lr=1": 2, "lr=2": 2}


def test_a_parameter_that_one_configuration_lacks_is_in_labels() -> None:
    first, second = {"name": "a", "params": {"lr": 1}}, {"name": "b", "params": {"lr": 1, "wd": 2}}
    assert pooled(summary(first, second)) == {"a": 1, "wd=2": 1}


def test_configurations_that_differ_in_no_parameter_keep_all() -> None:
    entry = {"name": "a", "params": {"lr": 1, "kind": "plain"}}
    found = pooled(summary(entry, entry | {"env": {"FUSED": "1"}}))
    assert list(found) == ["kind=plain, lr=1", "kind=plain, lr=1 (FUSED=1)"]


def test_seeds_as_a_parameter_and_as_a_list_are_one_configuration() -> None:
    entry = {"name": "a", "params": {"lr": 1, "seed": [1, 2]}}
    listed = {"name": "a", "params": {"lr": 1}, "seeds": [3]}
    assert pooled(summary(entry, listed, aliases={"seed": "train.seed"})) == {"lr=1": 3}


def test_a_configuration_without_parameters_is_named_after_its_entry() -> None:
    assert pooled(summary({"name": "base", "seeds": [1, 2]})) == {"base": 2}


def test_manifests_without_a_configuration_hash_are_grouped_by_their_fields() -> None:
    manifest = manifest_of(
        plan_of(
            {"name": "a", "params": {"lr": [1, 2], "world_size": [1, 2]}, "seeds": [1, 2]},
            {"name": "b", "params": {"lr": [1, 2], "world_size": 1}, "seeds": [1, 2]},
        )
    )
    for name, run in manifest.runs.items():
        kept = run.document.keys() - {"configuration", "stated"}
        manifest.runs[name] = ManifestRun.of({key: run.document[key] for key in kept})
    found = pooled(rows_of(manifest))
    assert set(found.values()) == {2}
    assert list(found) == [
        "lr=1, world_size=1 (a)", "lr=1, world_size=2", "lr=2, world_size=1 (a)",
        "lr=2, world_size=2", "lr=1, world_size=1 (b)", "lr=2, world_size=1 (b)",
    ]  # fmt: skip


# -- every report follows --------------------------------------------------------------------


def test_every_report_keeps_configurations_apart() -> None:
    entry = {"name": "a", "params": {"lr": 1}, "seeds": [1, 2]}
    rows = rows_of(manifest_of(plan_of(entry, entry | {"env": {"FUSED": "1"}})))
    assert [one.label for one in ranked(rows)] == ["lr=1 (FUSED=1)", "lr=1"]
    assert "No winner yet: lr=1 (FUSED=1) leads with acc 0.35" in verdict(rows)
    assert "next: lr=1 with 0.15" in verdict(rows)
    assert "| lr=1 (FUSED=1) | 0.35" in to_markdown(sweep_document("demo", rows, []))
    assert "lr=1 (FUSED=1) & 2 & $0.35" in latex_table(rows)
    assert "acc, mean $\\pm$ half of the 95\\,\\% interval & mean cost" in latex_table(rows)
    html = to_html(sweep_document("demo", rows, []))
    assert html.count("</svg> lr=1 (FUSED=1)</button>") == 1
    assert html.count("</svg> lr=1</button>") == 1
    assert "<td>lr=1 (FUSED=1)</td>" in html


@pytest.mark.parametrize(
    ("metric", "best_first"), [("acc", ["lr=2", "lr=1"]), ("val_loss", ["lr=1", "lr=2"])]
)
def test_the_best_is_the_largest_or_smallest_by_the_metrics_direction(
    metric: str, best_first: list[str]
) -> None:
    plan = plan_of(
        {"name": "a", "params": {"lr": [1, 2]}}, budget=TARGET | {"target_metric": metric}
    )
    rows = rows_of(manifest_of(plan), metric)
    assert [one.label for one in ranked(rows)] == best_first
    assert verdict(rows).startswith(f"Best: {best_first[0]} with {metric}")


@pytest.mark.parametrize(
    ("second", "doubt"),
    [
        ((0.4, 0.6), "Their intervals overlap: about 1 more seed of each would separate them."),
        ((-5.0, -4.9), "(their intervals do not overlap)"),
        ((0.5,), "(with one run of lr=2, this may be chance)"),
    ],
)
def test_the_verdict_states_its_certainty(second: tuple[float, ...], doubt: str) -> None:
    values = {1: (0.90, 0.91), 2: second}
    rows = [sweep_row(lr, value, 0) for lr, of_lr in values.items() for value in of_lr]
    assert doubt in verdict(labelled(rows))


def test_the_verdict_on_one_run_of_each_may_be_chance() -> None:
    rows = [sweep_row(1, 0.9, 0), sweep_row(2, 0.5, 0)]
    assert verdict(labelled(rows)).endswith("(with one run each, this may be chance).")


def test_more_seeds_have_a_price() -> None:
    values = {1: (0.90, 0.91), 2: (0.4, 0.6)}
    rows = [sweep_row(lr, value, lr * 10**6) for lr, of_lr in values.items() for value in of_lr]
    price = "for about 3.00 USD (1 x 2 configurations x 1.50 USD a run)."
    assert verdict(labelled(rows)).endswith(f"more seed of each would separate them, {price}")


# -- the law ---------------------------------------------------------------------------------


def maybe(**values: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of the keys, each with one of its values."""
    keys = {key: st.sampled_from(options) for key, options in values.items()}
    return st.fixed_dictionaries({}, optional=keys)


def some(*values: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)


entries = st.builds(
    lambda params, rest, more: {"name": "a", "params": params} | rest | more,
    st.fixed_dictionaries(
        {"lr": some(0.1, 1, "1", "1 (b)")}, optional={"world_size": some(1, 2), "seed": some(0, 1)}
    ),
    maybe(
        name=["b", "001_a"], env=[{"X": "1"}, {"X": "2"}, {"MY_KEY": "one"}, {"MY_KEY": "two"}],
        overrides=[["x=1"], ["x=2"]], metadata=[{"m": 1}, {"m": "1"}],
        budget=[TARGET | {"limit": 5}, TARGET | {"target_metric": "loss"}],
    ),
    maybe(engine=["process"], gpu=["H100"], price=["1 USD/h"], retries=[2]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(entries, min_size=1, max_size=4))
def test_runs_are_one_configuration_if_and_only_if_they_differ_in_seed_alone(
    grid: list[dict[str, Any]],
) -> None:
    plan = plan_of(*grid)
    rows = rows_of(manifest_of(plan))
    together: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        together[row["configuration"]].append(row["run_id"])
    of_run = {run: label for label, runs in together.items() for run in runs}
    for one, other in itertools.combinations(plan.runs, 2):
        assert (of_run[one.id] == of_run[other.id]) == (seedless(one) == seedless(other))


def seedless(run: PlannedRun) -> tuple[str, str]:
    stated = replace(run.entry, line=0, axes={}, retries=0, seeds=())
    params = {key: value for key, value in run.params.items() if key != "seed"}
    return repr(stated), json.dumps(params, sort_keys=True)
