"""What is asked of Slurm, and what a job is submitted with. Pure.

How a grid states it is the subject of ``reading``: jobs load this, and no reader of grids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from outlay.units import Duration

MINUTE_NS: Final = 60 * 10**9
EARLY_NS: Final = 60 * 10**9
"""How much earlier than asked for Slurm may signal: https://slurm.schedmd.com/sbatch.html."""
_NOTICE_NS: Final = 90 * 10**9
_COUNTED = re.compile(r"(?P<kind>[^:]*)(:.*)?:(?P<count>\d+)(\([^)]*\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """How runs are submitted; what is left empty is the cluster's default.

    Attributes:
        time: Of one job, after which Slurm ends it; default: the run's ``timeout``.
        gres: Such as ``gpu`` or ``gpu:a100``; without a number, one per process on a node.
        extra: Further options of ``sbatch`` by their long names; True for those without a value.
        requeues: How often in a row a job may start again after a start without progress; 0 never.
        notice: How long before its time is up a job is told, to save its work; None by default.
        max_submit: How many jobs may be submitted at once.
    """

    partition: str = ""
    account: str = ""
    time: Duration | None = None
    gres: str = ""
    constraint: str = ""
    extra: Mapping[str, str | bool] = field(default_factory=dict)
    requeues: int = 10
    notice: Duration | None = None
    max_submit: int | None = None

    @property
    def notice_ns(self) -> int:
        """How long before its time is up a job is told: what is stated, else 90 s where that fits.

        Half of what a short job has beside the minute by which Slurm may be early.
        """
        if self.notice is not None:
            return self.notice.ns
        if self.time is None:
            return _NOTICE_NS
        return min(_NOTICE_NS, max(0, self.time.ns - EARLY_NS) // 2)

    @property
    def identity(self) -> list[object]:
        """Where a run runs; how long it may take there is none of its configuration."""
        return [self.partition, self.gres, self.constraint, self.extra]

    @property
    def gpus_on_node(self) -> int | None:
        """How many GPUs ``gpu:a100:4`` asks for on each node; None where it has no number."""
        counted = _COUNTED.fullmatch(self.gres)
        is_gpu = counted is not None and counted["kind"] == "gpu"
        return int(counted["count"]) if counted is not None and is_gpu else None


DEFAULTS: Final = SlurmOptions()


def slurm_options(options: object) -> SlurmOptions:
    """Return what a task asks of Slurm; the defaults for a task that is only to be found again."""
    return options if isinstance(options, SlurmOptions) else DEFAULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """What is asked of Slurm for one run; runs that ask the same go into one array.

    Attributes:
        nodes: How many, with one task on each.
        processes: Per node.
        most_ns: How long the run may take in all; None for as long as the cluster lets it.
    """

    options: SlurmOptions
    nodes: int
    processes: int
    most_ns: int | None


def parameters(
    request: SlurmRequest, *, name: str, jobs: int | None, after: str | None, comment: str = ""
) -> dict[str, Any]:
    """Return submitit's parameters for a batch of jobs.

    Args:
        request: What each job needs.
        name: The batch's name in the queue.
        jobs: How many of them may run at the same time; None for all.
        after: Jobs that must have ended before, or None.
        comment: What ``squeue`` and ``sacct`` show beside it.
    """
    options = request.options
    return {
        "job_name": name,
        "partition": options.partition or None,
        "account": options.account or None,
        "constraint": options.constraint or None,
        "gres": _with_count(options.gres, request.processes) or None,
        "time": _minutes(request),
        "nodes": request.nodes,
        "ntasks_per_node": 1,
        "dependency": f"afterany:{after}" if after else None,
        "array_parallelism": jobs or 10**6,
        "signal_delay_s": options.notice_ns // 10**9,
        "stderr_to_stdout": True,
        "wckey": None,
        "srun_args": ["--kill-on-bad-exit=1"],
        "comment": comment or None,
        "additional_parameters": {"requeue": True, **options.extra},
    }


def _with_count(gres: str, processes: int) -> str:
    """Return a resource with its number: ``gpu:a100`` becomes ``gpu:a100:4`` for four processes."""
    if not gres or _COUNTED.fullmatch(gres):
        return gres
    return f"{gres}:{processes}"


def _minutes(request: SlurmRequest) -> int | None:
    """Return a job's time limit; what the run itself may take is kept by the job, not by Slurm."""
    if request.options.time is not None:
        return request.options.time.ns // MINUTE_NS
    if request.most_ns is None:
        return None
    return -(-(request.most_ns + request.options.notice_ns) // MINUTE_NS) + 1
