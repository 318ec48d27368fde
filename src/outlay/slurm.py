"""Slurm: the job that a process runs in, and the cluster's commands with their answers parsed.

Which jobs a sweep has and how they are submitted is known to its engine; accounts that a person has
exported with ``sacct`` are parsed in ``runs.accounting``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess  # Training that runs none of Slurm's commands does not load it.

# The job of a process, by its environment.
#
# outlay identifies a job by ``<array>_<task>`` inside an array, else by its number. Slurm's raw
# number is ambiguous: one task of every array has the array's own number, and querying that returns
# all its tasks. The restart is not part of the identity: a requeued job is the same job.

_NUMBER: Final = re.compile(r"[0-9]+")
_LONGEST_S: Final = 2**33
"""Slurm uses later end times for "no limit"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One start of a job.

    Attributes:
        id: ``<array>_<task>``, or its number.
        raw: Slurm's number, ``JobIDRaw`` of ``sacct``.
        restart: How often Slurm had started it before.
        step: The ``srun`` step of the process; "" in the batch script.
        end_ns: When its time limit ends, UTC nanoseconds; None if unknown.
    """

    id: str
    raw: str
    restart: int
    step: str
    partition: str
    end_ns: int | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob | None:
        """Return the job of a process with this environment; None outside of Slurm."""
        raw = environ.get("SLURM_JOB_ID", "")
        if not raw:
            return None
        array, task = (environ.get(f"SLURM_ARRAY_{part}_ID", "") for part in ("JOB", "TASK"))
        is_task = bool(_NUMBER.fullmatch(array) and _NUMBER.fullmatch(task))
        step, restart = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            id=f"{array}_{task}" if is_task else raw,
            raw=raw,
            restart=int(restart) if _NUMBER.fullmatch(restart) else 0,
            step=step if _NUMBER.fullmatch(step) else "",
            partition=environ.get("SLURM_JOB_PARTITION", ""),
            end_ns=instant_of(environ.get("SLURM_JOB_END_TIME", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStartName:
    """One start of a job, as the hold that pays for it names it: ``slurm fake/12_3@1795011765``.

    Attributes:
        job: ``<array>_<task>``, or its number.
        start_ns: When Slurm gave it its nodes, a whole second of UTC.
    """

    cluster: str
    job: str
    start_ns: int

    @classmethod
    def parse(cls, text: str) -> JobStartName | None:
        """Return the start that a text names; None if it names none."""
        found = _JOB_START.fullmatch(text)
        if found is None:
            return None
        cluster, job, seconds = found.groups()
        return cls(cluster=cluster, job=job, start_ns=int(seconds) * 10**9)

    def __str__(self) -> str:
        return f"slurm {self.cluster}/{self.job}@{self.start_ns // 10**9}"


_JOB_START: Final = re.compile(r"slurm ([^/\s]+)/([0-9]+(?:_[0-9]+)?)@([0-9]{1,12})")


def instant_of(text: str) -> int | None:
    """Parse seconds since 1970 to ns; None for "N/A", "Unknown" and the end of no limit."""
    if not _NUMBER.fullmatch(text) or not 0 < int(text) < _LONGEST_S:
        return None
    return int(text) * 10**9


# The queue.

ENDED: Final = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL",
     "DEADLINE", "OUT_OF_MEMORY", "REVOKED"]
)  # fmt: skip
"""The final states of https://slurm.schedmd.com/job_state_codes.html."""

WAITING: Final = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
"""The states of a job that waits to be started, for the first time or again."""

FORMAT: Final = "%F|%K|%T|%r|%N|%S|%e|%j|%o"
"""Array job number, array index, state, reason, nodes, start, end, name, script."""
_NO_SUCH_JOB: Final = "Invalid job id"
"""squeue's error for a single job number that it does not know."""
_DEFAULT_ARRAY_SIZE: Final = 1001


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's status.

    Attributes:
        job: Its job number, with the array index if it has one.
        state: Slurm's state, without suffixes.
        reason: Why it waits.
        script: The path of its script; None if Slurm was not asked for it.
        start_ns: When it starts or started; None if unknown.
        end_ns: When its time limit ends, or it ended; None if unknown.
    """

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    name: str = ""
    script: str | None = None
    start_ns: int | None = field(default=None, compare=False)  # Forecasts, which vary.
    end_ns: int | None = field(default=None, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


def parse_squeue(text: str) -> list[JobStatus]:
    """Return the jobs in the output of ``squeue --array --format FORMAT``."""
    most = FORMAT.count("|")
    lines = (line.split("|", most) for line in text.splitlines())
    return [
        JobStatus(
            job=f"{number}_{index}" if index.isdecimal() else number, state=state, reason=reason,
            nodes=nodes, name=name, script=script,
            start_ns=instant_of(start), end_ns=instant_of(end),
        )
        for number, index, state, reason, nodes, start, end, name, script in (
            fields for fields in lines if len(fields) > most
        )
    ]  # fmt: skip


def parse_sacct(text: str) -> list[JobStatus]:
    """Return the jobs in ``sacct --parsable2 --format=JobID,State,Start,End``, by line.

    A line is one start of a job; start and end may be left out.
    """
    fields = ([*line.split("|"), "", "", ""] for line in text.splitlines())
    return [
        JobStatus(
            job=job, state=state_of(state), start_ns=instant_of(start), end_ns=instant_of(end)
        )
        for job, state, start, end, *_ in fields
    ]


def state_of(text: str) -> str:
    """Return a state without what sacct adds: CANCELLED of ``CANCELLED by 1000``."""
    return (text.split() or [""])[0]


def parse_array_size(text: str) -> int:
    """Return the cluster's MaxArraySize from ``scontrol show config``."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdecimal():
            return int(value)
    return _DEFAULT_ARRAY_SIZE


# Lists of nodes: ``n[1-3,7],gpu4``.

_NODES: Final = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")
_GROUP: Final = re.compile(r"\[([^\]]*)\]")
_MOST_NODES: Final = 10_000


def count_nodes(text: str) -> int:
    """Return the number of nodes in a list, one of several if it is empty."""
    return max(1, sum(map(_count_listed, _NODES.findall(text))))


def _count_listed(name: str) -> int:
    groups = (group.split(",") for group in _GROUP.findall(name))
    return math.prod(sum(map(_size, parts)) for parts in groups)


def _size(part: str) -> int:
    numbers = _range_of(part)  # A range may have more numbers than len() returns.
    return numbers.stop - numbers.start if isinstance(numbers, range) else 1


def expand_nodes(text: str) -> list[str]:
    """Return the names in a list; none if they are more than a cluster has."""
    if count_nodes(text) > _MOST_NODES:
        return []
    return [node for name in _NODES.findall(text) for node in _expand(name)]


def _expand(name: str) -> Iterator[str]:
    group = _GROUP.search(name)
    if group is None:
        yield name
        return
    for part in group[1].split(","):
        width = len(part.partition("-")[0])
        for number in _range_of(part):
            middle = part if isinstance(number, str) else f"{number:0{width}d}"
            yield from _expand(name[: group.start()] + middle + name[group.end() :])


def _range_of(part: str) -> Sequence[int] | Sequence[str]:
    """Return the numbers of ``1-3``; a part that is none counts as one name."""
    first, _, last = part.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        return (part,)
    return range(int(first), int(last or first) + 1)


# The limits of accounts.

_LIMIT: Final = re.compile(r"([^=,]+)=([0-9]{1,20})\(([0-9]{1,20})\)")
_SHOWN: Final = {"gres/gpu": "GPU", "cpu": "CPU", "mem": "MB", "node": "node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLimit:
    """A ``GrpTRESMins`` of Slurm: the minutes of a resource that an account, or a user in it, has.

    Attributes:
        user: "" for a limit of the whole account.
        partition: "" for a limit of all.
        resource: In Slurm's words, such as ``gres/gpu``.
        used_minutes: As Slurm counts them against the limit, decayed where a cluster does that.
    """

    account: str
    user: str = ""
    partition: str = ""
    resource: str
    limit_minutes: int
    used_minutes: int

    def __str__(self) -> str:
        kind, _, model = self.resource.partition(":")
        unit = f"{_SHOWN.get(kind, kind)}-minutes"
        who = f"{self.user} in account {self.account}" if self.user else f"account {self.account}"
        where = f" on {self.partition}" if self.partition else ""
        used = f"{self.used_minutes:,} of {self.limit_minutes:,} {model and model + ' '}{unit} used"
        return f"Slurm's own limit for {who}{where}: {used} (GrpTRESMins {self.resource})"


def parse_limits(text: str, uid: int, accounts: Collection[str] = ()) -> list[SlurmLimit]:
    """Return the limits of a user in ``scontrol --oneliner show assoc_mgr flags=assoc``.

    Those of the user in these accounts, then those of the accounts and all above them. ``accounts``
    are by default all that the user has; "" is the user's default account.
    """
    records = [dict(_fields(line)) for line in text.splitlines()]
    groups = {each.get("Account", ""): each for each in records if not each.get("UserName")}
    own = [each for each in records if each.get("UserName", "").endswith(f"({uid})")]
    default = {each.get("Account", "") for each in own if each.get("DefAssoc") == "Yes"}
    stated = set(accounts) | (default if "" in accounts else set())
    chosen = [each for each in own if not accounts or each.get("Account") in stated]
    names = dict.fromkeys([*(each.get("Account", "") for each in chosen), *sorted(stated)])
    above: dict[str, Mapping[str, str]] = {}
    for name in names:
        while name in groups and name not in above:
            above[name] = groups[name]
            name = groups[name].get("ParentAccount", "").partition("(")[0]
    return [limit for each in (*chosen, *above.values()) for limit in _limits(each)]


def _fields(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, _, value = word.partition("=")
        yield name, value


def _limits(record: Mapping[str, str]) -> Iterator[SlurmLimit]:
    """Yield the limits of an association; a resource without one has ``N``."""
    for resource, limit, used in _LIMIT.findall(record.get("GrpTRESMins", "")):
        yield SlurmLimit(
            account=record.get("Account", ""), user=record.get("UserName", "").partition("(")[0],
            partition=record.get("Partition", ""), resource=resource,
            limit_minutes=int(limit), used_minutes=int(used),
        )  # fmt: skip


# Slurm's commands.

_TIMEOUT_S: Final = 30
_LOOK_S: Final = 5
"""How long a screen waits for what it shows only where Slurm answers."""
_OF_THE_USER: Final = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")
"""Prefixes of variables that are defaults of options: they would select and show other jobs."""


def queued_jobs(numbers: str = "") -> list[JobStatus] | None:
    """Return the jobs that squeue remembers, ended ones too; None if Slurm does not answer.

    ``numbers`` are separated by commas; default: all jobs of this user.
    """
    selection = f"--jobs={numbers}" if numbers else f"--user={os.getuid()}"
    command = ["squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}"]
    done = _run(*command, selection)
    if done is None or (done.returncode and _NO_SUCH_JOB not in done.stderr):
        return None
    return parse_squeue(done.stdout)


def job_status(job: str) -> JobStatus | None:
    """Return the status of one job by squeue; None without an answer.

    A job leaves the queue as soon as its script ends, even if other processes still run; Slurm
    remembers it for a while.
    """
    return next((status for status in queued_jobs(job) or () if status.job == job), None)


def accounted_jobs(numbers: str) -> list[JobStatus] | None:
    """Return the status of jobs from sacct; None on a cluster without accounting."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01"]
    done = _run(*command, "--format=JobID,State", f"--jobs={numbers}")
    return None if done is None or done.returncode else parse_sacct(done.stdout)


ACCOUNT_COLUMNS: Final = (
    "JobID,JobIDRaw,JobName,User,Account,Partition,Cluster,State,Submit,Eligible,Start,End,"
    "AllocTRES,NodeList"
)
"""What is asked of sacct for the books."""


def accounts_text(since_s: int) -> str | None:
    """Return sacct's table of everybody's jobs in the last seconds; None if it fails.

    ``runs.accounting.sacct`` parses it. Jobs that still run are in it, whenever they began.
    """
    command = ["sacct", "--parsable2", "--allocations", "--duplicates", "--allusers"]
    done = _run(*command, f"--starttime=now-{since_s}", f"--format={ACCOUNT_COLUMNS}")
    return None if done is None or done.returncode else done.stdout


def accounted_starts(cluster: str, jobs: Collection[str]) -> list[JobStatus] | None:
    """Return every start of jobs of a cluster from sacct; None if it keeps no accounts here."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--allusers"]
    about = ["--starttime=2000-01-01", f"--clusters={cluster}", f"--jobs={','.join(jobs)}"]
    done = _run(*command, *about, "--format=JobID,State,Start,End")
    return None if done is None or done.returncode else parse_sacct(done.stdout)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedJob:
    """A job that has been given its nodes.

    Attributes:
        job: ``<array>_<task>``, or its number.
        resources: Its allocation, such as ``cpu=4,gres/gpu=2``.
        end_ns: When its time limit ends; None without one.
    """

    job: str
    user: str
    account: str
    partition: str
    resources: str
    start_ns: int
    end_ns: int | None


_ALLOCATED: Final = (
    "JobID", "ArrayJobID", "ArrayTaskID", "UserName", "Account", "Partition", "StartTime",
    "EndTime", "tres-alloc",
)  # fmt: skip
"""Fields that a user can't fill with words of his own."""


def allocated_job(number: str) -> AllocatedJob | None:
    """Return a job by Slurm's own number, as squeue describes it; None without an answer."""
    columns = ",".join(f"{name}:512" for name in _ALLOCATED)
    done = _run(
        "squeue", "--noheader", "--array", "--states=all", f"--jobs={number}",
        f"--Format={columns}",
    )  # fmt: skip
    return None if done is None or done.returncode else parse_allocated(done.stdout, number)


def parse_allocated(text: str, number: str) -> AllocatedJob | None:
    """Return the job of a number in the output of squeue with the columns ``_ALLOCATED``."""
    for row in (line.split() for line in text.splitlines()):
        if len(row) != len(_ALLOCATED) or row[0] != number:
            continue
        raw, array, task, user, account, partition, start, end, resources = row
        start_ns = instant_of(start)
        if start_ns is not None:
            return AllocatedJob(
                job=f"{array}_{task}" if task.isdecimal() else raw, user=user,
                account="" if account == "(null)" else account, partition=partition,
                resources=resources, start_ns=start_ns, end_ns=instant_of(end),
            )  # fmt: skip
    return None


def set_comment(job: str, text: str) -> bool:
    """Set a job's comment; False if Slurm refuses."""
    done = _run("scontrol", "update", f"jobid={job}", f"comment={text}")
    return done is not None and done.returncode == 0


def requeue_held(job: str) -> bool:
    """Put a job back into the queue until somebody releases it; False if it can't be requeued."""
    done = _run("scontrol", "requeuehold", job)
    return done is not None and done.returncode == 0


def max_array_size() -> int:
    """Return how many jobs an array may have."""
    done = _run("scontrol", "show", "config")
    return parse_array_size("" if done is None or done.returncode else done.stdout)


def own_limits(accounts: Collection[str] = ()) -> list[SlurmLimit]:
    """Return the limits of this user, as ``parse_limits``; none where no Slurm answers."""
    import pwd

    selection = []
    with contextlib.suppress(KeyError):
        selection = [f"users={pwd.getpwuid(os.getuid()).pw_name}"]
    command = ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", *selection]
    done = _run(*command, timeout_s=_LOOK_S)
    return [] if done is None else parse_limits(done.stdout, os.getuid(), accounts)


def cancel_job(job: str, *, force: bool = False) -> bool:
    """Cancel a job: SIGTERM, and SIGKILL after the cluster's KillWait; or SIGKILL at once.

    Returns False if Slurm did not accept that.
    """
    if force:
        _run("scancel", "--signal=KILL", job)
    done = _run("scancel", job)
    return done is not None and done.returncode == 0


def requeue_job(job: str) -> bool:
    """Requeue a job; False if Slurm refuses, which is printed."""
    done = _run("scontrol", "requeue", job, is_shown=True)
    return done is not None and done.returncode == 0


def start_rename(job: str, name: str) -> subprocess.Popen[bytes]:
    """Start to rename a job in the queue; there is no need to wait for it."""
    import subprocess

    command = ["scontrol", "update", f"jobid={job}", f"jobname={name}"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def _run(
    *command: str, is_shown: bool = False, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a command; None if it is missing, or does not answer in time. Times are since 1970."""
    import subprocess

    shown = None if is_shown else subprocess.PIPE
    environ = {n: v for n, v in os.environ.items() if not n.startswith(_OF_THE_USER)}
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, check=False,
            timeout=timeout_s or _TIMEOUT_S, encoding="utf-8", errors="replace",
            env=environ | {"SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
