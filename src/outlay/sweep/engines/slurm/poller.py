"""One poller for all jobs of a sweep: asks Slurm about all of them at once, ever more seldom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from outlay.clock import Clock
from outlay.proc.strays import ExitRecord, read_exit
from outlay.sweep.engines.base import Ended
from outlay.sweep.engines.slurm.allocation import read_times
from outlay.sweep.engines.slurm.ends import conclude, may_be_late
from outlay.sweep.engines.slurm.queue import UNKNOWN, Batch, JobLook, Looks, Slurm

SOONEST_NS: Final = 250_000_000
LATEST_NS: Final = 30 * 10**9
QUIET_NS: Final = 4 * 10**9
"""Looks that are so far apart may also read what running jobs wrote."""
LATE_RECORD_NS: Final = 15 * 10**9
"""How long a job's exit record may be late after Slurm says that the job is over."""
_UNHEARD: Final = JobLook(job="", state=UNKNOWN, reason="Slurm does not answer")

Key = tuple[str, int]


@dataclass(slots=True)
class Submitted:
    """An attempt that Slurm has.

    Attributes:
        over_ns: Since when it seems to be over.
        cancels: 1 once Slurm was asked to cancel it, 2 to kill it.
    """

    directory: Path
    nodes: int
    batch: Batch
    place: int
    look: JobLook | None = None
    over_ns: int | None = None
    cancels: int = 0

    @property
    def key(self) -> Key:
        """What Slurm's answers have it under."""
        return self.batch.name, self.place

    @property
    def whole(self) -> str:
        """Slurm's number of the whole batch; "" while nobody knows it."""
        return self.batch.job or ("" if self.look is None else self.look.job.partition("_")[0])


class Poller:
    """Knows how every submitted attempt stands."""

    def __init__(self, slurm: Slurm, clock: Clock) -> None:
        self._slurm = slurm
        self._clock = clock
        self.submitted: dict[str, Submitted] = {}
        self.ended: dict[str, Ended] = {}
        self._next_ns = 0
        self._interval_ns = SOONEST_NS

    def look_soon(self) -> None:
        """Expect news."""
        self._interval_ns = SOONEST_NS
        self._next_ns = min(self._next_ns, self._clock.monotonic_ns() + SOONEST_NS)

    def due_in_s(self) -> float:
        """Return how long it is until the next look; for ever while there is nothing to look at."""
        if not self.submitted:
            return math.inf
        return max(0, self._next_ns - self._clock.monotonic_ns()) / 1e9

    def look(self) -> None:
        """Ask about all jobs at once, the more seldom the longer nothing changes."""
        if not self.submitted or self._clock.monotonic_ns() < self._next_ns:
            return
        known = self.submitted.values()
        looks = self.ask({one.key: one.batch for one in known})
        changed = self._update(looks)
        longer = min(self._interval_ns * 3 // 2, LATEST_NS)
        self._interval_ns = SOONEST_NS if changed else longer
        self._next_ns = self._clock.monotonic_ns() + self._interval_ns

    def ask(self, wanted: Mapping[Key, Batch]) -> Looks | None:
        """Return how jobs stand, from the accounts for those that Slurm has forgotten."""
        looks = self._slurm.look(_unique(wanted.values()))
        if looks is None:
            return None
        forgotten = _unique(batch for key, batch in wanted.items() if key not in looks)
        return self._slurm.accounted(forgotten) | looks

    def _update(self, looks: Looks | None) -> bool:
        """Find out how every job stands; say whether that is any news.

        While Slurm cannot be asked, jobs stand as they stood; those that wrote an end have ended.
        """
        changed = False
        thorough = looks is None or self._interval_ns >= QUIET_NS
        for ticket, known in list(self.submitted.items()):
            look = known.look or _UNHEARD if looks is None else looks.get(known.key)
            changed |= look != known.look
            known.look = look
            if look is not None and not (look.over or thorough):
                continue  # It runs; reading a file per job at each look would load the file system.
            ended = self.conclude(ticket, known)
            if ended is not None:
                changed = True
                del self.submitted[ticket]
                self.ended[ticket] = ended
        return changed

    def conclude(self, ticket: str, known: Submitted) -> Ended | None:
        """Return how an attempt ended; None while it runs, or its record may be late."""
        exits = _read_exits(known.directory, ticket, known.nodes)
        ended = conclude(
            known.look, exits, read_times(known.directory, ticket), nodes=known.nodes
        )  # fmt: skip
        if ended is None:
            known.over_ns = None
            return None
        if known.cancels and ended.how == "lost":
            return Ended(how="exited", asked=True, elapsed_ns=ended.elapsed_ns)
        now_ns = self._clock.monotonic_ns()
        known.over_ns = known.over_ns or now_ns
        if may_be_late(known.look, exits, ended) and now_ns - known.over_ns < LATE_RECORD_NS:
            self.look_soon()
            return None
        return replace(ended, asked=ended.asked or known.cancels > 0)

    def adopt(self, ticket: str, known: Submitted, looks: Looks | None, since_ns: int) -> None:
        """Take up an attempt of another process, as Slurm said at ``since_ns`` that it stands.

        One that is over is settled now: whoever asks may not be there for a second look.
        """
        known.look = _UNHEARD if looks is None else looks.get(known.key)
        ended = self.conclude(ticket, known)
        while ended is None and known.over_ns is not None:
            known.over_ns = since_ns
            self._clock.sleep(1)
            ended = self.conclude(ticket, known)
        if ended is None:
            self.submitted[ticket] = known
        else:
            self.ended[ticket] = ended


def _unique(batches: Iterable[Batch]) -> list[Batch]:
    return list({batch.name: batch for batch in batches}.values())


def _read_exits(directory: Path, ticket: str, nodes: int) -> list[ExitRecord]:
    found = [read_exit(directory, ticket, node=node) for node in range(nodes)]
    return [record for record in found if record is not None]
