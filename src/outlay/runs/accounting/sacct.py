"""Parsing ``sacct --parsable2``: which jobs used how many GPUs, where and when. Pure.

Columns are found by their names in the first line, see https://slurm.schedmd.com/sacct.html. A
requeued job has one line per start (``--duplicates``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from fractions import Fraction
from itertools import pairwise
from typing import Final

from outlay.clock import wall_ns_of
from outlay.errors import Finding, InvalidValue
from outlay.ledger import AttemptEnded, EndStatus
from outlay.rates import GpuPiece
from outlay.slurm import ACCOUNT_COLUMNS, count_nodes, state_of

REQUIRED: Final = ("JobID", "State", "Start", "End")
COMMAND: Final = (
    "sacct --parsable2 --allocations --duplicates --allusers --starttime=2026-10-01 "
    f"--endtime=2026-11-01 --format={ACCOUNT_COLUMNS}"
)
_DISABLED: Final = "accounting storage is disabled"
"""sacct's only output on a cluster without slurmdbd."""
_NO_ACCOUNTS: Final = (
    "the output of sacct, and it is empty. If sacct says that accounting storage is disabled, the "
    "cluster keeps no accounts (AccountingStorageType in slurm.conf): ask its administrator for "
    "slurmdbd. Jobs that use outlay record themselves and need none: outlay runs"
)
_NEVER: Final = ("Unknown", "None", "")
_STATUS: Final[dict[str, EndStatus]] = {
    "COMPLETED": "completed",
    "CANCELLED": "terminated",
    "TIMEOUT": "terminated",
    "DEADLINE": "terminated",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "preempted",
    "BOOT_FAIL": "preempted",
    "REQUEUED": "preempted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """One start of a job, ``[start_ns, end_ns)`` in UTC, and its allocation.

    Attributes:
        nodes: In Slurm's list syntax; another start may have other nodes.
        gpus: 0 for a job without any.
        queued_ns: Since when Slurm could have started it; 0 if unknown.
    """

    start_ns: int
    end_ns: int
    state: str
    nodes: str
    gpu: str
    gpus: int
    queued_ns: int = 0

    @property
    def status(self) -> EndStatus:
        """Its end status, as in a run log."""
        return _STATUS.get(self.state, "failed")

    @property
    def end(self) -> AttemptEnded:
        """Its end as a record of a run log."""
        return AttemptEnded(t_ns=self.end_ns, status=self.status, reason=self.state)

    @property
    def node_count(self) -> int:
        """The number of nodes in ``n[1-3,7],gpu4``; at least one."""
        return count_nodes(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctJob:
    """A job and its starts, oldest first.

    Attributes:
        job: Slurm's own number, ``SLURM_JOB_ID`` in the job's environment.
        shown: The number as Slurm shows it: ``<array>_<index>``.
    """

    job: str
    shown: str
    name: str
    user: str
    account: str
    partition: str
    cluster: str
    starts: tuple[JobStart, ...]

    @property
    def tags(self) -> dict[str, str]:
        """Tags for cost allocation."""
        tags = {"account": self.account, "partition": self.partition, "cluster": self.cluster}
        return {name: value for name, value in tags.items() if value} | {"source": "sacct"}

    @property
    def gpus(self) -> int:
        """The GPUs of its last start; 0 for a job without any."""
        return self.starts[-1].gpus

    @property
    def gpu_ns(self) -> int:
        """GPUs times nanoseconds, without the time between two starts."""
        return sum(start.gpus * (start.end_ns - start.start_ns) for start in self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The jobs of a file, and findings about bad lines.

    Attributes:
        unfinished: How many have not ended.
        running: Those of them that have nodes; their only start ends when it begins.
    """

    jobs: tuple[SacctJob, ...]
    unfinished: int
    running: tuple[SacctJob, ...]
    findings: tuple[Finding, ...]


def left_over(start: JobStart, used: Sequence[GpuPiece]) -> list[GpuPiece]:
    """Return a start's GPUs over time less those of the pieces.

    Negative where the pieces have more GPUs than the job.
    """
    change_at: dict[int, Fraction] = {start.start_ns: Fraction(start.gpus)}
    for piece in used:
        start_ns, end_ns = max(piece.start_ns, start.start_ns), min(piece.end_ns, start.end_ns)
        if start_ns < end_ns:
            change_at[start_ns] = change_at.get(start_ns, Fraction(0)) - piece.gpus
            change_at[end_ns] = change_at.get(end_ns, Fraction(0)) + piece.gpus
    left: list[GpuPiece] = []
    gpus = Fraction(0)
    for start_ns, end_ns in pairwise([*sorted(change_at), start.end_ns]):
        gpus += change_at[start_ns]
        if gpus and start_ns < end_ns:
            left.append(GpuPiece(start_ns, end_ns, gpus))
    return left


def read_accounts(text: str, *, source: str, zone: tzinfo | None = None) -> Accounts:
    """Parse the output of ``sacct --parsable2``, including its header line.

    ``zone`` applies to times without one; None: this machine's zone.

    Raises:
        InvalidValue: The header line lacks a required column.
    """
    lines = text.splitlines()
    columns = lines[0].split("|") if lines else []
    if not lines or _DISABLED in lines[0]:
        raise InvalidValue("FILE", source, _NO_ACCOUNTS)
    if missing := [name for name in REQUIRED if name not in columns]:
        expected = f"the columns {', '.join(missing)} in its first line; write it with: {COMMAND}"
        raise InvalidValue("FILE", source, expected)
    findings: list[Finding] = []
    jobs: dict[tuple[str, str], list[SacctJob]] = {}
    unfinished, running = 0, []
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = _row(line, columns)
            job = None if row is None else _job(row, zone)
        except ValueError as error:
            findings.append(Finding(source=source, line=number, message=str(error)))
            continue
        if job is not None:
            jobs.setdefault((job.cluster, job.job), []).append(job)
        elif row is not None:
            unfinished += row["End"] in _NEVER
            running += _running(row, zone)
    merged = [_merged(starts) for starts in jobs.values()]
    ordered = tuple(sorted(merged, key=lambda job: (job.starts[0].start_ns, job.shown)))
    return Accounts(
        jobs=ordered, unfinished=unfinished, running=tuple(running), findings=tuple(findings)
    )


def _row(line: str, columns: Sequence[str]) -> dict[str, str] | None:
    """Return a line's fields by column; None for an empty line, and for a job step."""
    if not line.strip():
        return None
    fields = line.split("|")
    if len(fields) != len(columns):
        raise ValueError(f"expected {len(columns)} fields, found {len(fields)}; it is left out")
    row = dict(zip(columns, fields, strict=True))
    return None if "." in row["JobID"] else row


def _job(row: Mapping[str, str], zone: tzinfo | None) -> SacctJob | None:
    """Return a job with its one start; None if it never ran, or still runs."""
    if row["Start"] in _NEVER or row["End"] in _NEVER:
        return None
    start_ns, end_ns = _instant(row["Start"], zone), _instant(row["End"], zone)
    if end_ns < start_ns:
        raise ValueError(f"job {row['JobID']} ends before it starts; it is left out")
    return None if end_ns == start_ns else _started(row, start_ns, end_ns, zone)


def _running(row: Mapping[str, str], zone: tzinfo | None) -> list[SacctJob]:
    """Return a job that has started and not ended."""
    if row["Start"] in _NEVER or row["End"] not in _NEVER:
        return []
    start_ns = _instant(row["Start"], zone)
    return [_started(row, start_ns, start_ns, zone)]


def _started(row: Mapping[str, str], start_ns: int, end_ns: int, zone: tzinfo | None) -> SacctJob:
    gpu, gpus = read_gpus(row.get("AllocTRES", ""))
    start = JobStart(
        start_ns=start_ns, end_ns=end_ns, gpu=gpu, gpus=gpus, nodes=row.get("NodeList", ""),
        state=state_of(row["State"]), queued_ns=_queued_ns(row, start_ns, zone),
    )  # fmt: skip
    return SacctJob(
        job=row.get("JobIDRaw") or row["JobID"], shown=row["JobID"],
        name=row.get("JobName", ""), user=row.get("User", ""), account=row.get("Account", ""),
        partition=row.get("Partition", ""), cluster=row.get("Cluster", ""), starts=(start,),
    )  # fmt: skip


def _queued_ns(row: Mapping[str, str], start_ns: int, zone: tzinfo | None) -> int:
    """Return since when a job could have been started, else its submission; 0 if unknown.

    Slurm's own wait (``Planned``) is counted so: a dependency or a begin time is no queue.
    """
    for column in ("Eligible", "Submit"):
        with contextlib.suppress(ValueError, OverflowError):
            queued_ns = _instant(row.get(column, ""), zone)
            if 0 < queued_ns <= start_ns:
                return queued_ns
    return 0


def read_gpus(resources: str) -> tuple[str, int]:
    """Parse GPU model and count from ``cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1``."""
    counts: dict[str, int] = {}
    for item in resources.split(","):
        name, _, count = item.partition("=")
        if name.split(":")[0] == "gres/gpu" and count.isdecimal():
            counts[name.partition(":")[2]] = int(count)
    typed = {name: count for name, count in counts.items() if name}
    return "+".join(sorted(typed)), counts.get("", sum(typed.values()))


def _merged(jobs: Sequence[SacctJob]) -> SacctJob:
    """Merge the starts of one job; its other fields are those of the last start."""
    ordered = sorted({start for job in jobs for start in job.starts}, key=lambda s: s.start_ns)
    last = max(jobs, key=lambda job: job.starts[0].start_ns)
    return replace(last, starts=tuple(ordered))


def _instant(text: str, zone: tzinfo | None) -> int:
    if text.isdecimal():  # SLURM_TIME_FORMAT=%s
        return int(text) * 10**9
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-10-03T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return wall_ns_of(moment)
