"""A gate at the scheduler: a Slurm job holds its most cost at its start, and accounting settles it.

The hold names the start of the job (``JobStartName``), which ends only once: whoever sees in the
accounts that it has ended captures its time, a hook of the scheduler or ``outlay watch``. What the
job itself records plays no part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, OutlayError
from outlay.files import make_private, write_whole
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import TEAM_VARIABLE, USER_VARIABLE, BudgetGuard
from outlay.guard.entries import ACCOUNTED, Captured
from outlay.guard.errors import SpendLogAway
from outlay.guard.gate import rate_on
from outlay.guard.spend_log import documents_dir, named_log, open_book
from outlay.ledger import Price
from outlay.prices.current import rate_text, read_rate, read_rates
from outlay.rates import cost, cost_at_most
from outlay.runs.accounting.sacct import read_gpus
from outlay.slurm import AllocatedJob, JobStartName, JobStatus, accounted_starts
from outlay.units import Money, Rate
from outlay.units.money import GPU_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """What a job asks for.

    Attributes:
        label: Of the operation in the book.
        project: That pays: the job's account.
        rate: Of all its GPUs.
        most: What it costs until its time limit.
    """

    label: str
    project: str
    rate: Rate
    most: Money


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A job as it is submitted, or as it was given its nodes.

    Attributes:
        name: Its number, or something else that a person recognises.
        account: Slurm's; the team that pays, if the user is in a team of that name.
        lasts_ns: Until its time limit; None without one.
    """

    name: str
    user: str
    account: str
    partition: str
    gpus: int
    lasts_ns: int | None

    @property
    def label(self) -> str:
        """Of the operation in the book."""
        return f"slurm-{self.name}"

    @classmethod
    def of(cls, job: AllocatedJob) -> AskedJob:
        """Return what a job asks for that has its nodes."""
        return cls(
            name=job.job, user=job.user, account=job.account, partition=job.partition,
            gpus=read_gpus(job.resources)[1],
            lasts_ns=None if job.end_ns is None else job.end_ns - job.start_ns,
        )  # fmt: skip


class UnheldJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that started without a hold.

    Attributes:
        start: As a hold would name it.
        price: Of its partition then; empty if it had none.
    """

    start: str
    label: str
    user: str
    account: str
    partition: str
    gpus: int
    price: str = ""


def asked_gpus(*, per_node: str, per_job: str, per_task: str, nodes: int, tasks: int) -> int:
    """Return the GPUs that the texts of a submission ask for, such as ``gres:gpu:a100:2``. Pure."""
    if per_job:
        return _counted(per_job)
    return _counted(per_node) * nodes if per_node else _counted(per_task) * tasks


def _counted(text: str) -> int:
    """Return the GPUs in ``gres:gpu:2,gres/gpu:a100=4``; one where no number is stated."""
    items = (re.split("[:/=]", each.strip().removeprefix("gres")) for each in text.split(","))
    words = ([word for word in item if word] for item in items)
    return sum(int(x[-1]) if x[-1].isdecimal() else 1 for x in words if x[:1] == ["gpu"])


def guard_for(job: AskedJob | UnheldJob, log: str, environ: Mapping[str, str]) -> BudgetGuard:
    """Return the guard with which a service acts for the user of a job, and for its team.

    Raises:
        SpendLogUnusable: The log can't be read.
    """
    name, own = named_log(log), {**environ, USER_VARIABLE: job.user, TEAM_VARIABLE: ""}
    guard = BudgetGuard.of_log(name, environ=own)
    if job.account not in guard.log.login(job.user).teams:
        return guard
    return BudgetGuard.of_log(name, environ=own | {TEAM_VARIABLE: job.account})


def rate_of_job(guard: BudgetGuard, job: AskedJob | UnheldJob, price: Price | None) -> Rate:
    """Return what the GPUs of a job cost per hour at the price of its partition.

    Raises:
        InvalidValue: It has no price, and the book counts money.
    """
    if price is None and guard.unit != GPU_TIME:
        expected = f"a rate: `outlay prices partition set {job.partition} ...` on this machine"
        raise InvalidValue("partition", job.partition, expected)
    return rate_on(guard, price, Fraction(job.gpus))


def cost_of_job(guard: BudgetGuard, job: AskedJob) -> JobCost:
    """Return what a job may cost, in the unit of its book.

    Raises:
        InvalidValue: It has no time limit, or its partition no rate.
    """
    rate = rate_of_job(guard, job, read_rates().get(job.partition))
    if job.lasts_ns is None:
        raise InvalidValue("time limit", "none", "one, such as --time=04:00:00")
    return JobCost(
        label=job.label, project=job.account or "slurm", rate=rate,
        most=cost_at_most(rate, job.lasts_ns),
    )  # fmt: skip


def hold_for(guard: BudgetGuard, asked: JobCost, start: JobStartName) -> Hold:
    """Hold what a job may cost; asked again for the same start, return the same hold.

    Raises:
        BudgetGuardExceeded: It does not fit.
    """
    named = str(start)
    return guard.authorize(
        asked.label, asked.most, lab=asked.project, key=named, by=named, rate=asked.rate
    )


# Settlement.

Accounts = Callable[[str, Collection[str]], list[JobStatus] | None]
"""Returns the starts of jobs of a cluster."""


def settle_ended_jobs(
    guard: BudgetGuard, *, accounts: Accounts = accounted_starts
) -> Iterator[Captured]:
    """Capture the holds of all jobs that have ended by their clusters' accounts.

    Holds that the login may not settle are left, and those of clusters that are unknown here.

    Raises:
        SpendLogUnusable: The log can't be read, or does not answer.
    """
    named = [(hold, JobStartName.parse(hold.by)) for hold in guard.holds()]
    holds = {start: hold for hold, start in named if start is not None}
    for start, lasted_ns in _ended(holds, accounts):
        hold = holds[start]
        spent = cost(hold.amount.unit.rate(hold.rate), lasted_ns)
        try:
            captured = guard.record_actual(
                hold.op_label, spent, hold=hold, key=f"settle-{hold.id}", basis=ACCOUNTED
            )
        except SpendLogAway:
            raise
        except OutlayError:  # It is another's, or was settled just now.
            continue
        yield captured


def _ended(
    starts: Iterable[JobStartName], accounts: Accounts
) -> Iterator[tuple[JobStartName, int]]:
    """Yield the starts that have ended, and how long each lasted."""
    asked = sorted(starts, key=str)
    for cluster in dict.fromkeys(start.cluster for start in asked):
        here = [start for start in asked if start.cluster == cluster]
        found = accounts(cluster, [start.job for start in here]) or []
        for start in here:
            if (lasted_ns := time_of(start, found)) is not None:
                yield start, lasted_ns


def time_of(start: JobStartName, found: Iterable[JobStatus]) -> int | None:
    """Return how long a start of a job lasted by its accounts; None if it has not ended. Pure.

    Nodes that had to be switched on first move the start to later.
    """
    own = [each for each in found if each.job == start.job and each.start_ns is not None]
    later = [each for each in own if (each.start_ns or 0) >= start.start_ns]
    row = min(later, key=lambda each: each.start_ns or 0, default=None)
    if row is None or row.start_ns is None or row.end_ns is None:
        return None
    return row.end_ns - row.start_ns


# Jobs that were let in while their book was away, one file for each until they are recorded.


def keep_unheld(log: str, job: AskedJob, start: JobStartName) -> Path:
    """Write down a job that starts without a hold; return the file.

    Raises:
        OSError: It can't be written.
    """
    directory = _unheld_dir(log)
    make_private(directory, synced=True)
    price = read_rates().get(job.partition)
    kept = UnheldJob(
        start=str(start), label=f"{job.label}-unheld", user=job.user, account=job.account,
        partition=job.partition, gpus=job.gpus, price="" if price is None else rate_text(price),
    )  # fmt: skip
    path = directory / f"{sha256(kept.start.encode()).hexdigest()[:16]}.json"
    write_whole(path, msgspec.json.encode(kept), synced=True, private=True)
    return path


def record_unheld_jobs(
    log: str, environ: Mapping[str, str], *, accounts: Accounts = accounted_starts
) -> Iterator[Captured]:
    """Record the cost of jobs that started without a hold and have ended; forget them then.

    Raises:
        OutlayError: One can't be recorded; it is kept, and all others are recorded before.
    """
    files = {path: job for path in sorted(_unheld_dir(log).glob("*.json")) if (job := _read(path))}
    named = [(JobStartName.parse(job.start), path) for path, job in files.items()]
    starts = {start: path for start, path in named if start is not None}
    problem: OutlayError | None = None
    for start, lasted_ns in _ended(starts, accounts):
        path, job = starts[start], files[starts[start]]
        try:
            captured = _record_unheld(job, lasted_ns, guard_for(job, log, environ))
        except SpendLogAway:
            raise
        except OutlayError as error:  # The others are still recorded.
            problem = error
            continue
        path.unlink(missing_ok=True)
        yield captured
    if problem is not None:
        raise problem


def _record_unheld(job: UnheldJob, lasted_ns: int, guard: BudgetGuard) -> Captured:
    price = read_rate(job.price, job.partition) if job.price else None
    spent = cost(rate_of_job(guard, job, price), lasted_ns)
    return guard.record_actual(job.label, spent, key=f"unheld {job.start}", basis=ACCOUNTED)


def _read(path: Path) -> UnheldJob | None:
    try:
        return read_document(path, UnheldJob)
    except (OSError, BadDocument):  # Another process was faster, or it is no such file.
        return None


def _unheld_dir(log: str) -> Path:
    name = named_log(log)
    return documents_dir(name if isinstance(name, Path) else open_book(name).name) / "unheld-jobs"
