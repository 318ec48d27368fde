"""The engine: batches of jobs go to Slurm, one poller with back-off watches all of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from outlay.clock import SYSTEM, Clock
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.exits import ExitRecord, read_exit
from outlay.sweep.engines.slurm.allocation import node_log
from outlay.sweep.engines.slurm.batches import (
    Batch,
    folder_of,
    new_batch,
    read_batches,
    write_batch,
)
from outlay.sweep.engines.slurm.ends import conclude, may_be_late
from outlay.sweep.engines.slurm.options import Request, parameters
from outlay.sweep.engines.slurm.queue import JobLook, Looks, Slurm
from outlay.sweep.engines.slurm.spec import spec_path, write_spec
from outlay.sweep.engines.slurm.submission import NotTaken, check_available, submit_jobs
from outlay.sweep.engines.slurm.times import read_times

SOONEST_NS: Final = 250_000_000
LATEST_NS: Final = 30 * 10**9
LATE_WORD_NS: Final = 15 * 10**9
"""How long a job's own word may be on its way after Slurm says that it is over."""


_UNHEARD: Final = JobLook(job="", state="UNKNOWN", reason="Slurm does not answer")


@dataclass(slots=True)
class Waiting:
    """An attempt that has not reached Slurm yet, and what its job needs."""

    task: Task
    request: Request
    secret: Mapping[str, str]


@dataclass(slots=True)
class Submitted:
    """An attempt that Slurm has: where it writes, which batch it is of, and how it stood."""

    directory: Path
    nodes: int
    batch: Batch
    place: int
    look: JobLook | None = None
    over_ns: int | None = None
    told: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What Slurm's answers have it under."""
        return self.batch.name, self.place


Key = tuple[str, int]


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
        self._jobs: int | None = None
        self._array_size: int | None = None
        self._waiting: dict[str, Waiting] = {}
        self._submitted: dict[str, Submitted] = {}
        self._ended: dict[str, Ended] = {}
        self._last: Batch | None = None
        self._earlier: dict[str, Batch] | None = None
        self._remembered: Looks | None = None
        self._next_ns = self._retry_ns = 0
        self._interval_ns = SOONEST_NS
        self._at_once: int | None = None

    # -- starting ---------------------------------------------------------------------------

    def allow(self, jobs: int | None) -> int:
        """Let so many jobs run at the same time; return how many may be submitted."""
        self._jobs = jobs
        return 10**9

    def new_ticket(self, name: str) -> str:
        """Return a ticket that nobody has used."""
        return f"slurm/{name}/{secrets.token_hex(6)}"

    def submit(self, task: Task) -> None:
        """Write a task down; it goes to Slurm with others like it at the next look."""
        request = Request(
            options=task.options, nodes=task.nodes, processes=task.gpus // task.nodes,
            most_ns=task.most_ns,
        )  # fmt: skip
        secret = write_spec(task, os.environ)
        self._waiting[task.ticket] = Waiting(task, request, secret)

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
            if not most:
                return
            self._hand_over(alike[:most])

    def _room(self, request: Request) -> int:
        """Return how many jobs may go into the next array."""
        if self._array_size is None:
            self._array_size = self._slurm.array_size()
        limit = request.options.max_submit
        free = self._array_size if limit is None else limit - len(self._submitted)
        return min(self._array_size, free, self._at_once or self._array_size)

    def _hand_over(self, alike: list[Waiting]) -> None:
        request = alike[0].request
        batch = new_batch([waiting.task.ticket for waiting in alike])
        write_batch(self._root, batch)
        specs = [spec_path(w.task.directory, w.task.ticket) for w in alike]
        asked = parameters(request, name=batch.name, jobs=self._jobs, after=self._before())
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
        open_still = any(known.batch.name == self._last.name for known in self._submitted.values())
        return self._last.job or None if open_still else None

    def _take_over(self, alike: list[Waiting], batch: Batch) -> None:
        for place, waiting in enumerate(alike):
            task = waiting.task
            del self._waiting[task.ticket]
            self._submitted[task.ticket] = Submitted(task.directory, task.nodes, batch, place)
        self._last, self._at_once = batch, None
        self._look_soon()

    def _hear_no(self, alike: list[Waiting], batch: Batch, refusal: NotTaken) -> None:
        """Ask again later, for fewer, where that may help; else the runs could not be started."""
        looks = self._slurm.look([batch.name]) if refusal.later else {}
        if looks is None or looks:
            # It may have been taken although the answer was lost; its name tells, when Slurm does.
            self._take_over(alike, batch)
        elif refusal.later:
            self._at_once = max(1, len(alike) // 2)
            self._retry_ns = self._clock.monotonic_ns() + LATEST_NS // 6
        else:
            for waiting in alike:
                del self._waiting[waiting.task.ticket]
                self._ended[waiting.task.ticket] = Ended(how="not_started", reason=str(refusal))

    # -- looking ----------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Return when a job may have ended, or after the time."""
        self._flush()
        self._look()
        if not self._ended:
            self._clock.sleep(timeout_s)

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it goes on."""
        return self._ended.pop(ticket, None)

    def standing(self, ticket: str) -> str:
        """Return how a job stands in Slurm's words, for people; "" where nothing is known."""
        known = self._submitted.get(ticket)
        if known is None or known.look is None:
            return "not in the queue yet" if ticket in self._waiting else ""
        look = known.look
        where = f" on {look.nodes}" if look.nodes else ""
        why = f" ({look.reason})" if look.reason not in ("", "None") else ""
        return f"job {look.job} {look.state.lower()}{where}{why}"

    def _look_soon(self) -> None:
        self._interval_ns = SOONEST_NS
        self._next_ns = min(self._next_ns, self._clock.monotonic_ns() + SOONEST_NS)

    def _look(self) -> None:
        """Ask about all jobs at once, the more seldom the longer nothing changes."""
        now_ns = self._clock.monotonic_ns()
        if not self._submitted or now_ns < self._next_ns:
            return
        looks = self._ask({known.key for known in self._submitted.values()})
        changed = self._take_in(looks)
        longer = min(self._interval_ns * 3 // 2, LATEST_NS)
        self._interval_ns = SOONEST_NS if changed else longer
        self._next_ns = self._clock.monotonic_ns() + self._interval_ns

    def _ask(self, wanted: set[Key]) -> Looks | None:
        """Return how jobs stand, the accounts' word for those that Slurm has forgotten."""
        looks = self._slurm.look({name for name, _ in wanted})
        if looks is None:
            return None
        return self._slurm.accounted({name for name, _ in wanted - looks.keys()}) | looks

    def _take_in(self, looks: Looks | None) -> bool:
        """Learn how every job stands; say whether that is any news.

        While Slurm cannot be asked, jobs stand as they stood; those that wrote an end have ended.
        """
        changed = False
        for ticket, known in list(self._submitted.items()):
            look = known.look or _UNHEARD if looks is None else looks.get(known.key)
            changed |= look != known.look
            known.look = look
            ended = self._conclude(ticket, known)
            if ended is not None:
                changed = True
                del self._submitted[ticket]
                self._ended[ticket] = ended
        return changed

    def _conclude(self, ticket: str, known: Submitted) -> Ended | None:
        times = read_times(known.directory, ticket)
        exits = _read_exits(known.directory, ticket, known.nodes)
        ended = conclude(known.look, exits, times)
        if ended is None:
            known.over_ns = None
            return None
        if known.told and ended.how == "lost":
            return Ended(how="exited", asked=True, elapsed_ns=ended.elapsed_ns)
        now_ns = self._clock.monotonic_ns()
        known.over_ns = known.over_ns or now_ns
        if may_be_late(known.look, exits) and now_ns - known.over_ns < LATE_WORD_NS:
            self._look_soon()
            return None
        return replace(ended, asked=ended.asked or known.told > 0)

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Tell a job to end, or end it; the second call of a kind does nothing."""
        if self._waiting.pop(ticket, None) is not None:
            self._ended[ticket] = Ended(how="exited", asked=True, reason="never reached Slurm")
        known = self._submitted.get(ticket)
        level = 2 if force else 1
        if known is None or known.told >= level:
            return
        known.told = level
        job = known.batch.job_of(ticket) or (known.look.job if known.look is not None else "")
        if job:
            self._slurm.cancel([job], force=force)
        self._look_soon()

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
        batch = self._batches().get(task.ticket)
        if batch is None:
            return Ended(how="lost", reason="it never reached Slurm")
        known = Submitted(task.directory, task.nodes, batch, batch.tickets.index(task.ticket))
        known.look = _UNHEARD if self._remembered is None else self._remembered.get(known.key)
        ended = self._conclude(task.ticket, known)
        if ended is not None:
            return ended
        self._submitted[task.ticket] = known
        return None

    def _batches(self) -> dict[str, Batch]:
        """Return every attempt's batch, and ask about all of them at once, the first time."""
        if self._earlier is None:
            found = read_batches(self._root)
            self._earlier = {ticket: batch for batch in found for ticket in batch.tickets}
            keys = {(batch.name, i) for batch in found for i in range(len(batch.tickets))}
            self._remembered = self._ask(keys)
        return self._earlier

    def close(self) -> None:
        """Let go; jobs go on."""


def _read_exits(directory: Path, ticket: str, nodes: int) -> list[ExitRecord]:
    found = [read_exit(directory, ticket, node=node) for node in range(nodes)]
    return [record for record in found if record is not None]
