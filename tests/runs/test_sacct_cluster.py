"""Jobs of a real cluster that keeps accounts: what outlay says of them is what sacct says."""

from __future__ import annotations

import getpass
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from outlay.ledger import Attempt, derive_attempts, read_lives
from outlay.runs.accounting.sacct import COMMAND, Accounts, SacctJob, read_accounts
from slurm_cluster import ACCOUNTING_PROGRAMS, AccountedCluster, require_programs
from waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("accounts")]
SECOND_NS = 10**9
EXEC = f"{sys.executable} -m outlay exec --"
TRAIN = f"{sys.executable} train.py"
PROGRAM = """\
import sys, time
import outlay

with outlay.run("m") as run:
    for _ in run.steps(range(10)):
        time.sleep(float(sys.argv[1]) / 10)
"""
ONE, TWO, NONE = ["--gres=gpu:1"], ["--gres=gpu:2"], ["--gres=none"]
BOTH = ["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"]
"""Two nodes with two GPUs each."""
LONG = "300"
"""Seconds of a job that something else ends."""
AGAIN = f"${{SLURM_RESTART_COUNT:+5.}}${{SLURM_RESTART_COUNT:-{LONG}}}"
"""Seconds of a job that something else ends on its first start: 5.1 on its second."""


@dataclass(frozen=True)
class Submitted:
    """Jobs with the same command, one or an array of them."""

    options: list[str]
    command: str
    tasks: int = 1


def each(options: list[str], *commands: str) -> list[Submitted]:
    return [Submitted(options, command) for command in commands]


UNDISTURBED = [
    *each(ONE, *(f"{EXEC} sleep {14 + place * 0.37}" for place in range(3))),
    *each(TWO, *(f"{EXEC} sh -c 'sleep {13 + place * 0.41}; exit 3'" for place in range(2))),
    Submitted(["--array=0-2", *ONE], f"{EXEC} sleep 15.$SLURM_ARRAY_TASK_ID", tasks=3),
    *each(ONE, *(f"{TRAIN} {13 + place * 0.29}" for place in range(2))),
    Submitted(["--array=8-9", *ONE], f"{TRAIN} 14.$SLURM_ARRAY_TASK_ID", tasks=2),
    *each(ONE, *(f"sleep {12 + place * 0.53}" for place in range(2))),
    *each(NONE, "sleep 13", f"{EXEC} sleep 14"),
    *each(BOTH, f"{EXEC} srun sleep 13.3", f"srun {TRAIN} 13.6", "srun sleep 12"),
]
QUEUED_AGAIN = each(["--requeue", *ONE], f"{EXEC} sleep {AGAIN}", f"{TRAIN} {AGAIN}")
ON_A_LOST_NODE = each(
    ["--requeue", "--nodelist=n4", *ONE], f"{EXEC} sleep {AGAIN}", f"{TRAIN} {AGAIN}"
)
CANCELLED = each(ONE, f"{EXEC} sleep {LONG}", f"{TRAIN} {LONG}", f"sleep {LONG}")
OUT_OF_TIME = each(ONE, f"{EXEC} sleep {LONG}", f"sleep {LONG}")
EVERY = [*UNDISTURBED, *QUEUED_AGAIN, *ON_A_LOST_NODE, *CANCELLED, *OUT_OF_TIME]
JOBS = sum(submitted.tasks for submitted in EVERY)
STARTS = JOBS + len(QUEUED_AGAIN) + len(ON_A_LOST_NODE)


@dataclass(frozen=True)
class Books:
    """Logs, notices and accounts of the jobs of a cluster, as they were before they were read.

    Attributes:
        root: Holds the outlay home and the jobs' directory.
        accounts: What sacct printed.
    """

    root: Path
    accounts: Path

    def restore(self) -> None:
        """Restore the outlay home and the logs as of the end of the last job."""
        for name in ("home", "work"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.copytree(self.root / "before" / name, self.root / name)

    def perform(self, command: str) -> None:
        """Read accounts, or logs; or remove the notices of the inbox."""
        match command:
            case "import":
                self.outlay("import", "sacct", self.accounts)
            case "collect":
                self.outlay("collect", self.root / "work" / "outlay-runs")
            case _:
                assert command == "forget"
                shutil.rmtree(self.root / "home" / "inbox")

    def outlay(self, *words: object) -> Any:
        done = in_process(*words, "--json", OUTLAY_HOME=str(self.root / "home"))
        assert done.code == 0, done.err
        return done.json

    def jobs(self) -> dict[str, SacctJob]:
        text = self.accounts.read_text()
        return {job.shown: job for job in read_accounts(text, source="sacct").jobs}

    def runs(self) -> list[tuple[str, Any]]:
        """Return the registered runs, each with the job that it was."""
        listed = self.outlay("runs", "--all")["runs"]
        jobs = [(_job_of(_attempts(run)), run) for run in listed]
        return sorted(jobs, key=lambda pair: pair[0])


def _attempts(run: Any) -> list[Attempt]:
    return derive_attempts(read_lives(Path(run["dir"])))


def _job_of(attempts: list[Attempt]) -> str:
    (job,) = {attempt.header.slurm_job for attempt in attempts}
    return job


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """Run 28 jobs of every end state at once, on a cluster that keeps accounts."""
    require_programs(*ACCOUNTING_PROGRAMS)
    root = tmp_path_factory.mktemp("books")
    found = Books(root, root / "accounts.txt")
    (root / "work").mkdir()
    (root / "work" / "train.py").write_text(PROGRAM)
    cluster = AccountedCluster(root / "cluster", cpus=64, gpus=24)
    with pytest.MonkeyPatch.context() as patch:
        try:
            cluster.start()
            for name, value in cluster.environ.items():
                patch.setenv(name, value)
            patch.setenv("OUTLAY_HOME", str(root / "home"))
            patch.chdir(root / "work")
            in_process("rates", "set", "main", "3600 USD/h")
            _run_all(cluster, root / "watched")
            until(lambda: _are_complete(_write_accounts(cluster, found)), cluster.explain)
        finally:
            cluster.stop()
        for name in ("home", "work"):
            shutil.copytree(root / name, root / "before" / name)
        yield found


def _run_all(cluster: AccountedCluster, watched: Path) -> None:
    """Submit every job, requeue, cancel and kill some, and wait until all have ended.

    Meanwhile a home of its own, which knows none of the runs, asks the cluster what runs.
    """
    again, lost, cancelled, late = (
        [_submit(cluster, each) for each in group]
        for group in (QUEUED_AGAIN, ON_A_LOST_NODE, CANCELLED, OUT_OF_TIME)
    )
    for submitted in UNDISTURBED:
        _submit(cluster, submitted)
    disturbed = [*again, *lost, *cancelled, *late]
    until(lambda: _have_begun(cluster, disturbed), cluster.explain)
    plain = [cancelled[-1], late[-1]]
    until(lambda: set(plain) <= _ask_what_runs(watched, plain).keys(), cluster.explain)
    for job in again:
        assert cluster.run("scontrol", "requeue", job).returncode == 0
    cluster.run("scancel", *cancelled)
    for job in late:  # Limits are whole minutes, but for one that is set while the job runs.
        cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+4")
    cluster.kill_node("n4")
    cluster.revive_node("n4")
    until(lambda: not cluster.run("squeue", "--noheader").stdout.strip(), cluster.explain)


def _ask_what_runs(home: Path, plain: list[str]) -> dict[str, Any]:
    """Do a round of ``outlay watch``; return the rows of jobs, and keep some of them in a file."""
    home.mkdir(exist_ok=True)
    (home / "outlay.toml").write_text("[watch]\nslurm = true\n")
    here = str(home)
    in_process("rates", "set", "main", "3600 USD/h", OUTLAY_HOME=here)
    in_process("watch", "--once", OUTLAY_HOME=here)
    rows = {row["id"]: row for row in in_process("--json", OUTLAY_HOME=here).json["machines"]}
    (home / "rows.json").write_text(json.dumps([rows.get(job) for job in plain]))
    return rows


def _submit(cluster: AccountedCluster, job: Submitted) -> str:
    elsewhere = [] if job in ON_A_LOST_NODE else ["--exclude=n4"]
    done = cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", *elsewhere, *job.options,
        f"--wrap={job.command}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _have_begun(cluster: AccountedCluster, jobs: list[str]) -> bool:
    """Return whether the jobs run, and those that record themselves have a log."""
    listed = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%i").stdout.split()
    logs = [log for job in jobs for log in Path("outlay-runs").glob(f"*-slurm-{job}")]
    recording = sum("outlay" in each.command or TRAIN in each.command for each in EVERY[-9:])
    return set(jobs) <= set(listed) and len(logs) == recording


def _write_accounts(cluster: AccountedCluster, books: Books) -> Accounts:
    columns = COMMAND.rpartition("--format=")[2]
    printed = cluster.run(
        "sacct", "--parsable2", "--allocations", "--duplicates", "--starttime=2000-01-01",
        f"--format={columns}",
    )  # fmt: skip
    books.accounts.write_text(printed.stdout)
    return read_accounts(printed.stdout, source="sacct")


def _are_complete(accounts: Accounts) -> bool:
    starts = sum(len(job.starts) for job in accounts.jobs)
    return (len(accounts.jobs), starts, accounts.unfinished) == (JOBS, STARTS, 0)


@pytest.fixture(scope="module")
def settled(books: Books) -> list[tuple[str, Any]]:
    """The runs after an import, each with the job that it was."""
    books.restore()
    books.perform("import")
    return books.runs()


def test_jobs_of_every_end_state_become_runs(books: Books, settled: list[tuple[str, Any]]) -> None:
    jobs = books.jobs()
    assert [job for job, _ in settled] == sorted(jobs)
    assert len(jobs) == 28
    ends = {start.state for job in jobs.values() for start in job.starts}
    assert ends == {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "REQUEUED", "NODE_FAIL"}


def test_a_job_without_outlay_has_its_row_while_it_runs(books: Books) -> None:
    rows = json.loads((books.root / "watched" / "rows.json").read_text())
    rate = {"micros_per_hour": 3_600_000_000, "currency": "USD"}
    user = getpass.getuser()
    assert [(row["part"], row["rate"], row["owner"], row["doubt"]) for row in rows] == [
        ("claimed without a run", rate, user, "")
    ] * 2


def test_every_start_of_every_job_lasts_as_long_as_sacct_says(
    books: Books, settled: list[tuple[str, Any]]
) -> None:
    """Only what records in its first second may last longer, by less than a second."""
    longer_ns, total_ns = [], 0
    for job, run in settled:
        attempts, starts = _attempts(run), books.jobs()[job].starts
        assert len(attempts) == len(starts), job
        for attempt, start in zip(attempts, starts, strict=True):
            total_ns += start.end_ns - start.start_ns
            longer_ns.append(
                attempt.last_sign_ns - attempt.start_ns - (start.end_ns - start.start_ns)
            )
            recorded_at_once = attempt.segment.start_ns < start.start_ns + SECOND_NS
            assert 0 <= longer_ns[-1] < (SECOND_NS if recorded_at_once else 1), job
    assert len(longer_ns) == STARTS
    assert sum(longer_ns) <= total_ns // 100


def test_every_job_has_the_gpus_and_costs_the_dollars_that_follow_from_sacct(
    books: Books, settled: list[tuple[str, Any]]
) -> None:
    """A GPU costs one dollar a second."""
    jobs = books.jobs()
    paid = 0
    for job, run in settled:
        assert run["gpus"] == jobs[job].gpus, job
        paid += run["cost_micros"] or 0
        more = (run["cost_micros"] or 0) - jobs[job].gpu_ns // 1000
        assert 0 <= more < max(1, jobs[job].gpus * len(jobs[job].starts) * 10**6), job
    owed = sum(job.gpu_ns for job in jobs.values()) // 1000
    assert owed <= paid <= owed * 1.01


@pytest.mark.parametrize(
    "order",
    [
        "collect import", "import collect", "import import", "import collect import",
        "collect import collect", "forget import collect import", "forget collect import collect",
    ],
)  # fmt: skip
def test_any_order_of_collecting_and_importing_leaves_the_same_books(
    books: Books, settled: list[tuple[str, Any]], order: str
) -> None:
    books.restore()
    for command in order.split():
        books.perform(command)
        jobs = [job for job, _ in books.runs()] if command != "forget" else []
        assert len(jobs) == len(set(jobs)), command
    known = ("attempts", "gpus", "cost_micros", "started_ns", "status")
    found, expected = (
        [(job, *(run[name] for name in known)) for job, run in runs]
        for runs in (books.runs(), settled)
    )
    assert found == expected
