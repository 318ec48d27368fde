"""Goodput of an elastic run, weighted by how many of its slices train.

An hour in which half of the slices step is half an hour of the goodput that was paid for. Before
the first count nothing is known, and the run counts as whole. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Window, within
from outlay.goodput.timeline import Timeline
from outlay.ledger import SlicesChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEfficiency:
    """How much of an elastic run's slices was used in a window; shares are 0 to 1.

    Attributes:
        goodput: Productive time, each instant weighted by active / total, over wall time.
        stepping: The mean of active / total while counts are known.
        available: The mean of available / total while counts are known.
        known_ns: How much of the window has counts.
    """

    goodput: float
    stepping: float
    available: float
    known_ns: int


def slice_efficiency(
    timeline: Timeline, changes: Iterable[SlicesChanged], windows: Sequence[Window]
) -> SliceEfficiency | None:
    """Return how well the slices were used in some windows; None without counts or wall time."""
    ordered = sorted(changes, key=lambda change: change.t_ns)
    wall_ns = sum(sum(timeline.between(w.start_ns, w.end_ns).values()) for w in windows)
    pieces = [piece for window in windows for piece in _pieces(ordered, window)]
    known = [(piece, slices) for piece, slices in pieces if slices is not None]
    known_ns = sum(piece.length_ns for piece, _ in known)
    if not wall_ns or not known_ns:
        return None
    productive = sum(
        _productive_ns(timeline, piece) * (1.0 if slices is None else slices.active / slices.total)
        for piece, slices in pieces
    )
    return SliceEfficiency(
        goodput=productive / wall_ns,
        stepping=sum(p.length_ns * s.active / s.total for p, s in known) / known_ns,
        available=sum(p.length_ns * s.available / s.total for p, s in known) / known_ns,
        known_ns=known_ns,
    )


def _productive_ns(timeline: Timeline, window: Window) -> int:
    return timeline.between(window.start_ns, window.end_ns).get(ph.STEP, 0)


def _pieces(
    ordered: Sequence[SlicesChanged], window: Window
) -> Iterator[tuple[Window, SlicesChanged | None]]:
    """Yield the pieces of a window in which the counts stay the same."""
    counts: list[SlicesChanged | None] = [None, *ordered]
    edges = [window.start_ns, *(change.t_ns for change in ordered), window.end_ns]
    for count, (start_ns, end_ns) in zip(counts, pairwise(edges), strict=True):
        for piece in within([window], start_ns, end_ns):
            yield piece, count
