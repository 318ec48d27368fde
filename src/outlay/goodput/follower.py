"""Following a run's log on disk: a query costs what is new, however long the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlay.errors import Finding, InvalidValue, NotARun
from outlay.goodput.breakdown import Breakdown, Window, break_down, without
from outlay.goodput.deviation import ideal_step_ns
from outlay.goodput.fold import SegmentFold
from outlay.goodput.run_fold import RunFold
from outlay.goodput.step_blocks import decode_steps
from outlay.goodput.steps import Usage
from outlay.goodput.throughput import RankRow, stragglers, total_usage
from outlay.goodput.timeline import Timeline, TimelineBuilder
from outlay.ledger import LedgerReader, Record, SegmentId, derive_attempts
from outlay.ledger.attempts import DEAD_AFTER_NS
from outlay.ledger.codec import decode_block
from outlay.rates import RateFunction, run_rates
from outlay.record.liveness import seems_alive

Listener = Callable[[SegmentId, Sequence[Record]], None]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it stands at one moment: its timeline, its rates, and what is wrong in its log."""

    timeline: Timeline
    rates: RateFunction | None
    fold: RunFold
    findings: tuple[Finding, ...]

    @property
    def whole(self) -> Window:
        """The whole run, from its first start to its end or the present."""
        return Window(self.timeline.start_ns, self.timeline.end_ns)

    def window(self, start_ns: int | None = None, end_ns: int | None = None) -> Window:
        """Return a window of the run; what is left out is the run's own bound.

        Raises:
            InvalidValue: It ends before it starts.
        """
        window = Window(
            self.timeline.start_ns if start_ns is None else start_ns,
            self.timeline.end_ns if end_ns is None else end_ns,
        )
        if window.end_ns < window.start_ns:
            raise InvalidValue("window", (start_ns, end_ns), "an end that is not before the start")
        return window

    def usage(self) -> Usage:
        """Return what all ranks used together."""
        return total_usage(self.fold)

    def ranks(self) -> list[RankRow]:
        """Return how the ranks of the last attempt fare beside each other, slowest first."""
        last = self.timeline.attempts[-1]
        return stragglers(self.fold.segments[segment] for segment in last.ranks)

    def break_down(
        self, window: Window | None = None, *, exclusions: tuple[Window, ...] = ()
    ) -> Breakdown:
        """Return what became of a window (default: the whole run), without the exclusions."""
        chosen = without(self.whole if window is None else window, exclusions)
        return break_down(self.timeline, self.rates, chosen)


class GoodputFollower:
    """Answers questions about one run while its log grows.

    Args:
        run_dir: The run's directory.
        beside: Handed every record as well, segment by segment, for what the timeline does not
            keep. Steps are then read one by one and not by column, which takes longer.
    """

    def __init__(self, run_dir: Path, beside: Listener | None = None) -> None:
        self._dir = run_dir
        self._beside = beside
        self._reader = LedgerReader(run_dir, decode=decode_block if beside else decode_steps)
        self._builder = TimelineBuilder()

    def view(
        self, now_ns: int, *, alive: bool | None = None, dead_after_ns: int = DEAD_AFTER_NS
    ) -> RunView:
        """Return the run as it stands at ``now_ns``.

        Args:
            now_ns: The present.
            alive: Whether it still runs; default: what this host can tell, else by its silence.
            dead_after_ns: How long a silence means death where nothing else tells.

        Raises:
            NotARun: There is no run log.
        """
        for chunk in self._reader.poll():
            self._builder.fold.fold(chunk.segment, chunk.records)
            if self._beside is not None:
                self._beside(chunk.segment, chunk.records)
        attempts = derive_attempts(self._builder.fold.lives())
        if alive is None and attempts:
            alive = seems_alive(self._dir, attempts[-1])
        timeline = self._builder.build(now_ns, alive=alive, dead_after_ns=dead_after_ns)
        if timeline is None:
            raise NotARun(str(self._dir))
        return view_of(timeline, self._builder.fold, tuple(self._reader.findings()))


def view_of(timeline: Timeline, fold: RunFold, findings: tuple[Finding, ...] = ()) -> RunView:
    """Return a timeline with its rates, its ranks, and everything that is wrong with them."""
    rates = run_rates(timeline.attempts, max(timeline.now_ns, timeline.end_ns))
    overlaps = tuple(
        Finding(
            source=attempt.segment.file_name,
            message="was still recording when the next attempt began; the later one counts",
            severity="warning",
        )
        for attempt in timeline.attempts
        if attempt.overlaps
    )
    every = (*findings, *fold.findings(), *overlaps, *rates.findings)
    return RunView(timeline, rates.function, fold, every)


def folds_of(view: RunView) -> list[SegmentFold]:
    """Return the records of a run's attempts, without what a later attempt overlaps."""
    return [view.fold.of(attempt) for attempt in view.timeline.attempts]


def ideal_of(view: RunView, configured_ideal_step_time: float | None) -> float | None:
    """Return the ideal step time in nanoseconds: what was configured, in seconds, or measured."""
    measured_ns = ideal_step_ns(view.timeline.times)
    if measured_ns is None or configured_ideal_step_time is None:
        return measured_ns
    return configured_ideal_step_time * 1e9
