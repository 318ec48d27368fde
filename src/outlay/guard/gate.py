"""The guard inside a run: money held ahead of training, extended beside, captured after.

The hold is opened before the first step and extended by a thread of its own, so that a slow disk
or a locked log never holds up a step. When all the room there is is held, training goes on until
that just pays for stopping, and then stops with the reason. What is captured in the end is the
cost of the attempt as its run log has it, from the start of the process to the attempt's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, OutlayError
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import RunPart
from outlay.guard.errors import BudgetGuardExceeded, RentalEnds
from outlay.guard.lease import SLICE, End, Extend, GiveNotice, GoOn, Lease, Terms
from outlay.units import Duration, Money, Rate

# One operation's hold, opened or joined: who opens it captures it, who runs below extends it.
#
# ``OUTLAY_HOLD`` carries it to what runs below, as ``<hold>@<path of the spend log>``.

HOLD_VARIABLE = "OUTLAY_HOLD"


class Leaseholder:
    """Holds an operation's money in the spend log, and does there what its lease asks for.

    It starts at ``now_ns``, on the clock of ``tend``. Of what the guard raises, ``refusals`` are
    refusals and the rest is raised.

    Attributes:
        hold: The hold as it was last seen.
        owned: Whether whoever has this opened the hold, and so settles it.
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
        """Join the hold that the environment names, or open one for the first slice.

        Where there is no room for a slice, what there is is held.

        Raises:
            BudgetGuardExceeded: What there is pays for nothing but the stopping.
            UnknownHold, HoldResolved: The environment names a hold that is not open.
        """
        named = read_hold(environ)
        if named is None:
            if (rented := guard.rental_here(environ)) is not None:
                paid = guard.until_deadline(rented, terms.rate)
                return cls(guard, paid, terms, now_ns, owned=False)
            least = terms.least_opening()
            hold = guard.authorize(label, terms.opening(), lab=lab, least_usd=least)
            return cls(guard, hold, terms, now_ns)
        hold_id, path = named
        if path != guard.log_path.absolute():
            guard = BudgetGuard.of_log(path, environ=environ)
        paid = guard.until_deadline(guard.log.books().hold(hold_id), terms.rate)
        joined = cls(guard, paid, terms, now_ns, owned=False)
        if paid.rental is None:
            joined._fill(terms.opening(), terms.least_opening())
        return joined

    def environ(self) -> dict[str, str]:
        """Return the variable by which processes below join the hold."""
        return {HOLD_VARIABLE: f"{self.hold.id}@{self._guard.log_path.absolute()}"}

    def tend(self, now_ns: int) -> GoOn | GiveNotice | End:
        """Return what whoever runs it has to do now; more money is asked for first."""
        while isinstance(act := self.lease.tend(now_ns), Extend):
            try:
                self._extend(act.more)
            except self._refusals as error:
                self.lease = self.lease.refused(str(error), now_ns)
            else:
                self.lease = self.lease.extended(self.hold.amount, now_ns)
        return act

    def give_notice(self, now_ns: int) -> None:
        """Remember that what runs was asked to end."""
        self.lease = self.lease.noticed(now_ns)

    def _extend(self, more: Money) -> None:
        """Hold more, unless somebody else did for the same hold."""
        if self.hold.rental is not None:
            raise RentalEnds(self.hold.id, self.hold.rental.deadline)
        wanted = self.lease.held + more
        self.hold = self._guard.log.books().hold(self.hold.id)
        if self.hold.amount < wanted:
            least = Money(1, wanted.currency)
            more = wanted - self.hold.amount
            self.hold = self._guard.extend(self.hold, more, least_usd=least)

    def _fill(self, wanted: Money, least: Money) -> None:
        """Let a hold that was joined grow to what an own one would have been opened with."""
        lacking = wanted - self.hold.amount
        if lacking.micros > 0:
            at_least = max(least - self.hold.amount, Money(1, least.currency))
            try:
                self.hold = self._guard.extend(self.hold, lacking, least_usd=at_least)
            except BudgetGuardExceeded:
                if self.hold.amount < least:
                    raise
            self.lease = replace(self.lease, held=self.hold.amount)

    def head(self) -> str:
        """Return the hash of the log's last line, for reports and notes; "" if unreadable."""
        try:
            return self._guard.head
        except OutlayError:
            return ""

    def room(self) -> Money:
        """Return what the hold could grow to."""
        return self._guard.room_of(self.hold)

    def settle(self, actual: Money, part: RunPart | None = None) -> None:
        """Record what it cost, if it is ours to record, and of which run that is the cost."""
        if self.owned:
            self._guard.record_actual(self.hold.op_label, actual, hold=self.hold, part=part)

    def void(self, reason: str) -> None:
        """Release the hold, if it is ours to release."""
        if self.owned:
            self._guard.void(self.hold, reason)


def read_hold(environ: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return the hold that this process runs under and its log, or None."""
    text = environ.get(HOLD_VARIABLE)
    if not text:
        return None
    hold_id, at, path = text.partition("@")
    if not (hold_id and at and path):
        raise InvalidValue(HOLD_VARIABLE, text, "<hold>@<path of the spend log>")
    return hold_id, Path(path)


GRACE = Duration(60 * 10**9)
_RETRY_S = 1.0
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """How a run is guarded.

    When the money ends, ``run.steps`` and ``run.may_step`` stop all ranks at the same step. A loop
    that only times its steps with ``run.step`` asks nothing: on several ranks, rank 0 alone learns
    of it there, as ``run.stop_reason``.

    Attributes:
        label: What the spend is called; default: the run's name.
        lab: The lab that pays, when the label does not say.
        slice: How much time is paid for at once, such as ``"5m"``.
        grace: How long stopping may take, a last checkpoint included, such as ``"2m"``.
    """

    guard: BudgetGuard
    label: str = ""
    lab: str | None = None
    slice: Duration | str = SLICE
    grace: Duration | str = GRACE

    def __post_init__(self) -> None:
        for name in ("slice", "grace"):
            object.__setattr__(self, name, Duration.parse(getattr(self, name), name=name))


def read_guarding(
    value: object, environ: Mapping[str, str], *, priced: bool, clock: Clock = SYSTEM
) -> Guarding | None:
    """Return how a run is guarded: as its caller says, else as ``OUTLAY_HOLD`` says.

    ``value`` is a BudgetGuard, a Guarding, or the path of a spend log or of its directory. Without
    a price, under a launcher's hold, the launcher alone counts the money.

    Raises:
        InvalidValue: It is something else, or the run has no price to count with.
    """
    if value is None:
        named = read_hold(environ) if priced else None
        if named is None:
            return None
        return Guarding(guard=BudgetGuard.of_log(named[1], clock=clock, environ=environ))
    if not priced:
        raise InvalidValue("price", None, "a price, since a guard counts money: price=...")
    if isinstance(value, Guarding):
        return value
    if isinstance(value, BudgetGuard):
        return Guarding(guard=value)
    if isinstance(value, str | Path):
        path = Path(value)
        log = path / "spend.jsonl" if path.is_dir() else path
        return Guarding(guard=BudgetGuard.of_log(log, clock=clock, environ=environ))
    raise InvalidValue("guard", value, "a BudgetGuard, a Guarding or the path of a spend log")


class GuardGate:
    """Stops a training when its money does.

    ``label`` is what the spend is called, unless ``guarding`` says.

    Raises:
        BudgetGuardExceeded: There is room for nothing but the stopping.
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
        paid_at_once, stopping = map(Duration.parse, (guarding.slice, guarding.grace))
        terms = Terms(rate=rate, slice=paid_at_once, notice=stopping)
        self._holder = Leaseholder.open(
            guarding.guard, guarding.label or label, terms, environ,
            now_ns=clock.monotonic_ns(), lab=guarding.lab,
        )  # fmt: skip
        self._refusal_reported = False
        self._note: Callable[[str], None] = lambda _: None
        self._logged: Callable[[], Money | None] = lambda: None
        self._part: RunPart | None = None
        self._over = threading.Event()
        self._awake = threading.Event()
        self._repriced = threading.Lock()
        self._thread = threading.Thread(target=self._tend, name="outlay-guard", daemon=True)

    def begin(
        self,
        note: Callable[[str], None],
        logged: Callable[[], Money | None] = lambda: None,
        part: RunPart | None = None,
    ) -> None:
        """Start extending.

        ``note`` takes what a reader of the run's log should know. ``logged`` returns what the
        attempt has cost by now, as its log says; None where there is no log, so that the gate's own
        clock counts.
        """
        self._note, self._logged, self._part = note, logged, part
        self._count_what_was_before()
        hold, rate = self._holder.hold, self._holder.lease.terms.rate
        how = "opened" if self._holder.owned else "joined"
        note(f"guard: hold {hold.id} {how}, {hold.amount} at {rate}{self._head()}")
        self._thread.start()

    def _count_what_was_before(self) -> None:
        """Hold what the attempt has cost already: its start-up, and a machine that was kept."""
        before = self._spent_by_log()
        if before is not None:
            self._holder.lease = self._holder.lease.counted(before, self._clock.monotonic_ns())
            self.tend()

    def abandon(self, reason: str) -> None:
        """Release the hold: nothing was trained."""
        self._stop_tending()
        self._holder.void(reason)

    def stop_reason(self) -> str | None:
        """Return why no step may run, once what is held only just pays for stopping."""
        lease = self._holder.lease
        stop_ns = lease.stop_ns
        if stop_ns is None or self._clock.monotonic_ns() < stop_ns:
            return None
        return f"guard: {lease.reason}"

    def settle(self) -> None:
        """Record what it cost; a log that can't take it leaves the hold open, and says so."""
        self._stop_tending()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        logged = self._spent_by_log()
        actual = self._spent() if logged is None else logged
        try:
            self._holder.settle(actual, None if logged is None else self._part)
        except OutlayError as error:
            self._note(f"guard: {actual} could not be recorded, the hold stays open: {error}")
        else:
            how = "recorded" if self._holder.owned else "spent"
            self._note(f"guard: {actual} {how}{self._head()}")

    def _head(self) -> str:
        head = self._holder.head()
        return f"; head {head}" if head else ""

    def change_rate(self, rate: Rate) -> None:
        """Count at another rate from now on; what is held may have to grow at once."""
        with self._repriced:
            self._holder.lease = self._holder.lease.repriced(rate, self._clock.monotonic_ns())
            self.tend()
        self._awake.set()

    # -- beside the training ----------------------------------------------------------------

    def _tend(self) -> None:
        while not self._over.is_set():
            self._awake.wait(self._pause_s())
            self._awake.clear()
            if not self._over.is_set():
                with self._repriced:
                    self.tend()

    def _stop_tending(self) -> None:
        self._over.set()
        self._awake.set()

    def tend(self) -> None:
        """Extend the hold if that is due; what goes wrong is tried again, and remembered."""
        self._holder.tend(self._clock.monotonic_ns())
        refusal = self._holder.lease.refusal
        if refusal and not self._refusal_reported:
            self._note(f"guard: no more money can be held: {refusal}")
        self._refusal_reported = bool(refusal)

    def _pause_s(self) -> float:
        lease, now_ns = self._holder.lease, self._clock.monotonic_ns()
        act, least_s = lease.tend(now_ns), min(_RETRY_S, lease.terms.slice.seconds / 10)
        if isinstance(act, GoOn):
            until_s = _RETRY_S if act.until_ns is None else (act.until_ns - now_ns) / 1e9
            return max(until_s, least_s)
        return least_s

    def _spent_by_log(self) -> Money | None:
        try:
            logged = self._logged()
        except OSError:  # The run log cannot be read; training does not depend on it.
            return None
        same = logged is not None and logged.currency == self._holder.hold.amount.currency
        return logged if same else None

    def _spent(self) -> Money:
        return self._holder.lease.spent(self._clock.monotonic_ns())
