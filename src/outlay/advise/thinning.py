"""Long series made short, so that a curve is fitted in the same time however often it was logged.

Neighbours are summed and divided by the root of how many they are: then each sum has the noise of a
single measurement, as least squares wants it. What a curve says is summed alike, so that no fit is
biased; lost is only what the curve does between neighbours. Blocks grow with time, evenly spaced in
its square root, because curves bend early. Correlated noise sums to more than independent noise,
and then counts as the larger noise that it is. Within a block a curve is all but straight, so that
a few of its instants, the nodes, stand for all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST = 200
"""Series up to this long are left as they are."""
_NODES = 8


def block_sizes(count: int) -> NDArray[np.intp]:
    """Return how many of ``count`` neighbours each block holds: one, of a long series more."""
    if count <= MOST:
        return np.ones(count, dtype=np.intp)
    ends = np.unique((count * (np.arange(MOST + 1) / MOST) ** 2).astype(np.intp))
    return np.diff(ends)


def in_blocks(values: Floats) -> Floats:
    """Return the values of a series as one sum a block, of the noise of a single value."""
    sizes = block_sizes(len(values))
    return _means(values[:, None], sizes)[:, 0] * np.sqrt(sizes)


def nodes_of(count: int) -> NDArray[np.intp]:
    """Return at which of ``count`` values a curve is looked at: a few, evenly spaced, a block."""
    sizes = block_sizes(count)
    starts = np.cumsum(sizes) - sizes
    each = [
        start + (np.arange(nodes) + 0.5) * size / nodes
        for start, size, nodes in zip(starts, sizes, np.minimum(sizes, _NODES), strict=True)
    ]
    return np.concatenate(each).astype(np.intp)


def curve_in_blocks(curve: Floats, count: int) -> Floats:
    """Return what a curve through ``count`` values is in blocks.

    Args:
        curve: Its value at each node, along the axis before the last.
        count: How long the series is.
    """
    sizes = block_sizes(count)
    return _means(curve, np.minimum(sizes, _NODES)) * np.sqrt(sizes)[:, None]


def _means(values: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Return the means of neighbours along the axis before the last, so many each."""
    sums: Floats = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=-2)
    return sums / sizes[:, None]


def some_between(first: int, last: int) -> list[int]:
    """Return the whole numbers from ``first`` to ``last``; of many only some, evenly spaced."""
    if last - first < MOST:
        return list(range(first, last + 1))
    return [int(number) for number in np.linspace(first, last, MOST).round()]
