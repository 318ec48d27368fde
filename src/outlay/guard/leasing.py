"""One operation's hold, opened or joined: who opens it captures it, who runs below extends it.

``OUTLAY_HOLD`` carries it to what runs below, as ``<hold>@<path of the spend log>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import RentalEnds
from outlay.guard.lease import Terms
from outlay.units import Money

HOLD_VARIABLE = "OUTLAY_HOLD"


class Lease:
    """Money held for the next slice of one operation.

    Attributes:
        terms: At which rate, and how far ahead.
        hold: The hold as it was last seen.
        owned: Whether this process opened it, and so settles it.
    """

    def __init__(self, guard: BudgetGuard, hold: Hold, terms: Terms, *, owned: bool) -> None:
        self._guard = guard
        self.terms = terms
        self.hold = hold
        self.owned = owned

    @classmethod
    def open(
        cls,
        guard: BudgetGuard,
        label: str,
        terms: Terms,
        environ: Mapping[str, str],
        *,
        lab: str | None = None,
    ) -> Lease:
        """Join the hold that the environment names, or open one for the first slice.

        Raises:
            BudgetGuardExceeded: There is no room for the first slice.
            UnknownHold, HoldResolved: The environment names a hold that is not open.
        """
        named = read_hold(environ)
        if named is None:
            if (rented := guard.rental_here(environ)) is not None:
                return cls(guard, guard.until_deadline(rented, terms.rate), terms, owned=False)
            hold = guard.authorize(label, terms.opening(), lab=lab)
            return cls(guard, hold, terms, owned=True)
        hold_id, path = named
        if path != guard.log_path.absolute():
            guard = BudgetGuard.of_log(path, environ=environ)
        joined = guard.until_deadline(guard.log.books().hold(hold_id), terms.rate)
        lease = cls(guard, joined, terms, owned=False)
        if joined.rental is None:
            lease.extend(0)
        return lease

    def environ(self) -> dict[str, str]:
        """Return what tells the processes below about the hold."""
        return {HOLD_VARIABLE: f"{self.hold.id}@{self._guard.log_path.absolute()}"}

    def extend(self, elapsed_ns: int, *, before: Money | None = None) -> None:
        """Hold enough for another slice after ``elapsed_ns``, unless somebody else did.

        Args:
            elapsed_ns: How long the present terms have been in force.
            before: What was spent before that, on other terms.

        Raises:
            BudgetGuardExceeded: There is no room for it.
            RentalEnds: The hold pays for a machine, which ends at its deadline.
            SpendLogUnusable: The log can't be read, locked or written.
        """
        if self.hold.rental is not None:
            raise RentalEnds(self.hold.id, self.hold.rental.deadline)
        self.hold = self._guard.log.books().hold(self.hold.id)
        free = self.hold.amount if before is None else self.hold.amount - before
        more = self.terms.extension(free, elapsed_ns)
        if more:
            self.hold = self._guard.extend(self.hold, more)

    def room(self) -> Money:
        """Return what the hold could grow to."""
        return self._guard.room_of(self.hold)

    def settle(self, actual: Money) -> None:
        """Record what it cost, if it is ours to record."""
        if self.owned:
            self._guard.record_actual(self.hold.op_label, actual, hold=self.hold)

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
