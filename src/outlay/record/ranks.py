"""Which of the processes that train together this one is: its rank, and how many there are.

Asked in order: the caller, torch.distributed where it is loaded and initialised, the environment.
Whoever is asked first decides; where another says something else, that is an error, because two
processes that take each other's place would write one log, or count a budget twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.errors import InvalidValue
from outlay.record import facts
from outlay.record.machine import whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A process among those that train together."""

    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankAnswer:
    """What one source says of this process; None where it says nothing."""

    source: str
    rank: int | None = None
    world_size: int | None = None


def find_place(
    environ: Mapping[str, str], *, rank: object = None, world_size: object = None
) -> RankPlace:
    """Return this process's rank and world size; 0 of 1 where nobody says anything.

    Raises:
        InvalidValue: Two sources differ, or what the caller says cannot be.
    """
    stated = _RankAnswer(
        source="the argument",
        rank=_stated(rank, name="rank", least=0),
        world_size=_stated(world_size, name="world_size", least=1),
    )
    answers = [one for one in (stated, _torch_answer(), *_environment(environ)) if one]
    number = _agreed([(one.source, one.rank) for one in answers], name="rank")
    size = _agreed([(one.source, one.world_size) for one in answers], name="world_size")
    if number is not None and size is not None and number >= size:
        raise InvalidValue("rank", number, f"a rank below the world size, {size}")
    # A Slurm job's batch script is no task: what it inherits decides only where nobody else does.
    number = facts.rank(environ) if number is None else number
    size = max(number + 1, facts.world_size(environ)) if size is None else size
    return RankPlace(rank=number, world_size=size)


def _agreed(said: list[tuple[str, int | None]], *, name: str) -> int | None:
    """Return the first answer, which every other one must repeat."""
    answers = [(source, value) for source, value in said if value is not None]
    for source, value in answers[1:]:
        if value != answers[0][1]:
            expected = f"{answers[0][1]}, which {answers[0][0]} says; {source} says {value}"
            raise InvalidValue(name, value, f"{expected}. Correct the one that is wrong")
    return answers[0][1] if answers else None


def _stated(value: object, *, name: str, least: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise InvalidValue(name, value, f"a whole number, {least} or more")
    return value


def _torch_answer() -> _RankAnswer | None:
    """Return what torch.distributed says, where a training has loaded and initialised it."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return _RankAnswer(
        source="torch.distributed", rank=dist.get_rank(), world_size=dist.get_world_size()
    )


def _environment(environ: Mapping[str, str]) -> Iterator[_RankAnswer]:
    """Yield what the innermost launcher says of this process: it knows best."""
    rank, size = whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE")
    tasks = whole_number(environ, "SLURM_NTASKS")
    if rank is not None:
        yield _RankAnswer(source="the environment (RANK)", rank=rank, world_size=size or None)
    elif whole_number(environ, "LOCAL_RANK") is not None and (size or 1) > 1:
        # What Lightning's own launcher sets; without NODE_RANK there is one node.
        yield _RankAnswer(
            source="the environment (NODE_RANK, LOCAL_RANK)",
            rank=_rank_on_node(environ),
            world_size=size,
        )
    elif environ.get("SLURM_STEP_ID") and (tasks or 1) > 1:
        yield _RankAnswer(
            source="the environment (SLURM_PROCID)",
            rank=whole_number(environ, "SLURM_PROCID"),
            world_size=tasks,
        )


def _rank_on_node(environ: Mapping[str, str]) -> int | None:
    """Return the rank that a place on a node amounts to; None where that is not known."""
    node, local = whole_number(environ, "NODE_RANK") or 0, whole_number(environ, "LOCAL_RANK")
    each = whole_number(environ, "LOCAL_WORLD_SIZE")
    if local is None or (node and each is None):
        return None
    return local + node * (each or 0)
