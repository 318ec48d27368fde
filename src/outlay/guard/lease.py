"""The lease: money held in slices while something runs. A state machine without clock or log. Pure.

The hold pays for the time up to the notice and for the notice itself, so that what runs is told to
end while there is still money for ending it. Before anything is stopped the lease asks for whatever
room is left, however little: what fits with its notice is never stopped. ``Leaseholder`` asks the
guard; whoever runs something sends the signals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlay.errors import InvalidValue
from outlay.rates import cost_at_most, paid_time
from outlay.units import Duration, Money, Rate
from outlay.units.money import percents_reached

SLICE = Duration(300 * 10**9)
NOTICE = Duration(30 * 10**9)
"""How long after SIGTERM something is killed: the notice that spot machines get."""
REACTION = Duration(250 * 10**6)
"""How long before the end of the paid time something is killed: it takes a moment to see and do."""
RETRY_NS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms money is leased.

    Attributes:
        most: The longest it may run, stopping included; None for as long as there is money.
        slice: How much time is paid for at once.
        notice: How long stopping may take, killing included.
        reaction: How much of the notice is kept for killing; at most half of it is.
    """

    rate: Rate
    most: Duration | None = None
    slice: Duration = SLICE
    notice: Duration = NOTICE
    reaction: Duration = REACTION

    def __post_init__(self) -> None:
        if not self.slice:
            raise InvalidValue("slice", str(self.slice), "a duration above zero, such as 5m")
        if self.most is not None and self.most.ns <= self.notice.ns:
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

    def least_opening(self) -> Money:
        """Return the least with which to start: it pays for more than the stopping."""
        more = self.cost(self.notice.ns) + Money(1, self.rate.currency)
        return min(more, self.opening())

    @property
    def kill_after_ns(self) -> int:
        """How long after the notice something is killed."""
        return self.notice.ns - min(self.reaction.ns, self.notice.ns // 2)

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
        if paid is None or (whole is not None and held >= whole):
            return None
        return paid - self.notice.ns - self.slice.ns // 2

    def longest_ns(self, room: Money) -> int | None:
        """Return how long it can run at most, with ``room`` for it; None when nothing ends it."""
        ends = (self.paid_ns(room), None if self.most is None else self.most.ns)
        return min((end for end in ends if end is not None), default=None)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing is due; look again at ``until_ns``, if anything is ever due."""

    until_ns: int | None


@dataclass(frozen=True, slots=True)
class Extend:
    """Ask for ``more``, and take what there is if that is less."""

    more: Money


@dataclass(frozen=True, slots=True)
class GiveNotice:
    """SIGTERM: what is held pays for no more than stopping."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Kill it (SIGKILL): the notice is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How one operation stands with its money. Instants are of one monotonic clock, in ns.

    Attributes:
        since_ns: When the present terms came into force.
        before: What was spent until then: on other terms, or on starting up.
        asked_ns: When less was granted than was asked for; None where all of it was.
        refusal: Why nothing more was granted the last time.
        noticed_ns: When it was asked to end.
    """

    terms: Terms
    held: Money
    since_ns: int
    before: Money
    asked_ns: int | None = None
    refusal: str = ""
    noticed_ns: int | None = None

    @classmethod
    def opened(cls, terms: Terms, held: Money, now_ns: int) -> Lease:
        """Return the lease of something that starts now."""
        return cls(terms=terms, held=held, since_ns=now_ns, before=Money(0, terms.rate.currency))

    def tend(self, now_ns: int) -> GoOn | Extend | GiveNotice | End:
        """Return what is to be done now.

        After ``Extend`` the answer is ``extended`` or ``refused``, and then this is asked again.
        """
        if self.noticed_ns is not None:
            end_ns = self.end_ns
            return End() if end_ns is not None and now_ns >= end_ns else GoOn(end_ns)
        stop_ns, ask_ns = self.stop_ns, self._next_ask_ns()
        if ask_ns is not None and now_ns >= ask_ns:
            return Extend(self.terms.extension(self.held - self.before, now_ns - self.since_ns))
        if stop_ns is not None and now_ns >= stop_ns:
            return GiveNotice(self.reason)
        return GoOn(stop_ns if ask_ns is None else ask_ns)

    def _next_ask_ns(self) -> int | None:
        """Return when to ask: again a second after a refusal, and once when stopping is due."""
        ask_ns, stop_ns = self._at(self.terms.ask_ns(self.held - self.before)), self.stop_ns
        if ask_ns is None or stop_ns is None or self.asked_ns is None:
            return ask_ns
        again_ns = self.asked_ns + RETRY_NS
        if self.asked_ns < stop_ns:
            again_ns = min(again_ns, stop_ns)
        return max(ask_ns, again_ns)

    @property
    def reason(self) -> str:
        """Why it has to end once nothing more can be held."""
        most = self.terms.most
        if most is not None and self.held - self.before >= self.terms.cost(most.ns):
            return f"its longest time of {most}"
        return self.refusal or "the money that is held is used up"

    # -- what happened ------------------------------------------------------------------------

    def extended(self, held: Money, now_ns: int) -> Lease:
        """Return the lease with what is held now, all that was asked for or part of it."""
        grown = replace(self, held=held, asked_ns=None, refusal="")
        ask_ns = grown._next_ask_ns()
        return grown if ask_ns is None or ask_ns > now_ns else replace(grown, asked_ns=now_ns)

    def refused(self, reason: str, now_ns: int) -> Lease:
        """Return the lease after nothing was granted."""
        return replace(self, asked_ns=now_ns, refusal=reason)

    def noticed(self, now_ns: int) -> Lease:
        """Return the lease of something that was asked to end."""
        return replace(self, noticed_ns=now_ns)

    def repriced(self, rate: Rate, now_ns: int) -> Lease:
        """Return the lease at another rate from now on."""
        terms = replace(self.terms, rate=rate)
        return replace(self.counted(self.spent(now_ns), now_ns), terms=terms)

    def counted(self, spent: Money, now_ns: int) -> Lease:
        """Return the lease after somebody who knows better said what was spent by now."""
        return replace(self, before=spent, since_ns=now_ns, asked_ns=None)

    # -- how it stands ------------------------------------------------------------------------

    def spent(self, now_ns: int) -> Money:
        """Return what it has cost."""
        return self.before + self.terms.cost(now_ns - self.since_ns)

    @property
    def stop_ns(self) -> int | None:
        """When it has to be asked to end, unless more can be held; None when nothing ends it."""
        return self._at(self.terms.stop_ns(self.held - self.before))

    @property
    def end_ns(self) -> int | None:
        """When it is killed: at the end of its notice, and before the end of the paid time."""
        if self.noticed_ns is None:
            return None
        after_ns = self.terms.kill_after_ns
        stop_ns = self.stop_ns
        notice_ns = self.noticed_ns if stop_ns is None else min(self.noticed_ns, stop_ns)
        return notice_ns + after_ns

    @property
    def kill_ns(self) -> int | None:
        """When it is killed if notice is given at ``stop_ns``; None when nothing ends it."""
        return None if self.stop_ns is None else self.stop_ns + self.terms.kill_after_ns

    def _at(self, elapsed_ns: int | None) -> int | None:
        return None if elapsed_ns is None else self.since_ns + elapsed_ns


def warnings(longest_ns: int | None, since_ns: int, until_ns: int) -> tuple[int, ...]:
    """Return the percentages of the longest run that were passed in ``(since, until]``."""
    if longest_ns is None:
        return ()
    before = percents_reached(since_ns, longest_ns)
    return tuple(p for p in percents_reached(until_ns, longest_ns) if p not in before and p < 100)
