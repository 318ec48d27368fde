"""Which span holds each instant: overlapping spans, flattened.

Of the spans that are open at an instant, the one that began last holds it; of two that began at the
same instant, the one recorded last. All functions are pure; intervals are half-open.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from outlay.account.columns import Ints, cumulative
from outlay.account.segment import SegmentAccount
from outlay.account.spans import SpanColumns, SpanInterval, Spans
from outlay.goodput.phases import phase_of_span


class Cover:
    """Disjoint stretches of time, each held by one span's phase, in order."""

    def __init__(self, stretches: SpanColumns) -> None:
        self._starts, self._ends = stretches.begin, stretches.end
        self._cumulative = cumulative(self._ends - self._starts)
        self._by_phase = {phase: _Stretches(spans) for phase, spans in stretches.by(phase_of_span)}

    def before(self, instants: Ints) -> Ints:
        """Return how many nanoseconds are held by spans before each instant."""
        if not len(self._starts):
            return np.zeros(len(instants), dtype=np.int64)
        begun = np.searchsorted(self._starts, instants, side="right")
        last = begun - 1
        # Of the stretch that has begun last, what lies after the instant is not before it.
        beyond = np.where(begun > 0, np.maximum(self._ends[last] - instants, 0), 0)
        return self._cumulative[begun] - beyond

    def phases_before(self, t_ns: int) -> dict[str, int]:
        """Return the nanoseconds held by each phase before ``t_ns``."""
        return {phase: of_phase.before(t_ns) for phase, of_phase in self._by_phase.items()}


class _Stretches:
    """The disjoint stretches of one phase."""

    def __init__(self, spans: SpanColumns) -> None:
        self._starts, self._ends = spans.begin, spans.end
        self._cumulative = cumulative(self._ends - self._starts)

    def before(self, t_ns: int) -> int:
        begun = int(np.searchsorted(self._starts, t_ns, side="right"))
        if not begun:
            return 0
        last_end_ns = int(self._ends[begun - 1])
        return int(self._cumulative[begun]) - (last_end_ns - t_ns if last_end_ns > t_ns else 0)


def segment_cover(segment: SegmentAccount, start_ns: int, end_ns: int) -> Cover:
    """Return which span holds each instant of a window; open spans last until its end."""
    still_open = [
        SpanInterval(span.begin_ns, order, end_ns, span.name)
        for order, span in segment.open.items()
        if not span.overlapped
    ]
    return cover_of(segment.spans, still_open, start_ns, end_ns)


def cover_of(spans: Spans, still_open: Sequence[SpanInterval], start_ns: int, end_ns: int) -> Cover:
    """Return which span holds each instant of a window."""
    clipped = spans.columns(still_open).within(start_ns, end_ns)
    if (clipped.end[:-1] <= clipped.begin[1:]).all():
        return Cover(clipped)  # The usual case: spans one after another.
    return Cover(SpanColumns.of(flatten([*spans, *still_open], start_ns, end_ns)))


def flatten(spans: Iterable[SpanInterval], start_ns: int, end_ns: int) -> list[SpanInterval]:
    """Return disjoint intervals within ``[start_ns, end_ns)`` that say which span holds when."""
    # Ranks are given before clipping: a span cut at the start keeps its place among the others.
    clipped = [
        SpanInterval(max(span.begin_ns, start_ns), rank, min(span.end_ns, end_ns), span.name)
        for rank, span in enumerate(sorted(spans))
        if max(span.begin_ns, start_ns) < min(span.end_ns, end_ns)
    ]
    return list(_sweep(clipped))


def _sweep(spans: Sequence[SpanInterval]) -> Iterator[SpanInterval]:
    """Walk over every begin and end; a heap holds the open spans, the last begun on top."""
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
