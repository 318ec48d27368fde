"""Speed of a run: tokens per second, MFU, stragglers, step time deviation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Ints
from outlay.account.run import RunAccount, SegmentAccount
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.attempt import OwnTimes
from outlay.goodput.steps import SortedTimes
from outlay.goodput.timeline import Breakdown, Timeline, Window, within
from outlay.rates import gpu_pieces


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second of wall time and of step time; None if there was no such time.

    Undone steps count, with their tokens and their time.
    """

    tokens: int
    per_wall_second: float | None
    per_productive_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """What a model needs and what a GPU can do; no log has it.

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
    """Model FLOPs utilisation, 0 to 1: of wall time, and of step time."""

    of_wall: float | None
    of_productive: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Medians over the steps of one rank, in nanoseconds.

    ``slowdown`` is its median step divided by that of the fastest rank.
    """

    rank: int
    host: str
    steps: int
    median_step_ns: int
    median_wait_ns: int
    slowdown: float


def tokens_in(account: RunAccount, windows: Iterable[Window]) -> int:
    """Return the tokens of all ranks in windows; a step counts in the window of its end."""
    moves, segments = account.moves(), account.shown()
    return sum(
        segment.tokens_between(window.start_ns - moved_ns, window.end_ns - moved_ns)
        for window in windows
        for segment in segments
        for moved_ns in [moves.get(segment.life.segment, 0)]
    )


def throughput(tokens: int, breakdown: Breakdown) -> Throughput:
    """Return the tokens per second of a breakdown."""
    return Throughput(
        tokens=tokens,
        per_wall_second=_per_second(tokens, breakdown.wall_ns),
        per_productive_second=_per_second(tokens, _executing_ns(breakdown.phases)),
    )


def utilisation(
    tokens: int, model: ModelFlops, timeline: Timeline, windows: Sequence[Window]
) -> Utilisation:
    """Return the model FLOPs utilisation of windows (MFU, arXiv:2204.02311).

    Between two attempts the GPUs are those of the first.
    """
    wall_ns = executing_ns = Fraction(0)  # GPU time.
    last_ns = timeline.intervals[-1].end_ns
    for (start_ns, gpus), (end_ns, _) in pairwise([*_gpus(timeline), (last_ns, Fraction(0))]):
        for part in within(windows, start_ns, end_ns):
            phases = timeline.between(part.start_ns, part.end_ns)
            wall_ns += gpus * sum(phases.values())
            executing_ns += gpus * _executing_ns(phases)

    def of_peak(gpu_ns: Fraction) -> float | None:
        per_second = _per_second(tokens, round(gpu_ns))
        return None if per_second is None else per_second * model.per_token / model.peak

    return Utilisation(of_wall=of_peak(wall_ns), of_productive=of_peak(executing_ns))


def _gpus(timeline: Timeline) -> Iterator[tuple[int, Fraction]]:
    """Yield instants from which on the run had a number of GPUs."""
    for attempt in timeline.attempts:
        for piece in gpu_pieces(attempt):
            yield piece.start_ns, piece.gpus


def _executing_ns(phases: ph.Phases) -> int:
    """Return the time in steps, undone ones included, as their tokens count too."""
    return phases.get(ph.STEP, 0) + phases.get(ph.WASTED_PROGRESS, 0)


def stragglers(ranks: Iterable[SegmentAccount]) -> list[RankRow]:
    """Return a row per rank of one attempt, slowest first; ranks without steps are left out."""
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


# Deviation of step times from the ideal step time.
#
# The ideal step time is the mean of the own times that are not anomalous, that is at most the
# median plus three median absolute deviations.

Floats = NDArray[np.float64]
ANOMALOUS_MADS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Executions of steps in order: step numbers, and own time per step in nanoseconds."""

    number: Ints
    own_ns: Floats

    @classmethod
    def of(cls, attempts: Iterable[OwnTimes]) -> StepTimes:
        """Return all executions of a run's attempts."""
        return cls._joined(cls._of(own, 0) for own in attempts)

    @classmethod
    def as_of_now(cls, attempts: Iterable[OwnTimes]) -> Callable[[], StepTimes]:
        """Return a function that computes ``of`` for the records of now."""
        columns = [(attempt.segment.steps, attempt.before()[0]) for attempt in attempts]
        return lambda: cls._joined(
            cls(steps.number, np.diff(own) / steps.count) for steps, own in columns
        )

    @classmethod
    def after(cls, attempts: Iterable[OwnTimes], step: int) -> StepTimes:
        """Return the executions of steps above a number."""
        return cls._joined(cls._of(own, _first_after(own, step)) for own in attempts).beyond(step)

    @classmethod
    def latest(cls, attempts: Sequence[OwnTimes], count: int) -> StepTimes:
        """Return the last ``count`` executions."""
        parts: list[StepTimes] = []
        for own in reversed(attempts):
            if count <= 0:
                break
            parts.append(cls._of(own, max(own.segment.step_count - count, 0)))
            count -= len(parts[-1])
        return cls._joined(reversed(parts))

    @classmethod
    def _of(cls, attempt: OwnTimes, first: int) -> StepTimes:
        own, _ = attempt.before()
        steps = attempt.segment.steps
        return cls(steps.number[first:], np.diff(own[first:]) / steps.count[first:])

    @classmethod
    def _joined(cls, parts: Iterable[StepTimes]) -> StepTimes:
        nothing = cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
        every = [nothing, *parts]
        return cls(
            np.concatenate([part.number for part in every]),
            np.concatenate([part.own_ns for part in every]),
        )

    def __len__(self) -> int:
        return len(self.number)

    def beyond(self, step: int) -> StepTimes:
        """Return the executions of steps above a number."""
        later = self.number > step
        return StepTimes(self.number[later], self.own_ns[later])


def _first_after(own: OwnTimes, step: int) -> int:
    """Return an index such that no record before it is above a number."""
    segment = own.segment
    return int(segment.steps.number.searchsorted(step, side="right")) if segment.only_grows else 0


def ideal_step_ns(times: SortedTimes) -> float | None:
    """Return the mean of the times that are not anomalously long, or None without times.

    Twice the median and four times the spread are used to stay in integers.
    """
    if not len(times):
        return None
    twice_median = sum(times.middle())
    spread_four_times = sum(times.middle_distances(twice_median))
    beyond = (2 * twice_median + ANOMALOUS_MADS * spread_four_times) // 4 + 1
    return times.total_below(beyond) / times.below(beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOff:
    """An execution of a step: its own time and its deviation from the ideal, in nanoseconds."""

    step: int
    own_ns: int
    off_ns: int


def worst_steps(times: StepTimes, ideal_ns: float, count: int) -> list[StepOff]:
    """Return the executions that deviate most from the ideal, in either direction."""
    off = times.own_ns - ideal_ns
    worst = np.argsort(-np.abs(off), kind="stable")[:count]
    return [
        StepOff(
            step=int(times.number[place]),
            own_ns=round(float(times.own_ns[place])),
            off_ns=round(float(off[place])),
        )
        for place in worst
    ]
