"""A guarded training on real ranks: torchrun and gloo, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from outlay.guard.budget_guard import BudgetGuard

PROGRAM = Path(__file__).parents[1] / "programs" / "guard_ranks.py"


def test_all_ranks_stop_at_the_same_step_when_the_money_ends(tmp_path: Path) -> None:
    log = tmp_path / "spend.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(PROGRAM), str(tmp_path / "run"), str(log)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    assert ranks[0]["step"] == ranks[1]["step"] > 0
    assert all("guard: whole" in rank["why"] for rank in ranks)
    guard = BudgetGuard(320, log, environ={})
    assert guard.holds() == ()
    assert 0 < guard.total_spent <= 320.0
