"""Rentals: ordering one, vendor commands, polling, termination, and settling once it is gone.

One rental is one hold, written before the watcher is started and the machine created; the vendor's
id is written after that. A failure in between leaves a hold that counts, and a unique name to
search for. A rental bills until it is gone, which only two listings in a row without it prove.
Every operation is idempotent: the watcher and a person may both do it.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock, utc_text, wall_ns_of
from outlay.errors import InvalidValue, OutlayError, Refused
from outlay.files import write_whole
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, parse_timestamp, timestamp
from outlay.guard.rental.vendor_commands import (
    ListedMachine,
    UnreadableReply,
    check_id_from,
    parse_id,
    parse_listing,
)
from outlay.rates import cost_at_most, paid_time
from outlay.units import Duration, Money, Rate

# Vendor commands: no shell, a timeout, secrets from the environment only.

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SECRET = re.compile(r"(?i)(?:bearer|api[-_]?key|token|password)[\s=:]+(?!\$)[\w.-]{8,}")


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a command.

    Attributes:
        problem: Why it failed, or empty; never its output, which may contain a secret.
        finished: False after a timeout, so that its effect is unknown.
    """

    output: str
    problem: str
    finished: bool = True


def split_command(text: str, *, name: str) -> tuple[str, ...]:
    """Split a command into arguments as a shell does; a key written into it is refused."""
    try:
        split = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidValue(name, text, f"a command ({error})") from None
    if not split:
        raise InvalidValue(name, text, "a command")
    if _SECRET.search(text) or _SECRET.search(" ".join(split)):
        expected = "a command without a key in it: write $VARIABLE, it is filled in when it runs"
        raise InvalidValue(name, "<hidden>", expected)
    return split


def expand(text: str, environ: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return ``text`` with ``$VARIABLES`` and ``{places}`` substituted."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environ:
            raise InvalidValue(f"${name}", None, "an environment variable that is set")
        return environ[name]

    text = _VARIABLE.sub(value, text)
    for place, content in places.items():
        text = text.replace("{" + place + "}", content)
    return text


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: str = "",
    places: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """Run a vendor's command; its failure is in the reply, not an exception."""
    argv = [expand(word, environ, places or {}) for word in command]
    given = expand(stdin, environ, {})
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=dict(environ), start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:  # no such program; a NUL in an argument
        return Reply("", f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    try:
        output, _ = process.communicate(given.encode(), timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # Do not drain the pipe: a process outside the group may keep it open.
            pass
        return Reply("", f"{argv[0]} did not answer within {timeout_s:g} s", finished=False)
    problem = f"{argv[0]} exited with {process.returncode}" if process.returncode else ""
    return Reply(output.decode(errors="replace"), problem)


CONFIRMATIONS = 2
LATE_NS = 600 * 10**9
"""A vendor may take this long to list a new machine; until then its absence proves nothing."""

Action = Literal["wait", "terminate", "gone", "lost"]


@dataclass(slots=True)
class Sightings:
    """The listings of a rental so far.

    Attributes:
        ever: Whether any listing had it.
        absent: The number of readable listings in a row without it.
        accepted: Whether the vendor ever accepted its termination.
    """

    ever: bool = False
    absent: int = 0
    accepted: bool = False

    def record(self, *, present: bool) -> None:
        """Record one readable listing."""
        self.ever |= present
        self.absent = 0 if present else self.absent + 1


def next_action(
    sightings: Sightings, *, known_id: bool, overdue: bool, age_ns: int, readable: bool
) -> Action:
    """Return what to do about a rental. Pure."""
    if not known_id:
        return "lost" if overdue or age_ns > LATE_NS else "wait"
    may_be_gone = sightings.ever or sightings.accepted or age_ns > LATE_NS
    if readable and sightings.absent >= CONFIRMATIONS and may_be_gone:
        return "gone"
    missing = readable and sightings.absent > 0 and may_be_gone
    return "terminate" if overdue and not missing else "wait"


def list_machines(
    vendor: Vendor, environ: Mapping[str, str], *, timeout_s: float = 60.0
) -> tuple[ListedMachine, ...]:
    """Return the machines that a vendor lists.

    Raises:
        UnreadableReply: The command failed, timed out or printed something else.
    """
    reply = run_command(vendor.list, environ, stdin=vendor.stdin, timeout_s=timeout_s)
    if reply.problem:
        raise UnreadableReply(reply.problem)
    return parse_listing(vendor, reply.output)


@dataclass(slots=True, kw_only=True)
class Tenancy:
    """A rental under the control of a watcher, of ``down`` or of ``reap``."""

    guard: BudgetGuard
    hold: Hold
    environ: Mapping[str, str]
    clock: Clock = SYSTEM
    say: Callable[[str], None] = lambda _: None
    timeout_s: float = 60.0
    sightings: Sightings = field(default_factory=Sightings)
    _ordered_ns: int = field(init=False)

    def __post_init__(self) -> None:
        if self.hold.rental is None:
            raise NotARental(self.hold.id)
        self._ordered_ns = self.clock.monotonic_ns() - self._wall_age_ns()

    @property
    def rental(self) -> Rental:
        """How to find and terminate it."""
        assert self.hold.rental is not None
        return self.hold.rental

    @property
    def age_ns(self) -> int:
        """The time since the order, by the wall or the monotonic clock, whichever is longer.

        A wall clock that is set back does not postpone the deadline or lower the cost.
        """
        return max(self._wall_age_ns(), self.clock.monotonic_ns() - self._ordered_ns)

    def _wall_age_ns(self) -> int:
        return self.clock.wall_ns() - self.rental.started_ns

    @property
    def left_ns(self) -> int:
        """The time until its deadline; negative if it is overdue."""
        deadline_ns = wall_ns_of(parse_timestamp(self.rental.deadline))
        return deadline_ns - self.rental.started_ns - self.age_ns

    def cost(self) -> Money:
        """Return the estimated cost by now; with a clock before the order, all that is held."""
        age_ns = self.age_ns
        if age_ns < 0:
            return self.hold.amount
        return self.rental.cost_until(self.rental.started_ns + age_ns)

    def poll(self) -> bool:
        """Find it in the vendor's listing, by id or name; return whether that was readable."""
        try:
            listed = list_machines(self.rental.vendor, self.environ, timeout_s=self.timeout_s)
        except UnreadableReply as error:
            self.say(f"{self.rental.name}: the vendor's list can't be read: {error}")
            return False
        self.update_from(listed)
        return True

    def update_from(self, listed: tuple[ListedMachine, ...]) -> None:
        """Record a readable listing."""
        found = next((x for x in listed if self.matches_listed(x)), None)
        if found is not None and not self.hold.resource:
            self.record_id(found.id, how="found by its name")
        self.sightings.record(present=found is not None)

    def record_id(self, resource: str, **detail: str) -> None:
        """Keep its id in memory, so that it can be terminated even if the log fails."""
        self.hold = replace(self.hold, resource=resource)
        self.note_if_possible("created", resource=resource, **detail)

    def matches_listed(self, listed: ListedMachine) -> bool:
        """Return whether a listed machine is this rental."""
        known = self.hold.resource
        return bool(known and listed.id == known) or listed.name == self.rental.name

    def act(self, *, overdue: bool, readable: bool) -> Action:
        """Do what is due, and return the action."""
        action = next_action(
            self.sightings,
            known_id=bool(self.hold.resource),
            overdue=overdue,
            age_ns=self.age_ns,
            readable=readable,
        )
        if action == "terminate":
            self._terminate()
        elif action == "gone":
            self._settle()
        elif action == "lost" and self.hold.state != "unknown":
            self.say(f"{self.rental.name}: no id is known and the vendor lists no such name")
            self.note_if_possible("unknown")
        return action

    def note(self, event: str, **detail: str) -> None:
        """Append a note, and reload the hold."""
        self.guard.note(event, hold=self.hold, detail=detail)
        self.hold = self.guard.log.books().rentals.get(self.hold.id, self.hold)

    def note_if_possible(self, event: str, **detail: str) -> None:
        """Append a note; a log that fails must not keep a rental running."""
        try:
            self.note(event, **detail)
        except OutlayError as error:
            self.say(f"{self.rental.name}: {event}, which could not be recorded: {error}")

    def _terminate(self) -> None:
        vendor = self.rental.vendor
        reply = run_command(
            vendor.terminate, self.environ, stdin=vendor.stdin,
            places={"id": self.hold.resource}, timeout_s=self.timeout_s,
        )  # fmt: skip
        if reply.problem:
            self.say(f"{self.rental.name}: termination: {reply.problem}; trying again")
        else:
            self.sightings.accepted = True
        if self.hold.state != "terminating":
            self.note_if_possible("terminating", at=utc_text(self.clock.wall_ns()))

    def _settle(self) -> None:
        proof, cost = f"verified gone {utc_text(self.clock.wall_ns())}", self.cost()
        recorded = self.guard.settle_rental(self.hold, cost, proof)
        if recorded is None:  # another process verified it at the same time
            self.say(f"{self.rental.name}: {proof}; settled already")
            return
        self.say(f"{self.rental.name}: {proof}; about {cost}")
        try:
            write_proof(self.guard.log_path.parent, self.hold, proof, cost)
        except OSError as error:
            self.say(f"the proof is in the log; its file could not be written: {error.strerror}")


def proof_path(directory: Path, name: str) -> Path:
    """Return the path of the proof of a termination."""
    return directory / f"proof-terminated-{name}.txt"


def write_proof(directory: Path, hold: Hold, proof: str, cost: Money) -> None:
    """Write the proof of a termination beside the log."""
    assert hold.rental is not None
    page = (
        f"{proof}\n\n"
        f"what       {hold.rental.name} ({hold.rental.vendor.name} {hold.resource})\n"
        f"for        {hold.op_label}, hold {hold.id}\n"
        f"ordered    {hold.rental.started}\n"
        f"cost       {cost} (estimated: time since it was ordered, at {hold.rental.rate})\n"
        f"how        two readable listings of the vendor in a row did not show it\n"
    )
    write_whole(proof_path(directory, hold.rental.name), page.encode())


# Ordering: first the hold, then the watcher, then the machine.

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
        paid_ns = paid_time(self.limit, self.rate)
        if paid_ns is None:
            raise InvalidValue("rate", str(self.rate), "a rate above zero")
        life_ns = paid_ns - self.margin.ns
        if self.most is not None and self.most.ns <= 0:
            raise InvalidValue("max-hours", str(self.most), "a duration above zero, such as 3h")
        if life_ns <= 0:
            expected = f"more than {cost_at_most(self.rate, self.margin.ns)}, {self.margin} of it"
            raise InvalidValue("limit", str(self.limit), expected)
        return life_ns if self.most is None else min(life_ns, self.most.ns)


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
    tenancy = Tenancy(guard=guard, hold=hold, environ=environ, clock=clock, say=say)
    reply = run_command(
        order.create, environ, stdin=order.vendor.stdin,
        places={"name": tenancy.rental.name, "hold": hold.id},
        timeout_s=order.create_timeout.seconds,
    )  # fmt: skip
    _record_creation(tenancy, order, reply)
    return tenancy.hold


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


def _record_creation(tenancy: Tenancy, order: RentalOrder, reply: Reply) -> None:
    """Record the id that creation printed; else find the machine by name, or mark it unknown."""
    problem = reply.problem
    if not problem:
        try:
            tenancy.record_id(parse_id(order.vendor.id_from, reply.output, tenancy.rental.name))
        except UnreadableReply as error:
            problem = str(error)
        else:
            return
    if _found_by_name(tenancy, order.settle):
        tenancy.say(
            f"{tenancy.rental.name}: {problem}; found by its name as {tenancy.hold.resource}"
        )
        return
    seen_not_to_be = tenancy.sightings.absent >= CONFIRMATIONS
    if reply.problem and reply.finished and seen_not_to_be:
        proof = f"creation failed: {problem}; the vendor lists no such name"
        tenancy.guard.release_rental(tenancy.hold, proof)
        raise CreationFailed(tenancy.rental.name, problem)
    tenancy.note_if_possible("unknown", problem=problem)
    raise RentalUnknown(tenancy.hold, tenancy.rental.name, problem)


def _found_by_name(tenancy: Tenancy, settle: Duration) -> bool:
    deadline_ns = tenancy.clock.monotonic_ns() + settle.ns
    while True:
        tenancy.poll()
        if tenancy.hold.resource:
            return True
        if tenancy.clock.monotonic_ns() >= deadline_ns:
            return False
        tenancy.clock.sleep(min(5.0, settle.seconds / 5))


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


class NotARental(OutlayError):
    """The hold is not that of a rental."""

    exit_code = 2

    def __init__(self, hold: str) -> None:
        super().__init__(f"hold {hold} is not a rental's; `outlay guard status` lists the rentals")
