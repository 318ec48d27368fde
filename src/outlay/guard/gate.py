"""The guard inside a run: a hold before the first step, extended during it, captured after it.

A background thread extends the hold, so that a slow disk or a locked log never delays a step. When
no more can be held, training runs until the hold only pays for stopping, and then stops with the
reason. The capture is the attempt's cost in the run log, from the process's start to the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, OutlayError
from outlay.guard.away import waiting_settlements
from outlay.guard.away.waiting_settlements import waiting_text
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, RunPart, Vendor, parse_timestamp
from outlay.guard.errors import BudgetGuardExceeded, RentalEnds, SpendLogUnusable
from outlay.guard.lease import SLICE, Continue, End, Extend, GiveNotice, Lease, Terms
from outlay.guard.spend_log import is_named, is_url, name_for_others, named_log
from outlay.ledger import Price
from outlay.rates import gpu_rate, rate_of
from outlay.units import Duration, Money, Rate, Unit
from outlay.units.money import GPU_TIME

# The hold of one operation. The process that opens it captures it; its children join and extend it.
# ``OUTLAY_HOLD`` passes it to them, as ``<hold>@<path of the spend log>``.

HOLD_VARIABLE = "OUTLAY_HOLD"
DEADLINE_VARIABLE = "OUTLAY_HOLD_DEADLINE"
"""When a rented machine ends, for one that can't reach the spend log of its hold."""
_ANSWER_NS = 5 * 10**8
_BEAT_NS = 60 * 10**9
_NO_ANSWER = "the spend log does not answer"


class Leaseholder:
    """Applies a lease to a hold in the spend log.

    The lease starts at ``now_ns``, on the clock of ``renew``. Exceptions of the types ``refusals``
    count as refused extensions; others propagate.

    Attributes:
        hold: The hold as it was last read.
        owned: Whether it was opened here, and so is settled here.
    """

    def __init__(
        self,
        guard: BudgetGuard,
        hold: Hold,
        terms: Terms,
        now_ns: int = 0,
        *,
        owned: bool = True,
        refusals: tuple[type[Exception], ...] = (OutlayError, OSError),
    ) -> None:
        self._guard = guard
        self._refusals = refusals
        self._refusal_reported = False
        self._changing = threading.Lock()  # of the lease
        self._asking = threading.Lock()
        self._asker: threading.Thread | None = None
        self._next_beat_ns = now_ns
        self.hold = hold
        self.owned = owned
        self.lease = Lease.opened(terms, hold.amount, now_ns)

    @classmethod
    def open(
        cls,
        guard: BudgetGuard,
        label: str,
        terms: Terms,
        environ: Mapping[str, str],
        *,
        now_ns: int,
        lab: str | None = None,
    ) -> Leaseholder:
        """Join the hold in the environment, or open one for the first slice, or for what fits.

        Raises:
            BudgetGuardExceeded: The room only pays for stopping.
            UnknownHold, HoldResolved: The hold in the environment is not open.
        """
        named = read_hold(environ)
        if named is None:
            if (rented := guard.rental_here(environ)) is not None:
                paid = guard.until_deadline(rented, terms.rate)
                return cls(guard, paid, terms, now_ns, owned=False)
            if (held := guard.job_here(environ)) is not None:
                return cls(guard, held, terms, now_ns, owned=False)
            least = terms.least_opening()
            hold = guard.authorize(
                label, terms.opening(), lab=lab, least_usd=least, rate=terms.rate
            )
            return cls(guard, hold, terms, now_ns)
        hold_id, log = named
        try:
            if not is_named(guard.log_name, log):
                guard = BudgetGuard.of_log(log, environ=environ)
            hold = guard.log.books().hold(hold_id)
        except SpendLogUnusable:
            if (rented := _rented_here(hold_id, label, terms.rate, environ)) is None:
                raise
            hold = rented
        paid = guard.until_deadline(hold, terms.rate)
        joined = cls(guard, paid, terms, now_ns, owned=False)
        if paid.rental is None:
            joined._fill(terms.opening(), terms.least_opening())
        return joined

    @classmethod
    def taking_over(
        cls, guard: BudgetGuard, hold: Hold, terms: Terms, *, spent: Money
    ) -> Leaseholder:
        """Use an open hold, of which ``spent`` is used up, extended to pay for a start now.

        Raises:
            BudgetGuardExceeded: The room only pays for stopping; the hold stays as it is.
        """
        holder = cls(guard, hold, terms)
        holder._fill(spent + terms.opening(), spent + terms.least_opening())
        holder.lease = replace(holder.lease, before=spent)
        return holder

    def environ(self) -> dict[str, str]:
        """Return the variable with which child processes join the hold."""
        return {HOLD_VARIABLE: f"{self.hold.id}@{name_for_others(self._guard.log_name)}"}

    def renew(self, now_ns: int) -> Continue | GiveNotice | End:
        """Extend the hold if that is due; return what the caller has to do."""
        with self._asking:
            while isinstance(act := self.lease.next_action(now_ns), Extend):
                try:
                    self._extend(act.more)
                except self._refusals as error:
                    self._change(partial(Lease.refused, reason=str(error), now_ns=now_ns))
                else:
                    self._change(partial(Lease.extended, held=self.hold.amount, now_ns=now_ns))
            if self._is_beat_due(now_ns):
                self._beat(now_ns)
            return act

    def _is_beat_due(self, now_ns: int) -> bool:
        """Return whether a book is to be told that this process still has the hold."""
        is_asked = self.owned and not isinstance(self._guard.log_name, Path)
        return is_asked and now_ns >= self._next_beat_ns

    def _beat(self, now_ns: int) -> None:
        self._next_beat_ns = now_ns + _BEAT_NS
        with suppress(OutlayError, OSError):  # A missed beat ends nothing.
            self._guard.log.beat(self.hold.id, self.hold.by)

    def renew_in_background(self, now_ns: int) -> Continue | GiveNotice | End:
        """Extend the hold if that is due, and wait only shortly for a log that does not answer.

        Without an answer in time it has to stop, as after a refusal.
        """
        wait_ns = min(_ANSWER_NS, self.lease.terms.notice.ns // 2)
        is_due = isinstance(self.lease.next_action(now_ns), Extend)
        if (is_due or self._is_beat_due(now_ns)) and not self._is_asking():
            self._asker = threading.Thread(
                target=self.renew, args=(now_ns,), name="outlay-extension", daemon=True
            )
            self._asker.start()
            self._asker.join(wait_ns / 1e9 if is_due else 0)
        act, stop_ns = self.lease.next_action(now_ns), self.lease.stop_ns
        if not isinstance(act, Extend):
            return act
        if stop_ns is not None and now_ns >= stop_ns + wait_ns:
            return GiveNotice(self.lease.refusal or _NO_ANSWER)
        return Continue(now_ns)

    def _is_asking(self) -> bool:
        return self._asker is not None and self._asker.is_alive()

    def _finish_asking(self) -> None:
        if self._asker is not None:
            self._asker.join()

    def _change(self, change: Callable[[Lease], Lease]) -> None:
        with self._changing:
            self.lease = change(self.lease)

    def new_refusal(self) -> str:
        """Return why an extension was refused, once until one is granted; else ""."""
        refusal, reported = self.lease.refusal, self._refusal_reported
        self._refusal_reported = bool(refusal)
        return "" if reported else refusal

    def give_notice(self, now_ns: int) -> None:
        """Record that SIGTERM was sent."""
        self._change(partial(Lease.noticed, now_ns=now_ns))

    def reprice(self, rate: Rate, now_ns: int) -> None:
        """Count at another rate from now on."""
        self._change(partial(Lease.repriced, rate=rate, now_ns=now_ns))

    def _extend(self, more: Money) -> None:
        """Hold more, unless another process has extended the same hold."""
        if self.hold.rental is not None:
            raise RentalEnds(self.hold.id, self.hold.rental.deadline)
        wanted = self.lease.held + more
        self.hold = self._guard.log.books().hold(self.hold.id)
        if self.hold.amount < wanted:
            least = wanted.unit.money(1)
            more = wanted - self.hold.amount
            self.hold = self._guard.extend(self.hold, more, least_usd=least)

    def _fill(self, wanted: Money, least: Money) -> None:
        """Extend a joined hold to the amount with which a new one would be opened."""
        lacking = wanted - self.hold.amount
        if lacking.micros > 0:
            at_least = max(least - self.hold.amount, least.unit.money(1))
            try:
                self.hold = self._guard.extend(self.hold, lacking, least_usd=at_least)
            except BudgetGuardExceeded:
                if self.hold.amount < least:
                    raise
            self.lease = replace(self.lease, held=self.hold.amount)

    def head(self) -> str:
        """Return the hash of the log's last line; "" if it can't be read."""
        try:
            return self._guard.head
        except OutlayError:
            return ""

    def room(self) -> Money:
        """Return the largest amount that the hold could have."""
        try:
            return self._guard.room_of(self.hold)
        except SpendLogUnusable:
            if self.hold.rental is None:
                raise
            return self.hold.amount  # Its machine is paid for until the deadline.

    def settle(self, actual: Money, part: RunPart | None = None) -> Path | None:
        """Capture the cost, and which part of a run it is, if the hold is owned.

        Returns the file in which that waits for a book that can't be reached.
        """
        self._finish_asking()
        if not self.owned:
            return None
        hold = self.hold
        return waiting_settlements.settle(self._guard, hold.id, hold.op_label, actual, part)

    def void(self, reason: str) -> None:
        """Release the hold if it is owned."""
        self._finish_asking()
        if self.owned:
            waiting_settlements.void(self._guard, self.hold.id, self.hold.op_label, reason)


def _rented_here(hold_id: str, label: str, rate: Rate, environ: Mapping[str, str]) -> Hold | None:
    """Return the hold of this machine by the deadline in the environment; None without one.

    Raises:
        InvalidValue: The deadline is no time.
    """
    deadline = read_deadline(environ)
    if not deadline:
        return None
    rental = Rental(
        name="", rate=str(rate), started=deadline, deadline=deadline,
        vendor=Vendor(name="", list=(), terminate=()),
    )  # fmt: skip
    return Hold(
        id=hold_id, op_label=label, lab="", amount=rate.unit.money(0), ts=deadline,
        day=deadline[:10], rental=rental, kind=rate.unit.kind,
    )  # fmt: skip


def read_deadline(environ: Mapping[str, str]) -> str:
    """Return the time at which this rented machine ends, as the log states it; "" if unknown."""
    text = environ.get(DEADLINE_VARIABLE, "")
    if text:
        try:
            parse_timestamp(text)
        except (ValueError, OutlayError):
            raise InvalidValue(
                DEADLINE_VARIABLE, text, "a time such as 2026-11-15T10:00:00Z"
            ) from None
    return text


def read_hold(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the id and log of the hold in the environment, or None."""
    text = environ.get(HOLD_VARIABLE)
    if not text:
        return None
    hold_id, at, path = text.partition("@")
    if not (hold_id and at and path):
        raise InvalidValue(HOLD_VARIABLE, text, "<hold>@<path or URL of the spend log>")
    return hold_id, path if is_url(path) else str(Path(path))


GRACE = Duration(60 * 10**9)
_RETRY_S = 1.0
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """The guard of a run, and its terms.

    When the money ends, ``run.steps`` and ``run.may_step`` stop all ranks at the same step. With
    ``run.step`` alone, which never asks, only rank 0 is informed, through ``run.stop_reason``.

    Attributes:
        label: The label of the spend; default: the run's name.
        lab: The lab that pays, if the label does not name it.
        slice: How much time one extension pays for, such as ``"5m"``.
        grace: How long stopping may take, a last checkpoint included, such as ``"2m"``.
        gpus: GPUs of the whole run, as ``gpus=`` of ``outlay.run``; a guard in GPU-hours needs
            them where they can't be found.
    """

    guard: BudgetGuard
    label: str = ""
    lab: str | None = None
    slice: Duration | str = SLICE
    grace: Duration | str = GRACE
    gpus: object = None

    def __post_init__(self) -> None:
        for name in ("slice", "grace"):
            object.__setattr__(self, name, Duration.parse(getattr(self, name), name=name))


def read_guarding(
    value: object, environ: Mapping[str, str], *, price: Price | None, clock: Clock = SYSTEM
) -> Guarding | None:
    """Return the guard of a run: the caller's ``value``, else that of ``OUTLAY_HOLD``.

    ``value`` is a BudgetGuard, a Guarding, the path of a spend log or of its directory, or the URL
    of a book. Without a price, under a launcher's hold, only the launcher counts the money.

    Raises:
        InvalidValue: ``value`` is something else, or the guard counts money and the run has no
            price.
    """
    if value is None:
        named = None if price is None else read_hold(environ)
        if price is None or named is None:
            return None
        guard = guard_of_hold(named[1], environ, clock, unit_away=lambda: price.unit)
        return Guarding(guard=guard)
    guarding = _guarding_of(value, environ, clock)
    if price is None and guarding.guard.unit != GPU_TIME:
        raise InvalidValue("price", None, "a price, since a guard counts money: price=...")
    return guarding


def _guarding_of(value: object, environ: Mapping[str, str], clock: Clock) -> Guarding:
    if isinstance(value, Guarding):
        return value
    if isinstance(value, BudgetGuard):
        return Guarding(guard=value)
    if isinstance(value, str | Path):
        log = named_log(value)
        return Guarding(guard=BudgetGuard.of_log(log, clock=clock, environ=environ))
    raise InvalidValue("guard", value, "a BudgetGuard, a Guarding or the path of a spend log")


def rate_on(guard: BudgetGuard, price: Price | None, gpus: Fraction) -> Rate:
    """Return what a run on some GPUs costs per hour, in the unit of its guard.

    In a guard of GPU-hours that is the number of GPUs; its price, if any, does not matter there.

    Raises:
        InvalidValue: The price is of another unit.
    """
    if guard.unit == GPU_TIME:
        return gpu_rate(gpus)
    assert price is not None
    if price.unit != guard.unit:
        raise InvalidValue("price", price.text, expected_price(guard, price.unit))
    return rate_of(price.rate, gpus)


def expected_price(guard: BudgetGuard, seen: Unit) -> str:
    """Return which price a guard takes, for an error on a price of another unit."""
    hint = ""
    if seen.currency == guard.unit.currency:
        hint = f'; append "{guard.unit.kind}" if it is {guard.unit.kind}'
    return f"a price in {guard.unit}, which {guard.log_name} counts, not in {seen}{hint}"


def guard_of_hold(
    log: str, environ: Mapping[str, str], clock: Clock = SYSTEM, *, unit_away: Callable[[], Unit]
) -> BudgetGuard:
    """Return the guard of a launcher's log; a rented machine need not reach a book.

    ``unit_away`` returns the unit of what is spent below a book that can't be reached.
    """
    try:
        return BudgetGuard.of_log(log, clock=clock, environ=environ)
    except SpendLogUnusable:
        if not is_url(log) or not read_deadline(environ):
            raise
        return BudgetGuard(0, log, currency=str(unit_away()), clock=clock, environ=environ)


def allowance_of(guard: BudgetGuard, environ: Mapping[str, str]) -> Duration:
    """Return the book's offline allowance; a rented machine is paid to its deadline."""
    return Duration(0) if read_deadline(environ) else guard.offline_allowance()


class GuardGate:
    """Stops a run when no more money can be held.

    ``label`` is the label of the spend, unless ``guarding`` has one.

    Raises:
        BudgetGuardExceeded: The room only pays for stopping.
    """

    def __init__(
        self,
        guarding: Guarding,
        rate: Rate,
        label: str,
        environ: Mapping[str, str],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self._guard = guarding.guard
        paid_at_once, stopping = map(Duration.parse, (guarding.slice, guarding.grace))
        terms = Terms(
            rate=rate, slice=paid_at_once, notice=stopping,
            allowance=allowance_of(guarding.guard, environ),
        )  # fmt: skip
        self._holder = Leaseholder.open(
            guarding.guard, guarding.label or label, terms, environ,
            now_ns=clock.monotonic_ns(), lab=guarding.lab,
        )  # fmt: skip
        self._note: Callable[[str], None] = lambda _: None
        self._logged: Callable[[], Money | None] = lambda: None
        self._part: RunPart | None = None
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._renew_loop, name="outlay-guard", daemon=True)

    @property
    def unit(self) -> Unit:
        """The unit in which it holds."""
        return self._guard.unit

    def begin(
        self,
        note: Callable[[str], None],
        logged: Callable[[], Money | None] = lambda: None,
        part: RunPart | None = None,
    ) -> None:
        """Start the thread that extends the hold.

        ``note`` writes a note into the run log. ``logged`` returns the attempt's cost so far by its
        log; None without one, and then the gate's own clock counts.
        """
        self._note, self._logged, self._part = note, logged, part
        self._count_startup()
        hold, rate = self._holder.hold, self._holder.lease.terms.rate
        how = "opened" if self._holder.owned else "joined"
        note(f"guard: hold {hold.id} {how}, {hold.amount} at {rate}{self._head()}")
        self._thread.start()

    def _count_startup(self) -> None:
        """Hold what the attempt has cost already: its start-up, and billed time before it."""
        before = self._spent_by_log()
        if before is not None:
            self._holder.lease = self._holder.lease.counted(before, self._clock.monotonic_ns())
            self.renew()

    def abandon(self, reason: str) -> None:
        """Release the hold: nothing was trained."""
        self._stop_renewing()
        self._holder.void(reason)

    def stop_reason(self) -> str | None:
        """Return why no more steps may run, once the hold only pays for stopping; else None."""
        lease = self._holder.lease
        stop_ns = lease.stop_ns
        if stop_ns is None or self._clock.monotonic_ns() < stop_ns:
            return None
        return f"guard: {lease.reason}"

    def settle(self) -> None:
        """Capture the cost; if the spend log fails, the hold stays open and a note says why."""
        self._stop_renewing()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        logged = self._spent_by_log()
        now_ns = self._clock.monotonic_ns()
        actual = self._holder.lease.spent(now_ns) if logged is None else logged
        try:
            file = self._holder.settle(actual, None if logged is None else self._part)
        except OutlayError as error:
            self._note(f"guard: {actual} could not be recorded, the hold stays open: {error}")
        else:
            how = "recorded" if self._holder.owned else "spent"
            said = f"{how}{self._head()}" if file is None else waiting_text(file)
            self._note(f"guard: {actual} {said}")

    def _head(self) -> str:
        head = self._holder.head()
        return f"; head {head}" if head else ""

    def rate_of(self, price: Price | None, gpus: Fraction) -> Rate:
        """Return what the run costs per hour in the guard's unit."""
        return rate_on(self._guard, price, gpus)

    def change_rate(self, rate: Rate) -> None:
        """Use another rate from now on; the hold may have to be extended at once."""
        now_ns = self._clock.monotonic_ns()
        self._holder.reprice(rate, now_ns)
        self._holder.renew_in_background(now_ns)
        self._note_refusal()
        self._wake.set()

    # -- the thread -------------------------------------------------------------------------

    def _renew_loop(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self._pause_s())
            self._wake.clear()
            if not self._ended.is_set():
                self.renew()

    def _stop_renewing(self) -> None:
        self._ended.set()
        self._wake.set()

    def renew(self) -> None:
        """Extend the hold if that is due; a refusal is noted once and retried."""
        self._holder.renew(self._clock.monotonic_ns())
        self._note_refusal()

    def _note_refusal(self) -> None:
        if refusal := self._holder.new_refusal():
            self._note(f"guard: no more money can be held: {refusal}")

    def _pause_s(self) -> float:
        lease, now_ns = self._holder.lease, self._clock.monotonic_ns()
        act, least_s = lease.next_action(now_ns), min(_RETRY_S, lease.terms.slice.seconds / 10)
        if isinstance(act, Continue):
            until_s = _RETRY_S if act.until_ns is None else (act.until_ns - now_ns) / 1e9
            return max(min(until_s, _BEAT_NS / 1e9), least_s)
        return least_s

    def _spent_by_log(self) -> Money | None:
        try:
            logged = self._logged()
        except OSError:  # The run log cannot be read; training does not depend on it.
            return None
        same = logged is not None and logged.unit == self._holder.hold.amount.unit
        return logged if same else None
