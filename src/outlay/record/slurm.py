"""The Slurm job that a process runs in, as its environment describes it; asks no command.

A job has one identity for everything that outlay keeps or asks: ``<array>_<task>`` inside an array,
else its number. Slurm's raw number will not do: one task of every array has that of the array, so
that a question about it is a question about all of them. The restart is no part of it: a job that
is queued again is the same job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outlay.record.machine import whole_number

_NUMBER: Final = re.compile(r"[0-9]+")
_LONGEST_S: Final = 2**33
"""End times beyond this are Slurm's word for "no limit"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One start of a job.

    Attributes:
        id: Its identity: ``<array>_<task>``, or its number.
        raw: Slurm's number of it, which ``sacct`` has as ``JobIDRaw``.
        restart: How often Slurm had started it before.
        step: The step of ``srun`` that the process belongs to; "" in the batch script.
        end_ns: When its time is up, in UTC; None where the environment does not say.
    """

    id: str
    raw: str
    restart: int
    step: str
    partition: str
    end_ns: int | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob | None:
        """Return the job that a process with this environment runs in; None outside of one."""
        raw = environ.get("SLURM_JOB_ID", "")
        if not raw:
            return None
        array, task = (environ.get(f"SLURM_ARRAY_{part}_ID", "") for part in ("JOB", "TASK"))
        is_task = bool(_NUMBER.fullmatch(array) and _NUMBER.fullmatch(task))
        step = environ.get("SLURM_STEP_ID", "")
        return cls(
            id=f"{array}_{task}" if is_task else raw,
            raw=raw,
            restart=whole_number(environ, "SLURM_RESTART_COUNT") or 0,
            step=step if _NUMBER.fullmatch(step) else "",
            partition=environ.get("SLURM_JOB_PARTITION", ""),
            end_ns=end_of(environ.get("SLURM_JOB_END_TIME", "")),
        )


def end_of(text: str) -> int | None:
    """Return when a job's time is up, from seconds since 1970; None without a limit."""
    if not _NUMBER.fullmatch(text) or not 0 < int(text) < _LONGEST_S:
        return None
    return int(text) * 10**9
