"""The engine: runs that ask the same go to Slurm together, and are found again by anybody."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from outlay.clock import SYSTEM, Clock
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.slurm.allocation import node_log
from outlay.sweep.engines.slurm.batches import (
    Batch,
    folder_of,
    new_batch,
    read_batches,
    write_batch,
)
from outlay.sweep.engines.slurm.options import Request, parameters
from outlay.sweep.engines.slurm.poller import Poller, Submitted
from outlay.sweep.engines.slurm.queue import Looks, Slurm
from outlay.sweep.engines.slurm.spec import spec_path, write_spec
from outlay.sweep.engines.slurm.submission import NotTaken, check_available, submit_jobs

RETRY_NS: Final = 5 * 10**9
UNLIMITED: Final = 10**9


@dataclass(slots=True)
class Waiting:
    """An attempt that has not reached Slurm yet, and what its job needs."""

    task: Task
    request: Request
    secret: Mapping[str, str]


@dataclass(slots=True)
class Earlier:
    """What was submitted before: every attempt's batch, and how Slurm said that they stand."""

    batches: dict[str, Batch]
    looks: Looks | None
    asked_ns: int


class SlurmEngine:
    """Submits runs as jobs; they outlive this process and are found again by any other.

    Args:
        root: The sweep's directory, on a file system that the nodes share.
        clock: Where the time comes from.

    Raises:
        MissingExtra: submitit is not installed.
        NoSlurm: There is no ``sbatch``.
    """

    remote: ClassVar[bool] = True

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        check_available()
        self._root = root
        self._clock = clock
        self._slurm = Slurm()
        self._poller = Poller(self._slurm, clock)
        self._jobs: int | None = None
        self._waiting: dict[str, Waiting] = {}
        self._last: Batch | None = None
        self._earlier: Earlier | None = None
        self._array_size: int | None = None
        self._at_once: int | None = None
        self._retry_ns = 0

    # -- starting ---------------------------------------------------------------------------

    def allow(self, jobs: int | None) -> int:
        """Let so many jobs run at the same time; any number may be submitted."""
        self._jobs = jobs
        return UNLIMITED

    def new_ticket(self, name: str) -> str:
        """Return a ticket that nobody has used."""
        return f"slurm/{name}/{secrets.token_hex(6)}"

    def submit(self, task: Task) -> None:
        """Write a task down; it goes to Slurm with others like it at the next look."""
        request = Request(
            options=task.options, nodes=task.nodes, processes=task.gpus // task.nodes,
            most_ns=task.most_ns,
        )  # fmt: skip
        self._waiting[task.ticket] = Waiting(task, request, write_spec(task, os.environ))

    def all_submitted(self) -> bool:
        """Say whether Slurm has everything."""
        return not self._waiting

    def _flush(self) -> None:
        """Hand over what waits, in arrays of those that ask the same."""
        while self._waiting and self._clock.monotonic_ns() >= self._retry_ns:
            first = next(iter(self._waiting.values()))
            alike = [
                waiting
                for waiting in self._waiting.values()
                if (waiting.request, waiting.secret) == (first.request, first.secret)
            ]
            most = self._room(first.request)
            if most < 1:
                return
            self._hand_over(alike[:most])

    def _room(self, request: Request) -> int:
        """Return how many jobs may go into the next array."""
        if self._array_size is None:
            self._array_size = self._slurm.array_size()
        limit = request.options.max_submit
        free = self._array_size if limit is None else limit - len(self._poller.submitted)
        return min(self._array_size, free, self._at_once or self._array_size)

    def _hand_over(self, alike: list[Waiting]) -> None:
        batch = new_batch([waiting.task.ticket for waiting in alike])
        write_batch(self._root, batch)
        specs = [spec_path(w.task.directory, w.task.ticket) for w in alike]
        asked = parameters(
            alike[0].request, name=batch.name, jobs=self._jobs, after=self._before()
        )  # fmt: skip
        try:
            number = submit_jobs(folder_of(self._root, batch), specs, asked, alike[0].secret)
        except NotTaken as refusal:
            self._hear_no(alike, batch, refusal)
            return
        batch = Batch(name=batch.name, tickets=batch.tickets, job=number)
        write_batch(self._root, batch)
        self._take_over(alike, batch)

    def _before(self) -> str | None:
        """Return which job the next array must wait for, so that no more run than were allowed."""
        if self._jobs is None or self._last is None:
            return None
        names = {known.batch.name for known in self._poller.submitted.values()}
        return self._last.job or None if self._last.name in names else None

    def _take_over(self, alike: list[Waiting], batch: Batch) -> None:
        for place, waiting in enumerate(alike):
            task = waiting.task
            del self._waiting[task.ticket]
            known = Submitted(task.directory, task.nodes, batch, place)
            self._poller.submitted[task.ticket] = known
        self._last, self._at_once = batch, None
        self._poller.look_soon()

    def _hear_no(self, alike: list[Waiting], batch: Batch, refusal: NotTaken) -> None:
        """Ask again later, for fewer, where that may help; else the runs could not be started."""
        looks = self._slurm.look([batch.name]) if refusal.later else {}
        if looks:
            # It was taken although the answer was lost; its name in the queue tells.
            self._take_over(alike, batch)
        elif refusal.later:
            self._at_once = max(1, len(alike) // 2)
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
        else:
            for waiting in alike:
                del self._waiting[waiting.task.ticket]
                ended = Ended(how="not_started", reason=str(refusal))
                self._poller.ended[waiting.task.ticket] = ended

    # -- looking ----------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Return when a job may have ended, or after the time."""
        self._flush()
        self._poller.look()
        if not self._poller.ended:
            self._clock.sleep(timeout_s)

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it goes on."""
        return self._poller.ended.pop(ticket, None)

    def standing(self, ticket: str) -> str:
        """Return how a job stands in Slurm's words; "" where nothing is known."""
        if ticket in self._waiting:
            return "not in the queue yet"
        known = self._poller.submitted.get(ticket)
        if known is None or known.look is None:
            return ""
        look = known.look
        where = f" on {look.nodes}" if look.nodes else ""
        why = f" ({look.reason})" if look.reason not in ("", "None") else ""
        return f"job {look.job or known.batch.job_of(ticket)} {look.state.lower()}{where}{why}"

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Tell a job to end, or end it; the second call of a kind does nothing."""
        if self._waiting.pop(ticket, None) is not None:
            ended = Ended(how="exited", asked=True, reason="never reached Slurm")
            self._poller.ended[ticket] = ended
        known = self._poller.submitted.get(ticket)
        level = 2 if force else 1
        if known is None or known.told >= level:
            return
        known.told = level
        job = known.batch.job_of(ticket) or (known.look.job if known.look is not None else "")
        if job:
            self._slurm.cancel([job], force=force)
        self._poller.look_soon()

    def logs(self, task: Task) -> str:
        """Return what the task has printed so far, node by node."""
        printed = []
        for rank in range(task.nodes):
            try:
                printed.append(node_log(task.log, rank).read_text(errors="replace"))
            except FileNotFoundError:
                continue
        return "".join(printed)

    def reattach(self, task: Task) -> Ended | None:
        """Take up a job that another process submitted; None when it still goes on."""
        earlier = self._find_earlier()
        batch = earlier.batches.get(task.ticket)
        if batch is None:
            return Ended(how="lost", reason="it never reached Slurm")
        known = Submitted(task.directory, task.nodes, batch, batch.tickets.index(task.ticket))
        self._poller.take_up(task.ticket, known, earlier.looks, earlier.asked_ns)
        return self.poll(task.ticket)

    def _find_earlier(self) -> Earlier:
        """Return what was submitted before; the first time, ask about all of it at once."""
        if self._earlier is None:
            found = read_batches(self._root)
            batches = {ticket: batch for batch in found for ticket in batch.tickets}
            keys = {(batch.name, i) for batch in found for i in range(len(batch.tickets))}
            self._earlier = Earlier(batches, self._poller.ask(keys), self._clock.monotonic_ns())
        return self._earlier

    def close(self) -> None:
        """Let go; jobs go on."""
