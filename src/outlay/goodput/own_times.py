"""The own time of a process's steps: without their spans, and apart from the waits before them.

What was computed is kept while the process goes on, until a span or a step that arrives late
changes it.
"""

from __future__ import annotations

import numpy as np

from outlay.account.columns import Column, Ints
from outlay.account.segment import SegmentAccount
from outlay.goodput.cover import Cover, segment_cover

_BLOCK_STEPS = 1 << 17  # Bounds what a vector pass needs beside the columns.
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


class OwnTimes:
    """The own times of one process's steps while its account grows.

    Attributes:
        revision: Changes when own times that were computed before are computed anew.
    """

    def __init__(self, segment: SegmentAccount) -> None:
        self.segment = segment
        self.revision = 0
        self._slow = SlowSteps()
        self._own, self._waited = Column([0]), Column([0])

    def before(self) -> tuple[Ints, Ints]:
        """Return cumulative own time of steps and of waits: entry i is before step i."""
        self._forget_from(self.segment.take_rewritten())
        done, steps = len(self._own) - 1, self.segment.step_count
        if done < steps:
            life = self.segment.life
            cover = segment_cover(self.segment, life.segment.start_ns, life.last_sign_ns)
            for first in range(done, steps, _BLOCK_STEPS):
                self._extend(cover, first, min(first + _BLOCK_STEPS, steps))
        return self._own.values, self._waited.values

    def per_step(self, first: int) -> Ints:
        """Return own time per step of the records from ``first`` on."""
        own, _ = self.before()
        times: Ints = np.diff(own[first:])
        return times // self.segment.steps.count[first:]

    def beyond(self, bound_ns: int) -> Ints:
        """Return the places of the steps whose own time exceeds a bound, in order."""
        own, _ = self.before()
        return self._slow.beyond(bound_ns, own, self.segment.steps.count)

    def _extend(self, cover: Cover, first: int, beyond: int) -> None:
        start_ns = self.segment.life.segment.start_ns
        waits, starts, ends = self.segment.steps.bounds(start_ns, first, beyond)
        held_at_start = cover.before(starts)
        own = ends - starts - (cover.before(ends) - held_at_start)
        waited = starts - waits - (held_at_start - cover.before(waits))
        self._own.extend(self._own.values[-1] + np.cumsum(own))
        self._waited.extend(self._waited.values[-1] + np.cumsum(waited))

    def _forget_from(self, index: int) -> None:
        self._slow.forget_from(index)
        if index + 1 < len(self._own):
            self._own.truncate(index + 1)
            self._waited.truncate(index + 1)
            self.revision += 1
