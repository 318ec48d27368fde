"""Options of the Slurm engine: read from a grid's ``slurm`` block, passed to submitit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from outlay.errors import InvalidValue
from outlay.sweep.engines.base import EngineOptions
from outlay.sweep.grid import parsing as readers
from outlay.sweep.grid.parsing import Block
from outlay.units import Duration

MINUTE_NS: Final = 60 * 10**9
EARLY_NS: Final = 60 * 10**9
"""How much earlier than requested Slurm may signal: https://slurm.schedmd.com/sbatch.html."""
_NOTICE_NS: Final = 90 * 10**9
_COUNTED_GRES = re.compile(r"(?P<kind>[^:]*)(:.*)?:(?P<count>\d+)(\([^)]*\))?")
_RESERVED: Final = (
    "array", "dependency", "job-name", "nodes", "ntasks-per-node", "output", "signal",
)  # fmt: skip
_LONG_OPTION = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """How runs are submitted; empty values mean the cluster's default.

    Attributes:
        time: Slurm's time limit of one job; default: the run's ``timeout``.
        gres: Such as ``gpu`` or ``gpu:a100``; without a number, one per process on a node.
        extra: Further ``sbatch`` options by long name; True for flags without a value.
        requeues: How often in a row a job may restart after a start without progress; 0 never.
        notice: How long before its time limit a job is signalled to save its work.
        max_submit: The most jobs in the queue at once.
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
        """The notice before the time limit: as stated, else 90 s.

        For a short job, at most half of its time less the minute by which Slurm may be early.
        """
        if self.notice is not None:
            return self.notice.ns
        if self.time is None:
            return _NOTICE_NS
        return min(_NOTICE_NS, max(0, self.time.ns - EARLY_NS) // 2)

    @property
    def identity(self) -> list[object]:
        """Where a run executes; time limits are not part of its configuration."""
        return [self.partition, self.gres, self.constraint, self.extra]

    @property
    def gpus_on_node(self) -> int | None:
        """GPUs per node that ``gres`` requests (``gpu:a100:4``: 4); None without a number."""
        counted = _COUNTED_GRES.fullmatch(self.gres)
        if counted is None or counted["kind"] != "gpu":
            return None
        return int(counted["count"])


def slurm_options(options: object) -> SlurmOptions:
    """Return a task's options; the defaults for a task that is only reattached to."""
    return options if isinstance(options, SlurmOptions) else SlurmOptions()


# Parameters of a submission.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """What one run requests; runs with equal requests go into one array.

    Attributes:
        nodes: With one task on each.
        processes: Per node.
        most_ns: The run's own time limit over all starts; None for the cluster's.
    """

    options: SlurmOptions
    nodes: int
    processes: int
    most_ns: int | None


def submitit_parameters(
    request: SlurmRequest, *, name: str, jobs: int | None, after: str | None, comment: str = ""
) -> dict[str, Any]:
    """Return submitit's parameters for a batch of jobs, of which ``jobs`` run at the same time.

    They start once the job numbers in ``after`` have ended; None for all, and for at once.
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
    """Return ``gpu:a100`` as ``gpu:a100:4`` for four processes; a stated count stays."""
    if not gres or _COUNTED_GRES.fullmatch(gres):
        return gres
    return f"{gres}:{processes}"


def _minutes(request: SlurmRequest) -> int | None:
    """Return Slurm's time limit; the job itself enforces the run's own ``most_ns``."""
    if request.options.time is not None:
        return request.options.time.ns // MINUTE_NS
    if request.most_ns is None:
        return None
    return -(-(request.most_ns + request.options.notice_ns) // MINUTE_NS) + 1


# The ``slurm`` block of a grid.


def read_options(block: Block, stated: EngineOptions | None) -> SlurmOptions:
    """Return a ``slurm`` block on top of the shared options; ``extra`` is merged."""
    shared = slurm_options(stated)
    read = block.read_all(KEYS, shared)
    options = SlurmOptions(**read | {"extra": {**shared.extra, **read["extra"]}})
    _check_notice(block, options)
    return options


def _check_notice(block: Block, options: SlurmOptions) -> None:
    """Report a notice that could come as soon as the job starts."""
    stated = next((key for key in ("notice", "time") if block.values.get(key) is not None), None)
    if stated is None or options.notice is None or options.time is None:
        return
    granted_ns = options.time.ns // MINUTE_NS * MINUTE_NS
    if granted_ns <= options.notice.ns + EARLY_NS:
        block.report(
            (stated,),
            f"notice: {options.notice} leaves a job of time: {options.time} nothing to train in, "
            "as Slurm may give notice a minute early; expected a time of more than the notice and "
            "a minute",
        )


def _job_time(value: object) -> Duration:
    duration = Duration.parse(value, name="time")
    if duration.ns < MINUTE_NS:  # Slurm counts whole minutes.
        raise InvalidValue("time", value, 'a duration of a minute or more, such as "4h"')
    return duration


def _extra_options(value: object) -> dict[str, str | bool]:
    """Return ``sbatch`` options by long name; those that outlay sets are refused."""
    options: dict[str, str | bool] = {}
    for name, given in readers.mapping(value).items():
        long_name = name.removeprefix("--").replace("_", "-")
        if not _LONG_OPTION.fullmatch(long_name) or long_name in _RESERVED:
            raise InvalidValue("extra", name, "a long option of sbatch that outlay does not set")
        options[long_name] = True if given is True else readers.word(given)
    return options


KEYS: Final[readers.Parsers] = {
    "partition": readers.text, "account": readers.text, "time": _job_time, "gres": readers.text,
    "constraint": readers.text, "extra": _extra_options, "requeues": readers.count_from_zero,
    "notice": readers.timeout, "max_submit": readers.count_from_one,
}  # fmt: skip
