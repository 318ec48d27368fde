"""How a job's attempt ended, from what Slurm says and what the job wrote down. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outlay.proc.strays import ExitRecord
from outlay.sweep.engines.base import Ended, How
from outlay.sweep.engines.slurm.allocation import Times
from outlay.sweep.engines.slurm.queue import JobLook

_BY_STATE: Final[dict[str, tuple[How, str]]] = {
    "CANCELLED": ("exited", "cancelled in Slurm"),
    "PREEMPTED": ("preempted", "preempted, and this cluster does not queue it again"),
    "NODE_FAIL": ("preempted", "a node failed, and this cluster does not queue it again"),
    "BOOT_FAIL": ("preempted", "a node did not start"),
    "TIMEOUT": ("exited", "Slurm's time limit was reached"),
    "DEADLINE": ("exited", "Slurm's deadline was reached"),
    "OUT_OF_MEMORY": ("exited", "out of memory, says Slurm"),
    "FAILED": ("exited", "Slurm could not run it; see the sweep's slurm directory"),
}


def conclude(
    look: JobLook | None, exits: Sequence[ExitRecord], times: Times, *, nodes: int = 1
) -> Ended | None:
    """Return how an attempt ended; None while it runs, or while its final record may yet come.

    Args:
        look: What Slurm says; None where it knows nothing of the job any more.
        exits: What the nodes of its last start wrote, the first node's first.
        times: When it ran.
        nodes: How many there are to write something.
    """
    record = _decisive(exits, times)
    if record is not None and not record.asked and (record.returncode or len(exits) == nodes):
        return _by_record(record, "", times)  # By itself, whether or not Slurm knows.
    if look is not None and not look.over:
        return None
    if record is None:
        return _by_state(look, times)
    return _by_record(record, "" if look is None else look.state, times)


def may_be_late(look: JobLook | None, exits: Sequence[ExitRecord], ended: Ended) -> bool:
    """Say whether another record may still come.

    What the job wrote may be on its way over a shared file system, and one whose machine was taken
    back may yet be queued again.
    """
    if ended.how == "preempted":
        return True
    return not exits and (look is None or look.state != "CANCELLED")


def _decisive(exits: Sequence[ExitRecord], times: Times) -> ExitRecord | None:
    """Return the end that matters: a node that failed by itself takes the others down with it."""
    last = max((moment.restart for moment in times.moments), default=0)
    current = [record for record in exits if record.restart == last]
    failed = [record for record in current if record.returncode and not record.asked]
    return next(iter(failed or current), None)


def _by_record(record: ExitRecord, state: str, times: Times) -> Ended:
    how: How = "exited"
    reason, asked = record.reason, record.asked
    if asked and state in _BY_STATE and state != "FAILED":
        how, reason = _BY_STATE[state]
        asked = state == "CANCELLED"
    if record.reason.startswith("could not be started: "):
        how, reason = "not_started", record.reason.partition(": ")[2]
    return Ended(
        how=how, returncode=record.returncode if how == "exited" else None, asked=asked,
        elapsed_ns=times.ran_ns(), reason=reason,
    )  # fmt: skip


def _by_state(look: JobLook | None, times: Times) -> Ended:
    state = "" if look is None else look.state
    how, reason = _BY_STATE.get(state, ("lost", "it recorded no end, and Slurm does not know it"))
    return Ended(
        how=how, asked=state == "CANCELLED", elapsed_ns=times.ran_ns(), reason=reason
    )  # fmt: skip
