"""The Ray engine: submits attempts as jobs, one at a time, polls, cancels and reattaches to them.

Many pending jobs bring a head down, so that at most one of a sweep waits. Ray has no time limit of
its own: a job enforces its own, and obeys the marks in its run's directory.
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
from outlay.files import make_private, write_whole
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.engines.ray.jobs_api import JobRefused, JobsApi, NoAnswer, remote_status
from outlay.sweep.engines.ray.ray_options import ray_options
from outlay.sweep.engines.remote.job_spec import read_times, spec_path, write_mark
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
    """

    ticket: str
    submission: str
    address: str


def submission_of(ticket: str) -> str:
    """Return the submission id of a ticket, one for one: its last part is unique."""
    return _NOT_IN_NAMES.sub("-", ticket)


def jobs_in(root: Path) -> dict[str, str]:
    """Return the submission ids of a sweep's attempts, by ticket."""
    return {job.ticket: job.submission for job in _read_jobs(root)}


def _read_jobs(root: Path) -> list[RayJob]:
    found = []
    for path in sorted((root / DIRECTORY).glob("*.json")):
        with contextlib.suppress(OSError, BadDocument):
            found.append(read_document(path, RayJob))
    return found


class RayEngine(RemoteEngine):
    """Submits runs as jobs, which outlive this process.

    The sweep's directory must be on a file system that the nodes share.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        super().__init__(root, clock, Poller(clock, self._query, silent_ns=SILENT_NS))
        self._apis: dict[str, JobsApi] = {}
        self._jobs: dict[str, RayJob] = {}
        self._unconfirmed: dict[str, Task] = {}
        self._retry_ns = 0
        self._trouble = ""

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
        address, submission = ray_options(task.options).address, submission_of(task.ticket)
        job = RayJob(ticket=task.ticket, submission=submission, address=address)
        make_private(self._root / DIRECTORY)
        path = self._root / DIRECTORY / f"{job.submission}.json"
        write_whole(path, msgspec.json.encode(job) + b"\n")
        self._jobs[task.ticket] = job
        self._unconfirmed[task.ticket] = task
        self._write_spec(task)
        self._retry_ns = 0
        self.submit_pending()

    def _write_spec(self, task: Task) -> None:
        """Write what the node needs: what the sweep sets, and not this machine's environment."""
        options = ray_options(task.options)
        whole = spec_of(task, notice_ns=options.notice.ns, title=submission_of(task.ticket))
        spec, secret = without_secrets(task, whole, os.environ)
        named = {name: task.env[name] for name in spec.sealed if name in task.env}
        cwd = "" if "working_dir" in options.runtime_env else spec.cwd
        env = spec.env | secret | named
        write_spec(
            msgspec.structs.replace(spec, env=env, dropped=[], cwd=cwd, python=sys.executable)
        )

    def submit_pending(self) -> None:
        """Submit what the cluster has not confirmed; a job of that name is never made twice."""
        if self._clock.monotonic_ns() < self._retry_ns:
            return
        for ticket, task in list(self._unconfirmed.items()):
            job = self._jobs[ticket]
            path = spec_path(task.directory, ticket)
            entrypoint = shlex.join(["exec", "python", "-m", _ON_NODE, str(path)])
            request = ray_options(task.options).request(job.submission, entrypoint)
            try:
                self._api(job).submit(request)
            except NoAnswer as error:
                self._trouble = str(error)
                self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
                return
            except JobRefused as refusal:
                self._poller.ended[ticket] = Ended(how="not_started", reason=str(refusal))
            else:
                self._poller.submitted[ticket] = Submitted(task.directory, job=job.submission)
                self._poller.poll_soon()
            del self._unconfirmed[ticket]

    def _api(self, job: RayJob) -> JobsApi:
        if job.address not in self._apis:
            self._apis[job.address] = JobsApi(job.address)
        return self._apis[job.address]

    def is_unsubmitted(self, ticket: str) -> bool:
        """Say whether the cluster has not accepted a task yet."""
        return ticket in self._unconfirmed

    def standing(self, ticket: str) -> TaskStanding:
        """Return Ray's status of a job; before it has one, why not."""
        found = super().standing(ticket)
        if not self.is_unsubmitted(ticket) or not self._trouble:
            return found
        return replace(found, text=f"{found.text}: {self._trouble}")

    def all_submitted(self) -> bool:
        """Say whether the cluster has accepted everything."""
        return not self._unconfirmed

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
            if info is not None:
                found[ticket] = self._cancelled(ticket, remote_status(job.submission, info))
        return found

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
        if (task := self._unconfirmed.pop(ticket, None)) is not None:
            # It may have reached Ray, and then runs nothing.
            write_mark(task.directory, ticket, "cancelled")
            self._poller.ended[ticket] = Ended(how="exited", asked=True, reason="never reached Ray")
        if known is None or job is None or known.cancels >= level:
            return
        write_mark(known.directory, ticket, "killed" if force else "cancelled")
        known.cancels = level
        self._api(job).stop(job.submission)
        self._poller.poll_soon()

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a job that another process submitted; None while it runs."""
        ticket, since_ns = task.ticket, self._clock.monotonic_ns()
        if ticket not in self._jobs:
            self._jobs |= {job.ticket: job for job in _read_jobs(self._root)}
        if ticket not in self._jobs:
            return Ended(how="lost", never_ran=True, reason="it never reached Ray")
        statuses = self._query([ticket])
        if statuses == {} and not read_times(task.directory, ticket).events:
            write_mark(task.directory, ticket, "cancelled")  # Should it arrive, it runs nothing.
            return Ended(how="lost", never_ran=True, reason="it never reached Ray")
        known = Submitted(task.directory, job=self._jobs[ticket].submission)
        self._poller.adopt(ticket, known, statuses, since_ns)
        return self.poll(ticket)

    def close(self) -> None:
        """Close the connections; jobs continue."""
        for api in self._apis.values():
            api.close()
        self._apis.clear()
