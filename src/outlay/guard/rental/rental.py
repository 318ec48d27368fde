"""One rental: vendor commands, polling, termination, and settling once it is verified gone.

One rental is one hold, written before creation; the vendor's id is written after it. A rental bills
until it is gone, which only two listings in a row without it prove. Every operation is idempotent:
the watcher and a person may both do it.
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
from outlay.guard.rental.vendor_commands import ListedMachine, UnreadableReply, parse_listing
from outlay.units import Money

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
        reply: Reply = run_command(
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


class NotARental(OutlayError):
    """The hold is not that of a rental."""

    exit_code = 2

    def __init__(self, hold: str) -> None:
        super().__init__(f"hold {hold} is not a rental's; `outlay guard status` lists the rentals")
