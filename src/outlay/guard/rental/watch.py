"""Watching rentals: the watcher process of one, the census and the reaper of all.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock, utc_text
from outlay.errors import Finding, OutlayError
from outlay.escaping import terminal_text
from outlay.files import read_own, write_whole
from outlay.guard.balance import Books, Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.locking import has_ended, this_process
from outlay.guard.rental.rental import Tenancy, list_machines
from outlay.guard.rental.vendor_commands import ListedMachine
from outlay.proc.identity import MARK_VARIABLE
from outlay.store import outlay_home
from outlay.units import Duration

# The census of all rentals, and the reaper.

State = Literal["running", "overdue", "gone", "lost", "not listed", "ended but listed", "stranger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusRow:
    """A rental or a stranger, compared with the vendor's listing.

    Attributes:
        state: ``ended but listed``: its hold is settled, and it still runs and bills.
        deadline: When termination begins; empty for a stranger.
    """

    vendor: str
    name: str
    id: str
    hold: str = ""
    label: str = ""
    state: State
    deadline: str = ""

    @property
    def needs_ending(self) -> bool:
        """Whether it is a rental that must be terminated."""
        return self.state in ("overdue", "ended but listed")


@dataclass(frozen=True, slots=True)
class Census:
    """All rentals and strangers, and the listings that failed."""

    rows: tuple[CensusRow, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class RentedHold:
    """A rental's hold, and its spend log."""

    log_path: Path
    hold: Hold


def remember_log(log_path: Path) -> None:
    """Remember in the outlay home, if that is writable, that a log has rentals."""
    path = log_path.absolute()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    with suppress(OSError):
        directory = outlay_home() / "rentals"
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / f"{path.stem}-{digest}.path", os.fsencode(path))


def known_logs() -> tuple[Path, ...]:
    """Return the logs under which this machine has rented, and that still exist."""
    found = []
    for file in sorted((outlay_home() / "rentals").glob("*.path")):
        with suppress(OSError, ValueError):  # A NUL in it.
            path = Path(os.fsdecode(read_own(file)))
            found += [path] if path.exists() else []
    return tuple(found)


def living_rentals(
    log_paths: tuple[Path, ...], *, clock: Clock = SYSTEM
) -> tuple[list[RentedHold], list[Finding]]:
    """Return the open rentals of these logs, and every error about them."""
    rented: list[RentedHold] = []
    findings: list[Finding] = []
    for path in log_paths:
        try:
            guard = BudgetGuard.of_log(path, clock=clock)
            holds = guard.log.look(Books.open_rentals)
            if holds:
                findings += (each for each in guard.findings() if each.severity == "error")
        except OutlayError as error:
            findings.append(Finding(source=str(path), message=str(error)))
            continue
        rented += (RentedHold(path, hold) for hold in holds)
    return rented, findings


@dataclass(frozen=True, slots=True)
class Reaper:
    """Compares vendors' listings with the spend log, and terminates overdue rentals."""

    guard: BudgetGuard
    environ: Mapping[str, str]
    extra: tuple[Vendor, ...] = ()
    clock: Clock = SYSTEM
    say: Callable[[str], None] = lambda _: None

    def census(self) -> Census:
        """List every vendor's machines once, and compare."""
        rows: list[CensusRow] = []
        findings: list[Finding] = []
        rentals = tuple(self.guard.log.books().rentals.values())
        vendors = {r.rental.vendor.list: r.rental.vendor for r in rentals if r.rental}
        vendors |= {vendor.list: vendor for vendor in self.extra}
        for vendor in vendors.values():
            try:
                listed = list_machines(vendor, self.environ)
            except OutlayError as error:  # unreadable, or one of its variables is not set
                message = f"its list can't be read: {error}"
                findings.append(Finding(source=vendor.name, message=message))
                continue
            there = [r for r in rentals if r.rental and r.rental.vendor.list == vendor.list]
            rows += self._compare(vendor, there, listed)
        return Census(tuple(rows), tuple(findings))

    def _compare(
        self, vendor: Vendor, rentals: list[Hold], listed: tuple[ListedMachine, ...]
    ) -> list[CensusRow]:
        rows, ours = [], set()
        for hold in rentals:
            tenancy = self._tenancy(hold)
            matches = [item for item in listed if tenancy.matches_listed(item)]
            ours |= {item.id for item in matches}
            state = self._state(tenancy, matches)
            if state is not None:
                rows.append(self._row(tenancy, state, matches))
        rows += [
            CensusRow(vendor=vendor.name, name=item.name, id=item.id, state="stranger")
            for item in listed
            if item.id not in ours
        ]
        return rows

    def _state(self, tenancy: Tenancy, matches: list[ListedMachine]) -> State | None:
        if tenancy.hold.id in self.guard.log.books().resolved:
            return "ended but listed" if matches else None
        if matches:
            return "overdue" if tenancy.left_ns <= 0 else "running"
        if not tenancy.hold.resource:
            return "lost"
        return "gone" if tenancy.hold.state in ("terminating", "gone") else "not listed"

    def _row(self, tenancy: Tenancy, state: State, matches: list[ListedMachine]) -> CensusRow:
        return CensusRow(
            vendor=tenancy.rental.vendor.name,
            name=tenancy.rental.name,
            id=matches[0].id if matches else tenancy.hold.resource,
            hold=tenancy.hold.id,
            label=tenancy.hold.op_label,
            state=state,
            deadline=tenancy.rental.deadline,
        )

    def _tenancy(self, hold: Hold) -> Tenancy:
        return Tenancy(
            guard=self.guard, hold=hold, environ=self.environ, clock=self.clock, say=self.say
        )

    def reap(self, census: Census, *, pause_s: float = 5.0) -> None:
        """Terminate overdue rentals, and settle those that are gone."""
        rentals = self.guard.log.books().rentals
        for row in census.rows:
            if row.needs_ending:
                self.end(rentals[row.hold], pause_s=pause_s)
            elif row.state in ("gone", "not listed"):
                self.settle(rentals[row.hold], pause_s=pause_s)

    def orphans(self) -> tuple[Hold, ...]:
        """Return the rentals whose watcher is known to have ended."""
        holds = self.guard.log.look(Books.open_rentals)
        return tuple(hold for hold in holds if has_ended(hold.watcher or hold.by))

    def end(self, hold: Hold, *, rounds: int = 10, pause_s: float = 5.0) -> bool:
        """Terminate and settle a rental; return whether it is verified gone."""
        if self._wait_until_gone(hold, overdue=True, rounds=rounds, pause_s=pause_s):
            return True
        where = hold.resource or "its id is unknown"
        self.say(f"{hold.op_label} ({where}) IS STILL THERE; end it at the vendor's console")
        return False

    def settle(self, hold: Hold, *, pause_s: float = 5.0) -> bool:
        """Settle a rental that is no longer listed, if it is verified gone."""
        return self._wait_until_gone(hold, overdue=False, rounds=3, pause_s=pause_s)

    def _wait_until_gone(self, hold: Hold, *, overdue: bool, rounds: int, pause_s: float) -> bool:
        tenancy = self._tenancy(hold)
        for _ in range(rounds):
            readable = tenancy.poll()
            if tenancy.act(overdue=overdue, readable=readable) == "gone":
                return True
            self.clock.sleep(pause_s)
        return False


# The watcher of one rental.


def start_watcher(log_path: Path, hold: Hold, environ: Mapping[str, str], poll: Duration) -> None:
    """Start a watcher that outlives this process; returns once it has detached.

    Raises:
        OSError: It could not be started.
    """
    remember_log(log_path)
    command = [sys.executable, "-m", "outlay.guard.rental.watch", str(log_path), hold.id]
    command.append(str(poll.ns))
    clean = {name: value for name, value in environ.items() if name != MARK_VARIABLE}
    with (log_path.parent / f"watch-{hold.id}.log").open("ab") as output:
        done = subprocess.run(
            command, env=clean, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    if done.returncode:
        raise OSError(done.returncode, f"the watcher failed; see {output.name}")


def poll_once(tenancy: Tenancy) -> bool:
    """Poll and act once; return whether there is anything left to watch."""
    try:
        if _was_never_created(tenancy):
            return False
    except OutlayError as error:  # the rental bills even if the log fails
        tenancy.say(str(error))
    readable = tenancy.poll()
    return tenancy.act(overdue=tenancy.left_ns <= 0, readable=readable) != "gone"


def _was_never_created(tenancy: Tenancy) -> bool:
    """Reload the hold; return whether it was released because nothing was created."""
    books = tenancy.guard.log.books()
    known, tenancy.hold = tenancy.hold.resource, books.rentals[tenancy.hold.id]
    if known and not tenancy.hold.resource:
        tenancy.hold = replace(tenancy.hold, resource=known)
    if tenancy.hold.state == "gone":  # another process verified that; check it here, too
        tenancy.sightings.accepted = True
    return tenancy.hold.id in books.resolved and not tenancy.hold.resource


def pause_s(tenancy: Tenancy, poll: Duration) -> float:
    """Return the time to the next poll: never past the deadline, and at most 15 s after it."""
    until_due = tenancy.left_ns / 1e9
    return max(0.05, min(poll.seconds, until_due)) if until_due > 0 else min(poll.seconds, 15.0)


def watch(tenancy: Tenancy, poll: Duration) -> None:
    """Watch a rental until the vendor no longer lists it, whatever the state of its hold.

    Errors are reported and retried.
    """
    while True:
        if not tenancy.hold.watcher:  # the note failed before
            tenancy.note_if_possible("watched", watcher=this_process())
        try:
            if not poll_once(tenancy):
                return
        except (OutlayError, OSError) as error:  # the log is locked, the disk full: temporary
            _say(str(error))
        SYSTEM.sleep(pause_s(tenancy, poll))


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk must not stop the watcher
        sys.stdout.write(f"{utc_text(SYSTEM.wall_ns())} {terminal_text(text)}\n")
        sys.stdout.flush()


def main() -> None:
    """Load the rental, so that the caller sees a failure; detach from the caller; then watch."""
    log_path, hold_id, poll_ns = sys.argv[1:]
    guard = BudgetGuard.of_log(log_path)
    tenancy = Tenancy(
        guard=guard, hold=guard.log.books().hold(hold_id), environ=os.environ, say=_say
    )
    ready, notify = os.pipe()
    if os.fork():
        os.close(notify)
        os._exit(0 if os.read(ready, 1) else 1)
    os.close(ready)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tenancy.note_if_possible("watched", watcher=this_process())
    os.write(notify, b"w")
    os.close(notify)
    watch(tenancy, Duration(int(poll_ns)))


if __name__ == "__main__":
    main()
