"""How a grid states what it asks of Slurm: the block ``slurm``, key by key. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from outlay.errors import InvalidValue
from outlay.sweep.engines.names import EngineOptions
from outlay.sweep.engines.slurm.options import EARLY_NS, MINUTE_NS, SlurmOptions, slurm_options
from outlay.sweep.grid import reading as readers
from outlay.sweep.grid.reading import Block
from outlay.units import Duration

_OURS: Final = ("array", "dependency", "job-name", "nodes", "ntasks-per-node", "output", "signal")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


def read_options(block: Block, stated: EngineOptions | None) -> SlurmOptions:
    """Return a grid's ``slurm`` block on top of the shared one; ``extra`` adds to the shared."""
    block.allow(KEYS)
    shared = slurm_options(stated)
    read = {key: block.read(key, convert, getattr(shared, key)) for key, convert in KEYS.items()}
    options = SlurmOptions(**read | {"extra": {**shared.extra, **read["extra"]}})
    _check_notice(block, options)
    return options


def _check_notice(block: Block, options: SlurmOptions) -> None:
    """Report a job that may be given notice when it has just begun."""
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


def job_time(value: object) -> Duration:
    """Return how long a job may take; Slurm counts whole minutes, so a minute at least."""
    duration = Duration.parse(value, name="time")
    if duration.ns < MINUTE_NS:
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


KEYS: Final[Mapping[str, Callable[[object], Any]]] = {
    "partition": readers.text, "account": readers.text, "time": job_time, "gres": readers.text,
    "constraint": readers.text, "extra": further_options, "requeues": readers.count_from_zero,
    "notice": readers.timeout, "max_submit": readers.count_from_one,
}  # fmt: skip
"""How each key of the block is read."""
