"""Rentals: ordering one, vendor commands, polling, termination, and settling once it is gone.

One rental is one hold, written before the watcher is started and the machine created; the vendor's
id is written after that. A failure in between leaves a hold that counts, and a unique name to
search for. A rental bills until it is gone: it was listed, its termination was tried after that,
and two complete listings since do not show it. When it was listed, not listed and terminated is
noted in the spend log, so that all processes decide on the same facts, also after a restart.
Every operation is idempotent: the watcher and a person may both do it.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock, utc_text, wall_ns_of
from outlay.errors import InvalidValue, OutlayError, Refused
from outlay.files import make_private, write_whole
from outlay.guard.balance import Hold, namesakes_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, parse_timestamp, read_reason, timestamp
from outlay.guard.errors import RentalListed
from outlay.guard.rental.vendor_commands import (
    ListedMachine,
    ListedRate,
    ListingPage,
    UnreadableReply,
    VendorListing,
    check_id_from,
    is_shown,
    join_pages,
    may_continue,
    parse_id,
    parse_page,
)
from outlay.guard.spend_log import documents_dir, name_for_others
from outlay.rates import cost_at_most, paid_time
from outlay.units import Duration, Money, Rate
from outlay.units.billing_terms import BillingTerms

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


def missing_for(vendor: Vendor, environ: Mapping[str, str]) -> str:
    """Return what a vendor's commands lack here, a variable or a program; "" if nothing."""
    for text in (*vendor.list, *vendor.terminate, *vendor.show, vendor.stdin):
        try:
            expand(text, environ, {})
        except InvalidValue as error:
            return str(error)
    programs = dict.fromkeys(words[0] for words in (vendor.list, vendor.terminate))
    lacking = [each for each in programs if shutil.which(each, path=environ.get("PATH")) is None]
    return f"{lacking[0]} is not installed" if lacking else ""


CONFIRMATIONS = 2
LATE_NS = 600 * 10**9
"""A vendor may take this long to list a new machine; until then its absence proves nothing."""

Action = Literal["wait", "terminate", "gone", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What listings showed of a rental.

    Attributes:
        ever: Whether it was ever listed, or shown when it was asked for by its id.
        tried: Whether its termination was tried since it was last listed, whatever the answer.
        missing_ns: How long complete listings have not shown it, with no other listing in between.
        absent: The number of complete listings in a row without it, since that try if there is one.
    """

    ever: bool = False
    tried: bool = False
    missing_ns: int = 0
    absent: int = 0


def next_action(sightings: Sightings, *, known_id: bool, overdue: bool, age_ns: int) -> Action:
    """Return what to do about a rental. Pure.

    A stale listing ends nothing: before the deadline, only a rental that was not listed for ten
    minutes is terminated, and what was never listed is never gone.
    """
    late = overdue or age_ns > LATE_NS
    if not known_id:
        return "unknown" if late else "wait"
    if sightings.ever and sightings.tried and sightings.absent >= CONFIRMATIONS:
        return "gone"
    if overdue:
        is_leaving = sightings.ever and sightings.tried and sightings.absent > 0
        return "wait" if is_leaving else "terminate"
    if not sightings.ever:
        return "unknown" if late else "wait"
    vanished = sightings.missing_ns >= LATE_NS and sightings.absent >= CONFIRMATIONS
    return "terminate" if vanished and not sightings.tried else "wait"


def list_machines(
    vendor: Vendor,
    environ: Mapping[str, str],
    *,
    timeout_s: float = 60.0,
    all_rows: bool = False,
    rate: ListedRate | None = None,
) -> VendorListing:
    """Return the machines that a vendor lists, on all pages.

    ``all_rows`` states that the list is complete, however many rows it has; ``rate`` says where
    machines have their price.

    Raises:
        UnreadableReply: A command failed, timed out or printed something else.
    """
    pages: list[ListingPage] = []
    while not pages or may_continue(vendor, pages):
        offset = sum(len(page.ids) for page in pages)
        reply = run_command(
            vendor.list, environ, stdin=vendor.stdin, places={"offset": str(offset)},
            timeout_s=timeout_s,
        )  # fmt: skip
        if reply.problem:
            raise UnreadableReply(reply.problem)
        pages.append(parse_page(vendor, reply.output, rate))
    return join_pages(vendor, pages, all_rows=all_rows)


@dataclass(slots=True, kw_only=True)
class ControlledRental:
    """A rental under the control of a watcher, of ``down`` or of ``reap``.

    Attributes:
        watcher: The process as which it is watched, if it is; once another one is noted as the
            watcher, nothing more is noted here.
    """

    guard: BudgetGuard
    hold: Hold
    environ: Mapping[str, str]
    watcher: str = ""
    clock: Clock = SYSTEM
    say: Callable[[str], None] = lambda _: None
    timeout_s: float = 60.0
    all_rows: bool = False
    present: tuple[str, ...] = ()  # The ids under which the last listing showed it.
    forsaken_ns: int | None = None  # Since when the process that uses it is known to be dead.
    _ordered_ns: int = field(init=False)
    _absent: tuple[Hold, int] = field(init=False)  # Listings without it, and the hold of then.
    _broken_ns: int = 0  # When a listing was last unreadable or incomplete.
    _unwritten: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.hold.rental is None:
            raise NotARental(self.hold.id)
        self._absent = (self.hold, 0)
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
        return self.wall_ns() - self.rental.started_ns

    def wall_ns(self) -> int:
        """Return the time as the log states it, so that no machine's clock moves a deadline."""
        return self.guard.log.wall_ns(self.clock)

    @property
    def is_late(self) -> bool:
        """Whether it should have been listed by now."""
        return self.age_ns > LATE_NS or self.left_ns <= 0

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

    @property
    def sightings(self) -> Sightings:
        """What listings showed of it: the spend log's notes, and the listings of this process."""
        now_ns, hold = self.wall_ns(), self.hold
        since_ns = wall_ns_of(parse_timestamp(hold.missing)) if hold.missing else now_ns
        return Sightings(
            ever=bool(hold.listed),
            tried=bool(hold.tried),
            missing_ns=now_ns - max(since_ns, self._broken_ns),
            absent=self._absences(),
        )

    def _absences(self) -> int:
        """Return the complete listings without it since the last sighting or try of any process."""
        then, count = self._absent
        return count if (then.listed, then.tried) == (self.hold.listed, self.hold.tried) else 0

    def poll(self) -> None:
        """Find it in the vendor's listing, by id or name."""
        self.present = ()
        try:
            listing = list_machines(
                self.rental.vendor, self.environ, timeout_s=self.timeout_s, all_rows=self.all_rows
            )
        except UnreadableReply as error:
            self.say(f"{self.rental.name}: the vendor's list can't be read: {error}")
            self._broken_ns = self.wall_ns()
            return
        self.update_from(listing)

    def update_from(self, listing: VendorListing) -> None:
        """Record a readable listing."""
        self.present = tuple(each.id for each in listing.machines if self.matches_listed(each))
        self._note_namesakes(listing)
        if not listing.complete:
            self._broken_ns = self.wall_ns()
        if not self.present and self._is_shown():
            self.present = (self.hold.resource,)
        if self.present:
            self._record_presence()
        elif listing.complete:
            self._absent = (self.hold, self._absences() + 1)
            if self.hold.listed and not self.hold.missing and not self.hold.tried:
                self.note_if_possible("not-listed")

    def _is_shown(self) -> bool:
        """Ask the vendor for it by its id; an error may mean anything, and so proves nothing."""
        vendor = self.rental.vendor
        if not vendor.show or not self.hold.resource:
            return False
        places = {"id": self.hold.resource}
        reply = run_command(
            vendor.show, self.environ, stdin=vendor.stdin, places=places, timeout_s=self.timeout_s
        )
        return not reply.problem and is_shown(vendor, reply.output, self.hold.resource)

    def _record_presence(self) -> None:
        self._absent = (self.hold, 0)
        if self.hold.state == "gone":
            self._reopen()
        if not self.hold.resource:
            self.record_id(self.present[0], how="found by its name")
        if not self.hold.listed or self.hold.missing:
            self.note_if_possible("listed")
        for other in self.present:
            if other not in self.hold.ids:
                key = "also" if self.hold.resource in self.present else "resource"
                self.note_if_possible("listed", **{key: other})

    def _reopen(self) -> None:
        """Book what a rental that came back after its end has cost, and hold for the rest."""
        ids = ", ".join(self.present)
        self.say(f"{self.rental.name}: {ids} IS LISTED AGAIN after it was verified gone")
        try:
            self.hold = self.guard.reopen_rental(self.hold, self.present[0])
        except OutlayError as error:
            self.say(f"{self.rental.name}: its cost could not be recorded: {error}")
        self._absent = (self.hold, 0)
        self._ordered_ns = self.clock.monotonic_ns() - self._wall_age_ns()

    def record_id(self, resource: str, **detail: str) -> None:
        """Record its id."""
        self.note_if_possible("created", resource=resource, **detail)

    def matches_listed(self, listed: ListedMachine) -> bool:
        """Return whether a listed machine is this rental: its id, or its whole name and its time.

        A creation time that is listed must lie within ten minutes of the order.
        """
        is_recent = (
            listed.created_ns is None or abs(listed.created_ns - self.rental.ordered_ns) <= LATE_NS
        )
        return listed.id in self.hold.ids or (listed.name == self.rental.name and is_recent)

    def namesakes_in(self, listing: VendorListing) -> tuple[str, ...]:
        """Return the ids of machines whose name contains this rental's, and that are not it."""
        return tuple(
            each.id
            for each in listing.machines
            if self.rental.name.casefold() in each.name.casefold()
            and each.id not in self.hold.disowned
            and not self.matches_listed(each)
        )

    def _note_namesakes(self, listing: VendorListing) -> None:
        found = self.namesakes_in(listing)
        if not listing.complete:  # What is not on this page may be on another.
            found = tuple(dict.fromkeys((*self.hold.namesakes, *found)))
        if set(found) != set(self.hold.namesakes):
            self.note_if_possible("namesakes", ids=" ".join(found))
            if found:
                self.say(namesakes_text(self.hold))

    def act(self, *, overdue: bool) -> Action:
        """Do what is due, and return the action."""
        action = next_action(
            self.sightings, known_id=bool(self.hold.resource), overdue=overdue, age_ns=self.age_ns
        )
        if action == "terminate":
            self._terminate()
        elif action == "gone":
            self._settle()
        never_listed = action == "unknown" or (self.is_late and not self.hold.listed)
        if never_listed and self.hold.state != "unknown":
            self.note_if_possible("unknown")
            self.say(f"{self.rental.name}: {self.hold.doubt}, and the vendor lists no such name")
        if self.present and self.hold.tried and action != "terminate":
            self.note_if_possible("listed")  # Somebody's termination failed: it still runs.
        return action

    def reload(self) -> None:
        """Append the notes that could not be appended before, and read the hold again.

        Raises:
            OutlayError: The log can't be used.
        """
        if self.watcher and self._unwritten:
            self._read()  # Another one may have taken over while the log could not be reached.
        while self._unwritten and not self.is_replaced:
            event, detail = self._unwritten[0]
            self.guard.note(event, hold=self.hold, detail=detail)
            del self._unwritten[0]
        self._read()

    def _read(self) -> None:
        self.hold = self.guard.log.books().rental(self.hold.id) or self.hold

    @property
    def is_replaced(self) -> bool:
        """Whether another process is noted as its watcher."""
        return self.watcher != "" and self.hold.watcher not in ("", self.watcher)

    def note_if_possible(self, event: str, **detail: str) -> None:
        """Note what happened now; a log that fails must not keep a rental running.

        The note is applied to the hold, and appended with the next one that succeeds.
        """
        detail = {"at": timestamp(self.wall_ns()), **detail}
        self._unwritten.append((event, detail))
        known = self.hold.noted(event, detail, detail["at"])
        try:
            self.reload()
        except OutlayError as error:
            self.hold = known
            self.say(f"{self.rental.name}: {event}, which could not be recorded: {error}")

    def _terminate(self) -> None:
        """Try to terminate every id of it, those that are listed first."""
        vendor = self.rental.vendor
        for each in dict.fromkeys((*self.present, *self.hold.ids)):
            reply = run_command(
                vendor.terminate, self.environ, stdin=vendor.stdin, places={"id": each},
                timeout_s=self.timeout_s,
            )  # fmt: skip
            if reply.problem:
                self.say(f"{self.rental.name}: termination of {each}: {reply.problem}")
        if not self.hold.tried:
            self.note_if_possible("terminating")

    def _settle(self) -> None:
        proof, cost = f"verified gone {utc_text(self.wall_ns())}", self.cost()
        recorded = self.guard.settle_rental(self.hold, cost, proof)
        if recorded is None:  # another process verified it at the same time
            self.say(f"{self.rental.name}: {proof}; settled already")
            return
        self.say(f"{self.rental.name}: {proof}; about {cost}")
        try:
            write_proof(documents_dir(self.guard.log_name), self.hold, proof, cost)
        except OSError as error:
            self.say(f"the proof is in the log; its file could not be written: {error.strerror}")


def settle_by_hand(
    guard: BudgetGuard,
    hold_id: str,
    environ: Mapping[str, str],
    *,
    reason: str,
    cost: Money | None = None,
    basis: str = "estimated",
    clock: Clock = SYSTEM,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Settle a rental of which a person says that it is gone; ``cost`` None is time at its rate.

    Raises:
        RentalListed: The vendor lists it.
        NotARental: The hold is not a rental's.
    """
    hold = guard.log.books().hold(hold_id)
    controlled = ControlledRental(guard=guard, hold=hold, environ=environ, clock=clock, say=say)
    controlled.poll()
    if controlled.present:
        raise RentalListed(hold.id, hold.op_label, ", ".join(controlled.present))
    proof = f"gone, says {guard.log.author()}: {read_reason(reason)}"
    paid = controlled.cost() if cost is None else cost
    guard.settle_rental(controlled.hold, paid, proof, basis=basis)
    try:
        how = "a person said so"
        where = documents_dir(guard.log_name)
        write_proof(where, controlled.hold, proof, paid, how=how, basis=basis)
    except OSError as error:
        say(f"the proof is in the log; its file could not be written: {error.strerror}")


def disown_namesakes(guard: BudgetGuard, hold_id: str, reason: str) -> None:
    """Record that the machines which have a rental's name are somebody else's."""
    hold = guard.log.books().rental(hold_id)
    if hold is None:
        raise NotARental(hold_id)
    if not hold.namesakes:
        raise InvalidValue("HOLD", hold_id, "the hold of a rental with a namesake")
    detail = {"disowned": " ".join(hold.namesakes), "by": guard.log.author(), "reason": reason}
    guard.note("namesakes", hold=hold, detail=detail)


def proof_path(directory: Path, name: str) -> Path:
    """Return the path of the proof of a termination."""
    return directory / f"proof-terminated-{name}.txt"


VERIFIED = "it was listed, then terminated, and two complete listings after that do not show it"


def write_proof(
    directory: Path,
    hold: Hold,
    proof: str,
    cost: Money,
    *,
    how: str = VERIFIED,
    basis: str = "estimated",
) -> None:
    """Write the proof of a termination beside the log, or where a book's documents are."""
    assert hold.rental is not None
    if basis == "estimated":
        basis = f"estimated: time since it was ordered, at {hold.rental.rate}"
    page = (
        f"{proof}\n\n"
        f"what       {hold.rental.name} ({hold.rental.vendor.name} {hold.resource})\n"
        f"for        {hold.op_label}, hold {hold.id}\n"
        f"ordered    {hold.rental.started}\n"
        f"cost       {cost} ({basis})\n"
        f"how        {how}\n"
    )
    make_private(directory)
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
        terms: How the vendor bills its time.
        run: The id of the run for which a price policy rents it; empty without one.
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
    terms: BillingTerms | None = None
    run: str = ""

    def lifetime_ns(self) -> int:
        """Return the time from the order to the deadline.

        Raises:
            InvalidValue: The limit does not pay for the margin, or the rate or ``most`` is zero.
        """
        paid_ns = paid_time(self.limit, self.rate)
        if paid_ns is None:
            raise InvalidValue("rate", str(self.rate), "a rate above zero")
        life_ns = (self.terms.usable_ns(paid_ns) if self.terms else paid_ns) - self.margin.ns
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
    start_watcher: Callable[[Hold], object],
    clock: Clock = SYSTEM,
    say: Callable[[str], None] = lambda _: None,
) -> Hold:
    """Open the hold, start the watcher, create the machine, and record its id.

    Raises:
        BudgetGuardExceeded: There is no room; nothing was ordered.
        VendorUnusable: The vendor's list command fails; nothing was ordered.
        InvalidValue: The order is invalid, or the list may be a page; nothing was ordered.
        CreationFailed: Nothing was created; the hold was released.
        RentalUnknown: Something may have been created; the hold still counts.
    """
    check_order(order, environ)
    name_for_others(guard.log_name)  # Refuses a password, which a watcher would show.
    try:
        listing = list_machines(order.vendor, environ)
    except UnreadableReply as error:
        raise VendorUnusable(str(error)) from error
    if not listing.complete:
        expected = "a whole list: this may be one page of more, and a rental on another page is "
        expected += "never found. If it always shows everything, pass --list-is-complete"
        raise InvalidValue("list", f"{listing.rows} rows", expected)
    hold = guard.authorize(
        order.label, order.limit, lab=order.lab, rental=rental_of(order, guard.log_time_ns())
    )
    try:
        start_watcher(hold)
    except OSError as error:
        guard.release_rental(hold, "nothing was ordered: its watcher could not be started")
        raise VendorUnusable(f"the watcher could not be started: {error}") from error
    controlled = ControlledRental(guard=guard, hold=hold, environ=environ, clock=clock, say=say)
    reply = run_command(
        order.create, environ, stdin=order.vendor.stdin,
        places={
            "name": controlled.rental.name, "hold": hold.id,
            "deadline": controlled.rental.deadline,
        },
        timeout_s=order.create_timeout.seconds,
    )  # fmt: skip
    _record_creation(controlled, order, reply)
    return controlled.hold


def check_rate(rate: Rate, most: Rate | None) -> None:
    """Raise RateTooHigh for a rate above ``most``."""
    if most is not None and most.unit != rate.unit:
        raise InvalidValue("most-rate", str(most), f"a rate in {rate.unit}, as --rate is")
    if most is not None and rate.micros_per_hour > most.micros_per_hour:
        raise RateTooHigh(rate, most)


def check_order(order: RentalOrder, environ: Mapping[str, str]) -> None:
    """Refuse an order that could not be terminated, before money is held.

    Raises:
        InvalidValue: What it lacks.
    """
    if not any("{name}" in word for word in order.create):
        expected = "a command with {name} in it, by which it is found again"
        raise InvalidValue("create", " ".join(order.create), expected)
    if not any("{id}" in word for word in order.vendor.terminate):
        raise InvalidValue("terminate", " ".join(order.vendor.terminate), "{id} in it")
    order.lifetime_ns()
    check_id_from(order.vendor.id_from)
    if order.vendor.show and not any("{id}" in word for word in order.vendor.show):
        raise InvalidValue("show", " ".join(order.vendor.show), "{id} in it")
    vendor = order.vendor
    for text in (*order.create, *vendor.list, *vendor.terminate, *vendor.show, vendor.stdin):
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
        terms=order.terms,
        run=order.run,
    )


def _record_creation(controlled: ControlledRental, order: RentalOrder, reply: Reply) -> None:
    """Record the id that creation printed; else find the machine by name, or mark it unknown."""
    problem = reply.problem
    if not problem:
        try:
            controlled.record_id(
                parse_id(order.vendor.id_from, reply.output, controlled.rental.name)
            )
        except UnreadableReply as error:
            problem = str(error)
        else:
            return
    if _found_by_name(controlled, order.settle):
        controlled.say(
            f"{controlled.rental.name}: {problem}; found by its name as {controlled.hold.resource}"
        )
        return
    seen_not_to_be = controlled.sightings.absent >= CONFIRMATIONS and not controlled.hold.namesakes
    if reply.problem and reply.finished and seen_not_to_be:
        proof = f"creation failed: {problem}; the vendor lists no such name"
        controlled.guard.release_rental(controlled.hold, proof)
        raise CreationFailed(controlled.rental.name, problem)
    controlled.note_if_possible("unknown", problem=problem)
    raise RentalUnknown(controlled.hold, controlled.rental.name, problem)


def _found_by_name(controlled: ControlledRental, settle: Duration) -> bool:
    deadline_ns = controlled.clock.monotonic_ns() + settle.ns
    while True:
        controlled.poll()
        if controlled.hold.resource:
            return True
        if controlled.clock.monotonic_ns() >= deadline_ns:
            return False
        controlled.clock.sleep(min(5.0, settle.seconds / 5))


class RateTooHigh(Refused):
    """The rate is above ``--most-rate``."""

    def __init__(self, rate: Rate, most: Rate) -> None:
        super().__init__(f"{rate} is above the {most} of --most-rate. Nothing was started.")


class VendorUnusable(OutlayError):
    """The vendor's list command fails, so a rental there could not be watched."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"{problem}. Nothing was ordered: without a listing nothing can be verified gone. "
            "Try the --list command by hand."
        )


class CreationFailed(OutlayError):
    """The vendor refused, and lists no such name; the hold was released."""

    def __init__(self, name: str, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{name} was not created: {problem}. The hold was released.")


class RentalUnknown(OutlayError):
    """A machine may be running, and its id is unknown. The hold still counts."""

    def __init__(self, hold: Hold, name: str, problem: str) -> None:
        self.problem = problem
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
