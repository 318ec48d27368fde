"""How fast a run is: tokens per second, model FLOPs utilisation, and who holds it up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from outlay.errors import InvalidValue
from outlay.goodput.breakdown import Breakdown
from outlay.goodput.fold import SegmentFold
from outlay.goodput.run_fold import RunFold
from outlay.goodput.steps import Usage


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second over wall time and over productive time; None where there was none."""

    tokens: int
    per_wall_second: float | None
    per_productive_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """What a model needs and a GPU can do, which no log tells.

    Attributes:
        per_token: FLOPs of one forward and backward pass, about 6 per parameter.
        peak: FLOPs of one GPU, per second.

    Raises:
        InvalidValue: One of them is not a finite number above zero.
    """

    per_token: float
    peak: float

    def __post_init__(self) -> None:
        for name, value in (("flops_per_token", self.per_token), ("peak_flops", self.peak)):
            if not 0 < value < float("inf"):
                raise InvalidValue(name, value, "a finite number above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Model FLOPs utilisation, 0 to 1: over wall time, and while training was productive."""

    of_wall: float | None
    of_productive: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """How one rank fares beside the others: medians over its steps, in nanoseconds.

    ``slowdown`` is its median step over that of the fastest rank.
    """

    rank: int
    host: str
    steps: int
    median_step_ns: int
    median_wait_ns: int
    slowdown: float


def total_usage(fold: RunFold) -> Usage:
    """Return what all ranks used together; repeated work counts each time."""
    return sum((segment.usage for segment in fold.shown()), start=Usage())


def throughput(usage: Usage, breakdown: Breakdown) -> Throughput:
    """Return the run's speed over the whole of its breakdown."""
    productive_ns = breakdown.phases.get("step", 0)
    return Throughput(
        tokens=usage.tokens,
        per_wall_second=_per_second(usage.tokens, breakdown.wall_ns),
        per_productive_second=_per_second(usage.tokens, productive_ns),
    )


def utilisation(rate: Throughput, model: ModelFlops, gpus: int) -> Utilisation:
    """Return how much of what the GPUs could do the model needed (MFU, arXiv:2204.02311)."""
    return Utilisation(
        of_wall=_share_of_peak(rate.per_wall_second, model, gpus),
        of_productive=_share_of_peak(rate.per_productive_second, model, gpus),
    )


def _share_of_peak(tokens_per_second: float | None, model: ModelFlops, gpus: int) -> float | None:
    if tokens_per_second is None or not gpus:
        return None
    return tokens_per_second * model.per_token / (model.peak * gpus)


def stragglers(folds: Iterable[SegmentFold]) -> list[RankRow]:
    """Return the ranks of one attempt, the slowest first; ranks without steps are left out."""
    stepping = [fold for fold in folds if len(fold.end)]
    medians = {id(fold): _median(fold.end.values - fold.start.values) for fold in stepping}
    fastest = min(medians.values(), default=0)
    rows = [
        RankRow(
            rank=fold.life.segment.rank,
            host=fold.life.segment.host,
            steps=fold.usage.steps,
            median_step_ns=medians[id(fold)],
            median_wait_ns=_median(fold.wait.values),
            slowdown=medians[id(fold)] / fastest if fastest else 1.0,
        )
        for fold in stepping
    ]
    return sorted(rows, key=lambda row: (-row.median_step_ns, row.rank))


def _median(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    return int(np.median(values))


def _per_second(count: int, ns: int) -> float | None:
    return count / (ns / 1e9) if ns else None
