"""What became of a machine between two attempts, as far as records say.

It stayed up where the next attempt ran on the same instance; else in the same start of the same
Slurm job; else under the same boot *and* the same process 1, since a container sees its host's boot
id. A different answer to the first of these that both attempts recorded means another machine.
"""

from __future__ import annotations

import re
from enum import Enum

from outlay.ledger import Attempt, AttemptStarted

_ELASTIC = re.compile(r"torchelastic-(?P<run>.*)-(?P<restarts>\d+)")


class MachineAfter(Enum):
    """What became of an attempt's machine."""

    TAKEN_BACK = "the scheduler took it back"
    KEPT = "the next attempt ran on it"
    ANOTHER = "the next attempt ran on another one"
    UNKNOWN = "no record says"


def machine_after(attempt: Attempt, following: Attempt | None) -> MachineAfter:
    """Return what became of the machine after ``attempt``."""
    if given_back(attempt, following):
        return MachineAfter.TAKEN_BACK
    if following is None:
        return MachineAfter.UNKNOWN
    same = (_same_machine if attempt.nodes and following.nodes else _same_boot)(
        attempt.header, following.header
    )
    if same is None:
        return MachineAfter.UNKNOWN
    return MachineAfter.KEPT if same else MachineAfter.ANOTHER


def given_back(attempt: Attempt, following: Attempt | None) -> bool:
    """Say whether the scheduler took the machine back after ``attempt``."""
    if attempt.end is not None and attempt.end.status == "preempted":
        return True
    if following is None or not attempt.header.slurm_job:
        return False
    if attempt.header.slurm_job != following.header.slurm_job:
        return False
    restarts = attempt.header.slurm_restart, following.header.slurm_restart
    if all(restarts):
        return restarts[0] != restarts[1]
    before, after = attempt.header.launch, following.header.launch
    return before != after and not _restarted_in_place(before, after)


def _same_machine(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say whether two attempts ran on one machine; None where no record says."""
    if before.instance_id and after.instance_id:
        return before.instance_id == after.instance_id
    if before.slurm_job or after.slurm_job:
        return before.slurm_job == after.slurm_job  # Another start of it was given back.
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return False
    if before.boot_id and after.boot_id and before.init_start and after.init_start:
        return before.init_start == after.init_start
    return None


def _same_boot(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say the same of logs that hold nothing but the boot, which says nothing where it differs."""
    return True if before.boot_id and before.boot_id == after.boot_id else None


def _restarted_in_place(before: str, after: str) -> bool:
    """Say whether torchrun started its workers anew, inside the allocation it had.

    Its launch ids end in the number of such restarts, which begins at 0 with every torchrun.
    """
    earlier, later = _ELASTIC.fullmatch(before), _ELASTIC.fullmatch(after)
    if earlier is None or later is None or earlier["run"] != later["run"]:
        return False
    return int(later["restarts"]) > int(earlier["restarts"])
