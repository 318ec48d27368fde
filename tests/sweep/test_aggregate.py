"""Summaries of sweeps: columns, missing files, and arithmetic that is easy to get wrong."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from command_line import outlay
from ledgers import Segment, dollars
from outlay import __version__
from outlay.account.columns import Work
from outlay.budget.limits import KEYS
from outlay.cli.sweep.live import status_line
from outlay.clock import ManualClock
from outlay.errors import Finding
from outlay.export.csv_files import export_csv
from outlay.ledger import SUPERVISOR, BudgetEvent, Metric, Price, PriceChanged
from outlay.report.document import to_markdown
from outlay.report.drawing.sweep_charts import charts_of
from outlay.report.files import read_sweep, write_sweep_files
from outlay.sweep.aggregate.aggregator import CACHE, MANY_LOGS
from outlay.sweep.aggregate.comparison import (
    fairness,
    half_width,
    replicates,
    verdict,
)
from outlay.sweep.aggregate.rows import RunFacts, Seen, minutes_of
from outlay.sweep.errors import IncompleteRuns
from outlay.sweep.run.sweeps import FiguresKeeper
from outlay.sweep.state.manifest import captured, planned, read_manifest
from outlay.units import Money
from sweep_on_disk import NOW_NS, Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def write_log(run_dir: Path, *segments: Segment) -> None:
    for segment in segments:
        segment.write(run_dir)


def metric(segment: Segment, value: float, name: str = "acc") -> Segment:
    return segment.add(Metric(t_ns=segment.now_ns, name=name, value=value, step=0))


def write_csv(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_artefacts(run_dir: Path, **budget: Any) -> None:
    write_csv(
        run_dir / "timings.csv", {"ips_step": 10, "t_step_ms": 3000},
        {"ips_step": 100, "t_step_ms": 1000},
    )  # fmt: skip
    write_csv(run_dir / "comms.csv", {"bytes_total": 10}, {"bytes_total": 30})
    (run_dir / "budget.json").write_text(json.dumps({"totals": {"steps": 2}} | budget))


# -- from run logs ----------------------------------------------------------------------------


def test_a_run_log_gives_throughput_cost_goodput_and_the_reason_it_stopped(sweep: Sweep) -> None:
    story = Segment(about={"price": dollars(3600)})
    story.step(1, wait=1, samples=4, comm_bytes=10).step(2, samples=12, comm_bytes=30)
    story.add(BudgetEvent(t_ns=story.now_ns, event="stopped", data={"text": "time: 4s"}))
    write_log(sweep.add("001_a"), metric(story, 0.9).end())
    row = sweep.row()
    assert row["ips_mean"] == 16 / 4
    assert row["step_time_ms"] == 2000
    assert row["bytes_per_step"] == 20
    assert (row["cost"], row["currency"]) == (4.0, "USD")
    assert row["goodput"] == 0.75
    assert row["stop_reason"] == "time: 4s"
    assert (row["status"], row["errors"]) == ("completed", "")


def test_what_a_run_paid_in_another_currency_is_beside_its_cost(sweep: Sweep) -> None:
    story = Segment(about={"price": dollars(3600)}).step(1)
    euros = Price(7200 * 10**6, "EUR", source="stated")
    story.add(PriceChanged(t_ns=story.now_ns, price=euros, gpus=1)).step(2)
    write_log(sweep.add("001_a"), metric(story, 0.9).end())
    row = sweep.row()
    assert (row["cost"], row["currency"], row["cost_beside"]) == (1.0, "USD", "4.00 EUR")
    assert "| 4.00 EUR |" in to_markdown(read_sweep(sweep.root, NOW_NS).document())


def test_throughput_is_the_work_of_all_ranks_over_the_time_of_one(sweep: Sweep) -> None:
    ranks = [Segment(rank=rank).step(2, samples=4).end() for rank in range(2)]
    write_log(sweep.add("001_a", metadata={}), *ranks)
    assert sweep.row()["ips_mean"] == 4.0


def test_best_and_last_values_differ_and_time_to_target_is_wall_time(
    sweep: Sweep,
) -> None:
    story = metric(Segment().step(60), 0.5)
    story = metric(story.span("evaluation", 60).step(60), 0.9)
    write_log(sweep.add("001_a"), metric(story.step(60), 0.7).end())
    row = sweep.row()
    assert (row["accuracy_value"], row["accuracy_best"]) == (0.7, 0.9)
    assert row["time_to_target_min"] == 3.0


def test_where_less_is_better_the_target_is_reached_from_above(sweep: Sweep) -> None:
    about = {"target_metric": "val_loss", "target_value": 0.5}
    story = metric(Segment().step(60), 0.9, "val_loss")
    story = metric(story.step(60), 0.4, "val_loss")
    write_log(sweep.add("001_a", metadata=about), metric(story.step(60), 0.6, "val_loss").end())
    row = sweep.row()
    assert (row["accuracy_best"], row["time_to_target_min"]) == (0.4, 2.0)


def test_figures_come_from_the_cache_until_the_log_changes(
    sweep: Sweep,
) -> None:
    run_dir = sweep.add("001_a", metadata={})
    story = Segment().step(1, samples=1)
    write_log(run_dir, story)
    assert sweep.row()["ips_mean"] == 1.0
    assert (run_dir / CACHE).exists()
    assert sweep.row()["ips_mean"] == 1.0
    write_log(run_dir, story.step(1, samples=3))
    assert sweep.row()["ips_mean"] == 2.0


def test_figures_cached_when_runs_end_are_used_and_equal_those_of_the_log(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Segment(about={"price": dollars(3600)}).step(1, samples=4, comm_bytes=7)
    story.add(BudgetEvent(t_ns=story.now_ns, event="stopped", data={"text": "time: 4s"}))
    run_dir = sweep.add("001_a")
    write_log(run_dir, metric(story, 0.9).end())
    read = sweep.row()
    (run_dir / CACHE).unlink()
    keeper = FiguresKeeper(ManualClock(wall_ns=NOW_NS))
    keeper.keep(run_dir)
    keeper.close()
    with monkeypatch.context() as patched:
        patched.setattr("outlay.sweep.aggregate.aggregator._fold", None)
        assert sweep.row() == read
    (run_dir / CACHE).write_text("damaged")
    assert sweep.row() == read


READ_BY_SEVERAL = """
import json, os, sys
from pathlib import Path
from outlay.sweep.aggregate.aggregator import aggregate

forked = []
os.register_at_fork(before=lambda: forked.append(1))
rows = aggregate(Path(sys.argv[1]), int(sys.argv[2])).rows
print(json.dumps([len(forked), [row["ips_mean"] for row in rows]]))
"""


def test_many_logs_are_read_by_several_processes_with_the_same_figures(sweep: Sweep) -> None:
    for n in range(1, 2 * MANY_LOGS + 1):
        write_log(sweep.add(f"{n:03}", metadata={}), Segment().step(1, samples=n).end())
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_SEVERAL, sweep.root, str(NOW_NS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    forked, figures = json.loads(done.stdout)
    assert figures == [row["ips_mean"] for row in sweep.summary().rows]
    assert [round(figure) for figure in figures] == list(range(1, 2 * MANY_LOGS + 1))
    assert forked == (0 if len(os.sched_getaffinity(0)) == 1 else 2)


def test_a_run_without_a_log_caches_no_figures(tmp_path: Path) -> None:
    keeper = FiguresKeeper(ManualClock())
    keeper.keep(tmp_path)
    keeper.close()
    assert list(tmp_path.iterdir()) == []


def test_a_completed_run_without_its_metric_has_that_error(sweep: Sweep) -> None:
    write_log(sweep.add("001_a"), Segment().step(1).end())
    assert sweep.row()["errors"] == "metric 'acc' was not recorded"


# -- from documented artefacts ----------------------------------------------------------------


def test_throughput_is_total_items_over_total_time_not_a_mean_of_rates(sweep: Sweep) -> None:
    write_artefacts(sweep.add("001_a", metadata={}))
    row = sweep.row()
    assert row["ips_mean"] == pytest.approx((30 + 100) / 4)
    assert (row["step_time_ms"], row["bytes_per_step"]) == (2000, 20)


def test_energy_is_summed_over_counter_resets(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a", metadata={})
    write_artefacts(run_dir)
    write_csv(
        run_dir / "energy.csv",
        *({"gpu_id": 0, "energy_J_cum": joules} for joules in (100, 450, 50, 150)),
        {"gpu_id": 1, "energy_J_cum": 360},
    )  # fmt: skip
    assert sweep.row()["energy_Wh"] == pytest.approx((450 + 150 + 360) / 3600)


def test_energy_falls_back_to_the_budget_and_fidelity_is_a_mean(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a", metadata={})
    write_artefacts(run_dir, totals={"energy_Wh": 1.5})
    write_csv(run_dir / "fidelity.csv", {"grad_cos": 0.5}, {"grad_cos": 1.0})
    row = sweep.row()
    assert (row["energy_Wh"], row["fidelity_mean"]) == (1.5, 0.75)


def test_mode_and_limits_are_those_of_budget_json_where_the_grid_states_none(sweep: Sweep) -> None:
    stated = {"mode": "iso_time", "limits": {"max_minutes": 2.5}}
    write_artefacts(sweep.add("001_a", metadata={}), **stated)
    own = {"mode": "iso_tokens", "limits": {"max_tokens": 9}}
    named = {"budget_mode": "iso_tokens"}
    write_artefacts(sweep.add("002_b", metadata=named, budget=own), **stated)
    first, second = sweep.summary().rows
    assert (first["budget_mode"], first["limit_max_minutes"]) == ("iso_time", 2.5)
    assert (second["budget_mode"], second["limit_max_tokens"]) == ("iso_tokens", 9)
    assert "limit_max_minutes" not in second


# -- a finished sweep of the tool whose module this one replaces ------------------------------


def other_sweep(root: Path, **first: Any) -> list[str]:
    """Write a manifest as that tool does, without a journal: three runs, of which one completed."""
    names = ["001_a", "002_b", "003_c"]
    ends = [("completed", 0), ("error", 3), ("cancelled", -1)]
    runs = [
        {
            "id": name, "run_dir": str(root / name), "launcher_log": str(root / name / "sweep.log"),
            "world_size": 1, "overrides": ["model=resnet18"], "params": {"model": "resnet18"},
            "metadata": {"budget_mode": "iso_time", "budget_limit_key": "max_minutes",
                         "budget_limit_value": 1.0, "target_metric": "acc", "target_value": 0.7},
            "env": {"MFCL_AMP_DTYPE": "bf16"}, "nnodes": None, "node_rank": None, "rendezvous": {},
            "status": status, "returncode": code, "command": ["torchrun", "train.py"],
            "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:30Z",
        }
        for name, (status, code) in zip(names, ends, strict=True)
    ]  # fmt: skip
    runs[0] |= first
    for name in names:
        (root / name).mkdir(parents=True)
    write_artefacts(root / names[0], mode="iso_time", limits={"max_minutes": 1.0})
    write_csv(root / names[0] / "eval.csv", {"step": 1, "acc": 0.8, "time_minutes": 0.5})
    document = {
        "name": "spec9", "created_at": "2026-01-01T00:00:00Z", "grid_path": "/elsewhere/grid.yaml",
        "output_dir": str(root), "runs": runs,
    }  # fmt: skip
    (root / "sweep_manifest.json").write_text(json.dumps(document, indent=2, sort_keys=True))
    return names


def test_a_finished_sweep_of_the_other_tool_keeps_its_statuses_and_may_have_moved(
    tmp_path: Path,
) -> None:
    other_sweep(tmp_path / "there")
    here = (tmp_path / "there").rename(tmp_path / "here")
    command = [sys.executable, "-m", "outlay.sweep.aggregate", "--enable-aggregator"]
    subprocess.run([*command, "--root", str(here)], check=True, capture_output=True, timeout=120)
    (summary,) = (here / "reports").glob("summary_*.csv")
    rows = list(csv.DictReader(summary.read_text().splitlines()))
    assert [row["status"] for row in rows] == ["completed", "error", "error"]
    assert [row["errors"].partition(":")[0] for row in rows] == ["", "error", "cancelled"]
    first = rows[0]
    assert (first["budget_mode"], first["limit_max_minutes"]) == ("iso_time", "1.0")
    assert (first["accuracy_value"], first["time_to_target_min"]) == ("0.8", "0.5")
    status = outlay("sweep", "status", str(here), "--json").json
    assert status["counts"] == {"completed": 1, "error": 1, "cancelled": 1}


def test_a_completed_run_of_the_other_tool_without_its_csv_fails_the_summary(
    tmp_path: Path,
) -> None:
    (name, *_) = other_sweep(tmp_path)
    (tmp_path / name / "comms.csv").unlink()
    done = outlay("sweep", "report", str(tmp_path))
    assert done.code == 1
    assert f"{name}: comms.csv is missing" in done.err
    assert not (tmp_path / "reports").exists()


def test_paths_relative_to_where_the_other_tool_was_started_are_found(tmp_path: Path) -> None:
    other_sweep(tmp_path, run_dir="runs/spec9/001_a", launcher_log="runs/spec9/001_a/sweep.log")
    first = read_manifest(tmp_path).runs["001_a"]
    assert (first.run_dir, first.document["launcher_log"]) == ("001_a", "001_a/sweep.log")


@pytest.mark.parametrize(
    ("seen", "minutes"),
    [
        ({"elapsed_minutes": 7}, 7.0),
        ({"step": 0}, 2 / 60),
        ({"step": 29}, 1.0),
        ({"epoch": 1}, 20 / 60 * 2),
    ],
)
def test_time_to_target_counts_steps_from_0_and_epochs_by_their_steps(
    sweep: Sweep, seen: dict[str, float], minutes: float
) -> None:
    run_dir = sweep.add("001_a")
    write_artefacts(run_dir, steps_per_epoch=10)
    write_csv(run_dir / "eval.csv", seen | {"acc": 0.8})
    assert sweep.row()["time_to_target_min"] == pytest.approx(minutes)


def test_an_epoch_of_unknown_length_has_no_time() -> None:
    facts = RunFacts(source="csv", work=Work(steps=1, step_ns=1))
    assert minutes_of(Seen(0.9, None, None, 3.0), facts, {}) is None


@pytest.mark.parametrize(
    "budget", [{"totals": None}, {"totals": {"energy_Wh": "much"}}, {"unmeasured": None}]
)
def test_a_malformed_budget_json_does_not_break_the_summary(
    sweep: Sweep, budget: dict[str, Any]
) -> None:
    write_artefacts(sweep.add("001_a", metadata={}), **budget)
    assert sweep.row()["bytes_per_step"] == 20


def test_damage_of_a_csv_file_is_a_finding_beside_the_supervisors_log(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a", metadata={})
    write_artefacts(run_dir)
    (run_dir / "comms.csv").write_bytes(b"bytes_total\n\xff\n")
    write_log(run_dir, Segment(rank=SUPERVISOR).after(4).end())
    (row,) = sweep.summary().rows
    assert row.facts is not None
    assert [text.partition(":")[0] for text in row.facts.findings] == ["comms.csv"]


# -- what is missing --------------------------------------------------------------------------


def test_everything_missing_in_completed_runs_is_named_at_once(sweep: Sweep) -> None:
    write_artefacts(sweep.add("001_a", metadata={}))
    (sweep.root / "001_a" / "comms.csv").unlink()
    sweep.add("002_b", metadata={})
    with pytest.raises(IncompleteRuns) as caught:
        sweep.summary()
    named = {(finding.source, finding.message.split()[0]) for finding in caught.value.missing}
    assert named == {
        ("001_a", "comms.csv"), ("002_b", "timings.csv"), ("002_b", "comms.csv"),
        ("002_b", "budget.json"), ("002_b", "there"),
    }  # fmt: skip
    assert isinstance(caught.value.missing[0], Finding)
    assert [row["status"] for row in sweep.summary(allow_missing=True).rows] == ["completed"] * 2


@pytest.mark.parametrize("status", ["pending", "running", "error", "cancelled", "skipped"])
def test_a_run_that_did_not_complete_is_an_error_with_its_reason(sweep: Sweep, status: str) -> None:
    sweep.add("001_a", status=status, reason="why", budget={"limits": {"max_minutes": 2}})
    row = sweep.row()
    assert (row["status"], row["errors"]) == ("error", f"{status}: why")
    assert row["limit_max_minutes"] == 2


# -- side by side -----------------------------------------------------------------------------


def rows(*values: float, **more: Any) -> list[dict[str, Any]]:
    common = {"status": "completed", "configuration": "lr=0.1"} | more
    return [
        {"run_id": str(seed), "accuracy_value": value, "param_seed": seed} | common
        for seed, value in enumerate(values)
    ]


def test_seeds_become_a_mean_with_its_interval() -> None:
    (one,) = replicates(rows(0.8, 0.9, 1.0))
    assert one.label == "lr=0.1"
    assert one.mean == pytest.approx(0.9)
    assert one.half_width == pytest.approx(4.303 * 0.1 / 3**0.5)
    assert half_width([0.5]) is None


@pytest.mark.parametrize(("runs", "factor"), [(2, 12.706), (13, 2.179), (14, 2.160), (100, 2.042)])
def test_an_interval_narrows_as_students_t_does(runs: int, factor: float) -> None:
    values = [0.0, 1.0] * (runs // 2) + [0.5] * (runs % 2)
    assert half_width(values) == pytest.approx(factor * stdev(values) / runs**0.5)


@pytest.mark.parametrize(
    ("metric", "values", "text"),
    [
        ("val_accuracy", (0.8, 0.9, 1.0), "0.9 (0.652 to 1)"),
        ("val_accuracy", (80.0, 90.0, 100.0), "90 (65.2 to 100)"),
        ("f1-score", (0.0, 0.1, 0.2), "0.1 (0 to 0.348)"),
        ("top1", (0.5, 0.51, 0.52), "0.51 ± 0.0248"),
        ("reward", (0.8, 0.9, 1.0), "0.9 ± 0.248"),
        ("accuracy_gain", (-0.1, 0.0, 0.1), "0 ± 0.248"),
    ],
)
def test_the_interval_of_a_share_ends_where_shares_do(
    metric: str, values: tuple[float, ...], text: str
) -> None:
    (one,) = replicates(rows(*values, accuracy_metric=metric))
    assert str(one) == text
    assert one.half_width is not None


def test_the_verdict_compares_no_metric_with_another(sweep: Sweep) -> None:
    for name, metric_name, value in (("001_a", "acc", 0.5), ("002_b", "acc", 0.6),
                                     ("003_c", "loss", 7.0)):  # fmt: skip
        about = {"target_metric": metric_name, "target_direction": "max"}
        run_dir = sweep.add(name, metadata=about, params={"run": name})
        write_log(run_dir, metric(Segment().step(1), value, metric_name).end())
    summary = sweep.summary()
    said = verdict(summary.rows)
    assert said.startswith("Best: run=002_b with acc 0.6; next: run=001_a with 0.5")


def test_fairness_shows_how_much_of_a_limit_was_used() -> None:
    used = [{"status": "completed", "limit_max_minutes": 2, "time_minutes": m} for m in (1, 2.1)]
    (one,) = fairness(used)
    assert (one.limit, one.runs, one.least) == ("max_minutes = 2", 2, 0.5)
    assert one.spread == pytest.approx(0.55)


@pytest.mark.parametrize("key", [*KEYS, "max_cost_eur"])
def test_fairness_covers_every_limit_of_a_budget(sweep: Sweep, key: str) -> None:
    used = {
        "tokens": 3, "time_minutes": 3.0, "comm_bytes": 3, "energy_Wh": 3.0, "cost_usd": 3.0,
        "cost_eur": 3.0,
        "flops": 3, "steps": 30, "epochs": 3.0,
    }  # fmt: skip
    run_dir = sweep.add("001_a", budget={"limits": {key: 4}})
    story = Segment(about={"price": dollars(3600)}).step(3, energy_mj=3 * 3_600_000)
    write_log(run_dir, metric(story, 0.9).end())
    (run_dir / "budget.json").write_text(json.dumps({"totals": used, "steps_per_epoch": 10}))
    (one,) = fairness(sweep.summary().rows)
    assert (one.limit, one.runs, one.least) == (f"{key} = 4", 1, 0.75)
    page = to_markdown(read_sweep(sweep.root, NOW_NS).document())
    assert f"| {key} = 4 | 1 | 75.0% | 75.0% | 0.0% |" in page


def test_operations_come_from_the_log_where_the_run_wrote_no_totals(sweep: Sweep) -> None:
    ranks = [Segment(rank=rank).step(1, flops=500).step(1, flops=500).end() for rank in range(2)]
    write_log(sweep.add("001_a", metadata={}), *ranks)
    assert sweep.row()["flops"] == 2000


def test_epochs_of_unknown_length_are_unknown_and_not_zero(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a", metadata={}, budget={"limits": {"max_epochs": 4}})
    write_artefacts(run_dir, totals={"steps": 2, "epochs": 0.0}, steps_per_epoch=None)
    assert sweep.row()["epochs"] is None
    assert fairness(sweep.summary().rows) == []


def test_tokens_that_were_not_measured_are_unknown_and_not_zero(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a", metadata={})
    write_artefacts(run_dir, totals={"steps": 2, "tokens": 0}, unmeasured=["tokens"])
    assert sweep.row()["tokens"] is None


# -- the reports ------------------------------------------------------------------------------


def test_reports_are_written_where_documented_and_pipes_are_escaped(sweep: Sweep) -> None:
    write_log(sweep.add("001_a", params={"p": "a|b"}), metric(Segment().step(1), 0.9).end())
    sweep.add("002_b", status="skipped", reason="no room")
    done = subprocess.run(
        [sys.executable, "-m", "outlay.sweep.aggregate", "--enable-aggregator", "--root",
         str(sweep.root)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (table,) = (sweep.root / "reports").glob("summary_*.csv")
    with table.open() as stream:
        written = list(csv.DictReader(stream))
    assert [row["status"] for row in written] == ["completed", "error"]
    assert list(written[0])[:3] == ["run_id", "status", "world_size"]
    markdown = (sweep.root / "reports" / "summary.md").read_text()
    assert "a\\|b" in markdown
    assert "Skipped, because the ceiling had no room for them: 002_b." in markdown
    assert done.stdout.startswith("Best: p=a|b with acc 0.9")


def test_two_summaries_in_one_second_are_both_kept(sweep: Sweep) -> None:
    sweep.add("001_a", status="error")
    account = read_sweep(sweep.root, NOW_NS)
    names = {write_sweep_files(account, account.reports, NOW_NS).written["csv"] for _ in range(2)}
    assert len(names) == 2


def test_the_documented_module_is_refused_without_its_flag(sweep: Sweep) -> None:
    sweep.add("001_a", status="error")
    command = [sys.executable, "-m", "outlay.sweep.aggregate", "--root", str(sweep.root)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 3


@pytest.mark.parametrize(
    "module", ["outlay.sweep", "outlay.sweep.aggregate", "outlay.compat.cost_module"]
)
@pytest.mark.parametrize(
    ("flag", "said"), [("-h", "python -m {} "), ("-V", f"outlay {__version__}")]
)
def test_documented_modules_have_a_help_and_a_version(module: str, flag: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, flag], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert said.format(module) in done.stdout


def test_the_documented_module_takes_a_manifest_an_output_and_a_variable(
    sweep: Sweep, tmp_path: Path
) -> None:
    write_artefacts(sweep.add("001_a", metadata={}))
    manifest, output = sweep.root / "sweep_manifest.json", tmp_path / "elsewhere"
    words = ["-m", "outlay.sweep.aggregate", "--manifest", str(manifest), "--output", str(output)]
    environ = os.environ | {"MFCL_SWEEP_AGGREGATOR": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| 001_a | completed |" in (output / "summary.md").read_text()
    (summary,) = output.glob("summary_*.csv")
    (row,) = csv.DictReader(summary.read_text().splitlines())
    assert (row["run_id"], row["step_time_ms"], row["steps"]) == ("001_a", "2000.0", "2")
    assert not (sweep.root / "reports").exists()


def test_aggregating_a_directory_without_a_sweep_is_refused(tmp_path: Path) -> None:
    shown = outlay("sweep", "aggregate", tmp_path)
    assert shown.code == 2
    assert "sweep_manifest.json" in shown.err


def test_unmetered_bytes_are_unknown_and_not_zero(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a")
    write_log(run_dir, metric(Segment().step(1, samples=8), 0.9).end())
    stated = {"totals": {"steps": 1, "comm_bytes": 0}, "unmeasured": ["comm_bytes"]}
    (run_dir / "budget.json").write_text(json.dumps(stated))
    other = sweep.add("002_b")
    export_csv(run_dir, other)
    (other / "budget.json").write_text("{}")
    assert (other / "comms.csv").read_text() == "step,bytes_total\n0,\n"
    for row in sweep.summary().rows:
        assert row["bytes_per_step"] is None
        assert row["comm_bytes"] is None


def test_findings_are_in_the_json_document_and_before_the_verdict_in_text(
    sweep: Sweep,
) -> None:
    write_log(sweep.add("001_a"), metric(Segment().step(1), 0.9).end())
    sweep.add("002_b", status="running", engine="elsewhere")
    document = json.loads((sweep.root / "sweep_manifest.json").read_text())
    (sweep.root / "sweep_manifest.json").write_text(json.dumps(document | {"work_dir": "/"}))
    shown = outlay("sweep", "aggregate", sweep.root, "--json")
    assert shown.code == 0, shown.err
    (finding,) = shown.json["findings"]
    assert "elsewhere" in finding["message"]
    assert shown.json["verdict"].startswith("Best: 001_a")
    people = outlay("sweep", "aggregate", sweep.root, columns=300).out
    assert people.index("elsewhere") < people.index("Best: 001_a")


def test_a_report_of_a_sweep_in_json_has_no_findings_where_there_are_none(sweep: Sweep) -> None:
    write_log(sweep.add("001_a"), metric(Segment().step(1), 0.9).end())
    for command in (["sweep", "aggregate"], ["report"]):
        assert outlay(*command, sweep.root, "--json").json["findings"] == []


def test_a_log_exported_to_csv_aggregates_to_the_same_figures(sweep: Sweep) -> None:
    run_dir = sweep.add("001_a")
    story = Segment().step(1, wait=0.5, samples=8, comm_bytes=100, energy_mj=3600)
    story = metric(story.step(2, samples=4, comm_bytes=50), 0.9).end()
    write_log(run_dir, story)
    other = sweep.add("002_b")
    names = {path.name for path in export_csv(run_dir, other).files}
    assert names == {"timings.csv", "comms.csv", "energy.csv", "eval.csv"}
    (other / "budget.json").write_text("{}")
    one, two = sweep.summary().rows
    for column in ("ips_mean", "step_time_ms", "bytes_per_step", "accuracy_value", "energy_Wh",
                   "time_to_target_min"):  # fmt: skip
        assert two[column] == pytest.approx(one[column]), column


def test_cash_and_showback_are_shown_separately_and_never_added(tmp_path: Path) -> None:
    """Two runs of one second at a dollar a second: one is rented, the other one owned."""
    sweep = Sweep(tmp_path)
    for name, kind in (("a", "cash"), ("b", "showback")):
        price = Price(3600 * 1_000_000, kind=kind)  # type: ignore[arg-type]
        run = Segment(about={"price": price}).step(1)
        run.add(Metric(t_ns=run.now_ns, name="acc", value=0.9, step=0)).end()
        run.write(sweep.add(name))
    summary = sweep.summary()
    assert [(row["cost"], row["currency"], row["cost_kind"]) for row in summary.rows] == [
        (1.0, "USD", "cash"),
        (1.0, "USD", "showback"),
    ]
    titles = [chart.title for chart in charts_of(summary.rows, ())]
    assert {
        "acc against cost (USD)", "acc against cost (USD showback)",
        "Where the money went (USD)", "Where the money went (USD showback)",
    } <= set(titles)  # fmt: skip
    assert {one.currency for one in replicates(summary.rows)} == {None}


def test_totals_of_a_sweep_are_by_kind(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    priced = {"predicted_cost": "2.000000 USD"}
    sweep.add("a", price="1 USD/h", price_kind="cash", **priced)
    sweep.add("b", price="1 USD/h", price_kind="showback", **priced)
    sweep.add("c", **priced)
    for event, kind in zip(sweep.events, ("", "", "showback"), strict=True):
        event |= {"cost_micros": 1_000_000, "currency": "USD", "kind": kind}
    sweep.add("d")
    manifest = read_manifest(tmp_path)
    one, two = Money(1_000_000), Money(2_000_000)
    assert captured(manifest) == [one, two.as_kind("showback")]
    assert planned(manifest) == [two, Money(4_000_000).as_kind("showback")]
    words = status_line(manifest, NOW_NS)
    assert f"planned {two}, cost {one}, showback planned {Money(4_000_000)}" in words
    assert f"showback cost {two}" in words
