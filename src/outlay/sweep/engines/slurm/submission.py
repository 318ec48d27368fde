"""Submitting attempts to Slurm: in arrays of equal requests, and never twice.

While it is unknown whether Slurm accepted a batch, nothing else is submitted: a second submission
would be a second bill.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.clock import Clock
from outlay.errors import MissingExtra, OutlayError
from outlay.slurm import max_array_size
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.remote.job_spec import spec_path, write_spec_list
from outlay.sweep.engines.remote.poller import Poller, Submitted
from outlay.sweep.engines.remote.spec_writer import spec_of, without_secrets, write_spec
from outlay.sweep.engines.slurm.job_options import SlurmRequest, slurm_options, submitit_parameters
from outlay.sweep.engines.slurm.queue import (
    Batch,
    JobStatuses,
    batch_directory,
    delete_batch,
    job_title,
    new_batch,
    query_queue,
    write_batch,
)

# Submission through submitit.

_RETRYABLE = re.compile(
    r"unable to contact|temporarily|timed out|connection refused|connect failure|try again"
    r"|job submit limit|MaxSubmit|limit on number of jobs|maximum job count|socket",
    re.IGNORECASE,
)
"""Errors after which the same request may succeed later: see ``slurm_strerror``."""
_KEPT: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_SPECS: Final = "specs.json"
_ON_NODE: Final = "outlay.sweep.engines.slurm.job"


class NoSlurm(OutlayError):
    """Slurm's commands are not installed here."""

    def __init__(self) -> None:
        super().__init__(
            "engine: slurm needs Slurm's commands (sbatch, squeue, scancel) on the PATH; "
            "start the sweep on a login node of the cluster"
        )


class NotAccepted(Exception):
    """Slurm rejected a batch; ``retryable`` if a retry may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retryable = _RETRYABLE.search(message) is not None


def check_available() -> None:
    """Check that jobs can be submitted from here.

    Raises:
        MissingExtra: submitit is not installed.
        NoSlurm: There is no ``sbatch``.
    """
    if importlib.util.find_spec("submitit") is None:
        raise MissingExtra("engine: slurm", "slurm")
    if shutil.which("sbatch") is None:
        raise NoSlurm


def submit_jobs(
    directory: Path, specs: Sequence[Path], parameters: Mapping[str, Any], secret: Mapping[str, str]
) -> str:
    """Submit jobs, several as an array; return Slurm's job number of the whole.

    ``parameters`` are submitit's; ``secret`` variables are passed by environment only.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    listed = directory / _SPECS
    write_spec_list(listed, specs)
    # The "Python" of submitit's job script is our own module: submitit's would load NumPy and wait
    # for a pickle, which takes longer than many programs run.
    on_node = shlex.join([sys.executable, "-m", _ON_NODE, str(listed)])
    executor = submitit.SlurmExecutor(folder=directory, python=on_node)
    executor.update_parameters(**parameters)
    # submitit prints sbatch's error; it is reported once, with its run, by the caller.
    with _environment(secret), contextlib.redirect_stderr(io.StringIO()):
        try:
            with executor.batch():
                jobs = [executor.submit(int) for _ in specs]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise NotAccepted(str(error).strip() or type(error).__name__) from error
    number: str = jobs[0].job_id
    return number.partition("_")[0]


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add secrets to the environment, and hide the Slurm job that this process may run in."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("SLURM_") and name not in _KEPT:
            del os.environ[name]
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# The queue of attempts that Slurm has not accepted yet.

RETRY_NS: Final = 5 * 10**9


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task that is not yet submitted, its request and its secret variables."""

    task: Task
    request: SlurmRequest
    secret: Mapping[str, str]


@dataclass(slots=True)
class SubmissionQueue:
    """The tasks to be submitted to Slurm.

    Attributes:
        batches: Those that Slurm has accepted, by ticket.
        jobs: How many may run at the same time; None for all.
        pending: What Slurm has not accepted yet, by ticket.
    """

    _root: Path
    _poller: Poller
    _clock: Clock
    batches: dict[str, Batch]
    jobs: int | None = None
    pending: dict[str, PendingTask] = field(default_factory=dict)
    _unconfirmed: Batch | None = None
    _withdrawn: set[str] = field(default_factory=set)
    _max_array_size: int | None = None
    _max_batch: int | None = None
    _retry_ns: int = 0
    _next_query_ns: int = 0

    def add(self, task: Task) -> None:
        """Queue a task, and write its job spec."""
        options = slurm_options(task.options)
        request = SlurmRequest(
            options=options,
            nodes=task.nodes,
            processes=task.gpus // task.nodes,
            most_ns=task.most_ns,
        )
        title = job_title(self._root.name, task.name)
        whole = spec_of(task, notice_ns=options.notice_ns, requeues=options.requeues, title=title)
        spec, secret = without_secrets(task, whole, os.environ)
        write_spec(spec)
        self.pending[task.ticket] = PendingTask(task, request, secret)

    def flush(self) -> list[str]:
        """Submit what is pending; return the tickets withdrawn meanwhile that Slurm has."""
        while self.pending and self._clock.monotonic_ns() >= self._retry_ns:
            if not self._resolve_unconfirmed():
                break
            first = next(iter(self.pending.values()), None)
            most = 0 if first is None else self._next_batch_size(first.request)
            if first is None or most < 1:
                break
            key = (first.request, first.secret)
            alike = [p for p in self.pending.values() if (p.request, p.secret) == key]
            self._submit_batch(alike[:most])
        accepted = self._withdrawn - self.pending.keys()
        self._withdrawn -= accepted
        return sorted(accepted)

    def withdraw(self, ticket: str) -> None:
        """Remove a pending task; one in an unconfirmed batch, once Slurm does not have it."""
        if ticket not in self.pending:
            return
        if self._unconfirmed is not None and ticket in self._unconfirmed.tickets:
            self._withdrawn.add(ticket)
            self._resolve_unconfirmed()
        else:
            self._drop(ticket)

    def _drop(self, ticket: str) -> None:
        del self.pending[ticket]
        ended = Ended(how="exited", asked=True, reason="never reached Slurm")
        self._poller.ended[ticket] = ended

    def _next_batch_size(self, request: SlurmRequest) -> int:
        if self._max_array_size is None:
            self._max_array_size = max_array_size()
        most, limit = self._max_array_size, request.options.max_submit
        free = most if limit is None else limit - len(self._poller.submitted)
        return min(most, free, self._max_batch or most)

    def _submit_batch(self, alike: list[PendingTask]) -> None:
        batch = new_batch([pending.task.ticket for pending in alike], sweep=self._root.name)
        write_batch(self._root, batch)
        specs = [spec_path(p.task.directory, p.task.ticket) for p in alike]
        parameters = submitit_parameters(
            alike[0].request, name=batch.title, jobs=self.jobs, after=self._dependencies(),
            comment=str(self._root),
        )  # fmt: skip
        directory = batch_directory(self._root, batch)
        try:
            number = submit_jobs(directory, specs, parameters, alike[0].secret)
        except NotAccepted as refusal:
            self._handle_refusal(batch, refusal)
        else:
            self._record_accepted(batch, number)

    def _dependencies(self) -> str | None:
        """Return the jobs that the next array must wait for, to keep within ``jobs``."""
        if self.jobs is None:
            return None
        numbers = {job.number.partition("_")[0] for job in self._poller.submitted.values()}
        return ":".join(sorted(filter(None, numbers))) or None

    def _record_accepted(self, batch: Batch, number: str) -> None:
        batch = msgspec.structs.replace(batch, job=number)
        write_batch(self._root, batch)
        for ticket in batch.tickets:
            task = self.pending.pop(ticket).task
            job = Submitted(task.directory, task.nodes, batch.job_of(ticket))
            self._poller.submitted[ticket], self.batches[ticket] = job, batch
        self._max_batch = None
        self._poller.poll_soon()

    def _handle_refusal(self, batch: Batch, refusal: NotAccepted) -> None:
        """Retry later with half as many where that may help; else the attempts did not start."""
        if refusal.retryable:
            self._unconfirmed = batch
            self._max_batch = max(1, len(batch.tickets) // 2)
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            if statuses := query_queue([batch]):
                self._resolve_with(statuses)
            return
        delete_batch(self._root, batch)
        for ticket in batch.tickets:
            del self.pending[ticket]
            self._poller.ended[ticket] = Ended(how="not_started", reason=str(refusal))

    def _resolve_unconfirmed(self) -> bool:
        """Find out whether Slurm accepted a batch after all; False while it does not answer.

        sbatch's answer may have been lost or late. The batch's script in the queue decides.
        """
        if self._unconfirmed is None:
            return True
        if self._clock.monotonic_ns() < self._next_query_ns:
            return False
        statuses = query_queue([self._unconfirmed])
        if statuses is None:
            self._next_query_ns = self._clock.monotonic_ns() + RETRY_NS
            return False
        self._resolve_with(statuses)
        return True

    def _resolve_with(self, statuses: JobStatuses) -> None:
        batch, self._unconfirmed = self._unconfirmed, None
        assert batch is not None
        if statuses:
            self._record_accepted(batch, next(iter(statuses.values())).job.partition("_")[0])
            return
        delete_batch(self._root, batch)
        for ticket in self._withdrawn & self.pending.keys():
            self._drop(ticket)
        self._withdrawn.clear()
