"""Which steps took too long, found without a look at every step each time.

From when on a step stalled depends on all steps, and changes a little with each. Steps slower than
a somewhat lower bound are remembered; a question looks at those, and at the steps that are new.
"""

from __future__ import annotations

import numpy as np

from outlay.goodput.columns import Column, Ints

_MANY = 1024


class SlowSteps:
    """The places of an attempt's slow steps, while the attempt grows."""

    def __init__(self) -> None:
        self._least_ns = 0
        self._places = Column()
        self._seen = 0
        self._wasteful = True

    def beyond(self, bound_ns: int, own_before: Ints, count: Ints) -> Ints:
        """Return the places of the steps whose own time exceeds a bound, in order.

        Args:
            bound_ns: The bound for one step.
            own_before: Cumulative own time: entry i is before step i.
            count: How many steps each record stands for.
        """
        if self._wasteful or bound_ns < self._least_ns:
            self.forget_from(0)
            self._least_ns = bound_ns * 3 // 4
        first, self._seen = self._seen, len(count)
        slow = np.diff(own_before[first:]) // count[first:] >= self._least_ns
        self._places.extend(first + np.flatnonzero(slow))
        places = self._places.values
        own = own_before[places + 1] - own_before[places]
        # Divided, since a bound for all steps of a record may not fit in 64 bits.
        found = places[(own - 1) // count[places] >= bound_ns]
        self._wasteful = len(places) > 2 * len(found) + _MANY
        return found

    def forget_from(self, place: int) -> None:
        """Forget the steps from a place on: their own times have changed."""
        self._places.truncate(int(self._places.values.searchsorted(place)))
        self._seen = min(self._seen, place)
