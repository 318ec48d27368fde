"""Where the attempts of a pausing command run: on this machine, or on one rented for each attempt.

A rental is ordered, watched, ended and verified gone by ``outlay.guard.rental`` alone. Which
rentals are a run's own is in the spend log: they name the run, and no other is touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final, Protocol

from outlay.clock import SYSTEM, Clock, wall_ns_of
from outlay.errors import NotARun, OutlayError
from outlay.guard.balance import Books, Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor, parse_timestamp
from outlay.guard.gate import DEADLINE_VARIABLE, HOLD_VARIABLE
from outlay.guard.lease import Terms
from outlay.guard.rental.rental import (
    MARGIN,
    SETTLE,
    CreationFailed,
    RentalOrder,
    RentalUnknown,
    VendorUnusable,
    check_order,
    rent,
)
from outlay.guard.rental.watch import Reaper, start_watcher
from outlay.guard.scopes import lab_of
from outlay.guard.spend_log import name_for_others
from outlay.ledger import RunIdentity, claim_identity, read_identity
from outlay.ledger.attempts import SegmentLife
from outlay.pausing.pause_plan import MachineTimes
from outlay.rates import cost_at_most
from outlay.units import Duration, Money, Rate

NAME_VARIABLE, ID_VARIABLE = "OUTLAY_RENTAL_NAME", "OUTLAY_RENTAL_ID"
"""Tell the command which machine was rented for it."""
_INSTANCE_VARIABLE: Final = "INSTANCE_ID"
_ROUNDS: Final = 4
"""Polls of one try to end a rental: listed, ended, and not listed twice."""
_LAST_ROUNDS: Final = 60
_LONGEST_PAUSE_S: Final = 5.0


class MachineUnavailable(OutlayError):
    """No machine could be rented; what was held for it is free, or its hold is open."""


class AttemptMachine(Protocol):
    """The machine of a command that is paused."""

    def start(self, rate: Rate, needed_ns: int) -> Mapping[str, str]:
        """Have a machine for ``needed_ns``; return what its command's environment gets.

        Raises:
            MachineUnavailable: There is none now.
            BudgetGuardExceeded: There is no room for it.
        """
        ...

    def end(self, *, is_last: bool = False) -> bool:
        """End what was had; return whether none of it costs money any more.

        ``is_last``: nobody will try again.
        """
        ...

    def look_after(self) -> None:
        """See that it is ended in time whatever happens here."""
        ...

    def times(self, attempts: Mapping[str, SegmentLife]) -> MachineTimes:
        """Return how long it takes to have one and to end it; ``attempts`` are by their hold."""
        ...


class MachineHere:
    """The machine that is here, and stays."""

    def start(self, rate: Rate, needed_ns: int) -> Mapping[str, str]:
        """Return no variables."""
        del rate, needed_ns
        return {}

    def end(self, *, is_last: bool = False) -> bool:
        """Return True: there is nothing to end."""
        del is_last
        return True

    def look_after(self) -> None:
        """Do nothing."""

    def times(self, attempts: Mapping[str, SegmentLife]) -> MachineTimes:
        """Return no time."""
        del attempts
        return MachineTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTerms:
    """How the machine of each attempt is rented.

    Attributes:
        limit: The most that one rental may cost; None: what the time until the deadline costs.
        most: The longest that one may run.
        poll: How often its watcher asks the vendor.
    """

    label: str
    lab: str | None
    vendor: Vendor
    create: tuple[str, ...]
    limit: Money | None = None
    most: Duration | None = None
    margin: Duration = MARGIN
    settle: Duration = SETTLE
    poll: Duration

    def order(self, rate: Rate, limit: Money, run_id: str) -> RentalOrder:
        """Return the order of a machine."""
        return RentalOrder(
            label=self.label, lab=self.lab, vendor=self.vendor, create=self.create, rate=rate,
            limit=limit, most=self.most, margin=self.margin, settle=self.settle, run=run_id,
        )  # fmt: skip


class AttemptRental:
    """A machine that is rented for each attempt, of one offer, and ended after it.

    Args:
        lease: Of the command on it; its notice must be paid for.
        run_dir: Of the run; its rentals carry its id.
    """

    def __init__(
        self,
        guard: BudgetGuard,
        terms: RentalTerms,
        lease: Terms,
        environ: Mapping[str, str],
        *,
        run_dir: Path,
        clock: Clock = SYSTEM,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._guard = guard
        self._terms = terms
        self._lease = lease
        self._run_dir = run_dir
        self._environ = environ
        self._clock = clock
        self._say = say
        self._said = ""
        self._reaper = Reaper(guard, environ, clock=clock, say=self._say_once)

    def check(self, rate: Rate) -> None:
        """Refuse what could not be ordered at a price.

        Raises:
            InvalidValue: What is wrong with it.
        """
        limit = self._terms.limit or cost_at_most(rate, self._least_ns)
        check_order(self._terms.order(rate, limit, ""), self._environ)

    @property
    def _least_ns(self) -> int:
        ahead = self._lease.slice.ns + self._lease.notice.ns
        return ahead + self._terms.margin.ns

    def start(self, rate: Rate, needed_ns: int) -> Mapping[str, str]:
        """Rent one: for the time that is needed, or as long as there is room for."""
        order = self._terms.order(rate, self._limit(rate, needed_ns), self._run_id())
        try:
            hold = rent(
                self._guard, order, self._environ, clock=self._clock, say=self._say,
                start_watcher=self._watch,
            )  # fmt: skip
        except (CreationFailed, VendorUnusable, RentalUnknown) as error:
            if isinstance(error, RentalUnknown):
                self._say(str(error))
            raise MachineUnavailable(error.problem) from error
        assert hold.rental is not None
        return {
            HOLD_VARIABLE: f"{hold.id}@{name_for_others(self._guard.log_name)}",
            DEADLINE_VARIABLE: hold.rental.deadline,
            NAME_VARIABLE: hold.rental.name,
            ID_VARIABLE: hold.resource,
            _INSTANCE_VARIABLE: hold.resource,  # Its cost is this rental's, wherever it is counted.
        }

    def _limit(self, rate: Rate, needed_ns: int) -> Money:
        """Return what to hold: enough to do anything on it, even where that does not fit."""
        terms = self._terms
        wanted = cost_at_most(rate, max(needed_ns, 0) + self._least_ns)
        room = self._guard.room(lab_of(terms.label, terms.lab))
        most = wanted if terms.limit is None else min(wanted, terms.limit)
        return max(min(most, room), cost_at_most(rate, self._least_ns))

    def _watch(self, hold: Hold) -> bool:
        return start_watcher(self._guard.log_name, hold, self._environ, self._terms.poll)

    def end(self, *, is_last: bool = False) -> bool:
        """End every rental of this run; return whether all of them are verified gone."""
        pause_s = min(_LONGEST_PAUSE_S, self._terms.poll.seconds)
        rounds = _LAST_ROUNDS if is_last else _ROUNDS
        for hold in self._rentals():
            self._reaper.end(hold, rounds=rounds, pause_s=pause_s)
        return not self._rentals()

    def look_after(self) -> None:
        """Replace a watcher that is dead."""
        orphans = {hold.id for hold in self._reaper.orphans()}
        for hold in self._rentals():
            if hold.id in orphans:
                self._say(f"the watcher of {hold.op_label} is dead; starting another")
                self._watch(hold)

    def times(self, attempts: Mapping[str, SegmentLife]) -> MachineTimes:
        """Return the means over the run's rentals that are gone."""
        ended = [
            (hold, attempts[hold.id])
            for hold in self._own(self._guard.log.look(Books.rentals))
            if hold.gone and hold.id in attempts
        ]
        starts = [life.start_ns - hold.rental.ordered_ns for hold, life in ended if hold.rental]
        ends = [_ns(hold.gone) - life.last_sign_ns for hold, life in ended]
        return MachineTimes(start_ns=_mean_ns(starts), end_ns=_mean_ns(ends))

    def _rentals(self) -> Sequence[Hold]:
        """Return the open rentals of this run, and of no other."""
        return self._own(self._guard.log.look(Books.open_rentals))

    def _own(self, rentals: Iterable[Hold]) -> list[Hold]:
        run = read_identity(self._run_dir)
        if run is None:
            return []
        return [hold for hold in rentals if hold.rental and hold.rental.run == run.run_id]

    def _run_id(self) -> str:
        """Return the id of the run, which it gets here if it has none yet."""
        proposal = RunIdentity(
            run_id=uuid.uuid4().hex, model="", name=self._terms.label,
            created_ns=self._clock.wall_ns(),
        )  # fmt: skip
        claim_identity(self._run_dir, proposal)
        if (run := read_identity(self._run_dir)) is None:
            raise NotARun(str(self._run_dir))
        return run.run_id

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(text)
        self._said = text


def _ns(text: str) -> int:
    return wall_ns_of(parse_timestamp(text))


def _mean_ns(times: Sequence[int]) -> int | None:
    """Return the mean of times of which none is negative: clocks of two machines may differ."""
    known = [ns for ns in times if ns >= 0]
    return round(fmean(known)) if known else None
