"""Time in the queue of a real cluster: as its accounts say, and as a sweep and its jobs say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from outlay.runs.accounting.sacct import COMMAND
from slurm_cluster import ACCOUNTING_PROGRAMS, AccountedCluster, require_programs
from waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("accounts")]
SECOND_NS = 10**9
RUNS = ("001_group00_00", "002_group00_01")
AGAIN = 'if test "$SLURM_RESTART_COUNT"; then sleep 1; else sleep 2; touch going; sleep 300; fi'
"""A job that something requeues on its first start, and that takes a second on its second."""
SWEPT = f'cd "$OUTLAY_RUN_DIR"; case $PWD in *001*) {AGAIN};; *) sleep 1;; esac'


@dataclass(frozen=True)
class Waited:
    """What was run, and what outlay says of it, before and after its accounts were imported.

    Attributes:
        root: The directory of the sweep.
        queued: Its status while its second run waited; ``status`` when all had ended.
        summary: The rows of its report.
        runs: The registered runs by the name of their directory.
        imported: All runs after the import, by job.
        reserved_s: Slurm's own figure of each job's waits, over its starts.
    """

    root: Path
    queued: Any
    status: Any
    summary: Any
    runs: dict[str, Any]
    imported: dict[str, Any]
    reserved_s: dict[str, int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountedCluster]:
    require_programs(*ACCOUNTING_PROGRAMS)
    found = AccountedCluster(tmp_path_factory.mktemp("queue"), cpus=2, gpus=2)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def waited(cluster: AccountedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waited]:
    """Run jobs that wait for a node, for a job and after a requeue, and a sweep likewise."""
    root = tmp_path_factory.mktemp("waited")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**cluster.environ, "OUTLAY_HOME": str(root / "home")}.items():
            patch.setenv(name, value)
        patch.chdir(root)
        first = _submit(cluster, "n1", "sleep 4")
        _submit(cluster, "n1", "sleep 1")
        _submit(cluster, "n2", "sleep 1", f"--dependency=afterany:{first}")
        again = _submit(cluster, "n3", AGAIN, "--requeue")
        _sweep(root)
        for job, going in ((again, root), (_job_of_first(root), root / "sweep" / RUNS[0])):
            until((going / "going").exists, cluster.explain)
            if job != again:
                queued = _status(root)
            assert cluster.run("scontrol", "requeue", job).returncode == 0
        until(lambda: _status(root)["counts"] == {"completed": 2}, cluster.explain)
        until(lambda: not cluster.run("squeue", "--noheader").stdout.strip(), cluster.explain)
        until(lambda: len(_accounts(cluster, "End")) == 8, cluster.explain)
        status, summary = _status(root), _outlay("sweep", "report", "sweep", "--allow-missing")
        runs = {Path(run["dir"]).name: run for run in _outlay("runs", "--all")["runs"]}
        _write_accounts(cluster, root / "accounts.txt")
        _outlay("import", "sacct", "accounts.txt")
        yield Waited(
            root=root / "sweep", queued=queued, status=status, summary=summary["runs"], runs=runs,
            imported={run["slurm_job"]: run for run in _outlay("runs", "--all")["runs"]},
            reserved_s=_reserved(cluster),
        )  # fmt: skip


def _submit(cluster: AccountedCluster, node: str, script: str, *options: str) -> str:
    done = cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", f"--nodelist={node}", "--exclusive",
        "--gres=gpu:1", *options, f"--wrap={script}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _sweep(root: Path) -> None:
    """Submit two runs of which one may run at a time."""
    grid = {
        "engine": "slurm", "slurm": {"extra": {"nodelist": "n4"}, "time": "10m"},
        "arguments": "none", "entrypoint": ["sh", "-c", SWEPT], "price": "3600 USD/h",
        "output_dir": str(root / "sweep"), "grid": [{"params": {"x": [1, 2]}}],
    }  # fmt: skip
    (root / "grid.json").write_text(json.dumps(grid))
    done = in_process("sweep", "run", "grid.json", "--yes", "--detach", "--jobs", "1")
    assert done.code == 0, done.out + done.err


def _outlay(*words: object) -> Any:
    done = in_process(*words, "--json")
    assert done.code == 0, done.err
    return done.json


def _status(root: Path) -> Any:
    return _outlay("sweep", "status", root / "sweep")


def _job_of_first(root: Path) -> str:
    return str(_status(root)["runs"][0]["job"])


def _accounts(cluster: AccountedCluster, columns: str) -> list[str]:
    """Return the lines of all ended starts of jobs."""
    printed = cluster.run(
        "sacct", "--parsable2", "--noheader", "--allocations", "--duplicates",
        "--starttime=2000-01-01", f"--format={columns}",
    )  # fmt: skip
    return [line for line in printed.stdout.splitlines() if "Unknown" not in line]


def _write_accounts(cluster: AccountedCluster, path: Path) -> None:
    columns = COMMAND.rpartition("--format=")[2]
    path.write_text("\n".join([columns.replace(",", "|"), *_accounts(cluster, columns)]))


def _reserved(cluster: AccountedCluster) -> dict[str, int]:
    """Return Slurm's figure of each job, except of one that it started before it was eligible."""
    known = cluster.run("sacct", "--helpformat").stdout.split()
    column = "Planned" if "Planned" in known else "Reserved"
    found: dict[str, int] = {}
    stated = [line.split("|") for line in _accounts(cluster, f"JobID,{column}")]
    invalid = {job for job, text in stated if text == "INVALID"}
    for job, text in stated:
        if job not in invalid:
            hours, minutes, seconds = map(int, text.split(":"))
            found[job] = found.get(job, 0) + 3600 * hours + 60 * minutes + seconds
    return found


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_queue_of_a_sweeps_runs_is_what_its_journal_and_its_jobs_say(waited: Waited) -> None:
    """From the submission to the first start, and from each end to the next start."""
    events = _lines(waited.root / "sweep_journal.jsonl")
    submitted = {each["run"]: each["t_ns"] for each in events if each["status"] == "running"}
    for run, status in zip(RUNS, waited.status["runs"], strict=True):
        queue_ns = allocated_ns = 0
        last_ns = submitted[run]
        for event in _lines(waited.root / run / "slurm_times.jsonl"):
            if event["what"] == "started":
                queue_ns += event["t_ns"] - last_ns
            else:
                allocated_ns += event["t_ns"] - last_ns
            last_ns = event["t_ns"]
        figures = waited.runs[run]
        assert (figures["queue_ns"], figures["allocated_ns"]) == (queue_ns, allocated_ns)
        assert figures["cost_micros"] == pytest.approx(allocated_ns // 1000, abs=2)
        assert status["queue_s"] == queue_ns / 1e9
        assert status["scheduling_goodput"] == allocated_ns / (queue_ns + allocated_ns)
    assert [waited.runs[run]["attempts"] for run in RUNS] == [2, 1]


def test_a_run_that_waits_shows_how_long_it_has_waited(waited: Waited) -> None:
    running, waiting = waited.queued["runs"]
    assert (running["status"], waiting["status"]) == ("running", "queued")
    assert waiting["queue_s"] > 0
    assert waiting["scheduling_goodput"] == 0
    shown = in_process("sweep", "status", waited.root, "--all", columns=200).out
    assert "queued" in next(line for line in shown.splitlines() if line.startswith("run "))


def test_the_summary_of_a_sweep_has_the_queue_of_each_run(waited: Waited) -> None:
    for row in waited.summary:
        figures = waited.runs[row["run_id"]]
        assert row["queue_minutes"] == figures["queue_ns"] / 60e9
        assert row["scheduling_goodput"] == figures["scheduling_goodput"]


def test_the_queue_of_imported_jobs_is_slurms_own_figure(waited: Waited) -> None:
    assert max(waited.reserved_s.values()) >= 2
    for job in waited.reserved_s:
        run = waited.imported[job]
        # A job that recorded its end is moved within the second of its accounts.
        finer_ns = 0 if "_" not in job else SECOND_NS * run["attempts"]
        more_ns = run["queue_ns"] - waited.reserved_s[job] * SECOND_NS
        assert 0 <= more_ns <= finer_ns, job
