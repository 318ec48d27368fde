"""Fewer points for the same picture: the least and the largest value of every column. Pure.

Every point that is kept was recorded, so that a read-out is exact and no spike is lost.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SMOOTHED: Final = 4
"""Columns of smoothing per drawn one."""
_SPAN: Final = 1000
"""The parts of an axis over which the weight of a value fades by the smoothing once each."""


def extremes(x: Floats, y: Floats, columns: int) -> NDArray[np.int64]:
    """Return the indices of the points to draw, in order; all, if they are few.

    Args:
        x: Places on the axis in the order in which the line goes on; a restart may go back.
        y: Finite values, as many.
        columns: In which the axis is divided; each keeps its least and its largest value, and
            the first and the last of all are kept.
    """
    if len(x) <= 2 * columns:
        return np.arange(len(x))
    column = _columns(x, columns)
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    if len(starts) > 4 * columns:  # The axis jumps to and fro.
        column = np.arange(len(x)) * columns // len(x)
        starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    group = np.repeat(np.arange(len(starts)), np.diff([*starts, len(x)]))
    found = [np.array([0, len(x) - 1])]
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(y == extreme.reduceat(y, starts)[group])
        found.append(at[np.searchsorted(group[at], np.arange(len(starts)))])
    kept: NDArray[np.int64] = np.unique(np.concatenate(found))
    return kept


def _columns(x: Floats, columns: int) -> NDArray[np.int64]:
    low, high = float(x.min()), float(x.max())
    scale = columns / (high - low) if high > low else 0.0
    found: NDArray[np.int64] = np.minimum((x - low) * scale, columns - 1).astype(np.int64)
    return found


def within(x: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Return which points are in a range, and those beside them, so that lines reach its ends."""
    inside = (x >= low) & (x <= high)
    beside = inside.copy()
    beside[:-1] |= inside[1:]
    beside[1:] |= inside[:-1]
    if not inside.any():  # Between two points.
        crossed = np.flatnonzero((x[:-1] < low) & (x[1:] > high))
        beside[crossed] = True
        beside[crossed + 1] = True
    return beside


def smoothed(x: Floats, y: Floats, weight: float, columns: int) -> tuple[Floats, Floats]:
    """Return an exponential moving average over an axis, a point per column.

    The average does not depend on how often a value was recorded: what was seen one thousandth of
    the axis earlier counts ``weight`` as much.

    Args:
        x: As in ``extremes``.
        y: As in ``extremes``.
        weight: From 0, no smoothing, to less than 1.
        columns: Points to return, about.
    """
    column = _columns(x, _SMOOTHED * columns)
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    counts = np.diff([*starts, len(x)])
    sums, places = np.add.reduceat(y, starts), x[starts + counts - 1]
    span = float(x.max() - x.min()) or 1.0
    total = seen = 0.0
    averages = []
    before = float(places[0])
    for place, value, count in zip(places.tolist(), sums.tolist(), counts.tolist(), strict=True):
        fade = weight ** (abs(place - before) / span * _SPAN)
        total, seen, before = total * fade + value, seen * fade + count, place
        averages.append(total / seen)
    chosen: NDArray[Any] = np.unique(np.linspace(0, len(places) - 1, 2 * columns).round())
    at = chosen.astype(np.int64)
    return places[at], np.array(averages)[at]
