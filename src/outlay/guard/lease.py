"""Money leased in slices while something runs: when to ask for more, when to stop. Pure.

The hold always pays for the time up to the stop and for the stopping itself, so what runs can be
told to end while there is still money for ending it.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlay.errors import InvalidValue
from outlay.rates import cost_at_most, paid_time
from outlay.units import Duration, Money, Rate

SLICE = Duration(300 * 10**9)
NOTICE = Duration(30 * 10**9)
"""How long before it is killed something is told: the notice that spot machines get."""
WARNINGS = (50, 75, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms money is leased.

    Attributes:
        rate: What it costs while it runs.
        most: The longest it may run, stopping included; None for as long as there is money.
        slice: How much time is paid for at once.
        notice: How long stopping may take.
    """

    rate: Rate
    most: Duration | None = None
    slice: Duration = SLICE
    notice: Duration = NOTICE

    def __post_init__(self) -> None:
        if not self.slice:
            raise InvalidValue("slice", str(self.slice), "a duration above zero, such as 5m")
        if self.most is not None and self.most <= self.notice:
            expected = f"more than the notice of {self.notice}, which is part of it"
            raise InvalidValue("max-hours", str(self.most), expected)

    def cost(self, ns: int) -> Money:
        """Return what ``ns`` of running costs, rounded up."""
        return cost_at_most(self.rate, ns)

    def paid_ns(self, amount: Money) -> int | None:
        """Return how long an amount lasts; None when running costs nothing."""
        return paid_time(amount, self.rate)

    def opening(self) -> Money:
        """Return what has to be held before anything starts: a slice, and the stopping."""
        return self._up_to(self.slice.ns + self.notice.ns)

    def extension(self, held: Money, elapsed_ns: int) -> Money:
        """Return what more to hold so that another slice after ``elapsed_ns`` is paid for."""
        wanted = self._up_to(elapsed_ns + self.slice.ns + self.notice.ns)
        return max(wanted - held, Money(0, held.currency))

    def _up_to(self, ns: int) -> Money:
        return self.cost(ns if self.most is None else min(ns, self.most.ns))

    def overshoot(self) -> Money:
        """Return the most that can be spent past what there was room for: slice and stopping."""
        return self.cost(self.slice.ns + self.notice.ns)

    def stop_ns(self, held: Money) -> int | None:
        """Return the elapsed time at which stopping must begin; None when nothing ends it."""
        longest_ns = self.longest_ns(held)
        return None if longest_ns is None else longest_ns - self.notice.ns

    def ask_ns(self, held: Money) -> int | None:
        """Return the elapsed time at which to ask for more: half a slice before stopping."""
        paid = self.paid_ns(held)
        whole = None if self.most is None else self.cost(self.most.ns)
        if paid is None or held == whole:
            return None
        return paid - self.notice.ns - self.slice.ns // 2

    def longest_ns(self, room: Money) -> int | None:
        """Return how long it can run at most, with ``room`` for it; None when nothing ends it."""
        ends = (self.paid_ns(room), None if self.most is None else self.most.ns)
        return min((end for end in ends if end is not None), default=None)


def warnings(longest_ns: int | None, since_ns: int, until_ns: int) -> tuple[int, ...]:
    """Return the percentages of the longest run that were passed in ``(since, until]``."""
    if longest_ns is None:
        return ()
    return tuple(p for p in WARNINGS if since_ns * 100 < p * longest_ns <= until_ns * 100)
