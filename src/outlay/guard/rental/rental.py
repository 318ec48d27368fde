"""Something rented: it bills on whether or not anybody watches, until it is seen to be gone.

One rental is one hold. The hold is written before creation and the vendor's id after it; only a
listing without it, seen twice, counts as gone. Everything here may be done twice, by the watcher
and by a person, with the same result.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock, utc_text, wall_ns_of
from outlay.errors import InvalidValue, OutlayError
from outlay.files import write_whole
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, parse_timestamp
from outlay.guard.rental.vendors import ListedMachine, UnreadableReply, parse_listing
from outlay.units import Money

# Running a vendor's command: no shell, a time limit, secrets from the environment only.

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SECRET = re.compile(r"(?i)(?:bearer|api[-_]?key|token|password)[\s=:]+(?!\$)[\w.-]{8,}")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command did.

    Attributes:
        problem: What went wrong, or empty; never what it printed, which may hold a secret.
        finished: False when it was killed for taking too long, so what it did is unknown.
    """

    output: str
    problem: str
    finished: bool = True


def words(text: str, *, name: str) -> tuple[str, ...]:
    """Split a command into words as a shell would, without being one."""
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


def filled(text: str, environ: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return ``text`` with ``$VARIABLES`` and ``{places}`` filled in."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environ:
            raise InvalidValue(f"${name}", None, "an environment variable that is set")
        return environ[name]

    text = _VARIABLE.sub(value, text)
    for place, content in places.items():
        text = text.replace("{" + place + "}", content)
    return text


def call(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: str = "",
    places: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """Run a vendor's command and return what it did; never raises for what it does."""
    argv = [filled(word, environ, places or {}) for word in command]
    given = filled(stdin, environ, {})
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=dict(environ), start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:  # no such program; a zero byte in an argument
        return Reply("", f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    try:
        output, _ = process.communicate(given.encode(), timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # not read to its end: what left the group may hold the pipe for ever
            pass
        return Reply("", f"{argv[0]} did not answer within {timeout_s:g} s", finished=False)
    problem = f"{argv[0]} exited with {process.returncode}" if process.returncode else ""
    return Reply(output.decode(errors="replace"), problem)


CONFIRMATIONS = 2
LATE_NS = 600 * 10**9
"""A vendor may list a new thing this late; until then its absence proves nothing."""

Action = Literal["wait", "terminate", "gone", "lost"]


@dataclass(slots=True)
class Sightings:
    """What was seen of a rented thing so far.

    Attributes:
        absent: In how many readable listings in a row it was missing.
        accepted: Whether the vendor ever took the order to end it.
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
    """Return what to do about a rented thing. Pure."""
    if not known_id:
        return "lost" if overdue or age_ns > LATE_NS else "wait"
    may_be_gone = sightings.ever or sightings.accepted or age_ns > LATE_NS
    if readable and sightings.absent >= CONFIRMATIONS and may_be_gone:
        return "gone"
    missing = readable and sightings.absent > 0 and may_be_gone
    return "terminate" if overdue and not missing else "wait"


def ask_list(
    vendor: Vendor, environ: Mapping[str, str], *, timeout_s: float = 60.0
) -> tuple[ListedMachine, ...]:
    """Return what a vendor runs.

    Raises:
        UnreadableReply: It failed, hung or answered something else; that proves nothing.
    """
    reply = call(vendor.list, environ, stdin=vendor.stdin, timeout_s=timeout_s)
    if reply.problem:
        raise UnreadableReply(reply.problem)
    return parse_listing(vendor, reply.output)


@dataclass(slots=True, kw_only=True)
class Tenancy:
    """One rental as somebody who may end it sees it: a watcher, ``down`` or ``reap``."""

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
        """How to find and end it."""
        assert self.hold.rental is not None
        return self.hold.rental

    @property
    def age_ns(self) -> int:
        """How long ago it was ordered, by whichever clock says longer.

        A wall clock that is set back lengthens no life and lowers no cost.
        """
        return max(self._wall_age_ns(), self.clock.monotonic_ns() - self._ordered_ns)

    def _wall_age_ns(self) -> int:
        return self.clock.wall_ns() - self.rental.started_ns

    @property
    def left_ns(self) -> int:
        """How long until it has to be asked to end; negative when that is overdue."""
        deadline_ns = wall_ns_of(parse_timestamp(self.rental.deadline))
        return deadline_ns - self.rental.started_ns - self.age_ns

    def cost(self) -> Money:
        """What it has cost by now, estimated from the time since it was ordered.

        A clock that stands before the order tells nothing: it may have cost all that is held.
        """
        age_ns = self.age_ns
        if age_ns < 0:
            return self.hold.amount
        return self.rental.cost_until(self.rental.started_ns + age_ns)

    def look(self) -> bool:
        """Look it up at the vendor, by id or by name; return whether the listing was readable."""
        try:
            listed = ask_list(self.rental.vendor, self.environ, timeout_s=self.timeout_s)
        except UnreadableReply as error:
            self.say(f"{self.rental.name}: the vendor's list says nothing: {error}")
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
        """Keep its id, by which it can be ended even while the log takes nothing."""
        self.hold = replace(self.hold, resource=resource)
        self.note_if_possible("created", resource=resource, **detail)

    def matches_listed(self, listed: ListedMachine) -> bool:
        """Return whether something listed is what this rental pays for."""
        known = self.hold.resource
        return bool(known and listed.id == known) or listed.name == self.rental.name

    def act(self, *, overdue: bool, readable: bool) -> Action:
        """Do what is due, and return what that was."""
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
        """Write down what happened to it, and keep our own copy of the hold in step."""
        self.guard.note(event, hold=self.hold, detail=detail)
        self.hold = self.guard.log.books().rentals.get(self.hold.id, self.hold)

    def note_if_possible(self, event: str, **detail: str) -> None:
        """Write down what happened; a log that can't take it keeps nothing alive that bills."""
        try:
            self.note(event, **detail)
        except OutlayError as error:
            self.say(f"{self.rental.name}: {event}, which could not be written down: {error}")

    def _terminate(self) -> None:
        vendor = self.rental.vendor
        reply: Reply = call(
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
        """It is gone: write down the proof, then what it cost."""
        proof, cost = f"verified gone {utc_text(self.clock.wall_ns())}", self.cost()
        recorded = self.guard.settle_rental(self.hold, cost, proof)
        if recorded is None:  # the watcher and a person saw it at the same time
            self.say(f"{self.rental.name}: {proof}; settled already")
            return
        self.say(f"{self.rental.name}: {proof}; about {cost}")
        try:
            write_proof(self.guard.log_path.parent, self.hold, proof, cost)
        except OSError as error:
            self.say(f"the proof is in the log; its file could not be written: {error.strerror}")


def proof_path(directory: Path, name: str) -> Path:
    """Return where the proof of a termination is kept."""
    return directory / f"proof-terminated-{name}.txt"


def write_proof(directory: Path, hold: Hold, proof: str, cost: Money) -> None:
    """Write the proof of a termination beside the log, as a page for people."""
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


class NotARental(OutlayError):
    """A hold pays for nothing rented, so there is nothing to end."""

    exit_code = 2

    def __init__(self, hold: str) -> None:
        super().__init__(f"hold {hold} pays for nothing rented; `outlay guard status` lists them")
