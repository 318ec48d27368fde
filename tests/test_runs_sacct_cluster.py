"""Jobs of a real cluster that keeps accounts: what outlay says of them is what sacct says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import outlay
from outlay.ledger import Attempt, derive_attempts, read_lives
from outlay.runs.sacct import COMMAND, SacctJob, read_accounts
from slurm_cluster import ACCOUNTING_PROGRAMS, AccountedCluster, require_programs
from waiting import until

pytestmark = pytest.mark.cluster
OUTLAY = f"{sys.executable} -m outlay"
FATES = {
    "completed": ["--wrap", f"{OUTLAY} exec -- sleep 3"],
    "failed": ["--wrap", f"{OUTLAY} exec -- sh -c 'sleep 2; exit 3'"],
    "array": ["--array=0-2", "--wrap", f"{OUTLAY} exec -- sleep 4"],
    "recorded": ["--wrap", f"{sys.executable} -c \"import outlay, time\n"
                           "with outlay.run('m'): time.sleep(3)\""],
    "unknown": ["--wrap", "sleep 3"],
    "requeued": ["--requeue", "--wrap", f"{OUTLAY} exec -- sleep 5; "
                 "test -n \"$SLURM_RESTART_COUNT\" || scontrol requeue $SLURM_JOB_ID; sleep 3"],
}  # fmt: skip
"""Options of ``sbatch`` for jobs of every fate."""


@pytest.fixture
def accounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountedCluster]:
    require_programs(*ACCOUNTING_PROGRAMS)
    cluster = AccountedCluster(tmp_path / "cluster")
    try:
        cluster.start()
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster
    finally:
        cluster.stop()


def accounts_of(cluster: AccountedCluster, path: Path) -> dict[str, SacctJob]:
    """Write what sacct prints to a file; return its jobs by number."""
    columns = COMMAND.rpartition("--format=")[2]
    printed = cluster.run(
        "sacct", "--parsable2", "--allocations", "--duplicates", "--starttime=2000-01-01",
        f"--format={columns}",
    )  # fmt: skip
    path.write_text(printed.stdout)
    return {job.shown: job for job in read_accounts(printed.stdout, source="sacct").jobs}


def test_every_start_of_every_job_lasts_as_long_as_sacct_says(
    accounted: AccountedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert outlay("rates", "set", "main", "3600 USD/h").code == 0
    for options in FATES.values():
        submitted = accounted.run("sbatch", "-o", os.devnull, *options)
        assert submitted.returncode == 0, submitted.stderr
    idle = ["squeue", "--noheader"]
    until(lambda: not accounted.run(*idle).stdout.strip(), accounted.explain)
    file = tmp_path / "accounts.txt"
    until(lambda: len(accounts_of(accounted, file)) == len(FATES) + 2, accounted.explain)
    for order in ("import", "collect", "import"):
        done = outlay("import", "sacct", file) if order == "import" else outlay("collect", tmp_path)
        assert done.code == 0, done.err
    jobs = accounts_of(accounted, file)
    runs = outlay("runs", "--json").json["runs"]
    assert len(runs) == len(jobs)
    differences_ns = []
    for run in runs:
        attempts = derive_attempts(read_lives(Path(run["dir"])))
        stays = jobs[_job_of(attempts)].stays
        assert len(attempts) == len(stays)
        for attempt, stay in zip(attempts, stays, strict=True):
            lasted_ns = attempt.last_sign_ns - attempt.start_ns
            differences_ns.append(lasted_ns - (stay.end_ns - stay.start_ns))
    assert all(abs(difference) <= 10**9 for difference in differences_ns), differences_ns
    total_ns = sum(s.end_ns - s.start_ns for job in jobs.values() for s in job.stays)
    assert abs(sum(differences_ns)) <= total_ns // 100, differences_ns


def _job_of(attempts: list[Attempt]) -> str:
    (job,) = {attempt.header.slurm_job for attempt in attempts}
    return job
