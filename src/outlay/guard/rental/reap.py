"""What vendors run, against the books: what is overdue, what is lost, who is a stranger.

The logs under which this machine rents are remembered in the outlay home, so that every look at
the books finds their rentals.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.files import read_own, write_whole
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.locking import has_ended
from outlay.guard.rental.rental import Tenancy, ask_list
from outlay.guard.rental.vendors import ListedMachine
from outlay.store import outlay_home

State = Literal["running", "overdue", "gone", "lost", "not listed", "ended but listed", "stranger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusRow:
    """One thing that is rented, or should be.

    Attributes:
        state: ``ended but listed`` is settled in the books and still runs: it bills unseen.
        deadline: When it has to be asked to end; empty for a stranger.
    """

    vendor: str
    name: str
    id: str
    hold: str
    label: str
    state: State
    deadline: str

    @property
    def needs_ending(self) -> bool:
        """Whether it is ours and must not run any longer."""
        return self.state in ("overdue", "ended but listed")


@dataclass(frozen=True, slots=True)
class Census:
    """Everything rented, and what could not be found out."""

    rows: tuple[CensusRow, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class RentedHold:
    """Something that is rented, and the log whose money it takes."""

    log_path: Path
    hold: Hold


def remember_log(log_path: Path) -> None:
    """Remember that something is rented under a log; where the home can't be written, nothing."""
    path = log_path.absolute()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    with suppress(OSError):
        directory = outlay_home() / "rentals"
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / f"{path.stem}-{digest}.path", os.fsencode(path))


def known_logs() -> tuple[Path, ...]:
    """Return the logs under which this machine has rented something, and that still exist."""
    found = []
    for file in sorted((outlay_home() / "rentals").glob("*.path")):
        with suppress(OSError, ValueError):  # A NUL in it.
            path = Path(os.fsdecode(read_own(file)))
            found += [path] if path.exists() else []
    return tuple(found)


def living_rentals(
    log_paths: tuple[Path, ...], *, clock: Clock = SYSTEM
) -> tuple[list[RentedHold], list[Finding]]:
    """Return what is rented under these logs, and every error about it."""
    rented: list[RentedHold] = []
    findings: list[Finding] = []
    for path in log_paths:
        try:
            guard = BudgetGuard.of_log(path, clock=clock)
            holds = guard.log.look(lambda books: books.open_rentals())
            if holds:
                findings += (each for each in guard.findings() if each.severity == "error")
        except OutlayError as error:
            findings.append(Finding(source=str(path), message=str(error)))
            continue
        rented += (RentedHold(path, hold) for hold in holds)
    return rented, findings


@dataclass(frozen=True, slots=True)
class Reaper:
    """Compares listings with the books, and ends what is overdue and ours."""

    guard: BudgetGuard
    environ: Mapping[str, str]
    extra: tuple[Vendor, ...] = ()
    clock: Clock = SYSTEM
    say: Callable[[str], None] = lambda _: None

    def census(self) -> Census:
        """Ask every vendor once, and compare."""
        rows: list[CensusRow] = []
        findings: list[Finding] = []
        rentals = tuple(self.guard.log.books().rentals.values())
        vendors = {r.rental.vendor.list: r.rental.vendor for r in rentals if r.rental}
        vendors |= {vendor.list: vendor for vendor in self.extra}
        for vendor in vendors.values():
            try:
                listed = ask_list(vendor, self.environ)
            except OutlayError as error:  # garbled, or a variable of this vendor's is not set
                message = f"its list says nothing: {error}"
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
            place = self._tenancy(hold)
            matches = [item for item in listed if place.matches_listed(item)]
            ours |= {item.id for item in matches}
            state = self._state(place, matches)
            if state is not None:
                rows.append(self._row(place, state, matches))
        rows += [
            CensusRow(
                vendor=vendor.name, name=item.name, id=item.id, hold="", label="",
                state="stranger", deadline="",
            )
            for item in listed
            if item.id not in ours
        ]  # fmt: skip
        return rows

    def _state(self, place: Tenancy, matches: list[ListedMachine]) -> State | None:
        if place.hold.id in self.guard.log.books().resolved:
            return "ended but listed" if matches else None
        if matches:
            return "overdue" if place.left_ns <= 0 else "running"
        if not place.hold.resource:
            return "lost"
        return "gone" if place.hold.state in ("terminating", "gone") else "not listed"

    def _row(self, place: Tenancy, state: State, matches: list[ListedMachine]) -> CensusRow:
        return CensusRow(
            vendor=place.rental.vendor.name,
            name=place.rental.name,
            id=matches[0].id if matches else place.hold.resource,
            hold=place.hold.id,
            label=place.hold.op_label,
            state=state,
            deadline=place.rental.deadline,
        )

    def _tenancy(self, hold: Hold) -> Tenancy:
        return Tenancy(
            guard=self.guard, hold=hold, environ=self.environ, clock=self.clock, say=self.say
        )

    def reap(self, census: Census, *, pause_s: float = 5.0) -> None:
        """End what is overdue and ours, and settle what is gone."""
        rentals = self.guard.log.books().rentals
        for row in census.rows:
            if row.needs_ending:
                self.end(rentals[row.hold], pause_s=pause_s)
            elif row.state in ("gone", "not listed"):
                self.settle(rentals[row.hold], pause_s=pause_s)

    def orphans(self) -> tuple[Hold, ...]:
        """Return the rentals whose watcher is known to have ended."""
        holds = self.guard.log.look(lambda books: books.open_rentals())
        return tuple(hold for hold in holds if has_ended(hold.watcher or hold.by))

    def end(self, hold: Hold, *, rounds: int = 10, pause_s: float = 5.0) -> bool:
        """End one thing of ours and settle it; return whether it was seen to be gone."""
        if self._wait_until_gone(hold, overdue=True, rounds=rounds, pause_s=pause_s):
            return True
        where = f"{hold.resource or 'its id is unknown'}"
        self.say(f"{hold.op_label} ({where}) IS STILL THERE; end it at the vendor's console")
        return False

    def settle(self, hold: Hold, *, pause_s: float = 5.0) -> bool:
        """Settle what is no longer listed, if that proves that it is gone."""
        return self._wait_until_gone(hold, overdue=False, rounds=3, pause_s=pause_s)

    def _wait_until_gone(self, hold: Hold, *, overdue: bool, rounds: int, pause_s: float) -> bool:
        place = self._tenancy(hold)
        for _ in range(rounds):
            readable = place.look()
            if place.act(overdue=overdue, readable=readable) == "gone":
                return True
            self.clock.sleep(pause_s)
        return False
