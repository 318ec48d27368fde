"""How fast a run is: tokens per second, model FLOPs utilisation, and who holds it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from outlay.account.columns import Ints
from outlay.account.run import RunAccount
from outlay.account.segment import SegmentAccount
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Breakdown, Window, within
from outlay.goodput.timeline import Timeline
from outlay.rates import gpu_pieces


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second over wall time and while steps ran; None where there was no such time.

    Steps that were undone since count: their tokens, and in the latter their time.
    """

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
class GpuTime:
    """GPUs times nanoseconds: of wall time, and of the steps in it."""

    wall_ns: int
    executing_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Model FLOPs utilisation, 0 to 1: over wall time, and while steps ran."""

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


def tokens_in(account: RunAccount, windows: Iterable[Window]) -> int:
    """Return the tokens of all ranks in some windows; a step counts where it ended."""
    return sum(
        segment.tokens_between(window.start_ns, window.end_ns)
        for window in windows
        for segment in account.shown()
    )


def throughput(tokens: int, breakdown: Breakdown) -> Throughput:
    """Return how fast tokens were made of a breakdown's time."""
    return Throughput(
        tokens=tokens,
        per_wall_second=_per_second(tokens, breakdown.wall_ns),
        per_productive_second=_per_second(tokens, _executing_ns(breakdown.phases)),
    )


def gpu_time(timeline: Timeline, windows: Sequence[Window]) -> GpuTime:
    """Return the GPU time in some windows; between two attempts the GPUs are those of the first."""
    wall_ns = executing_ns = Fraction(0)
    last_ns = timeline.stretches[-1].end_ns
    for (start_ns, gpus), (end_ns, _) in pairwise([*_gpus(timeline), (last_ns, Fraction(0))]):
        for part in within(windows, start_ns, end_ns):
            phases = timeline.between(part.start_ns, part.end_ns)
            wall_ns += gpus * sum(phases.values())
            executing_ns += gpus * _executing_ns(phases)
    return GpuTime(wall_ns=round(wall_ns), executing_ns=round(executing_ns))


def utilisation(tokens: int, model: ModelFlops, gpus: GpuTime) -> Utilisation:
    """Return how much of what the GPUs could do the model needed (MFU, arXiv:2204.02311)."""

    def of_peak(gpu_ns: int) -> float | None:
        per_second = _per_second(tokens, gpu_ns)
        return None if per_second is None else per_second * model.per_token / model.peak

    return Utilisation(of_wall=of_peak(gpus.wall_ns), of_productive=of_peak(gpus.executing_ns))


def _gpus(timeline: Timeline) -> Iterator[tuple[int, Fraction]]:
    """Yield from when on the run had how many GPUs."""
    for attempt in timeline.attempts:
        for piece in gpu_pieces(attempt):
            yield piece.start_ns, piece.gpus


def _executing_ns(phases: ph.Phases) -> int:
    """Return how long steps ran; those undone since took their time, and their tokens count."""
    return phases.get(ph.STEP, 0) + phases.get(ph.WASTED_PROGRESS, 0)


def stragglers(ranks: Iterable[SegmentAccount]) -> list[RankRow]:
    """Return the ranks of one attempt, the slowest first; ranks without steps are left out."""
    stepping = [(rank, rank.steps) for rank in ranks if rank.step_count]
    medians = [_median((steps.end - steps.start) // steps.count) for _, steps in stepping]
    fastest = min(medians, default=0)
    rows = [
        RankRow(
            rank=rank.life.segment.rank,
            host=rank.life.segment.host,
            steps=rank.work.steps,
            median_step_ns=median_ns,
            median_wait_ns=_median(steps.wait // steps.count),
            slowdown=median_ns / fastest if fastest else 1.0,
        )
        for (rank, steps), median_ns in zip(stepping, medians, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.median_step_ns, row.rank))


def _median(values: Ints) -> int:
    return int(np.median(values))


def _per_second(count: int, ns: int) -> float | None:
    return count / (ns / 1e9) if ns else None
