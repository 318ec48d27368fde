"""What Slurm says about jobs: ``squeue`` for those it remembers, ``sacct`` for those it does not.

Reading their answers is pure; asking is at the end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FORMAT: Final = "%j|%F|%K|%T|%r|%N"
"""Name, number (of the whole array), place in the array, state, why it waits, nodes."""
_ACCOUNTED: Final = "JobName,JobID,State"
_TIMEOUT_S: Final = 60
_DEFAULT_ARRAY_SIZE: Final = 1001

ENDED: Final = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL",
     "DEADLINE", "OUT_OF_MEMORY", "REVOKED"]
)  # fmt: skip
"""Of https://slurm.schedmd.com/job_state_codes.html, those from which a job does not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLook:
    """How a job stands.

    Attributes:
        job: Slurm's number of it: that of its array, and its place there.
        state: Slurm's word, without anything after it.
        reason: Why it waits.
    """

    job: str
    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def over(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


Looks = dict[tuple[str, int], JobLook]
"""By the name of the batch and the place in it."""


def read_squeue(text: str) -> Looks:
    """Return what ``squeue --array --format FORMAT`` says; lines of another shape are skipped."""
    looks: Looks = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != FORMAT.count("|") + 1:
            continue
        name, number, place, state, reason, nodes = fields
        index = int(place) if place.isdecimal() else 0
        job = f"{number}_{place}" if place.isdecimal() else number
        looks[name, index] = JobLook(job=job, state=state, reason=reason, nodes=nodes)
    return looks


def read_sacct(text: str) -> Looks:
    """Return what ``sacct --parsable2`` says of jobs; of one that was requeued, the last word."""
    looks: Looks = {}
    for line in text.splitlines():
        name, number, state = [*line.split("|"), "", ""][:3]
        base, _, place = number.partition("_")
        if not base.isdecimal() or (place and not place.isdecimal()):
            continue  # A step, or the part of an array that has not been told apart yet.
        word = (state.split() or [""])[0]  # CANCELLED by 1000
        looks[name, int(place or 0)] = JobLook(job=number, state=word)
    return looks


def read_array_size(text: str) -> int:
    """Return how many jobs an array may have, from ``scontrol show config``."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdecimal():
            return int(value)
    return _DEFAULT_ARRAY_SIZE


@dataclass(slots=True)
class Slurm:
    """The cluster's commands; None is what one that could not be reached has to say."""

    _accounts: bool = True

    def look(self, names: Iterable[str]) -> Looks | None:
        """Return how the jobs of some batches stand that Slurm remembers."""
        listed = ",".join(sorted(names))
        if not listed:
            return {}
        command = ["squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}"]
        answer = self._run(*command, f"--name={listed}")
        return None if answer is None else read_squeue(answer)

    def accounted(self, names: Iterable[str]) -> Looks:
        """Return what the accounts say about jobs; nothing where no accounts are kept."""
        listed = ",".join(sorted(names))
        if not listed or not self._accounts:
            return {}
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01"]
        answer = self._run(*command, f"--format={_ACCOUNTED}", f"--name={listed}")
        if answer is None:
            self._accounts = False
            return {}
        return read_sacct(answer)

    def array_size(self) -> int:
        """Return how many jobs an array may have."""
        return read_array_size(self._run("scontrol", "show", "config") or "")

    def cancel(self, job: str, *, force: bool = False) -> bool:
        """End a job: told first and killed after the cluster's notice, or killed at once.

        False when Slurm did not take that.
        """
        if force:
            self._run("scancel", "--signal=KILL", job)
        return self._run("scancel", job) is not None

    def _run(self, *command: str) -> str | None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None
