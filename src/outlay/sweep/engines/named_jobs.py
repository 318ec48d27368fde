"""The base of engines whose scheduler knows a job by a name that the submitting side gives it.

A job is submitted again under its name until the scheduler has it, and so exists once. Its spec and
the marks that it obeys are in its run's directory, and in storage for a node that does not see
that. Knows no scheduler: an engine adds how to submit, find and stop a job.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from outlay.clock import SYSTEM, Clock
from outlay.decoding import read_documents
from outlay.errors import OutlayError
from outlay.files import make_private, write_whole
from outlay.shipping.apart import LATE_NS, DirectoryGone, StorageNotWritten, send
from outlay.shipping.shipper import ShippingTask
from outlay.shipping.storage import StorageFailed, fetch_run
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.engines.remote import job_spec
from outlay.sweep.engines.remote.job_spec import JobEvent, JobSpec, Mark, run_of
from outlay.sweep.engines.remote.poller import Poller, RemoteStatus, RemoteStatuses, Submitted
from outlay.sweep.engines.remote.remote_engine import RemoteEngine
from outlay.sweep.engines.remote.spec_writer import spec_of, without_secrets, write_spec

SILENT_NS: Final = 20 * 10**9
"""How long a job without a recorded end must be silent: it may be reported over and still run."""
RETRY_NS: Final = 5 * 10**9
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")


class NoAnswer(Exception):
    """The cluster did not answer, or with an error of its own: the request may have been done."""


class JobRefused(Exception):
    """The cluster refused a request, and did nothing."""


class NamedJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as submitted: a file in the sweep's directory of the engine, written before that.

    Attributes:
        submission: Its name for the scheduler, by which it is found again.
        address: Of the cluster.
        shipping: Where its node ships it to, and as what, if it does not see the run's directory.
        node: The scheduler's id of its node, if it may ship; "" while unknown.
    """

    ticket: str
    submission: str
    address: str
    shipping: ShippingTask | None = None
    node: str = ""


def submission_of(ticket: str) -> str:
    """Return the name of a ticket's job, one for one: its last part is unique."""
    return _NOT_IN_NAMES.sub("-", ticket)


def read_jobs(root: Path, engine: str) -> dict[str, NamedJob]:
    """Return the jobs of a sweep, by ticket."""
    found = read_documents(sorted((root / engine).glob("*.json")), NamedJob)
    return {job.ticket: job for job in found}


# A job's files on the submitting side.


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of one job.

    Attributes:
        shipping: Where its node ships them if it does not share the run's directory.
    """

    directory: Path
    ticket: str
    shipping: ShippingTask | None

    @property
    def start(self) -> JobEvent | None:
        """When and where it started first, as far as that came home."""
        return next(iter(job_spec.read_times(self.directory, self.ticket).events), None)

    def deliver(self, spec: JobSpec, secret: dict[str, str]) -> list[str]:
        """Write a spec to where the node finds it; return the arguments of the node's process.

        Secrets are in the run's directory alone.

        Raises:
            StorageNotWritten: It is not certain that the node finds it.
        """
        path = write_spec(msgspec.structs.replace(spec, env=spec.env | secret))
        if self.shipping is None:
            return [str(path)]
        sent = msgspec.structs.replace(spec, sealed=sorted({*spec.sealed, *secret}))
        send(self.shipping, job_spec.mark_path(self.directory, self.ticket).name, b"")
        send(self.shipping, path.name, msgspec.json.encode(sent))
        return [str(path), msgspec.json.encode(self.shipping).decode()]

    def mark(self, mark: Mark) -> None:
        """Ask the job to end; one that has not begun then starts no program.

        Raises:
            StorageNotWritten: It is not certain that the node gets to know.
        """
        job_spec.write_mark(self.directory, self.ticket, mark)
        if self.shipping is not None:
            send(self.shipping, job_spec.mark_path(self.directory, self.ticket).name, mark.encode())

    def fetch(self) -> int:
        """Fetch what the node shipped; return how long more may take, 0 if nothing is missing.

        Raises:
            StorageFailed: That is unknown.
        """
        start = self.start
        if self.shipping is None or (start is not None and not start.apart):
            return 0
        found = fetch_run(self.shipping.to, self.shipping.name, self.directory)
        return 0 if found is not None and found.is_complete and self.start else LATE_NS

    def delete_spec(self) -> None:
        """Delete the spec, and the secrets in it, after the end."""
        job_spec.spec_path(self.directory, self.ticket).unlink(missing_ok=True)


def portable_spec(
    task: Task, *, notice_ns: int, title: str, brings_files: bool
) -> tuple[JobSpec, dict[str, str]]:
    """Return what the sweep sets, not this machine's environment; and what of it is secret.

    ``brings_files`` if the scheduler puts the program's files into a directory of its own.
    """
    whole = spec_of(task, notice_ns=notice_ns, title=title)
    # A node has nothing of this process's environment, also what is the same here.
    here = {name: value for name, value in os.environ.items() if name not in task.sets}
    spec, secret = without_secrets(task, whole, here)
    secret |= {name: task.env[name] for name in spec.sealed if name in task.env}
    names = ("OUTLAY_SHIP_TO", "OUTLAY_SHIP_EVERY")
    ships = {name: task.env[name] for name in names if name in task.env}
    return msgspec.structs.replace(
        spec, env=spec.env | ships, dropped=[], cwd="" if brings_files else spec.cwd,
        python=sys.executable, again=job_spec.times_path(task.directory, task.ticket).exists(),
    ), secret  # fmt: skip


class NamedJobsEngine(RemoteEngine):
    """Submits runs as jobs, of which at most one waits: many would bring some clusters down.

    Attributes:
        title: The scheduler's name, for people.
    """

    title: ClassVar[str]

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        poller = Poller(clock, self._query, silent_ns=SILENT_NS, fetch=self._fetch)
        self._unconfirmed: dict[str, Task] = {}
        super().__init__(root, clock, poller, self._unconfirmed)
        self._jobs = read_jobs(root, self.name)
        self._unmarked: dict[str, bool] = {}  # To be cancelled, and whether by force.
        self._retry_ns = 0
        self._troubles: dict[str, str] = {}

    # -- the scheduler ----------------------------------------------------------------------

    @abstractmethod
    def _address(self, task: Task) -> str:
        """Return the address of a task's cluster."""

    @abstractmethod
    def _deliver(self, task: Task, job: NamedJob, files: JobFiles, node: str) -> None:
        """Submit a job, after its spec is where its node finds it; on ``node`` only, unless "".

        Raises:
            NoAnswer: It is unknown whether the job exists.
            JobRefused: It does not.
            StorageNotWritten: Nor does it.
        """

    @abstractmethod
    def _find(self, job: NamedJob, *, is_marked: bool) -> tuple[RemoteStatus, str] | None:
        """Return a job's status and the id of its node; None if there is no such job.

        One that was marked as cancelled before is over if it still waits: it runs nothing.

        Raises:
            NoAnswer: The cluster does not say.
        """

    @abstractmethod
    def _stop(self, job: NamedJob) -> None:
        """Ask for a job's end; it may fail, as the job obeys its mark."""

    @abstractmethod
    def _has_node(self, job: NamedJob) -> bool:
        """Return whether the node that a job ran on is alive, or raise NoAnswer."""

    # -- starting ---------------------------------------------------------------------------

    def allow(self, jobs: int | None) -> int:
        """Return how many may be submitted: one more than run, unless one of them waits."""
        submitted = self._poller.submitted.values()
        waits = bool(self._unconfirmed) or any(
            job.status is None or job.status.queued for job in submitted
        )
        room = len(self._unconfirmed) + len(submitted) + (not waits)
        return room if jobs is None else min(room, jobs)

    def submit(self, task: Task) -> None:
        """Submit a task; without an answer, the next ``wait`` finds out and tries again."""
        submission = submission_of(task.ticket)
        try:
            shipping = self._shipping(task, submission)
        except OutlayError as error:
            self._poller.ended[task.ticket] = Ended(how="not_started", reason=str(error))
            return
        job = NamedJob(ticket=task.ticket, submission=submission, address=self._address(task))
        self._save(msgspec.structs.replace(job, shipping=shipping))
        self._unconfirmed[task.ticket] = task
        self._retry_ns = 0
        self.submit_pending()

    def _shipping(self, task: Task, name: str) -> ShippingTask | None:
        """Return where a run's files go if its node does not share its directory.

        Every attempt has the name of the first there, and the same directory on the node.
        """
        if (stated := ShippingTask.of(task.env)) is None:
            return None
        earlier = [job.shipping.name for job in self._earlier(task) if job.shipping is not None]
        return msgspec.structs.replace(stated, name=[*earlier, name][0])

    def _earlier(self, task: Task) -> list[NamedJob]:
        others = [job for ticket, job in self._jobs.items() if ticket != task.ticket]
        return [job for job in others if run_of(job.ticket) == task.name]

    def _save(self, job: NamedJob) -> None:
        self._jobs[job.ticket] = job
        make_private(self._root / self.name)
        path = self._root / self.name / f"{job.submission}.json"
        write_whole(path, msgspec.json.encode(job) + b"\n")

    def _files(self, job: NamedJob) -> JobFiles:
        return JobFiles(self._root / run_of(job.ticket), job.ticket, job.shipping)

    def submit_pending(self) -> None:
        """Submit what the cluster has not confirmed; a job of that name is never made twice."""
        if self._clock.monotonic_ns() < self._retry_ns:
            return
        for ticket, force in list(self._unmarked.items()):
            self.cancel(ticket, force=force)
        for ticket, task in list(self._unconfirmed.items()):
            try:
                job = self._jobs[ticket]
                self._deliver(task, job, self._files(job), self._node_of(task))
            except (NoAnswer, StorageNotWritten) as error:
                self._troubles[ticket] = str(error)
                self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
                return
            except (JobRefused, DirectoryGone) as refusal:
                self._poller.ended[ticket] = Ended(how="not_started", reason=str(refusal))
            else:
                known = Submitted(task.directory, job=job.submission)
                self._poller.submitted[ticket] = known
                self._poller.poll_soon()
            self._troubles.pop(ticket, None)
            del self._unconfirmed[ticket]

    def _node_of(self, task: Task) -> str:
        """Return the node that has the run's directory; "" if that is here, or there is none.

        Raises:
            DirectoryGone: It is gone, or unknown.
        """
        for job in self._earlier(task):
            start = self._files(job).start
            if start is not None and start.apart:
                if not job.node or not self._has_node(job):
                    raise DirectoryGone(start.node, task.name)
                return job.node
        return ""

    def standing(self, ticket: str) -> TaskStanding:
        """Return the scheduler's status of a job, and what is in the way of a better one."""
        found, trouble = super().standing(ticket), self._troubles.get(ticket)
        return replace(found, text=f"{found.text}: {trouble}") if trouble else found

    # -- polling ----------------------------------------------------------------------------

    def _query(self, tickets: Collection[str]) -> RemoteStatuses | None:
        """Return the status of jobs; None if a cluster does not answer."""
        found: dict[str, RemoteStatus] = {}
        for ticket in tickets:
            job, known = self._jobs[ticket], self._poller.submitted.get(ticket)
            try:
                seen = self._find(job, is_marked=known is not None and known.cancels > 0)
            except NoAnswer:
                return None
            if seen is None:
                continue
            found[ticket], node = seen
            if job.shipping is not None and node not in ("", job.node):
                with contextlib.suppress(OSError):  # Of another user, who asks for the status.
                    self._save(msgspec.structs.replace(job, node=node))
        return found

    def _fetch(self, ticket: str) -> int | None:
        """Fetch what a job's node shipped; return how long more may take, None if unknown."""
        try:
            late_ns = self._files(self._jobs[ticket]).fetch()
        except (StorageFailed, OSError) as error:
            self._troubles[ticket] = str(error)
            return None
        self._troubles.pop(ticket, None)
        return late_ns

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it runs. Its spec, with secrets, is deleted."""
        ended = super().poll(ticket)
        if ended is not None and ticket in self._jobs:
            self._files(self._jobs[ticket]).delete_spec()
        return ended

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Mark a job as cancelled or killed, which it obeys, and stop it."""
        known, job = self._poller.submitted.get(ticket), self._jobs.get(ticket)
        level = 2 if force else 1
        is_new = known.cancels < level if known is not None else ticket in self._unconfirmed
        self._unmarked.pop(ticket, None)
        if job is None or not is_new:
            return
        is_marked = self._mark(job, "killed" if force else "cancelled")
        if not is_marked:
            self._unmarked[ticket] = force
        if known is not None:
            known.cancels = level if is_marked else known.cancels
            self._stop(job)
            self._poller.poll_soon()
        elif is_marked:  # It may have reached its cluster, and then runs nothing.
            del self._unconfirmed[ticket]
            self._poller.ended[ticket] = Ended(
                how="exited", asked=True, reason=f"never reached {self.title}"
            )

    def _mark(self, job: NamedJob, mark: Mark) -> bool:
        """Mark a job here and in storage; False if storage does not take it."""
        try:
            self._files(job).mark(mark)
        except StorageNotWritten as error:
            self._troubles[job.ticket] = str(error)
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            return False
        return True

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a job that another process submitted; None while it runs."""
        ticket, since_ns = task.ticket, self._clock.monotonic_ns()
        if ticket not in self._jobs:
            self._jobs = read_jobs(self._root, self.name) | self._jobs
        if ticket not in self._jobs:
            return Ended(how="lost", never_ran=True, reason=f"it never reached {self.title}")
        job, statuses = self._jobs[ticket], self._query([ticket])
        if statuses == {} and self._fetch(ticket) is not None:
            has_run = self._files(job).start is not None
            if not has_run and self._mark(job, "cancelled"):  # Should it arrive, it runs nothing.
                return Ended(how="lost", never_ran=True, reason=f"it never reached {self.title}")
        known = Submitted(task.directory, job=job.submission)
        self._poller.adopt(ticket, known, statuses, since_ns)
        return self.poll(ticket)
