"""Finds this process's rank and world size.

Sources in order: the caller, torch.distributed if it is loaded and initialised, the environment.
The first one that has an answer decides. Sources that disagree are an error, because two processes
with the same rank would write one log, or count a budget twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.errors import InvalidValue
from outlay.machine import whole_number
from outlay.record import facts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A process's rank among the processes that train together."""

    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankAnswer:
    """One source's answer; None for what it does not know."""

    source: str
    rank: int | None = None
    world_size: int | None = None


def find_place(
    environ: Mapping[str, str], *, rank: object = None, world_size: object = None
) -> RankPlace:
    """Return this process's rank and world size; 0 of 1 if no source knows.

    Raises:
        InvalidValue: Two sources differ, or the caller's value is not valid.
    """
    stated = _RankAnswer(
        source="the argument",
        rank=_check_stated(rank, name="rank", least=0),
        world_size=_check_stated(world_size, name="world_size", least=1),
    )
    answers = [one for one in (stated, _torch_answer(), *_environment_answers(environ)) if one]
    number, size = _first_answer(answers, "rank"), _first_answer(answers, "world_size")
    if number is not None and size is not None and number >= size:
        raise InvalidValue("rank", number, f"a rank below the world size, {size}")
    # A Slurm batch script is not a task, so variables it inherits are only the fallback.
    number = facts.rank(environ) if number is None else number
    size = max(number + 1, facts.world_size(environ)) if size is None else size
    return RankPlace(rank=number, world_size=size)


def _first_answer(answers: list[_RankAnswer], name: str) -> int | None:
    """Return the first answer; all others must equal it."""
    given = [(one.source, getattr(one, name)) for one in answers]
    known: list[tuple[str, int]] = [(source, value) for source, value in given if value is not None]
    for source, value in known[1:]:
        if value != known[0][1]:
            expected = f"{known[0][1]}, as {known[0][0]} says; {source} says {value}"
            raise InvalidValue(name, value, f"{expected}. Correct the one that is wrong")
    return known[0][1] if known else None


def _check_stated(value: object, *, name: str, least: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise InvalidValue(name, value, f"a whole number, {least} or more")
    return value


def _torch_answer() -> _RankAnswer | None:
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return _RankAnswer(
        source="torch.distributed", rank=dist.get_rank(), world_size=dist.get_world_size()
    )


def _environment_answers(environ: Mapping[str, str]) -> Iterator[_RankAnswer]:
    """Yield the answer of the innermost launcher."""
    rank, size = whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE")
    tasks = whole_number(environ, "SLURM_NTASKS")
    if rank is not None:
        yield _RankAnswer(source="the environment (RANK)", rank=rank, world_size=size or None)
    elif whole_number(environ, "LOCAL_RANK") is not None and (size or 1) > 1:
        # Set by Lightning's own launcher; without NODE_RANK there is one node.
        yield _RankAnswer(
            source="the environment (NODE_RANK, LOCAL_RANK)",
            rank=_global_rank(environ),
            world_size=size,
        )
    elif environ.get("SLURM_STEP_ID") and (tasks or 1) > 1:
        yield _RankAnswer(
            source="the environment (SLURM_PROCID)",
            rank=whole_number(environ, "SLURM_PROCID"),
            world_size=tasks,
        )


def _global_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank computed from the node's number and the local rank; None if unknown."""
    node, local = whole_number(environ, "NODE_RANK") or 0, whole_number(environ, "LOCAL_RANK")
    each = whole_number(environ, "LOCAL_WORLD_SIZE")
    if local is None or (node and each is None):
        return None
    return local + node * (each or 0)
