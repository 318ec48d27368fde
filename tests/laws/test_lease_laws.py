"""The lease: what fits is never stopped, what does not is stopped in time, nothing is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from outlay.clock import ManualClock, wall_ns_of
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, parse_timestamp
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.lease import RETRY_NS, Continue, End, Extend, GiveNotice, Lease, Terms
from outlay.guard.rental.rental import ControlledRental, RentalOrder, rental_of
from outlay.guard.spend_log import MemorySpendLog
from outlay.rates import cost_at_most
from outlay.units import Duration, Money, Rate

SECOND = 10**9


@dataclass
class Log:
    """A ceiling, what others hold of it, and what this lease holds."""

    ceiling: Money
    others: Money = field(default_factory=lambda: Money(0))
    held: Money = field(default_factory=lambda: Money(0))

    @property
    def free(self) -> Money:
        return self.ceiling - self.others - self.held

    def grant(self, more: Money) -> bool:
        """Hold more, or what there is; False where there is nothing."""
        given = min(more, self.free)
        self.held += given
        return given.micros > 0


@dataclass
class Operation:
    """Something that costs while it runs, tended as ``guard run`` tends a command.

    Attributes:
        lags: How late each look comes; together within the reaction.
        ignores_notice: Whether it runs on through its notice.
        lasts_ns: When it ends by itself; None for never.
    """

    log: Log
    lease: Lease
    clock: ManualClock
    lags: list[int]
    ignores_notice: bool = True
    lasts_ns: int | None = None
    true_units: int = 0
    stopped: bool = False
    over: bool = False

    def spend_until(self, at_ns: int) -> None:
        """Let time pass, as long as it runs."""
        now_ns, ended = self.clock.monotonic_ns(), self.over
        if self.lasts_ns is not None and at_ns >= self.lasts_ns and not ended:
            at_ns, self.over = max(now_ns, self.lasts_ns), True
        if at_ns > now_ns and not ended:
            self.true_units += self.lease.terms.rate.micros_per_hour * (at_ns - now_ns)
            self.clock.advance(at_ns - now_ns)

    def spent(self) -> Money:
        """What it has cost, as it is captured."""
        return Money(-(-self.true_units // (3600 * SECOND)))

    def look(self) -> int | None:
        """Do what the lease says; return when to look again."""
        now_ns = self.clock.monotonic_ns()
        while isinstance(act := self.lease.next_action(now_ns), Extend):
            assert act.more.micros > 0
            granted = self.log.grant(act.more)
            extended = self.lease.extended(self.log.held, now_ns)
            self.lease = extended if granted else self.lease.refused("no room", now_ns)
            assert self.log.free.micros >= 0
        match act:
            case GiveNotice():
                self._assert_that_it_does_not_fit(now_ns)
                self.stopped = True
                self.lease = self.lease.noticed(now_ns)
                self.over = self.over or not self.ignores_notice
                return self.lease.end_ns
            case End():
                self.over = True
                return None
            case Continue(until_ns):
                return until_ns

    def _assert_that_it_does_not_fit(self, now_ns: int) -> None:
        """No room is left, and what is held pays for no more than the notice."""
        assert self.log.free == Money(0)
        notice = self.lease.terms.cost(self.lease.terms.notice.ns)
        assert self.lease.spent(now_ns) + notice + Money(1) >= self.log.held

    def run(self, looks: int = 10_000) -> None:
        """Run to the end, looking when the lease wants to be looked at and a little late."""
        for _ in range(looks):
            until_ns = self.look()
            if self.over:
                return
            now_ns = self.clock.monotonic_ns()
            wanted_ns = now_ns + 3600 * SECOND if until_ns is None else max(until_ns, now_ns)
            self.spend_until(wanted_ns + (self.lags.pop() if self.lags else 0))
            if self.over:
                return
        raise AssertionError("it never ends")


@st.composite
def terms(draw: st.DrawFn, least_rate: int = 10**6) -> Terms:
    notice_ns = draw(st.integers(0, 120 * SECOND))
    return Terms(
        rate=Rate(draw(st.integers(least_rate, 10**9))),
        slice=Duration(draw(st.integers(SECOND, 600 * SECOND))),
        notice=Duration(notice_ns),
        allowance=Duration(draw(st.just(0) | st.integers(0, 600 * SECOND))),
        reaction=Duration(draw(st.integers(0, SECOND))),
    )


def opened(terms: Terms, log: Log, lags: list[int], **how: object) -> Operation | None:
    """Open a lease under a log as `leasing` does; None where there is no room to start."""
    clock = ManualClock()
    if log.free < terms.least_opening():
        return None
    log.grant(terms.opening())
    lease = Lease.opened(terms, log.held, clock.monotonic_ns())
    operation = Operation(log, lease, clock, lags)
    for name, value in how.items():
        setattr(operation, name, value)
    return operation


def late(terms: Terms, shares: list[float]) -> list[int]:
    """Lags that together stay within what is kept for reacting."""
    kept_ns = terms.notice.ns - terms.kill_after_ns
    return [int(share * kept_ns / max(1, len(shares))) for share in shares]


rooms_s = st.integers(1, 500)
shares = st.lists(st.floats(0, 1), max_size=6)


@given(terms(), rooms_s, shares, st.booleans())
def test_what_does_not_fit_is_stopped_in_time_and_costs_no_more_than_the_ceiling(
    terms: Terms, room_s: int, shares: list[float], ignores_notice: bool
) -> None:
    log = Log(terms.cost(room_s * SECOND))
    operation = opened(terms, log, late(terms, shares), ignores_notice=ignores_notice)
    if operation is None:
        assert log.ceiling <= terms.cost(terms.notice.ns)
        return
    operation.run()
    assert operation.stopped
    assert operation.spent() <= log.ceiling
    assert log.held == log.ceiling
    unused = log.ceiling - operation.spent()
    assert unused <= terms.cost(terms.notice.ns + terms.slice.ns)
    assert unused <= terms.cost(terms.notice.ns) + Money(2)


@given(terms(), rooms_s, shares, st.integers(0, 500 * SECOND))
def test_what_fits_with_its_notice_is_never_stopped(
    terms: Terms, room_s: int, shares: list[float], lasts_ns: int
) -> None:
    log = Log(terms.cost(room_s * SECOND))
    lags = late(terms, shares)
    if terms.cost(lasts_ns + sum(lags) + terms.notice.ns) >= log.ceiling:
        return
    operation = opened(terms, log, lags)
    assert operation is not None
    operation.lasts_ns = operation.clock.monotonic_ns() + lasts_ns
    operation.run()
    assert not operation.stopped
    assert operation.spent() == terms.cost(lasts_ns)


@given(terms(), st.integers(0, 3000 * SECOND))
def test_a_log_that_goes_away_at_any_time_leaves_the_allowance_before_the_notice(
    terms: Terms, away_ns: int
) -> None:
    """Asked in time, the log has granted enough to run on for the allowance without it."""
    log = Log(terms.cost(10**7 * SECOND))
    operation = opened(terms, log, [])
    assert operation is not None
    while operation.clock.monotonic_ns() < away_ns:
        until_ns = operation.look()
        assert until_ns is not None
        operation.spend_until(min(until_ns, away_ns))
    operation.look()
    now_ns, stop_ns = operation.clock.monotonic_ns(), operation.lease.stop_ns
    assert stop_ns is not None
    assert stop_ns - now_ns >= terms.allowance.ns + terms.slice.ns // 2 - 1


changes = st.tuples(
    st.sampled_from(["others", "price", "look"]), st.integers(0, 10**9), st.integers(0, 60 * SECOND)
)


@given(terms(), rooms_s, st.lists(changes, max_size=30))
def test_whatever_others_hold_and_prices_become_captured_and_held_stay_within_the_ceiling(
    terms: Terms, room_s: int, changes: list[tuple[str, int, int]]
) -> None:
    log = Log(terms.cost(room_s * SECOND))
    operation = opened(terms, log, [])
    if operation is None:
        return
    for what, number, pause_ns in changes:
        if operation.over:
            break
        if what == "others":
            log.others = Money(number % ((log.ceiling - log.held).micros + 1))
        if what == "price":
            now_ns = operation.clock.monotonic_ns()
            operation.lease = operation.lease.repriced(Rate(number), now_ns)
        until_ns = operation.look()
        at_ns = operation.clock.monotonic_ns() + pause_ns
        operation.spend_until(at_ns if until_ns is None else min(at_ns, until_ns))
        assert log.held + log.others <= log.ceiling
        assert operation.spent() <= log.held


@given(terms(), rooms_s)
def test_room_that_others_give_back_is_taken_before_anything_is_stopped(
    terms: Terms, room_s: int
) -> None:
    log = Log(terms.opening() + terms.cost(room_s * SECOND) + Money(1))
    operation = opened(terms, log, [])
    assert operation is not None
    log.others = log.free
    stop_ns = operation.lease.stop_ns
    assert stop_ns is not None
    operation.clock.advance(stop_ns - operation.clock.monotonic_ns() - 1)
    operation.look()
    log.others = Money(0)
    operation.clock.advance(1)
    operation.look()
    assert not operation.stopped
    assert operation.lease.held > terms.opening()


@given(terms(), st.integers(0, 3 * RETRY_NS))
def test_a_refused_extension_is_retried_within_a_second(terms: Terms, after_ns: int) -> None:
    lease = Lease.opened(terms, terms.opening(), 0)
    ask_ns = lease.next_action(0)
    assert isinstance(ask_ns, Continue)
    assert ask_ns.until_ns is not None
    refused = lease.refused("no", ask_ns.until_ns)
    again = refused.next_action(ask_ns.until_ns + after_ns)
    due_ns = min(RETRY_NS, max(1, (lease.stop_ns or 0) - ask_ns.until_ns))
    assert isinstance(again, Extend) == (after_ns >= due_ns)


# Rentals: the lease that is paid to its end before it begins

VENDOR = Vendor(name="stub", list=("list",), terminate=("end", "{id}"))
DAY_NS = 24 * 3600 * SECOND


@st.composite
def orders(draw: st.DrawFn) -> RentalOrder:
    """Something to rent that its limit pays for."""
    rate = Rate(draw(st.integers(1, 10**9)))
    margin = Duration(draw(st.integers(0, 600 * SECOND)))
    limit = cost_at_most(rate, margin.ns + draw(st.integers(3600 * SECOND, DAY_NS)))
    most = draw(st.none() | st.integers(1, DAY_NS).map(Duration))
    return RentalOrder(
        label="lab02", limit=limit, rate=rate, vendor=VENDOR, create=("create", "{name}"),
        most=most, margin=margin,
    )  # fmt: skip


@given(orders(), st.integers(0, 2 * DAY_NS))
def test_the_lease_of_a_rental_is_never_extended_and_gives_notice_at_its_deadline(
    order: RentalOrder, now_ns: int
) -> None:
    life_ns = order.lifetime_ns()
    longest = Duration(life_ns + order.margin.ns)
    lease = Lease.opened(
        Terms(rate=order.rate, most=longest, notice=order.margin), order.limit, 0
    )  # fmt: skip
    assert isinstance(lease.next_action(now_ns), GiveNotice if now_ns >= life_ns else Continue)
    assert lease.spent(longest.ns) <= order.limit


@given(
    st.lists(st.tuples(orders(), st.integers(0, DAY_NS), st.fractions(0, 1)), max_size=6),
    st.integers(0, 10**11),
)
def test_whatever_is_rented_captured_and_held_stay_within_the_ceiling(
    rented: list[tuple[RentalOrder, int, Fraction]], ceiling: int
) -> None:
    """Each is gone at some moment up to one margin after its life is over."""
    clock, log = ManualClock(), MemorySpendLog()
    guard = BudgetGuard(Money(ceiling), "spend.jsonl", clock=clock, environ={}, log=log)
    leaving = list[tuple[int, ControlledRental, RentalOrder]]()
    for order, pause_ns, part in rented:
        leaving = let_pass(clock, guard, leaving, pause_ns)
        rental = rental_of(order, clock.wall_ns())
        try:
            hold = guard.authorize(order.label, order.limit, rental=rental)
        except BudgetGuardExceeded:
            continue
        deadline_ns = wall_ns_of(parse_timestamp(rental.deadline))
        assert deadline_ns - started_ns(rental) <= order.lifetime_ns()
        lives_ns = int(part * (order.lifetime_ns() + order.margin.ns))
        controlled = ControlledRental(guard=guard, hold=hold, environ={}, clock=clock)
        leaving.append((started_ns(rental) + lives_ns, controlled, order))
    assert let_pass(clock, guard, leaving, 3 * DAY_NS) == []
    assert guard.held == 0


def started_ns(rental: Rental) -> int:
    return wall_ns_of(parse_timestamp(rental.started))


def let_pass(
    clock: ManualClock,
    guard: BudgetGuard,
    leaving: list[tuple[int, ControlledRental, RentalOrder]],
    pause_ns: int,
) -> list[tuple[int, ControlledRental, RentalOrder]]:
    """Let time pass, and what leaves meanwhile be settled; return what is still there."""
    until_ns, left = clock.wall_ns() + pause_ns, list[tuple[int, ControlledRental, RentalOrder]]()
    for at_ns, controlled, order in sorted(leaving, key=lambda each: each[0]):
        if at_ns > until_ns:
            left.append((at_ns, controlled, order))
            continue
        clock.advance(max(at_ns - clock.wall_ns(), 0))
        assert guard.remaining >= 0
        cost = guard.settle_rental(controlled.hold, controlled.cost(), "seen to be gone")
        assert cost is not None
        assert cost <= order.limit
        assert guard.remaining >= 0
    clock.advance(until_ns - clock.wall_ns())
    assert guard.remaining >= 0
    return left
