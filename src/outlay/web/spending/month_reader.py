"""The spending of a page's month, by the owner that its address names; cached between pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from outlay.bills.bill_book import BillBook
from outlay.bills.bill_correction import read_corrections
from outlay.bills.reconciliation import Reconciliation
from outlay.clock import utc_datetime
from outlay.cost.allocation import UNTAGGED
from outlay.cost.charges import month_window
from outlay.cost.spending import TEAM, Spending, SpendItem, owner_by
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.export.spend_logs import with_teams
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Window
from outlay.report.digest import IN_NO_RUN, is_in_no_run
from outlay.runs.money.spending_reader import (
    SpendingReading,
    read_reconciliation,
    read_spending,
    refresh_books,
    stamp_of_books,
)
from outlay.store.runs import version_of_runs
from outlay.units import Unit
from outlay.web.book_reader import BookReader
from outlay.web.guard import log_stamps, spend_logs
from outlay.web.page import PageQuery

_MINUTE_NS: Final = 60 * 10**9
BY: Final = ("user", "model", "project", "team")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSpending:
    """What was spent in a month.

    Attributes:
        by: The owner: user, model, project, team, or the value of a tag.
        every: Of all months, with teams if it is by team; ``spending`` is what the month has.
    """

    month: str
    by: str
    window: Window
    reading: SpendingReading
    every: Spending
    spending: Spending
    findings: tuple[Finding, ...]

    def owners(self, unit: Unit) -> list[str]:
        """Return the owners of what was spent in a unit, largest first."""
        sums = self.spending.by(owner_function(self.by))
        return [owner for owner, of in sums if of == unit]


def owner_function(by: str) -> Callable[[SpendItem], str]:
    """Return who pays for a spend; the cost of machines without a run is listed apart."""
    owner = owner_by(by)

    def found(spend: SpendItem) -> str:
        if not is_in_no_run(spend):
            return owner(spend)
        return IN_NO_RUN if by == "model" else f"{owner(spend)} {IN_NO_RUN}".strip()

    return found


def owner_name(name: str, by: str, books: BookReader) -> str:
    """Return an owner for people; hidden if it is a person and people are hidden."""
    person = name.removesuffix(IN_NO_RUN).strip() if by == "user" else ""
    return name.replace(person, books.people.name(person)) if person else name or UNTAGGED


def read_month(ask: PageQuery, books: BookReader) -> MonthSpending:
    """Return the spending of the month in an address, by default the present one."""
    month, by = _month(ask, books), _by(ask)
    reading, findings = _read(books)
    every, window = reading.spending, month_window(month)
    if by in TEAM:
        every, unknown = with_teams(every, spend_logs(books).values())
        findings += unknown
    return MonthSpending(
        month=month, by=by, window=window, reading=reading, every=every,
        spending=every.within(window.start_ns, window.end_ns), findings=tuple(findings),
    )  # fmt: skip


def bill_stamp(books: BookReader) -> object:
    """Return a value that changes with the bills and what they correct."""
    return [each.sha256 for each in BillBook(books.store).files()], len(read_corrections())


def read_bills(
    found: MonthSpending, books: BookReader, findings: list[Finding]
) -> list[Reconciliation]:
    """Return a month's bills beside the books; cached, as a bill may be large."""
    key = ("bills", found.month, stamp_of_spending(books), str(bill_stamp(books)))

    def read() -> tuple[list[Reconciliation], list[Finding]]:
        damage: list[Finding] = []
        bills = read_reconciliation(books.store, found.reading.spending, found.month, damage)
        return bills, damage

    bills, damage = books.cache.get(key, read)
    findings += damage
    return bills


def read_views(run_ids: Iterable[str], books: BookReader) -> Iterator[tuple[str, RunView]]:
    """Yield the runs whose logs can be read, by id."""
    for run_id in run_ids:
        with suppress(OutlayError, OSError):
            yield run_id, books.runs.reading(books.row(run_id).dir).view


def _read(books: BookReader) -> tuple[SpendingReading, list[Finding]]:
    """Return all spending; cached until a run or a spend log changes, or for a minute.

    What is rented or owned costs more by the minute, without a change in the store.
    """
    key = ("spending", *stamp_of_spending(books))

    def read() -> tuple[SpendingReading, list[Finding]]:
        refreshed = refresh_books(books.store, books.now_ns)
        return read_spending(books.store, books.now_ns), refreshed

    reading, findings = books.cache.get(key, read)
    return reading, list(findings)


def stamp_of_spending(books: BookReader) -> tuple[object, ...]:
    """Return what changes whenever spending is read again."""
    books.refresh()
    return (
        version_of_runs(books.store), books.now_ns // _MINUTE_NS, log_stamps(books),
        len(read_corrections()), stamp_of_books(),
    )  # fmt: skip


def _month(ask: PageQuery, books: BookReader) -> str:
    here = utc_datetime(books.now_ns).strftime("%Y-%m")
    try:
        month_window(ask.get("month", here))
    except InvalidValue:
        return here
    return ask.get("month", here)


def _by(ask: PageQuery) -> str:
    chosen = ask.get("by", "user")
    try:
        owner_by(chosen)
    except InvalidValue:
        return "user"
    return chosen
