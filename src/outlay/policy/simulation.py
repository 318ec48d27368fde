"""A policy replayed on a series of prices: what it would have cost, and when it would be done."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from outlay import rates
from outlay.errors import InvalidValue
from outlay.policy.policies import Policy, decide
from outlay.policy.situation import (
    Action,
    JobTerms,
    PolicyDecision,
    Situation,
    unit_of,
)
from outlay.units import Money, Rate


@dataclass(frozen=True, slots=True)
class PriceChange:
    """From ``at_ns`` on the offer costs ``price`` per hour, or is not available if that is None."""

    at_ns: int
    price: Rate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTaken:
    """A decision that changed what the training does, or the first that forecasts a miss."""

    at_ns: int
    decision: PolicyDecision
    price: Rate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """What a policy did on a series.

    Attributes:
        done_ns: From the first decision to the end of the work; None if it never ends.
        late_ns: How long after the deadline; None if it never ends.
        paid_ns: Machine time, of which ``overhead_ns`` was starts, saves and repeated work.
        reclaimed: How often the offer was taken back while it ran.
    """

    cost: Money
    done_ns: int | None
    late_ns: int | None
    paid_ns: int
    overhead_ns: int
    starts: int
    reclaimed: int
    decisions: tuple[DecisionTaken, ...]


def simulate(
    policy: Policy, series: Sequence[PriceChange], job: JobTerms, *, start_ns: int | None = None
) -> SimulatedJob:
    """Replay a policy from an instant on (default: the first of the series).

    The last price of the series holds on. A training that stops, on purpose or not, repeats what
    its pauses repeat.

    Raises:
        InvalidValue: The series is empty or not in order of time, or begins later.
    """
    times = [change.at_ns for change in series]
    begin_ns = times[0] if start_ns is None and times else (start_ns or 0)
    if not times or times != sorted(times) or times[0] > begin_ns:
        raise InvalidValue(
            "series", f"{len(times)} prices", "prices in order of time, from the start on"
        )
    return _Replay(policy, series, times, job, begin_ns).run()


@dataclass(slots=True)
class _Replay:
    """The state of a replay; times are absolute."""

    policy: Policy
    series: Sequence[PriceChange]
    times: list[int]
    job: JobTerms
    now_ns: int
    begin_ns: int = field(init=False)
    left_ns: int = field(init=False)
    doing: Action = Action.WAIT
    setup_ns: int = 0
    paid_ns: int = 0
    units: int = 0
    starts: int = 0
    reclaimed: int = 0
    taken: list[DecisionTaken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin_ns, self.left_ns = self.now_ns, self.job.work_ns

    def run(self) -> SimulatedJob:
        while self.left_ns > 0:
            self._lose_machine()
            decision = decide(self.policy, self._situation())
            self._act(decision)
            if not self._advance(decision):
                break
        done_ns = self.now_ns - self.begin_ns if self.left_ns <= 0 else None
        known = [change.price for change in self.series if change.price is not None]
        unit = unit_of(known[0] if known else None, self.job)
        return SimulatedJob(
            cost=unit.money(rates.round_units(self.units)),
            done_ns=done_ns,
            late_ns=None if done_ns is None else max(0, done_ns - self.job.time_ns),
            paid_ns=self.paid_ns,
            overhead_ns=self.paid_ns - (self.job.work_ns - self.left_ns),
            starts=self.starts,
            reclaimed=self.reclaimed,
            decisions=tuple(self.taken),
        )

    def _price(self) -> Rate | None:
        return self.series[bisect_right(self.times, self.now_ns) - 1].price

    def _next_change_ns(self) -> int | None:
        index = bisect_right(self.times, self.now_ns)
        return self.times[index] if index < len(self.times) else None

    def _situation(self) -> Situation:
        return Situation(
            job=self.job,
            work_left_ns=self.left_ns,
            time_left_ns=self.job.time_ns - (self.now_ns - self.begin_ns),
            price=self._price(),
            doing=self.doing,
            setup_left_ns=self.setup_ns,
        )

    def _lose_machine(self) -> None:
        """If the offer that it runs on is gone, it stops."""
        if self.doing is Action.RUN and self._price() is None:
            self.reclaimed += 1
            self._stop()

    def _stop(self) -> None:
        if not self.setup_ns:
            done_ns = self.job.work_ns - self.left_ns
            self.left_ns += min(done_ns, self.job.pause.repeated_ns)
        self.doing, self.setup_ns = Action.WAIT, 0

    def _act(self, decision: PolicyDecision) -> None:
        last = self.taken[-1].decision if self.taken else None
        is_news = last is None or last.action is not decision.action
        if is_news or (last is not None and decision.late_ns > last.late_ns == 0):
            at = DecisionTaken(at_ns=self.now_ns, decision=decision, price=self._price())
            self.taken.append(at)
        if decision.action is self.doing:
            return
        if self.doing is not Action.WAIT:
            if not self.setup_ns:  # Else there is nothing to save yet.
                self._pay_until(self.now_ns + self.job.pause.save_ns)
            self._stop()
        self.doing = decision.action
        if self.doing is not Action.WAIT:
            self.starts += 1
            self.setup_ns = self.job.pause.start_ns

    def _advance(self, decision: PolicyDecision) -> bool:
        """Go to the next instant of a decision; return False if there is none."""
        later = [self._next_change_ns()]
        if decision.review_ns is not None:
            later.append(self.now_ns + decision.review_ns)
        if self.doing is not Action.WAIT:
            later.append(self.now_ns + self.setup_ns + self.left_ns)
        known = [at_ns for at_ns in later if at_ns is not None]
        if not known:
            return False
        before_ns = self.now_ns
        if self.doing is Action.WAIT:
            self.now_ns = min(known)
            return True
        self._pay_until(min(known))
        ran_ns = self.now_ns - before_ns
        set_up_ns = min(self.setup_ns, ran_ns)
        self.setup_ns -= set_up_ns
        self.left_ns -= ran_ns - set_up_ns
        return True

    def _pay_until(self, end_ns: int) -> None:
        """Pay for the machine up to an instant, or until it is taken back."""
        while self.now_ns < end_ns:
            price = self.job.on_demand if self.doing is Action.ON_DEMAND else self._price()
            if price is None:
                return
            until_ns = min(end_ns, self._next_change_ns() or end_ns)
            self.units += rates.units(price, until_ns - self.now_ns)
            self.paid_ns += until_ns - self.now_ns
            self.now_ns = until_ns
