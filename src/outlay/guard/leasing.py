"""One operation's hold, opened or joined: who opens it captures it, who runs below extends it.

``OUTLAY_HOLD`` carries it to what runs below, as ``<hold>@<path of the spend log>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, OutlayError
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import RunPart
from outlay.guard.errors import BudgetGuardExceeded, RentalEnds
from outlay.guard.lease import End, Extend, GiveNotice, GoOn, Lease, Terms
from outlay.units import Money

HOLD_VARIABLE = "OUTLAY_HOLD"


class Leaseholder:
    """Holds an operation's money in the spend log, and does there what its lease asks for.

    Args:
        guard: Whose money it is.
        hold: The hold as it was opened or found.
        terms: At which rate, and how far ahead.
        now_ns: When it starts, on the clock that ``tend`` is told.
        owned: Whether whoever has this opened the hold, and so settles it.
        refusals: What counts as a refusal; anything else that the guard raises is raised.

    Attributes:
        hold: The hold as it was last seen.
        lease: How it stands.
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
        """Return what tells the processes below about the hold."""
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

    def _extend(self, more: Money) -> None:
        """Hold more, unless somebody else did for the same hold."""
        if self.hold.rental is not None:
            raise RentalEnds(self.hold.id, self.hold.rental.deadline)
        wanted = self.lease.held + more
        self.hold = self._guard.log.books().hold(self.hold.id)
        if self.hold.amount < wanted:
            least = Money(1, wanted.currency)
            self.hold = self._guard.extend(
                self.hold, wanted - self.hold.amount, least_usd=least
            )  # fmt: skip

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
        """Return the hash of the log's last line, for whoever tells of money; "" if unreadable."""
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
    """Return the hold that this process runs under and its log, or None.

    Raises:
        InvalidValue: ``OUTLAY_HOLD`` is set to something else.
    """
    text = environ.get(HOLD_VARIABLE)
    if not text:
        return None
    hold_id, at, path = text.partition("@")
    if not (hold_id and at and path):
        raise InvalidValue(HOLD_VARIABLE, text, "<hold>@<path of the spend log>")
    return hold_id, Path(path)


def guard_of_hold(environ: Mapping[str, str], clock: Clock = SYSTEM) -> BudgetGuard | None:
    """Return the guard of the log that ``OUTLAY_HOLD`` names, or None."""
    named = read_hold(environ)
    return None if named is None else BudgetGuard.of_log(named[1], clock=clock, environ=environ)
