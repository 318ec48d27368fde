"""Watching rentals: the watcher process of one, the inventory and the reaper of all.

``python -m outlay.guard.rental.watch`` is the watcher. It survives its terminal, terminates the
rental at its deadline, retries until the vendor no longer lists it, and settles the hold. If the
watcher's machine goes down, ``outlay guard reap --terminate`` from cron does the same. The logs
under which this machine rents are remembered in the outlay home.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock, utc_text, wall_ns_of
from outlay.errors import Finding, OutlayError
from outlay.escaping import terminal_text
from outlay.files import make_private, mode_in, read_own, write_whole
from outlay.guard.balance import Books, Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor, parse_timestamp
from outlay.guard.index.head_file import logs_named_in
from outlay.guard.rental.rental import (
    CONFIRMATIONS,
    LATE_NS,
    ControlledRental,
    list_machines,
    missing_for,
    next_action,
)
from outlay.guard.rental.vendor_commands import ListedMachine, VendorListing
from outlay.guard.spend_log import LogName, documents_dir, is_url, open_book
from outlay.proc.identity import (
    MARK_VARIABLE,
    ProcessName,
    has_ended,
    register_outliving,
    state_of_process,
    this_process,
)
from outlay.store import outlay_home
from outlay.store.home import outliving_dir
from outlay.units import Duration

# The inventory of all rentals, and the reaper.

State = Literal[
    "running", "overdue", "gone", "lost", "not listed", "never listed", "ended but listed",
    "namesake", "stranger",
]  # fmt: skip
ENDED_NS = 24 * 3600 * 10**9
"""So long after its end ``outlay watch`` still looks whether a rental comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRow:
    """A rental or a stranger, compared with the vendor's listing.

    Attributes:
        state: ``ended but listed``: its hold is settled, and it still runs and bills;
            ``namesake``: it has a rental's name and is not it, and is never ended.
        deadline: When termination begins; empty for a stranger.
        since: Since when it is not listed.
        listed: Whether the list shows it now.
    """

    vendor: str
    name: str
    id: str
    hold: str = ""
    label: str = ""
    state: State
    deadline: str = ""
    since: str = ""
    listed: bool = True

    @property
    def needs_ending(self) -> bool:
        """Whether it is a rental that must be terminated."""
        return self.state in ("overdue", "ended but listed")

    @property
    def is_wrong(self) -> bool:
        """Whether it must be terminated, or a person must decide."""
        return self.needs_ending or self.state in ("lost", "never listed", "namesake")


@dataclass(frozen=True, slots=True)
class RentalInventory:
    """All rentals and strangers, and the listings that failed."""

    rows: tuple[InventoryRow, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class RentedHold:
    """A rental's hold, and its spend log."""

    log_path: Path | str
    hold: Hold


def shown_name(name: str | Path) -> str | Path:
    """Return the name of a log for people: its path, or what may be shown of its URL."""
    return str(open_book(str(name)).name) if is_url(name) else name


def remember_log(name: str | Path) -> None:
    """Remember a log in the outlay home, if that is writable, for screens and `outlay watch`."""
    if is_url(name):
        book = open_book(str(name)).name
        text, file = book.without_password().encode(), f"{book.file_name}.url"
    else:
        path = Path(name).absolute()
        text = os.fsencode(path)
        file = f"{path.stem}-{hashlib.sha256(text).hexdigest()[:16]}.path"
    with suppress(OSError):
        directory = outlay_home() / "rentals"
        make_private(directory)
        write_whole(directory / file, text, private=True)


def known_logs() -> tuple[Path, ...]:
    """Return the logs in files under which this machine has rented, and that still exist."""
    return logs_named_in("rentals")


def known_books() -> tuple[str, ...]:
    """Return the URLs of the books under which this machine has rented."""
    found = []
    for file in sorted((outlay_home() / "rentals").glob("*.url")):
        with suppress(OSError, ValueError, OutlayError):
            found.append(open_book(read_own(file).decode()).name.url)
    return tuple(found)


def living_rentals(
    logs: Sequence[str | Path], *, clock: Clock = SYSTEM
) -> tuple[list[RentedHold], list[Finding]]:
    """Return the open rentals of these logs, and what is wrong with rentals."""
    rented: list[RentedHold] = []
    findings: list[Finding] = []
    for name in logs:
        try:
            guard = BudgetGuard.of_log(name, clock=clock)
            holds = guard.log.look(Books.open_rentals)
            findings += guard.rental_findings()
        except OutlayError as error:
            findings.append(Finding(source=str(shown_name(name)), message=str(error)))
            continue
        rented += (RentedHold(shown_name(name), hold) for hold in holds)
    return rented, findings


def may_be_listed(books: Books, now_ns: int) -> bool:
    """Return whether a rental is open, or ended less than a day ago, or has namesakes."""
    return any(
        books.is_open(hold.id) or hold.namesakes or now_ns - ended_ns(books, hold) < ENDED_NS
        for hold in books.rentals()
    )


def ended_ns(books: Books, hold: Hold) -> int:
    """Return when a rental was verified gone, or else its hold captured or voided."""
    ended = hold.gone or (books.resolution(hold.id) or "").rpartition(" at ")[2]
    return wall_ns_of(parse_timestamp(ended))


@dataclass(frozen=True, slots=True)
class Reaper:
    """Compares vendors' listings with the spend log, and terminates overdue rentals.

    ``all_rows`` states that vendors' lists are complete, however many rows they have.
    """

    guard: BudgetGuard
    environ: Mapping[str, str]
    extra: tuple[Vendor, ...] = ()
    clock: Clock = SYSTEM
    say: Callable[[str], None] = lambda _: None
    all_rows: bool = False

    def inventory(self) -> RentalInventory:
        """List every vendor's machines once, and compare."""
        rows: list[InventoryRow] = []
        findings: list[Finding] = []
        rentals = self.guard.log.look(Books.rentals)
        vendors = {r.rental.vendor.list: r.rental.vendor for r in rentals if r.rental}
        vendors |= {vendor.list: vendor for vendor in self.extra}
        for vendor in vendors.values():
            try:
                listing = list_machines(vendor, self.environ, all_rows=self.all_rows)
            except OutlayError as error:  # unreadable, or one of its variables is not set
                message = f"its list can't be read: {error}"
                findings.append(Finding(source=vendor.name, message=message))
                continue
            there = [r for r in rentals if r.rental and r.rental.vendor.list == vendor.list]
            compared = self._compare(vendor, there, listing)
            rows += compared
            if not listing.complete and any(row.state in _ABSENT for row in compared):
                findings.append(Finding(source=vendor.name, message=_page_text(listing)))
        return RentalInventory(tuple(rows), tuple(findings))

    def _compare(
        self, vendor: Vendor, rentals: list[Hold], listing: VendorListing
    ) -> list[InventoryRow]:
        rows, named = [], dict[str, InventoryRow]()
        ours = set[str]()
        for hold in rentals:
            controlled = self._controlled(hold)
            matches = [item for item in listing.machines if controlled.matches_listed(item)]
            ours |= {item.id for item in matches}
            state = self._state(controlled, matches, complete=listing.complete)
            if state is not None:
                row = self._row(controlled, state, ", ".join(item.id for item in matches))
                rows.append(replace(row, listed=bool(matches)))
            for each in controlled.namesakes_in(listing):
                named[each] = self._row(controlled, "namesake", each)
        rows += [row for each, row in named.items() if each not in ours]
        rows += [
            InventoryRow(vendor=vendor.name, name=item.name, id=item.id, state="stranger")
            for item in listing.machines
            if item.id not in ours and item.id not in named
        ]
        return rows

    def _state(
        self, controlled: ControlledRental, matches: list[ListedMachine], *, complete: bool
    ) -> State | None:
        hold = controlled.hold
        if self.guard.log.books().resolution(hold.id) is not None:
            return "ended but listed" if matches and hold.state != "reappeared" else None
        if matches:
            return "overdue" if controlled.left_ns <= 0 else "running"
        if not hold.resource:
            return "lost"
        if not hold.listed:
            return "never listed" if controlled.is_late else "not listed"
        if hold.tried and complete:
            return "gone"
        return "overdue" if controlled.left_ns <= 0 else "not listed"

    def _row(self, controlled: ControlledRental, state: State, ids: str) -> InventoryRow:
        return InventoryRow(
            vendor=controlled.rental.vendor.name,
            name=controlled.rental.name,
            id=ids or controlled.hold.resource,
            hold=controlled.hold.id,
            label=controlled.hold.op_label,
            state=state,
            deadline="" if state == "namesake" else controlled.rental.deadline,
            since=controlled.hold.missing if state == "not listed" else "",
        )

    def _controlled(self, hold: Hold) -> ControlledRental:
        return ControlledRental(
            guard=self.guard, hold=hold, environ=self.environ, clock=self.clock, say=self.say,
            all_rows=self.all_rows,
        )  # fmt: skip

    def reap(self, inventory: RentalInventory, *, pause_s: float = 5.0) -> None:
        """Terminate overdue rentals, and settle those that are gone."""
        rentals = {hold.id: hold for hold in self.guard.log.look(Books.rentals)}
        for row in inventory.rows:
            if row.hold and not row.listed and is_elsewhere(rentals[row.hold].process):
                continue  # The keys here may be another account's, whose list never shows it.
            if row.needs_ending:
                self.end(rentals[row.hold], pause_s=pause_s)
            elif row.state in ("gone", "not listed", "never listed"):
                self.settle(rentals[row.hold], pause_s=pause_s)
        named = {row.hold for row in inventory.rows if row.state == "namesake"}
        for hold in rentals.values():
            if hold.id in named or hold.namesakes:
                self._update(hold)

    def _update(self, hold: Hold) -> None:
        """Note the namesakes of a rental, and those that are gone."""
        try:
            self._controlled(hold).poll()
        except OutlayError as error:  # A variable is not set.
            self.say(str(error))

    def orphans(self) -> tuple[Hold, ...]:
        """Return the rentals whose watcher has ended, or of which a book has not heard."""

        def ask(books: Books) -> tuple[Hold, ...]:
            holds = books.open_rentals()
            abandoned = self.guard.log.abandoned(holds)
            return tuple(hold for hold in holds if hold.id in abandoned)

        return self.guard.log.look(ask)

    def why_not_watched(self, orphan: Hold, inventory: RentalInventory) -> str:
        """Return why this machine can't watch a rental; "" if it can.

        It needs the vendor's commands and their variables. A rental of another machine it must also
        see in the list, which shows that its keys are those of the same account.
        """
        assert orphan.rental is not None
        vendor = orphan.rental.vendor
        if missing := missing_for(vendor, self.environ):
            return f"it has no credentials of {vendor.name}: {missing}"
        listed = {row.hold for row in inventory.rows if row.listed}
        if orphan.id not in listed and is_elsewhere(orphan.process):
            return f"it has no credentials with which {vendor.name} lists this rental"
        return ""

    def end(self, hold: Hold, *, rounds: int = 10, pause_s: float = 5.0) -> bool:
        """Terminate and settle a rental; return whether it is verified gone."""
        controlled = self._controlled(hold)
        if self._wait_until_gone(controlled, overdue=True, rounds=rounds, pause_s=pause_s):
            return True
        self.say(_why_not_gone(controlled))
        return False

    def settle(self, hold: Hold, *, pause_s: float = 5.0) -> bool:
        """Settle a rental that is no longer listed, if it is verified gone."""
        controlled = self._controlled(hold)
        overdue, rounds = controlled.left_ns <= 0, 4 if hold.listed else 1
        return self._wait_until_gone(controlled, overdue=overdue, rounds=rounds, pause_s=pause_s)

    def _wait_until_gone(
        self, controlled: ControlledRental, *, overdue: bool, rounds: int, pause_s: float
    ) -> bool:
        for _ in range(rounds):
            _reload(controlled)
            controlled.poll()
            if controlled.act(overdue=overdue) == "gone":
                return True
            self.clock.sleep(pause_s)
        return False


def is_elsewhere(process: str) -> bool:
    """Return whether a process runs, or ran, on another machine or in another container."""
    return ProcessName.parse(process) is not None and state_of_process(process) == "unknown"


_ABSENT = ("lost", "not listed", "never listed")


def _page_text(listing: VendorListing) -> str:
    return (
        f"its list has {listing.rows} rows and may be one page of more, so that a rental which it "
        "does not show may run; if it is the whole list, pass --list-is-complete"
    )


def _why_not_gone(controlled: ControlledRental) -> str:
    """Return what a person has to do about a rental that could not be verified gone."""
    hold = controlled.hold
    what = f"{hold.op_label} ({hold.resource or 'its id is unknown'})"
    if controlled.present:
        return f"{what} IS STILL THERE; end it at the vendor's console"
    settles = f"`outlay guard reconcile {hold.id} --gone --reason ...`"
    if not hold.listed:
        return f"{what} was never listed, and MAY BE RUNNING; look at the console, then {settles}"
    return f"{what} is not listed, but not verified gone either; try again, or {settles}"


def _reload(controlled: ControlledRental) -> None:
    """Read the hold again, if the log can be read: the rental bills even if that fails."""
    try:
        controlled.reload()
    except OutlayError as error:
        controlled.say(str(error))


# The watcher of one rental.


FORSAKEN_NS = 60 * 10**9
"""So long after the death of the process that uses a rental it is ended."""
_WATCHED_BY_ANOTHER = 3
_MOST_PAUSE_S = 60.0  # Silent for five minutes, a watcher of a book counts as dead.


def start_watcher(name: LogName, hold: Hold, environ: Mapping[str, str], poll: Duration) -> bool:
    """Start a watcher that outlives this process; returns once it has detached.

    False if another process has started one since ``hold`` was read.

    Raises:
        OSError: It could not be started.
        InvalidValue: The name is a URL with a password, which the watcher would show.
    """
    log = str(name) if isinstance(name, Path) else name.handed_on()
    remember_log(name if isinstance(name, Path) else name.url)
    command = [sys.executable, "-m", "outlay.guard.rental.watch", log, hold.id]
    command += [str(poll.ns), hold.watcher, "kept" if MARK_VARIABLE in environ else ""]
    clean = {name: value for name, value in environ.items() if name != MARK_VARIABLE}
    said = documents_dir(name) / f"watch-{hold.id}.log"
    make_private(said.parent)
    said.touch(mode=mode_in(said.parent))
    with said.open("ab") as output:
        done = subprocess.run(
            command, env=clean, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    if done.returncode not in (0, _WATCHED_BY_ANOTHER):
        raise OSError(done.returncode, f"the watcher failed; see {output.name}")
    return done.returncode == 0


def poll_once(controlled: ControlledRental) -> bool:
    """Poll and act once; return whether there is anything left to watch."""
    try:
        controlled.reload()
        if controlled.is_replaced:
            controlled.say(f"{controlled.rental.name}: {controlled.hold.watcher} watches it now")
            return False
        if _is_over(controlled):
            return False
    except OutlayError as error:  # the rental bills even if the log fails
        controlled.say(str(error))
    controlled.poll()
    if _is_log_deleted(controlled) and _is_absent(controlled):
        controlled.say(f"{controlled.rental.name} is gone, and so is its spend log: not watched")
        return False
    overdue = controlled.left_ns <= 0 or is_forsaken(controlled)
    return controlled.act(overdue=overdue) != "gone"


def is_forsaken(controlled: ControlledRental) -> bool:
    """Return whether a price policy rented it for a command, and has been dead for a while.

    The command ends with the process that started it, so that nothing uses the machine.
    """
    is_dead = bool(controlled.rental.run) and has_ended(controlled.hold.by)
    if is_dead and controlled.forsaken_ns is None:
        controlled.forsaken_ns = controlled.clock.monotonic_ns()
        controlled.say(f"{controlled.rental.name}: {controlled.hold.by}, which uses it, has ended")
    since_ns = controlled.forsaken_ns
    return is_dead and since_ns is not None and (
        controlled.clock.monotonic_ns() - since_ns >= FORSAKEN_NS
    )  # fmt: skip


def _is_log_deleted(controlled: ControlledRental) -> bool:
    """Return whether the directory of its log is gone; a log that comes back has its hold."""
    name = controlled.guard.log_name
    return isinstance(name, Path) and not name.parent.exists()


def _is_absent(controlled: ControlledRental) -> bool:
    """Return whether it is verified gone, or has never been, as far as a vendor can tell.

    The latter has no id, its time is over, and complete listings do not have its name. What has an
    id may be running though it was never listed: it is terminated again and again.
    """
    seen, hold, overdue = controlled.sightings, controlled.hold, controlled.left_ns <= 0
    if hold.resource:
        action = next_action(seen, known_id=True, overdue=overdue, age_ns=controlled.age_ns)
        return action == "gone"
    is_late = overdue and controlled.age_ns > LATE_NS
    return is_late and seen.absent >= CONFIRMATIONS and not hold.namesakes


def _is_over(controlled: ControlledRental) -> bool:
    """Return whether its hold was settled once it was gone, or released as nothing was created."""
    hold = controlled.hold
    ended = hold.state in ("gone", "reappeared") or not hold.resource
    return ended and controlled.guard.log.books().resolution(hold.id) is not None


def pause_s(controlled: ControlledRental, poll: Duration) -> float:
    """Return the time to the next poll: never past the deadline, and at most 15 s after it."""
    until_due = controlled.left_ns / 1e9
    return max(0.05, min(poll.seconds, until_due)) if until_due > 0 else min(poll.seconds, 15.0)


def take_watch(controlled: ControlledRental, instead_of: str) -> bool | None:
    """Note this process as the watcher; False if another one is noted, None if the log fails.

    It beats before it is noted, so that no watcher of a book is noted without a beat.
    """
    try:
        _beat(controlled)
        is_mine = controlled.guard.take_watch(
            replace(controlled.hold, watcher=instead_of), this_process()
        )
    except OutlayError as error:  # a log that fails must not keep a rental running
        controlled.say(f"{controlled.rental.name}: watched, which could not be recorded: {error}")
        return None
    controlled.hold = controlled.guard.log.books().rental(controlled.hold.id) or controlled.hold
    return is_mine


def watch(
    controlled: ControlledRental, poll: Duration, *, instead_of: str = "", noted: bool = False
) -> None:
    """Watch a rental until the vendor no longer lists it, whatever the state of its hold.

    Errors are reported and retried. Ends if another process is noted as the watcher instead.
    """
    mine: bool | None = noted or None
    controlled.watcher = this_process()
    while True:
        if mine is None:  # the note failed before
            mine = take_watch(controlled, instead_of)
        if mine is False:
            return
        try:
            if not poll_once(controlled):
                return
            _beat(controlled)
        except (OutlayError, OSError) as error:  # the log is locked, the disk full: temporary
            _say(str(error))
        SYSTEM.sleep(min(pause_s(controlled, poll), _MOST_PAUSE_S))


def _beat(controlled: ControlledRental) -> None:
    controlled.guard.log.beat(controlled.hold.id, this_process())


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk must not stop the watcher
        sys.stdout.write(f"{utc_text(SYSTEM.wall_ns())} {terminal_text(text)}\n")
        sys.stdout.flush()


def main() -> None:
    """Detach from the caller, who sees whether the rental could be loaded; then watch it."""
    log, hold_id, poll_ns, instead_of, kept = sys.argv[1:]
    ready, notify = os.pipe()
    if os.fork():
        os.close(notify)
        os._exit({b"w": 0, b"a": _WATCHED_BY_ANOTHER}.get(os.read(ready, 1), 1))
    os.close(ready)
    guard = BudgetGuard.of_log(log)
    controlled = ControlledRental(
        guard=guard, hold=guard.log.books().hold(hold_id), environ=os.environ, say=_say
    )
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not register_outliving(outliving_dir("watchers"), os.getpid()) and kept:
        _say("not started: it could not be registered in the outlay home, and so would be ended")
        os._exit(1)
    mine = take_watch(controlled, instead_of)
    os.write(notify, b"a" if mine is False else b"w")
    os.close(notify)
    if mine is not False:
        watch(controlled, Duration(int(poll_ns)), instead_of=instead_of, noted=mine is True)


if __name__ == "__main__":
    main()
