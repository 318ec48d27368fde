"""What a grid may ask of Slurm, and what a job is submitted with. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from outlay.errors import InvalidValue
from outlay.sweep import readers
from outlay.sweep.blocks import Block
from outlay.units import Duration

KEYS: Final = (
    "partition", "account", "time", "gres", "constraint", "extra", "requeues", "notice",
    "max_submit",
)  # fmt: skip
_OURS: Final = ("array", "dependency", "job-name", "nodes", "ntasks-per-node", "output", "signal")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_MINUTE_NS: Final = 60 * 10**9
_NOTICE: Final = Duration(90 * 10**9)
_COUNTED = re.compile(r".*:\d+(\([^)]*\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """How runs are submitted; what is left empty is the cluster's default.

    Attributes:
        time: Of one job, after which Slurm ends it; default: the run's ``timeout``.
        gres: Such as ``gpu`` or ``gpu:a100``; without a number, one per process on a node.
        extra: Further options of ``sbatch`` by their long names; True for those without a value.
        requeues: How often a job may start again before its run has failed.
        notice: How long before its time is up a job is told, to save its work.
        max_submit: How many jobs may be submitted at once.
    """

    partition: str = ""
    account: str = ""
    time: Duration | None = None
    gres: str = ""
    constraint: str = ""
    extra: Mapping[str, str | bool] = field(default_factory=dict)
    requeues: int = 10
    notice: Duration = _NOTICE
    max_submit: int | None = None


DEFAULTS: Final = SlurmOptions()


def read_options(block: Block, shared: SlurmOptions) -> SlurmOptions:
    """Return a grid's ``slurm`` block on top of the shared one; ``extra`` adds to the shared."""
    block.allow(KEYS)
    return SlurmOptions(
        partition=block.read("partition", readers.text, shared.partition),
        account=block.read("account", readers.text, shared.account),
        time=block.read("time", job_time, shared.time),
        gres=block.read("gres", readers.text, shared.gres),
        constraint=block.read("constraint", readers.text, shared.constraint),
        extra={**shared.extra, **block.read("extra", further_options, {})},
        requeues=block.read("requeues", readers.count_from_zero, shared.requeues),
        notice=block.read("notice", readers.timeout, shared.notice),
        max_submit=block.read("max_submit", readers.count_from_one, shared.max_submit),
    )


def job_time(value: object) -> Duration:
    """Return how long a job may take; Slurm counts whole minutes, so a minute at least."""
    duration = Duration.parse(value, name="time")
    if duration.ns < _MINUTE_NS:
        raise InvalidValue("time", value, 'a duration of a minute or more, such as "4h"')
    return duration


def further_options(value: object) -> dict[str, str | bool]:
    """Return options of ``sbatch`` by their long names; those that outlay sets are refused."""
    options: dict[str, str | bool] = {}
    for name, given in readers.mapping(value).items():
        long_name = name.removeprefix("--").replace("_", "-")
        if not _OPTION.fullmatch(long_name) or long_name in _OURS:
            raise InvalidValue("extra", name, "a long option of sbatch that outlay does not set")
        options[long_name] = True if given is True else readers.word(given)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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
    request: Request, *, name: str, jobs: int | None, after: str | None
) -> dict[str, Any]:
    """Return submitit's parameters for a batch of jobs.

    Args:
        request: What each job needs.
        name: The batch's name in the queue.
        jobs: How many of them may run at the same time; None for all.
        after: A job that must have ended before, or None.
    """
    options = request.options
    extra = dict(options.extra)
    dependency = f"afterany:{after}" if after else None
    return {
        "job_name": name,
        "partition": options.partition or None,
        "account": options.account or None,
        "constraint": options.constraint or None,
        "gres": _with_count(options.gres, request.processes) or None,
        "time": _minutes(request),
        "nodes": request.nodes,
        "ntasks_per_node": 1,
        "dependency": dependency,
        "array_parallelism": jobs or 10**6,
        "signal_delay_s": options.notice.ns // 10**9,
        "stderr_to_stdout": True,
        "wckey": None,
        "srun_args": ["--kill-on-bad-exit=1"],
        "additional_parameters": {"requeue": True, **extra},
    }


def _with_count(gres: str, processes: int) -> str:
    """Return a resource with its number: ``gpu:a100`` becomes ``gpu:a100:4`` for four processes."""
    if not gres or _COUNTED.fullmatch(gres):
        return gres
    return f"{gres}:{processes}"


def _minutes(request: Request) -> int | None:
    """Return a job's time limit; what the run itself may take is kept by the job, not by Slurm."""
    if request.options.time is not None:
        return request.options.time.ns // _MINUTE_NS
    if request.most_ns is None:
        return None
    return -(-(request.most_ns + request.options.notice.ns) // _MINUTE_NS) + 1
