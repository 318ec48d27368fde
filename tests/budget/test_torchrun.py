"""Budgets over real ranks: gloo between two and four processes, of torchrun, forked or mp.spawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlay.budget.fold import join_attempts
from outlay.budget.history import read_history
from outlay.ledger import AttemptStarted, read_run

PROGRAM = Path(__file__).parents[1] / "programs" / "budget_ranks.py"
FEATURES = 8


def run_python(*arguments: object) -> None:
    """Run Python to its end, without a rank in its environment."""
    unset = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    environ = {name: text for name, text in os.environ.items() if name not in unset}
    environ |= {"OMP_NUM_THREADS": "1", "OUTLAY_PROGRESS": "0", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def results(root: Path, scenario: str) -> list[dict[str, Any]]:
    """Return what each rank of a scenario wrote, by rank."""
    return [json.loads(path.read_text()) for path in sorted(root.glob(f"{scenario}-[0-9].json"))]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the scenarios whose ranks need no launcher."""
    root = tmp_path_factory.mktemp("forked")
    run_python(PROGRAM, root, "ddp", "straggler", "uneven", "reducing", "fsdp", "killed", "spawned")
    return root


@pytest.fixture(scope="module")
def ddp(forked: Path) -> Path:
    """The directory in which torchrun has resumed the DDP training of two ranks that failed."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run_python(*torchrun, PROGRAM, forked)
    return forked


def forked_results(root: Path, scenario: str) -> list[dict[str, Any]]:
    """Return what each rank of a scenario wrote, once all have exited with 0."""
    codes = json.loads((root / f"{scenario}-codes.json").read_text())
    assert set(codes) == {0}, (root / f"{scenario}-0.err").read_text()
    return results(root, scenario)


def test_ddp_with_gradient_accumulation_is_budgeted_over_all_ranks_and_restarts(ddp: Path) -> None:
    assert json.loads((ddp / "ddp-codes.json").read_text()) == [1, 1]
    ranks = results(ddp, "ddp")

    # Two and four samples a micro-batch: six in all, of which sixteen times fit into a hundred.
    assert [rank["steps"] for rank in ranks] == [16, 16]
    assert [rank["totals"]["tokens"] for rank in ranks] == [96, 96]
    assert "tokens: " in ranks[0]["reason"]
    assert ranks[0]["reason"] == ranks[1]["reason"]

    # The second attempt resumed after the checkpoint of step 3: twelve micro-batches, six syncs.
    parameter_bytes = 4 * (FEATURES * FEATURES + FEATURES)
    for rank in ranks:
        assert rank["synced"] == 6
        assert rank["payload"]["all_reduce"] == 6 * parameter_bytes

    content = json.loads((ddp / "ddp" / "budget.json").read_text())
    assert content["totals"]["tokens"] == 96
    assert content["ranks"]["size"] == 2
    replayed = join_attempts(read_history(ddp / "ddp").spends, 2**62).total(charge="training")
    assert replayed.tokens == 96
    assert replayed.steps == 16

    # Six syncs of two ranks, and those before the failure.
    assert content["totals"]["comm_bytes"] == replayed.comm_bytes > 2 * 6 * parameter_bytes


def test_four_ranks_with_a_straggler_stop_on_the_same_step(forked: Path) -> None:
    ranks = forked_results(forked, "straggler")
    assert len(ranks) == 4
    assert len({rank["steps"] for rank in ranks}) == 1
    assert len({rank["totals"]["time_ms"] for rank in ranks}) == 1
    assert all(rank["totals"]["time_ms"] >= 600 for rank in ranks)
    assert "time: " in ranks[0]["reason"]
    assert [rank["allowed"] for rank in ranks] == [True] * 4


def test_every_rank_saves_at_the_step_at_which_all_stop(forked: Path) -> None:
    ranks = forked_results(forked, "straggler")
    assert [rank["saved"] for rank in ranks] == [[ranks[0]["steps"] - 1]] * 4


def test_a_batch_far_larger_than_all_before_it_never_passes_a_limit_on_tokens(
    forked: Path,
) -> None:
    ranks = forked_results(forked, "uneven")
    assert [rank["steps"] for rank in ranks] == [30, 30]
    assert [rank["totals"]["tokens"] for rank in ranks] == [120, 120]
    assert "the next step would pass it by 22" in ranks[0]["reason"]


def test_a_cap_on_communication_counts_all_ranks_and_stops_after_the_step_that_reaches_it(
    forked: Path,
) -> None:
    ranks = forked_results(forked, "reducing")
    assert [rank["steps"] for rank in ranks] == [5, 5]
    assert [rank["totals"]["comm_bytes"] for rank in ranks] == [10_000, 10_000]
    assert "collectives: " in ranks[0]["reason"]


def test_fsdp_gathers_and_scatters_are_counted(forked: Path) -> None:
    # Each rank sends its half of the weight, and the whole gradient.
    weight_bytes = 4 * FEATURES * FEATURES
    for rank in forked_results(forked, "fsdp"):
        assert rank["payload"]["all_gather"] % (weight_bytes // 2) == 0
        assert rank["payload"]["reduce_scatter"] == weight_bytes


def test_a_killed_rank_does_not_hang_the_others(forked: Path) -> None:
    # Forked: a launcher would end the other rank before it notices by itself.
    assert json.loads((forked / "killed-codes.json").read_text()) == [1, -9]
    assert "AgreementLost" in (forked / "killed-0.err").read_text()
    assert json.loads((forked / "killed" / "budget.json").read_text())["totals"]["tokens"] > 0


def test_ranks_of_torch_multiprocessing_record_one_run_and_share_its_budget(forked: Path) -> None:
    assert [rank["steps"] for rank in results(forked, "spawned")] == [50, 50]
    records = read_run(forked / "spawned").records
    headers = [record for record in records if isinstance(record, AttemptStarted)]
    assert sorted((header.rank, header.world_size) for header in headers) == [(0, 2), (1, 2)]
    totals = json.loads((forked / "spawned" / "budget.json").read_text())["totals"]
    assert (totals["tokens"], totals["steps"]) == (100, 50)
