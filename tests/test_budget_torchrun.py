"""Budgets over real ranks: gloo between two and four processes, of torchrun, forked or mp.spawn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlay.budget.fold import join_attempts
from outlay.budget.history import read_history
from outlay.ledger import AttemptStarted, read_run
from outlay.sweep.engines.ports import Ports

PROGRAM = Path(__file__).parent / "programs" / "budget_ranks.py"
TIMEOUT_S = 150
FEATURES = 8


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "OUTLAY_PROGRESS": "0", "PYTHONWARNINGS": "ignore"}


def torchrun(processes: int, scenario: str, run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(PROGRAM), scenario, str(run_dir)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False
    )


@contextlib.contextmanager
def meeting(processes: int) -> Iterator[dict[str, str]]:
    """The environment of ranks that meet without a launcher, on a port that is theirs."""
    ports = Ports()
    port = ports.reserve()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    try:
        yield environment() | shared
    finally:
        ports.release(port)


def forked(processes: int, scenario: str, run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), scenario, str(run_dir)]
    with meeting(processes) as environ:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ, check=False
        )


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: line["rank"])


def test_ddp_with_gradient_accumulation_is_budgeted_over_all_ranks_and_restarts(
    tmp_path: Path,
) -> None:
    died = torchrun(2, "ddp-dies", tmp_path)
    assert died.returncode != 0
    ranks = results(torchrun(2, "ddp", tmp_path))

    # Two and four samples a micro-batch: six in all, of which sixteen times fit into a hundred.
    assert [rank["steps"] for rank in ranks] == [16, 16]
    assert [rank["totals"]["tokens"] for rank in ranks] == [96, 96]
    assert "max_tokens" in ranks[0]["reason"]
    assert ranks[0]["reason"] == ranks[1]["reason"]

    # The second attempt went on after the checkpoint of step 3: twelve micro-batches, six syncs.
    parameter_bytes = 4 * (FEATURES * FEATURES + FEATURES)
    for rank in ranks:
        assert rank["synced"] == 6
        assert rank["payload"]["all_reduce"] == 6 * parameter_bytes

    # FSDP2 gathers and scatters the weight; each rank brings its half, and the whole gradient.
    weight_bytes = 4 * FEATURES * FEATURES
    assert ranks[0]["fsdp"]["all_gather"] % (weight_bytes // 2) == 0
    assert ranks[0]["fsdp"]["reduce_scatter"] == weight_bytes

    content = json.loads((tmp_path / "budget.json").read_text())
    assert content["totals"]["tokens"] == 96
    assert content["ranks"]["size"] == 2
    replayed = join_attempts(read_history(tmp_path).spends, 2**62).total(charge="training")
    assert replayed.tokens == 96
    assert replayed.steps == 16

    # Six syncs of two ranks, and those before the death.
    assert content["totals"]["comm_bytes"] == replayed.comm_bytes > 2 * 6 * parameter_bytes


def test_four_ranks_with_a_straggler_stop_on_the_same_step(tmp_path: Path) -> None:
    ranks = results(forked(4, "straggler", tmp_path))
    assert len({rank["steps"] for rank in ranks}) == 1
    assert len({rank["totals"]["time_ms"] for rank in ranks}) == 1
    assert all(rank["totals"]["time_ms"] >= 600 for rank in ranks)
    assert "max_minutes" in ranks[0]["reason"]
    assert [rank["allowed"] for rank in ranks] == [True] * 4


def test_a_batch_far_larger_than_all_before_it_never_passes_a_limit_on_tokens(
    tmp_path: Path,
) -> None:
    ranks = results(forked(2, "uneven", tmp_path))
    assert [rank["steps"] for rank in ranks] == [30, 30]
    assert [rank["totals"]["tokens"] for rank in ranks] == [120, 120]
    assert "the next step would pass it by 22" in ranks[0]["reason"]


def test_a_cap_on_communication_counts_all_ranks_and_stops_after_the_step_that_reaches_it(
    tmp_path: Path,
) -> None:
    ranks = results(forked(2, "talking", tmp_path))
    assert [rank["steps"] for rank in ranks] == [5, 5]
    assert [rank["totals"]["comm_bytes"] for rank in ranks] == [10_000, 10_000]
    assert "max_comm_bytes" in ranks[0]["reason"]


def test_a_killed_rank_does_not_hang_the_others(tmp_path: Path) -> None:
    # Without a launcher, which would end the survivor before it notices by itself.
    with meeting(2) as environ:
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "killed", str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environ | {"RANK": str(rank)},
            )
            for rank in (0, 1)
        ]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert processes[1].returncode == -9
    assert processes[0].returncode == 1
    assert "AgreementLost" in outputs[0][1]
    assert json.loads((tmp_path / "budget.json").read_text())["totals"]["tokens"] > 0


def test_ranks_of_mp_spawn_record_one_run_and_share_its_budget(tmp_path: Path) -> None:
    unset = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("spawned_ranks.py")), str(tmp_path)],
        env={name: text for name, text in environment().items() if name not in unset},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    headers = [one for one in read_run(tmp_path / "run").records if isinstance(one, AttemptStarted)]
    assert sorted((header.rank, header.world_size) for header in headers) == [(0, 2), (1, 2)]
    totals = json.loads((tmp_path / "run" / "budget.json").read_text())["totals"]
    assert (totals["tokens"], totals["steps"]) == (96, 8)
