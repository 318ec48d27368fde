"""The Ray engine: submits attempts as jobs, one at a time, polls, cancels and reattaches to them.

Many pending jobs bring a head down, so that at most one of a sweep waits. Ray has no time limit of
its own: a job enforces its own, and obeys the marks in its run's directory. A node that does not
see that directory has both through storage.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument, read_document
from outlay.errors import OutlayError
from outlay.files import make_private, write_whole
from outlay.shipping.apart import LATE_NS, DirectoryGone, StorageNotWritten, send
from outlay.shipping.shipper import ShippingTask
from outlay.shipping.storage import StorageFailed, fetch_run
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.engines.ray.jobs_api import JobRefused, JobsApi, NoAnswer, remote_status
from outlay.sweep.engines.ray.ray_options import ray_options
from outlay.sweep.engines.remote.job_spec import (
    JobSpec,
    Mark,
    mark_path,
    read_times,
    spec_path,
    times_path,
    write_mark,
)
from outlay.sweep.engines.remote.poller import Poller, RemoteStatus, RemoteStatuses, Submitted
from outlay.sweep.engines.remote.remote_engine import RemoteEngine
from outlay.sweep.engines.remote.spec_writer import spec_of, without_secrets, write_spec

DIRECTORY: Final = "ray"
SILENT_NS: Final = 20 * 10**9
"""How long a job without a recorded end must be silent: Ray may report one over that still runs."""
RETRY_NS: Final = 5 * 10**9
_ON_NODE: Final = "outlay.sweep.engines.ray.node"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")


class RayJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as submitted: a file below the sweep's ``ray`` directory, written before that.

    Attributes:
        submission: Ray's submission id, by which it is found again.
        shipping: Where its node ships it to, and as what, if it does not see the run's directory.
        node: Ray's id of its node, if it may ship; "" while unknown.
    """

    ticket: str
    submission: str
    address: str
    shipping: ShippingTask | None = None
    node: str = ""

    @property
    def run(self) -> str:
        """The run's id."""
        return self.ticket.split("/")[1]


def submission_of(ticket: str) -> str:
    """Return the submission id of a ticket, one for one: its last part is unique."""
    return _NOT_IN_NAMES.sub("-", ticket)


def jobs_in(root: Path) -> dict[str, str]:
    """Return the submission ids of a sweep's attempts, by ticket."""
    return {ticket: job.submission for ticket, job in _read_jobs(root).items()}


def _read_jobs(root: Path) -> dict[str, RayJob]:
    found = {}
    for path in sorted((root / DIRECTORY).glob("*.json")):
        with contextlib.suppress(OSError, BadDocument):
            job = read_document(path, RayJob)
            found[job.ticket] = job
    return found


class RayEngine(RemoteEngine):
    """Submits runs as jobs, which outlive this process."""

    name: ClassVar[str] = "ray"

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        poller = Poller(clock, self._query, silent_ns=SILENT_NS, fetch=self._fetch)
        self._unconfirmed: dict[str, Task] = {}
        super().__init__(root, clock, poller, self._unconfirmed)
        self._apis: dict[str, JobsApi] = {}
        self._jobs = _read_jobs(root)
        self._unmarked: dict[str, bool] = {}  # To be cancelled, and whether by force.
        self._retry_ns = 0
        self._troubles: dict[str, str] = {}

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
        try:
            shipping = self._shipping(task)
        except OutlayError as error:
            self._poller.ended[task.ticket] = Ended(how="not_started", reason=str(error))
            return
        address, submission = ray_options(task.options).address, submission_of(task.ticket)
        make_private(self._root / DIRECTORY)
        self._save(
            RayJob(ticket=task.ticket, submission=submission, address=address, shipping=shipping)
        )
        self._unconfirmed[task.ticket] = task
        self._retry_ns = 0
        self.submit_pending()

    def _shipping(self, task: Task) -> ShippingTask | None:
        """Return where a run's files go if its node does not share its directory."""
        if (stated := ShippingTask.of(task.env)) is None:
            return None
        earlier = [job.shipping.name for job in self._earlier(task) if job.shipping is not None]
        names = [*earlier, submission_of(task.ticket)]
        return msgspec.structs.replace(stated, name=names[0])

    def _earlier(self, task: Task) -> list[RayJob]:
        return [j for j in self._jobs.values() if j.run == task.name and j.ticket != task.ticket]

    def _save(self, job: RayJob) -> None:
        self._jobs[job.ticket] = job
        path = self._root / DIRECTORY / f"{job.submission}.json"
        write_whole(path, msgspec.json.encode(job) + b"\n")

    def submit_pending(self) -> None:
        """Submit what the cluster has not confirmed; a job of that name is never made twice."""
        if self._clock.monotonic_ns() < self._retry_ns:
            return
        for ticket, force in list(self._unmarked.items()):
            self.cancel(ticket, force=force)
        for ticket, task in list(self._unconfirmed.items()):
            try:
                self._deliver(task, self._jobs[ticket])
            except (NoAnswer, StorageNotWritten) as error:
                self._troubles[ticket] = str(error)
                self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
                return
            except (JobRefused, DirectoryGone) as refusal:
                self._poller.ended[ticket] = Ended(how="not_started", reason=str(refusal))
            else:
                known = Submitted(task.directory, job=self._jobs[ticket].submission)
                self._poller.submitted[ticket] = known
                self._poller.poll_soon()
            self._troubles.pop(ticket, None)
            del self._unconfirmed[ticket]

    def _deliver(self, task: Task, job: RayJob) -> None:
        """Submit a job, after its spec is where its node finds it."""
        node, path = self._node_of(task), spec_path(task.directory, task.ticket)
        words = ["exec", "python", "-m", _ON_NODE, str(path)]
        spec, secret = self._spec(task)
        write_spec(msgspec.structs.replace(spec, env=spec.env | secret))
        if job.shipping is not None:
            sent = msgspec.structs.replace(spec, sealed=sorted({*spec.sealed, *secret}))
            send(job.shipping, mark_path(task.directory, task.ticket).name, b"")
            send(job.shipping, path.name, msgspec.json.encode(sent))
            words.append(msgspec.json.encode(job.shipping).decode())
        options = ray_options(task.options)
        self._api(job).submit(options.request(job.submission, shlex.join(words), node))

    def _spec(self, task: Task) -> tuple[JobSpec, dict[str, str]]:
        """Return what the sweep sets, not this machine's environment; and what of it is secret."""
        options = ray_options(task.options)
        whole = spec_of(task, notice_ns=options.notice.ns, title=submission_of(task.ticket))
        # A node has nothing of this process's environment, also what is the same here.
        here = {name: value for name, value in os.environ.items() if name not in task.sets}
        spec, secret = without_secrets(task, whole, here)
        secret |= {name: task.env[name] for name in spec.sealed if name in task.env}
        cwd = "" if "working_dir" in options.runtime_env else spec.cwd
        names = ("OUTLAY_SHIP_TO", "OUTLAY_SHIP_EVERY")
        ships = {name: task.env[name] for name in names if name in task.env}
        return msgspec.structs.replace(
            spec, env=spec.env | ships, dropped=[], cwd=cwd, python=sys.executable,
            again=times_path(task.directory, task.ticket).exists(),
        ), secret  # fmt: skip

    def _node_of(self, task: Task) -> str:
        """Return the node that has the run's directory; "" if that is here, or there is none.

        Raises:
            DirectoryGone: It is gone, or unknown.
        """
        for job in self._earlier(task):
            events = read_times(task.directory, job.ticket).events
            if events and events[0].apart:
                if not job.node or not self._api(job).has_node(job.node):
                    raise DirectoryGone(events[0].node, task.name)
                return job.node
        return ""

    def _api(self, job: RayJob) -> JobsApi:
        if job.address not in self._apis:
            self._apis[job.address] = JobsApi(job.address)
        return self._apis[job.address]

    def standing(self, ticket: str) -> TaskStanding:
        """Return Ray's status of a job, and what is in the way of a better one."""
        found, trouble = super().standing(ticket), self._troubles.get(ticket)
        return replace(found, text=f"{found.text}: {trouble}") if trouble else found

    # -- polling ----------------------------------------------------------------------------

    def _query(self, tickets: Collection[str]) -> RemoteStatuses | None:
        """Return Ray's status of jobs; None if a cluster does not answer."""
        found: dict[str, RemoteStatus] = {}
        for ticket in tickets:
            job = self._jobs[ticket]
            try:
                info = self._api(job).find(job.submission)
            except NoAnswer:
                return None
            if info is None:
                continue
            found[ticket] = self._cancelled(ticket, remote_status(job.submission, info))
            if job.shipping is not None and info.driver_node_id not in (None, job.node):
                with contextlib.suppress(OSError):  # Of another user, who asks for the status.
                    self._save(msgspec.structs.replace(job, node=info.driver_node_id))
        return found

    def _fetch(self, ticket: str) -> int | None:
        """Fetch what a job's node shipped; return how long more may take, None if unknown."""
        job = self._jobs[ticket]
        events = read_times(self._root / job.run, ticket).events
        if job.shipping is None or (events and not events[0].apart):
            return 0
        try:
            found = fetch_run(job.shipping.to, job.shipping.name, self._root / job.run)
        except (StorageFailed, OSError) as error:
            self._troubles[ticket] = str(error)
            return None
        self._troubles.pop(ticket, None)
        events = read_times(self._root / job.run, ticket).events
        return 0 if found is not None and found.is_complete and events else LATE_NS

    def _cancelled(self, ticket: str, status: RemoteStatus) -> RemoteStatus:
        """Return the status of a job that is over because it was cancelled while it waited.

        Ray starts it when there is room. The mark was there before this status: it runs nothing.
        """
        known = self._poller.submitted.get(ticket)
        if known is None or not (known.cancels and status.queued):
            return status
        why = "cancelled before it started"
        return replace(status, is_over=True, queued=False, cancelled=True, how="exited", reason=why)

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it runs. Its spec, with secrets, is deleted."""
        ended = super().poll(ticket)
        if ended is not None and ticket in self._jobs:
            run = self._root / ticket.split("/")[1]
            spec_path(run, ticket).unlink(missing_ok=True)
        return ended

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Mark a job as cancelled or killed, which it obeys, and stop it in Ray."""
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
            self._api(job).stop(job.submission)
            self._poller.poll_soon()
        elif is_marked:  # It may have reached Ray, and then runs nothing.
            del self._unconfirmed[ticket]
            self._poller.ended[ticket] = Ended(how="exited", asked=True, reason="never reached Ray")

    def _mark(self, job: RayJob, mark: Mark) -> bool:
        """Mark a job here and in storage; False if storage does not take it."""
        directory = self._root / job.run
        write_mark(directory, job.ticket, mark)
        if job.shipping is not None:
            try:
                send(job.shipping, mark_path(directory, job.ticket).name, mark.encode())
            except StorageNotWritten as error:
                self._troubles[job.ticket] = str(error)
                self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
                return False
        return True

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a job that another process submitted; None while it runs."""
        ticket, since_ns = task.ticket, self._clock.monotonic_ns()
        if ticket not in self._jobs:
            self._jobs = _read_jobs(self._root) | self._jobs
        if ticket not in self._jobs:
            return Ended(how="lost", never_ran=True, reason="it never reached Ray")
        job, statuses = self._jobs[ticket], self._query([ticket])
        if statuses == {} and self._fetch(ticket) is not None:
            has_run = bool(read_times(task.directory, ticket).events)
            if not has_run and self._mark(job, "cancelled"):  # Should it arrive, it runs nothing.
                return Ended(how="lost", never_ran=True, reason="it never reached Ray")
        known = Submitted(task.directory, job=job.submission)
        self._poller.adopt(ticket, known, statuses, since_ns)
        return self.poll(ticket)

    def close(self) -> None:
        """Close the connections; jobs continue."""
        for api in self._apis.values():
            api.close()
        self._apis.clear()
