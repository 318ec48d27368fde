"""Ordering a rental: first the hold, then the watcher, then the machine.

A failure in between leaves a hold that counts, and a unique name to search for.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, OutlayError, Refused
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, timestamp
from outlay.guard.lease import Terms
from outlay.guard.rental.rental import (
    CONFIRMATIONS,
    Reply,
    Tenancy,
    expand,
    list_machines,
    run_command,
)
from outlay.guard.rental.vendor_commands import UnreadableReply, check_id_from, parse_id
from outlay.units import Duration, Money, Rate

MARGIN = Duration(120 * 10**9)
"""How long before the money ends termination begins, since vendors are slow."""
SETTLE = Duration(60 * 10**9)
CREATE_TIMEOUT = Duration(600 * 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalOrder:
    """What to rent, and for how much.

    Attributes:
        limit: The most it may cost; the deadline follows from it and the rate.
        rate: The price per hour, everything included.
        create: The command that creates it, with ``{name}`` in it.
        most: The longest it may run, if less than the limit pays for.
        margin: How long before the money ends termination begins.
        settle: How long to search for it after a failed creation.
    """

    label: str
    limit: Money
    rate: Rate
    vendor: Vendor
    create: tuple[str, ...]
    lab: str | None = None
    most: Duration | None = None
    margin: Duration = MARGIN
    settle: Duration = SETTLE
    create_timeout: Duration = CREATE_TIMEOUT

    def lifetime_ns(self) -> int:
        """Return the time from the order to the deadline.

        Raises:
            InvalidValue: The limit does not pay for the margin, or the rate or ``most`` is zero.
        """
        paid_ns = Terms(rate=self.rate).paid_ns(self.limit)
        if paid_ns is None:
            raise InvalidValue("rate", str(self.rate), "a rate above zero")
        life_ns = paid_ns - self.margin.ns
        if self.most is not None and self.most.ns <= 0:
            raise InvalidValue("max-hours", str(self.most), "a duration above zero, such as 3h")
        if life_ns <= 0:
            expected = (
                f"more than {Terms(rate=self.rate).cost(self.margin.ns)}, {self.margin} of it"
            )
            raise InvalidValue("limit", str(self.limit), expected)
        return life_ns if self.most is None else min(life_ns, self.most.ns)


class RateTooHigh(Refused):
    """The rate is above ``--most-rate``."""

    def __init__(self, rate: Rate, most: Rate) -> None:
        super().__init__(f"{rate} is above the {most} of --most-rate. Nothing was started.")


class VendorUnusable(OutlayError):
    """The vendor's list command fails, so a rental there could not be watched."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Nothing was ordered: without a listing nothing can be verified gone. "
            "Try the --list command by hand."
        )


class CreationFailed(OutlayError):
    """The vendor refused, and lists no such name; the hold was released."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} was not created: {problem}. The hold was released.")


class RentalUnknown(OutlayError):
    """A machine may be running, and its id is unknown. The hold still counts."""

    def __init__(self, hold: Hold, name: str, problem: str) -> None:
        super().__init__(
            f"{problem}, and the vendor's list does not show {name}. IT MAY BE RUNNING. "
            f"Its {hold.amount} stay held. Look at the vendor's console for that name, and "
            f"`outlay guard reap` searches again; if it was never created, "
            f"`outlay guard void {hold.id} --reason ...`."
        )


def rent(
    guard: BudgetGuard,
    order: RentalOrder,
    environ: Mapping[str, str],
    *,
    start_watcher: Callable[[Hold], None],
    clock: Clock = SYSTEM,
    say: Callable[[str], None] = lambda _: None,
) -> Hold:
    """Open the hold, start the watcher, create the machine, and record its id.

    Raises:
        BudgetGuardExceeded: There is no room; nothing was ordered.
        VendorUnusable: The vendor's list command fails; nothing was ordered.
        CreationFailed: Nothing was created; the hold was released.
        RentalUnknown: Something may have been created; the hold still counts.
    """
    _check(order, environ)
    try:
        list_machines(order.vendor, environ)
    except UnreadableReply as error:
        raise VendorUnusable(str(error)) from error
    hold = guard.authorize(
        order.label, order.limit, lab=order.lab, rental=rental_of(order, clock.wall_ns())
    )
    try:
        start_watcher(hold)
    except OSError as error:
        guard.release_rental(hold, "nothing was ordered: its watcher could not be started")
        raise VendorUnusable(f"the watcher could not be started: {error}") from error
    place = Tenancy(guard=guard, hold=hold, environ=environ, clock=clock, say=say)
    reply = run_command(
        order.create, environ, stdin=order.vendor.stdin,
        places={"name": place.rental.name, "hold": hold.id},
        timeout_s=order.create_timeout.seconds,
    )  # fmt: skip
    _record_creation(place, order, reply)
    return place.hold


def check_rate(rate: Rate, most: Rate | None) -> None:
    """Raise RateTooHigh for a rate above ``most``."""
    if most is not None and most.currency != rate.currency:
        raise InvalidValue("most-rate", str(most), f"a rate in {rate.currency}, as --rate is")
    if most is not None and rate.micros_per_hour > most.micros_per_hour:
        raise RateTooHigh(rate, most)


def _check(order: RentalOrder, environ: Mapping[str, str]) -> None:
    """Refuse an order that could not be terminated, before money is held."""
    if not any("{name}" in word for word in order.create):
        expected = "a command with {name} in it, by which it is found again"
        raise InvalidValue("create", " ".join(order.create), expected)
    if not any("{id}" in word for word in order.vendor.terminate):
        raise InvalidValue("terminate", " ".join(order.vendor.terminate), "{id} in it")
    order.lifetime_ns()
    check_id_from(order.vendor.id_from)
    for text in (*order.create, *order.vendor.list, *order.vendor.terminate, order.vendor.stdin):
        expand(text, environ, {})


def rental_of(order: RentalOrder, now_ns: int) -> Rental:
    """Return the rental of a machine that is ordered now, for its hold."""
    now_ns -= now_ns % 1000  # the log's precision, so that no deadline is rounded up
    slug = re.sub(r"[^a-z0-9]+", "-", order.label.lower()).strip("-")[:24]
    return Rental(
        name=f"outlay-{slug}-{secrets.token_hex(4)}",
        rate=str(order.rate),
        started=timestamp(now_ns),
        deadline=timestamp(now_ns + order.lifetime_ns()),
        vendor=order.vendor,
    )


def _record_creation(place: Tenancy, order: RentalOrder, reply: Reply) -> None:
    """Record the id that creation printed; else find the machine by name, or mark it unknown."""
    problem = reply.problem
    if not problem:
        try:
            place.record_id(parse_id(order.vendor.id_from, reply.output, place.rental.name))
        except UnreadableReply as error:
            problem = str(error)
        else:
            return
    if _found_by_name(place, order.settle):
        place.say(f"{place.rental.name}: {problem}; found by its name as {place.hold.resource}")
        return
    seen_not_to_be = place.sightings.absent >= CONFIRMATIONS
    if reply.problem and reply.finished and seen_not_to_be:
        proof = f"creation failed: {problem}; the vendor lists no such name"
        place.guard.release_rental(place.hold, proof)
        raise CreationFailed(place.rental.name, problem)
    place.note_if_possible("unknown", problem=problem)
    raise RentalUnknown(place.hold, place.rental.name, problem)


def _found_by_name(place: Tenancy, settle: Duration) -> bool:
    deadline_ns = place.clock.monotonic_ns() + settle.ns
    while True:
        place.poll()
        if place.hold.resource:
            return True
        if place.clock.monotonic_ns() >= deadline_ns:
            return False
        place.clock.sleep(min(5.0, settle.seconds / 5))
