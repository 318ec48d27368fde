"""The lease: a state machine that holds money in slices while an operation runs. Pure.

The hold pays for the time up to the notice and for the notice itself, so that SIGTERM is sent while
there is still money for stopping. Before that the lease asks for whatever room is left, however
little: an operation that fits with its notice is never stopped. ``Leaseholder`` asks the guard; the
supervisor sends the signals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlay.errors import InvalidValue
from outlay.rates import cost_at_most, paid_time
from outlay.units import Duration, Money, Rate
from outlay.units.money import percents_reached

SLICE = Duration(300 * 10**9)
NOTICE = Duration(30 * 10**9)
"""From SIGTERM to the end of the paid time: the notice that spot machines get."""
REACTION = Duration(250 * 10**6)
"""How long before the end of the paid time SIGKILL is sent, to allow for delays."""
RETRY_NS = 10**9
NONE = Duration(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a lease.

    Attributes:
        most: The longest it may run, stopping included; None: as long as there is money.
        slice: How much time one extension pays for.
        notice: How long stopping may take, SIGKILL included.
        allowance: How long it may run while nothing can be asked; always held ahead.
        reaction: The part of the notice that is reserved for SIGKILL, at most half of it.
    """

    rate: Rate
    most: Duration | None = None
    slice: Duration = SLICE
    notice: Duration = NOTICE
    allowance: Duration = NONE
    reaction: Duration = REACTION

    def __post_init__(self) -> None:
        if not self.slice:
            raise InvalidValue("slice", str(self.slice), "a duration above zero, such as 5m")
        if self.most is not None and self.most.ns <= self.notice.ns:
            expected = f"more than the notice of {self.notice}, which is part of it"
            raise InvalidValue("max-hours", str(self.most), expected)

    def cost(self, ns: int) -> Money:
        """Return the cost of ``ns`` of running, rounded up."""
        return cost_at_most(self.rate, ns)

    def paid_ns(self, amount: Money) -> int | None:
        """Return how long an amount lasts; None at a rate of zero."""
        return paid_time(amount, self.rate)

    def opening(self) -> Money:
        """Return the amount to hold before the start: a slice, the allowance and the notice."""
        return self._up_to(self._ahead_ns)

    @property
    def _ahead_ns(self) -> int:
        return self.slice.ns + self.allowance.ns + self.notice.ns

    def least_opening(self) -> Money:
        """Return the least amount with which to start: more than the notice."""
        more = self.cost(self.notice.ns) + self.rate.unit.money(1)
        return min(more, self.opening())

    @property
    def kill_after_ns(self) -> int:
        """From SIGTERM to SIGKILL."""
        return self.notice.ns - min(self.reaction.ns, self.notice.ns // 2)

    def extension(self, held: Money, elapsed_ns: int) -> Money:
        """Return how much more to hold to pay for another slice after ``elapsed_ns``."""
        wanted = self._up_to(elapsed_ns + self._ahead_ns)
        return max(wanted - held, held.unit.money(0))

    def _up_to(self, ns: int) -> Money:
        return self.cost(ns if self.most is None else min(ns, self.most.ns))

    def overshoot(self) -> Money:
        """Return the most that can be spent beyond the room: what is held ahead, at most all."""
        return self._up_to(self._ahead_ns)

    def stop_ns(self, held: Money) -> int | None:
        """Return the elapsed time at which stopping must begin; None if it may run for ever."""
        longest_ns = self.longest_ns(held)
        return None if longest_ns is None else longest_ns - self.notice.ns

    def ask_ns(self, held: Money) -> int | None:
        """Return the elapsed time at which to ask for more.

        It is half a slice before the allowance begins, and so before stopping.
        """
        paid = self.paid_ns(held)
        whole = None if self.most is None else self.cost(self.most.ns)
        if paid is None or (whole is not None and held >= whole):
            return None
        return paid - self.notice.ns - self.allowance.ns - self.slice.ns // 2

    def longest_ns(self, room: Money) -> int | None:
        """Return how long ``room`` and ``most`` let it run; None if neither limits it."""
        ends = (self.paid_ns(room), None if self.most is None else self.most.ns)
        return min((end for end in ends if end is not None), default=None)


@dataclass(frozen=True, slots=True)
class Continue:
    """Nothing is due before ``until_ns``; None: nothing ever is."""

    until_ns: int | None


@dataclass(frozen=True, slots=True)
class Extend:
    """Extend the hold by ``more``, or by what fits."""

    more: Money


@dataclass(frozen=True, slots=True)
class GiveNotice:
    """Send SIGTERM: the hold only pays for the notice."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Send SIGKILL: the notice is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The state of one operation's money. Instants are of one monotonic clock, in ns.

    Attributes:
        since_ns: The start of the current terms.
        before: What was spent before that: on other terms, or on start-up.
        asked_ns: When less was granted than asked for; None if everything was.
        refusal: Why nothing was granted the last time.
        noticed_ns: When SIGTERM was sent.
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
        """Return the lease of an operation that starts now."""
        return cls(terms=terms, held=held, since_ns=now_ns, before=terms.rate.unit.money(0))

    def next_action(self, now_ns: int) -> Continue | Extend | GiveNotice | End:
        """Return what is due now.

        After ``Extend``, the caller applies ``extended`` or ``refused`` and calls this again.
        """
        if self.noticed_ns is not None:
            end_ns = self.end_ns
            return End() if end_ns is not None and now_ns >= end_ns else Continue(end_ns)
        stop_ns, ask_ns = self.stop_ns, self._next_ask_ns()
        if ask_ns is not None and now_ns >= ask_ns:
            return Extend(self.terms.extension(self.held - self.before, now_ns - self.since_ns))
        if stop_ns is not None and now_ns >= stop_ns:
            return GiveNotice(self.reason)
        return Continue(stop_ns if ask_ns is None else ask_ns)

    def _next_ask_ns(self) -> int | None:
        """Return when to ask for more: a second after a refusal, and once when stopping is due."""
        ask_ns, stop_ns = self._at(self.terms.ask_ns(self.held - self.before)), self.stop_ns
        if ask_ns is None or stop_ns is None or self.asked_ns is None:
            return ask_ns
        again_ns = self.asked_ns + RETRY_NS
        if self.asked_ns < stop_ns:
            again_ns = min(again_ns, stop_ns)
        return max(ask_ns, again_ns)

    @property
    def reason(self) -> str:
        """Why it has to stop if nothing more can be held."""
        most = self.terms.most
        if most is not None and self.held - self.before >= self.terms.cost(most.ns):
            return f"its longest time of {most}"
        return self.refusal or "the money that is held is used up"

    # -- transitions --------------------------------------------------------------------------

    def extended(self, held: Money, now_ns: int) -> Lease:
        """Return the lease after an extension to ``held``, in full or in part."""
        grown = replace(self, held=held, asked_ns=None, refusal="")
        ask_ns = grown._next_ask_ns()
        return grown if ask_ns is None or ask_ns > now_ns else replace(grown, asked_ns=now_ns)

    def refused(self, reason: str, now_ns: int) -> Lease:
        """Return the lease after a refused extension."""
        return replace(self, asked_ns=now_ns, refusal=reason)

    def noticed(self, now_ns: int) -> Lease:
        """Return the lease after SIGTERM was sent."""
        return replace(self, noticed_ns=now_ns)

    def repriced(self, rate: Rate, now_ns: int) -> Lease:
        """Return the lease with another rate from now on."""
        terms = replace(self.terms, rate=rate)
        return replace(self.counted(self.spent(now_ns), now_ns), terms=terms)

    def counted(self, spent: Money, now_ns: int) -> Lease:
        """Return the lease with the true spend by now."""
        return replace(self, before=spent, since_ns=now_ns, asked_ns=None)

    # -- state --------------------------------------------------------------------------------

    def spent(self, now_ns: int) -> Money:
        """Return the cost so far."""
        return self.before + self.terms.cost(now_ns - self.since_ns)

    @property
    def stop_ns(self) -> int | None:
        """When SIGTERM is due, unless more can be held; None if it may run for ever."""
        return self._at(self.terms.stop_ns(self.held - self.before))

    @property
    def end_ns(self) -> int | None:
        """When SIGKILL is due, before the end of the paid time; None before SIGTERM."""
        if self.noticed_ns is None:
            return None
        stop_ns = self.stop_ns
        notice_ns = self.noticed_ns if stop_ns is None else min(self.noticed_ns, stop_ns)
        return notice_ns + self.terms.kill_after_ns

    @property
    def kill_ns(self) -> int | None:
        """When SIGKILL follows a SIGTERM at ``stop_ns``; None if it may run for ever."""
        return None if self.stop_ns is None else self.stop_ns + self.terms.kill_after_ns

    def _at(self, elapsed_ns: int | None) -> int | None:
        return None if elapsed_ns is None else self.since_ns + elapsed_ns


def warnings(longest_ns: int | None, since_ns: int, until_ns: int) -> tuple[int, ...]:
    """Return the percentages of ``longest_ns`` that were reached in ``(since, until]``."""
    if longest_ns is None:
        return ()
    before = percents_reached(since_ns, longest_ns)
    return tuple(p for p in percents_reached(until_ns, longest_ns) if p not in before and p < 100)
