"""Handing attempts over to Slurm: in arrays of those that ask the same, and never twice.

Where Slurm may have taken a batch without our hearing of it, nothing else is handed over until it
has said whether it did: a second submission would be a second bill.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.clock import Clock
from outlay.errors import MissingExtra, OutlayError
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.slurm.allocation import list_specs, spec_path, write_spec
from outlay.sweep.engines.slurm.options import SlurmRequest, parameters, slurm_options
from outlay.sweep.engines.slurm.poller import Poller, Submitted
from outlay.sweep.engines.slurm.queue import (
    Batch,
    Looks,
    Slurm,
    folder_of,
    forget_batch,
    job_title,
    new_batch,
    write_batch,
)

# Submitting a batch of jobs through submitit, and why Slurm would not accept it.

_LATER = re.compile(
    r"unable to contact|temporarily|timed out|connection refused|connect failure|try again"
    r"|job submit limit|MaxSubmit|limit on number of jobs|maximum job count|socket",
    re.IGNORECASE,
)
"""What Slurm says when the same request may go through later: see ``slurm_strerror``."""
_KEPT: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_SPECS: Final = "specs.json"
_ON_NODE: Final = "outlay.sweep.engines.slurm.job"


class NoSlurm(OutlayError):
    """Slurm's commands are not here."""

    def __init__(self) -> None:
        super().__init__(
            "engine: slurm needs Slurm's commands (sbatch, squeue, scancel) on the PATH; "
            "start the sweep on a login node of the cluster"
        )


class NotAccepted(Exception):
    """Slurm did not take a batch; ``later`` when it may, if it is asked again."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.later = _LATER.search(said) is not None


def check_available() -> None:
    """Refuse where nothing could be submitted.

    Raises:
        MissingExtra: submitit is not installed.
        NoSlurm: There is no ``sbatch``.
    """
    if importlib.util.find_spec("submitit") is None:
        raise MissingExtra("engine: slurm", "slurm")
    if shutil.which("sbatch") is None:
        raise NoSlurm


def submit_jobs(
    folder: Path, specs: Sequence[Path], parameters: Mapping[str, Any], secret: Mapping[str, str]
) -> str:
    """Submit jobs, as an array where they are several; return Slurm's number of the whole.

    ``parameters`` are in submitit's names; ``secret`` variables go by environment alone.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    listed = folder / _SPECS
    list_specs(listed, specs)
    # submitit lets us say what Python is on a node. We say that it is our own module: submitit's
    # would load NumPy and wait for a pickle, which takes longer than many a program.
    on_node = shlex.join([sys.executable, "-m", _ON_NODE, str(listed)])
    executor = submitit.SlurmExecutor(folder=folder, python=on_node)
    executor.update_parameters(**parameters)
    # submitit prints what sbatch says against it; we say it once, with the run it is about.
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
    """Give ``sbatch`` our environment, with secrets and without the job that we may be part of."""
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


RETRY_NS: Final = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Waiting:
    """An attempt that has not reached Slurm yet, and what its job needs."""

    task: Task
    request: SlurmRequest
    secret: Mapping[str, str]

    def is_like(self, other: Waiting) -> bool:
        """Say whether both can go into one array."""
        return (self.request, self.secret) == (other.request, other.secret)


class SubmissionQueue:
    """The attempts on their way to Slurm.

    Attributes:
        jobs: How many may run at the same time; None for all.
    """

    def __init__(self, root: Path, slurm: Slurm, poller: Poller, clock: Clock) -> None:
        self._root = root
        self._slurm = slurm
        self._poller = poller
        self._clock = clock
        self.jobs: int | None = None
        self._waiting: dict[str, Waiting] = {}
        self._doubtful: Batch | None = None
        self._unwanted: set[str] = set()
        self._array_size: int | None = None
        self._at_once: int | None = None
        self._retry_ns = 0
        self._ask_ns = 0

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._waiting

    @property
    def is_done(self) -> bool:
        """Whether Slurm has everything."""
        return not self._waiting

    def add(self, task: Task) -> None:
        """Write a task down; it goes to Slurm with others like it."""
        request = SlurmRequest(
            options=slurm_options(task.options),
            nodes=task.nodes,
            processes=task.gpus // task.nodes,
            most_ns=task.most_ns,
        )
        self._waiting[task.ticket] = Waiting(
            task, request, write_spec(task, os.environ, job_title(self._root.name, task.name))
        )

    def flush(self) -> list[str]:
        """Hand over what waits; return what was withdrawn meanwhile and has reached Slurm."""
        while self._waiting and self._clock.monotonic_ns() >= self._retry_ns:
            if not self._resolve_doubtful():
                break
            first = next(iter(self._waiting.values()), None)
            most = 0 if first is None else self._room(first.request)
            if first is None or most < 1:
                break
            alike = [waiting for waiting in self._waiting.values() if waiting.is_like(first)]
            self._submit_batch(alike[:most])
        taken = self._unwanted - self._waiting.keys()
        self._unwanted -= taken
        return sorted(taken)

    def withdraw(self, ticket: str) -> None:
        """Take an attempt back; whether that can be done is cleared up first."""
        if ticket not in self._waiting:
            return
        if self._doubtful is not None and ticket in self._doubtful.tickets:
            self._unwanted.add(ticket)
            self._resolve_doubtful()
        else:
            self._drop(ticket)

    def _drop(self, ticket: str) -> None:
        del self._waiting[ticket]
        ended = Ended(how="exited", asked=True, reason="never reached Slurm")
        self._poller.ended[ticket] = ended

    def _room(self, request: SlurmRequest) -> int:
        """Return how many jobs may go into the next array."""
        if self._array_size is None:
            self._array_size = self._slurm.array_size()
        limit = request.options.max_submit
        free = self._array_size if limit is None else limit - len(self._poller.submitted)
        return min(self._array_size, free, self._at_once or self._array_size)

    def _submit_batch(self, alike: list[Waiting]) -> None:
        batch = new_batch([waiting.task.ticket for waiting in alike], sweep=self._root.name)
        write_batch(self._root, batch)
        specs = [spec_path(w.task.directory, w.task.ticket) for w in alike]
        asked = parameters(
            alike[0].request, name=batch.title, jobs=self.jobs, after=self._before(),
            comment=str(self._root),
        )  # fmt: skip
        try:
            number = submit_jobs(folder_of(self._root, batch), specs, asked, alike[0].secret)
        except NotAccepted as refusal:
            self._handle_refusal(batch, refusal)
        else:
            self._record_accepted(batch, number)

    def _before(self) -> str | None:
        """Return which jobs the next array must wait for, so that no more run than were allowed."""
        if self.jobs is None:
            return None
        numbers = {known.whole for known in self._poller.submitted.values()}
        return ":".join(sorted(filter(None, numbers))) or None

    def _record_accepted(self, batch: Batch, number: str) -> None:
        batch = msgspec.structs.replace(batch, job=number)
        write_batch(self._root, batch)
        for place, ticket in enumerate(batch.tickets):
            task = self._waiting.pop(ticket).task
            known = Submitted(task.directory, task.nodes, batch, place)
            self._poller.submitted[ticket] = known
        self._at_once = None
        self._poller.look_soon()

    def _handle_refusal(self, batch: Batch, refusal: NotAccepted) -> None:
        """Ask again later, for fewer, where that may help; else the runs could not be started."""
        if refusal.later:
            self._doubtful = batch
            self._at_once = max(1, len(batch.tickets) // 2)
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            if looks := self._slurm.look([batch]):
                self._resolve_with(looks)
            return
        forget_batch(self._root, batch)
        for ticket in batch.tickets:
            del self._waiting[ticket]
            self._poller.ended[ticket] = Ended(how="not_started", reason=str(refusal))

    def _resolve_doubtful(self) -> bool:
        """Learn whether Slurm accepted a batch without our hearing of it; False while it is silent.

        Its answer may have been lost on its way, or come after we stopped waiting for it. The
        batch's script in the queue decides.
        """
        if self._doubtful is None:
            return True
        if self._clock.monotonic_ns() < self._ask_ns:
            return False
        looks = self._slurm.look([self._doubtful])
        if looks is None:
            self._ask_ns = self._clock.monotonic_ns() + RETRY_NS
            return False
        self._resolve_with(looks)
        return True

    def _resolve_with(self, looks: Looks) -> None:
        batch, self._doubtful = self._doubtful, None
        assert batch is not None
        if looks:
            self._record_accepted(batch, next(iter(looks.values())).job.partition("_")[0])
            return
        forget_batch(self._root, batch)
        for ticket in self._unwanted & self._waiting.keys():
            self._drop(ticket)
        self._unwanted.clear()
