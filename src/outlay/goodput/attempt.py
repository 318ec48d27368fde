"""The exact partition of one attempt's wall time into phases; pure integer arithmetic.

The phase of an instant is the first that matches: the latest-begun open span; the data wait; a
step's own time; ``other``. Time before the first record is ``program_startup``. Own time is split
further: what the attempt's first step takes longer than typical, at its head, is
``program_startup``; the tail of a stalled step is ``stall``; a step that was executed again later
is ``wasted_progress``.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import add
from typing import NamedTuple

import numpy as np

from outlay.account.columns import Column, Ints, SpanColumns, SpanInterval, Spans, cumulative
from outlay.account.run import SegmentAccount
from outlay.goodput import phases as ph
from outlay.goodput.steps import SlowSteps, Typical, Undone, UndoneTime, undone_steps
from outlay.ledger import CheckpointCommitted

# The span of each instant: overlapping spans, flattened.
#
# An instant belongs to the open span that began last; of two that began at the same instant, to
# the one recorded last. Intervals are half-open.


class Cover:
    """Disjoint spans in order, and how much time they cover."""

    def __init__(self, spans: SpanColumns) -> None:
        self._spans = spans
        self._cumulative = cumulative(spans.end - spans.begin)

    def __bool__(self) -> bool:
        return bool(len(self._spans.begin))

    @cached_property
    def _by_phase(self) -> dict[str, Cover]:
        return {phase: Cover(spans) for phase, spans in self._spans.by(ph.phase_of_span)}

    def before(self, instants: Ints) -> Ints:
        """Return how many nanoseconds are covered before each instant."""
        if not self:
            return np.zeros(len(instants), dtype=np.int64)
        begun = np.searchsorted(self._spans.begin, instants, side="right")
        # Subtract the part of the last begun span that is after the instant.
        beyond = np.maximum(self._spans.end[begun - 1] - instants, 0)
        return self._cumulative[begun] - np.where(begun > 0, beyond, 0)

    def phases_before(self, t_ns: int) -> dict[str, int]:
        """Return the nanoseconds covered by each phase before ``t_ns``."""
        instant = np.array([t_ns], dtype=np.int64)
        return {phase: int(cover.before(instant)[0]) for phase, cover in self._by_phase.items()}


_EMPTY = Cover(Spans().columns())


def segment_cover(segment: SegmentAccount, start_ns: int, end_ns: int) -> Cover:
    """Return the cover of a window by a process's spans; open spans last until its end."""
    return cover_of(segment.spans, segment.open_spans(end_ns), start_ns, end_ns)


def cover_of(spans: Spans, still_open: Sequence[SpanInterval], start_ns: int, end_ns: int) -> Cover:
    """Return the cover of a window by spans."""
    if not len(spans) and not still_open:
        return _EMPTY
    clipped = spans.columns(still_open).within(start_ns, end_ns)
    if (clipped.end[:-1] <= clipped.begin[1:]).all():
        return Cover(clipped)  # The usual case: no overlaps.
    return Cover(SpanColumns.of(flatten([*spans, *still_open], start_ns, end_ns)))


def flatten(spans: Iterable[SpanInterval], start_ns: int, end_ns: int) -> list[SpanInterval]:
    """Return disjoint intervals within ``[start_ns, end_ns)``, each with the name of its span."""
    # Ranked before clipping: a span clipped at the start keeps its rank.
    clipped = [
        SpanInterval(max(span.begin_ns, start_ns), rank, min(span.end_ns, end_ns), span.name)
        for rank, span in enumerate(sorted(spans))
        if max(span.begin_ns, start_ns) < min(span.end_ns, end_ns)
    ]
    return list(_sweep(clipped))


def _sweep(spans: Sequence[SpanInterval]) -> Iterator[SpanInterval]:
    """Sweep over all begins and ends; a heap holds the open spans, the last begun on top."""
    open_spans: list[tuple[int, SpanInterval]] = []
    edges = sorted({edge for span in spans for edge in (span.begin_ns, span.end_ns)})
    waiting = deque(spans)
    for edge, following in pairwise(edges):
        while waiting and waiting[0].begin_ns <= edge:
            heapq.heappush(open_spans, (-waiting[0].order, waiting.popleft()))
        while open_spans and open_spans[0][1].end_ns <= edge:
            heapq.heappop(open_spans)
        if open_spans:
            top = open_spans[0][1]
            yield SpanInterval(edge, top.order, following, top.name)


# Own time of steps: without spans and data waits. Cached until a late span or step changes it.

_BLOCK_STEPS = 1 << 17  # Bounds the temporary memory of a vector pass.


class OwnTimes:
    """The own times of one process's steps, updated as its account grows.

    Attributes:
        revision: Incremented when cached own times are recomputed.
    """

    def __init__(self, segment: SegmentAccount) -> None:
        self.segment = segment
        self.revision = 0
        self._folded = -1
        self._slow = SlowSteps()
        self._own, self._waited = Column([0]), Column([0])

    def before(self) -> tuple[Ints, Ints]:
        """Return cumulative own time and data wait: entry i is the sum before record i."""
        self.update()
        return self._own.values, self._waited.values

    def update(self) -> bool:
        """Compute the own times of new records; return whether anything was folded."""
        if self._folded == self.segment.revision:
            return False
        self._folded = self.segment.revision
        self._forget_from(self.segment.pop_rewritten_from())
        done, steps = len(self._own) - 1, self.segment.step_count
        if done < steps:
            life = self.segment.life
            cover = segment_cover(self.segment, life.start_ns, life.last_sign_ns)
            for first in range(done, steps, _BLOCK_STEPS):
                self._extend(cover, first, min(first + _BLOCK_STEPS, steps))
        return True

    def per_step(self, first: int) -> Ints:
        """Return the own time per step of the records from ``first`` on."""
        own, _ = self.before()
        times: Ints = np.diff(own[first:])
        return times // self.segment.steps.count[first:]

    def beyond(self, bound_ns: int) -> Ints:
        """Return the indices of the records whose own time per step exceeds a bound, in order."""
        own, _ = self.before()
        return self._slow.beyond(bound_ns, own, self.segment.steps.count)

    def _extend(self, cover: Cover, first: int, beyond: int) -> None:
        start_ns = self.segment.life.start_ns
        waits, starts, ends = self.segment.steps.bounds(start_ns, first, beyond)
        own, waited = ends - starts, starts - waits
        if cover:
            covered_at_start = cover.before(starts)
            own -= cover.before(ends) - covered_at_start
            waited -= covered_at_start - cover.before(waits)
        self._own.extend(self._own.values[-1] + np.cumsum(own))
        self._waited.extend(self._waited.values[-1] + np.cumsum(waited))

    def _forget_from(self, index: int) -> None:
        self._slow.forget_from(index)
        if index + 1 < len(self._own):
            self._own.truncate(index + 1)
            self._waited.truncate(index + 1)
            self.revision += 1


# The phases of one attempt.


class _Split(NamedTuple):
    """The own time of a step, in order of time."""

    startup_ns: int
    kept_ns: int
    undone_ns: int
    stall_ns: int

    def before(self, own_ns: int) -> _Split:
        """Return the split of the first ``own_ns`` nanoseconds."""
        parts = []
        for part_ns in self:
            parts.append(min(part_ns, own_ns))
            own_ns -= parts[-1]
        return _Split(*parts)


class AttemptTimeline:
    """The phases of one attempt over ``[start_ns, end_ns)``.

    ``typical`` is of the whole run; ``redone_from`` is the lowest step number that a later attempt
    executed.
    """

    def __init__(
        self,
        start_ns: int,
        end_ns: int,
        times: OwnTimes,
        typical: Typical | None,
        redone_from: int | None,
    ) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        segment = times.segment
        self._segment_start_ns = segment.life.start_ns
        header = segment.life.header
        self._has_process_start = header is not None and header.nodes > 0
        self._steps = segment.steps
        self.checkpoints: Sequence[CheckpointCommitted] = tuple(segment.checkpoints)
        self._cover = segment_cover(segment, start_ns, end_ns)
        self._own, self._waited = times.before()
        self._only_grows = segment.only_grows
        self.undone: Undone = undone_steps(
            self._steps.number, self._steps.count, redone_from, only_grows=segment.only_grows
        )
        self._undone_time = UndoneTime(self.undone, self._own)
        self._times = times
        self._set_typical(typical)

    def with_typical(self, typical: Typical | None) -> AttemptTimeline:
        """Return the same attempt with another typical step."""
        if typical == self._typical:
            return self
        other = copy.copy(self)
        other.__dict__.pop("whole", None)
        other._set_typical(typical)
        return other

    def _set_typical(self, typical: Typical | None) -> None:
        """Find the startup of the first step, and the records that stalled and for how long."""
        self._typical = typical
        self._startup_ns, usual_ns = 0, 0
        self.stalled: Ints = np.empty(0, dtype=np.int64)
        if typical is not None and self.step_count:
            usual_ns = typical.step_ns
            excess_ns = self.own_ns(0) - usual_ns * int(self._steps.count[0])
            self._startup_ns = excess_ns if excess_ns > 0 else 0
            late = self._times.beyond(typical.stall_beyond_ns)
            self.stalled = late[late > 0]  # The excess of the first step is startup.
        own = self._own[self.stalled + 1] - self._own[self.stalled]
        self._stalls = own - usual_ns * self._steps.count[self.stalled]
        self._stall_before = cumulative(self._stalls)
        is_undone = self.undone.contains(self.stalled)
        self._undone_stall_before = cumulative(np.where(is_undone, self._stalls, 0))

    @property
    def step_count(self) -> int:
        """The number of step records."""
        return len(self._own) - 1

    @property
    def first_step_excess_ns(self) -> int:
        """What the first step took longer than the typical one; 0 if it did not."""
        return self._startup_ns

    @property
    def furthest_step(self) -> int:
        """The highest step number that the attempt executed; -1 without steps."""
        latest = slice(-1, None) if self._only_grows else slice(None)
        reached = self._steps.number[latest] + self._steps.count[latest] - 1
        return int(reached.max(initial=-1))

    @property
    def first_step_end_ns(self) -> int:
        """The end of the attempt's first step; the attempt's end without steps."""
        return self._bounds(0)[2] if self.step_count else self.end_ns

    def last_step_before(self, t_ns: int | None) -> int | None:
        """Return the number of the last step that ended by ``t_ns`` (default: ever), if any."""
        ends = self._steps.end
        done = len(ends) if t_ns is None else int(np.searchsorted(ends, t_ns, side="right"))
        if not done:
            return None
        return int(self._steps.number[done - 1] + self._steps.count[done - 1]) - 1

    def start_of_step_after(self, step: int) -> int:
        """Return the start of the first step above ``step``; the attempt's end if there is none."""
        number = self._steps.number
        if self._only_grows:
            index = int(np.searchsorted(number, step, side="right"))
        else:
            index = next(iter(np.flatnonzero(number > step).tolist()), self.step_count)
        return self._bounds(index)[1] if index < self.step_count else self.end_ns

    def first_kept_after(self, step: int) -> int | None:
        """Return the start of the first surviving step above ``step``; None if there is none."""
        reached = self._steps.number + self._steps.count - 1
        beyond = np.flatnonzero(reached > step)
        surviving = beyond[~self.undone.contains(beyond)]
        return self._bounds(int(surviving[0]))[1] if len(surviving) else None

    def own_ns(self, index: int) -> int:
        """Return the own time of one step record."""
        return int(self._own[index + 1] - self._own[index])

    def own_times(self) -> Ints:
        """Return the own time of every step record."""
        return np.diff(self._own)

    def step_ends(self) -> Ints:
        """Return the end of every step record."""
        return self._steps.end

    @cached_property
    def whole(self) -> dict[str, int]:
        """The nanoseconds of each phase of the attempt."""
        return self.before(self.end_ns)

    def before(self, t_ns: int) -> dict[str, int]:
        """Return the nanoseconds of each phase between the attempt's start and ``t_ns``."""
        index = int(np.searchsorted(self._steps.end, t_ns, side="right"))
        split, waited_ns = self._whole_steps_before(index), int(self._waited[index])
        if index < self.step_count:
            begun, begun_wait_ns = self._begun_step_before(index, t_ns)
            split, waited_ns = _Split(*map(add, split, begun)), waited_ns + begun_wait_ns
        found = {
            ph.PROGRAM_STARTUP: split.startup_ns + self._unrecorded_before(t_ns),
            ph.STEP: split.kept_ns,
            ph.WASTED_PROGRESS: split.undone_ns,
            ph.STALL: split.stall_ns,
        }
        found = ph.added(found, self._cover.phases_before(t_ns))
        found[ph.DATA_LOADING] = found.get(ph.DATA_LOADING, 0) + waited_ns
        found[ph.OTHER] = t_ns - self.start_ns - sum(found.values())
        return found

    def _unrecorded_before(self, t_ns: int) -> int:
        """Return the time before the first record, up to ``t_ns``.

        0 in logs without process starts: there it is not known to be startup.
        """
        if not self._has_process_start:
            return 0
        return max(min(t_ns, self._segment_start_ns) - self.start_ns, 0)

    def _whole_steps_before(self, index: int) -> _Split:
        """Return the split of all records before ``index``, from cumulative sums."""
        if not index:
            return _Split(0, 0, 0, 0)
        stalls = int(np.searchsorted(self.stalled, index))
        stall_ns = int(self._stall_before[stalls])
        undone_ns = self._undone_time.before(index)
        undone_ns -= int(self._undone_stall_before[stalls])
        if self.undone.is_undone(0):
            undone_ns -= self._startup_ns
        undone_ns += sum(self._split(i).undone_ns for i in self.undone.partly if i < index)
        kept_ns = int(self._own[index]) - self._startup_ns - stall_ns - undone_ns
        return _Split(self._startup_ns, kept_ns, undone_ns, stall_ns)

    def _begun_step_before(self, index: int, t_ns: int) -> tuple[_Split, int]:
        """Return the split and the data wait, up to ``t_ns``, of a step that ends later."""
        wait_start, start, _ = self._bounds(index)
        waited_ns = self._uncovered_ns(wait_start, min(t_ns, start))
        return self._split(index).before(self._uncovered_ns(start, t_ns)), waited_ns

    def _bounds(self, index: int) -> tuple[int, int, int]:
        """Return the start of the wait for a step, its start and its end, without overlaps."""
        wait_start, start, end = self._steps.bounds(self._segment_start_ns, index, index + 1)
        return int(wait_start[0]), int(start[0]), int(end[0])

    def _split(self, index: int) -> _Split:
        own_ns = self.own_ns(index)
        startup_ns = self._startup_ns if index == 0 else 0
        at = int(np.searchsorted(self.stalled, index))
        is_stalled = at < len(self.stalled) and self.stalled[at] == index
        stall_ns = int(self._stalls[at]) if is_stalled else 0
        progress_ns = own_ns - startup_ns - stall_ns
        kept, of = self.undone.kept(index)
        kept_ns = progress_ns * kept // of
        return _Split(startup_ns, kept_ns, progress_ns - kept_ns, stall_ns)

    def _uncovered_ns(self, start_ns: int, end_ns: int) -> int:
        """Return how much of ``[start_ns, end_ns)`` is outside of spans; 0 if it is empty."""
        if end_ns <= start_ns:
            return 0
        covered = self._cover.before(np.array([start_ns, end_ns], dtype=np.int64))
        return end_ns - start_ns - int(covered[1] - covered[0])
