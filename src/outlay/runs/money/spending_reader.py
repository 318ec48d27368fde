"""Reading total spending: registered runs, stated trainings, and machines while in no run.

As of an instant, it is what was known then: later records are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlay.bills.bill_book import BillBook
from outlay.bills.bill_correction import correction_spends, read_corrections
from outlay.bills.reconciliation import Reconciliation, reconcile
from outlay.clock import utc_text, wall_ns_of
from outlay.cost.charges import month_edges, month_window
from outlay.cost.closing import CLOSED, read_closed_months, with_closed_months
from outlay.cost.cost_book import CostBook
from outlay.cost.machines.billed_time import billed_beyond_use
from outlay.cost.machines.commitments import COMMITMENTS, commitment_spends
from outlay.cost.machines.owned_machines import (
    MACHINES,
    MACHINES_FILE,
    OwnedMachine,
    RunCharge,
    cost_by_month,
    machine_spends,
)
from outlay.cost.spending import IN_NO_RUN, Spending, SpendItem, spending_of
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.files import stamp_of
from outlay.ledger.attempts import DEAD_AFTER_NS
from outlay.runs.collect import refresh_registered
from outlay.store import outlay_home
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, damaged_logs, list_runs
from outlay.units import Money, Rate, Unit
from outlay.units.money import recorded_rate

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.guard.balance import Hold
    from outlay.guard.entries import AnyLine

_DAMAGED_NAMED = 50


def refresh_books(store: Engine, now_ns: int) -> list[Finding]:
    """Refresh registered runs; return findings."""
    findings = refresh_registered(store, now_ns).findings
    # Damaged logs count in every total, with possibly wrong figures: report them each time.
    return findings + _unreported(damaged_logs(store), findings)


def _unreported(damaged: list[Finding], findings: list[Finding]) -> list[Finding]:
    """Return damaged logs without another finding: the first ones, and a count of the rest."""
    known = {finding.source for finding in findings}
    others = [finding for finding in damaged if finding.source not in known]
    rest = len(others) - _DAMAGED_NAMED
    message = f"{rest:,} more have damaged logs: outlay runs --all lists them"
    return others[:_DAMAGED_NAMED] + (
        [Finding(source="runs", message=message, severity="warning")] if rest > 0 else []
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingReading:
    """Total spending, and the runs in it, oldest first."""

    reports: tuple[RunRow, ...]
    spending: Spending

    @property
    def running(self) -> set[str]:
        """The ids of the runs that go on."""
        return {report.run_id for report in self.reports if report.status == "running"}


def read_spending(
    store: Engine, now_ns: int, *, as_of_ns: int | None = None, damage: list[Finding] | None = None
) -> SpendingReading:
    """Return total spending, living rentals up to ``now_ns``; call ``refresh_books`` first.

    With ``as_of_ns`` it is what was known at that instant. Rows of the store that cannot be read
    are appended to ``damage``.
    """
    found: list[Finding] = []
    runs: Sequence[RunRow]
    reports: Sequence[RunRow] = CostBook(store, damage).reports(with_charges=True)
    if as_of_ns is not None:
        runs, reports, found = _as_of(list_runs(store), reports, as_of_ns)
    else:
        runs = _registered(store, reports)
    until_ns = now_ns if as_of_ns is None else min(as_of_ns, now_ns)
    outside, troubles = _outside_of_runs(reports, until_ns)
    closed, doubts = read_closed_months(store)
    known = spending_of(reports, runs, outside)
    spending = with_closed_months(known, closed, as_of_ns=as_of_ns)
    if as_of_ns is not None and closed:
        counted = {spend.run_id for spend in spending.spends}
        reports = [report for report in reports if report.run_id in counted]
    findings = (*spending.findings, *found, *troubles, *doubts)
    return SpendingReading(
        reports=tuple(reports), spending=dataclasses.replace(spending, findings=findings)
    )


def read_reconciliation(
    store: Engine, spending: Spending, month: str, damage: list[Finding] | None = None
) -> list[Reconciliation]:
    """Return a month's bills beside all spending; empty if no bill of it is known."""
    lines = BillBook(store, damage).lines(month)
    period = month_window(month)
    spends = spending.within(period.start_ns, period.end_ns).spends
    return reconcile(month, spends, lines) if lines else []


def _registered(store: Engine, reports: Sequence[RunRow]) -> Sequence[RunRow]:
    """Return the registered runs; those with a price are not read again from the store."""
    if any(report.source == "stated" for report in reports):
        return list_runs(store)  # A training may be both, with a name of its own.
    return [*reports, *list_runs(store, RunFilter(is_priced=False))]


# As of an instant


def _as_of(
    runs: Sequence[RunRow], reports: Sequence[RunRow], as_of_ns: int
) -> tuple[list[RunRow], list[RunRow], list[Finding]]:
    """Return the runs and reports known at an instant, and findings about unreadable ones."""
    begun = [run for run in runs if run.started_ns <= as_of_ns]
    changed = {run.run_id: run for run in begun if _changed_since(run, as_of_ns)}
    later = {run.run_id for run in runs} - {run.run_id for run in begun}
    kept: list[RunRow] = []
    findings: list[Finding] = []
    late = 0
    for report in reports:
        if report.source == "stated":
            late += report.at_ns <= as_of_ns < report.updated_ns
            kept += [report] if max(report.at_ns, report.updated_ns) <= as_of_ns else []
        elif report.run_id not in later and report.run_id not in changed:
            kept.append(report)
    for run in changed.values():
        earlier, trouble = _read_as_of(run, as_of_ns)
        kept += [] if earlier is None else [earlier]
        findings += trouble
    if late:
        message = f"{late:,} stated since {utc_text(as_of_ns)}: not counted, as not known then"
        findings.append(Finding(source="trainings", message=message, severity="warning"))
    return begun, sorted(kept, key=lambda row: (row.at_ns, row.run_id)), findings


def _changed_since(run: RunRow, as_of_ns: int) -> bool:
    """Return whether a run may have had other figures at an instant."""
    if run.ended_ns is not None:
        return run.last_seen_ns > as_of_ns
    return run.last_seen_ns + DEAD_AFTER_NS >= as_of_ns


def _read_as_of(run: RunRow, as_of_ns: int) -> tuple[RunRow | None, list[Finding]]:
    from outlay.goodput.follower import read_view_as_of
    from outlay.runs.reading import RunReading, stored_row

    try:
        view = read_view_as_of(Path(run.dir), as_of_ns)
    except (OutlayError, OSError) as error:
        message = f"what it had cost by then is not known: {error}"
        return None, [Finding(source=run.dir, message=message)]
    if view is None or view.rates is None:
        return None, []
    # Two directories may hold one run: the row names the one that counts.
    return replace(stored_row(RunReading(view)), run_id=run.run_id, updated_ns=as_of_ns), []


# Outside of runs: machines in no run, what is billed beyond use, commitments, corrections by bills


def read_outside_of_runs(book: CostBook, now_ns: int) -> tuple[list[SpendItem], list[Finding]]:
    """Return the cost outside of runs, and what cannot be read of it."""
    from outlay.guard.rental.watch import known_logs

    stated = COMMITMENTS.path.exists() or bool(owned_machines()[0])
    if not (stated or known_logs() or read_corrections() or book.has_billing_terms()):
        return [], []  # Reading the charges of many runs takes long.
    return _outside_of_runs(book.reports(with_charges=True), now_ns)


def _outside_of_runs(
    reports: Sequence[RunRow], until_ns: int
) -> tuple[list[SpendItem], list[Finding]]:
    spends, findings = _machines(reports, until_ns)
    rented = {
        name
        for spend in spends
        if spend.source == "rental"
        for name in (spend.machine, *spend.aliases)
    }
    spends += billed_beyond_use(reports, lambda machine: machine.removeprefix("C.") in rented)
    spends += correction_spends(read_corrections(until_ns))
    try:
        commitments = COMMITMENTS.read().values()
    except InvalidValue as error:
        return spends, [*findings, Finding(source="commitments", message=str(error))]
    for each in commitments:
        spends += commitment_spends(each, reports, until_ns)
    return spends, findings


def _machines(reports: Sequence[RunRow], until_ns: int) -> tuple[list[SpendItem], list[Finding]]:
    spends, findings = _rentals(reports, until_ns)
    owned, troubles = owned_machines()
    for machine in owned:
        spends += machine_spends(machine, reports, until_ns)
    return spends, [*findings, *troubles, *_overcharged(spends)]


def owned_machines() -> tuple[list[OwnedMachine], list[Finding]]:
    """Return the stated machines; a list of them that cannot be read is a finding."""
    try:
        return list(MACHINES.read().values()), []
    except InvalidValue as error:
        return [], [Finding(source="machines", message=str(error))]


def stamp_of_books() -> object:
    """Return a value that changes with the stated machines and the closed months."""
    home = outlay_home()
    return stamp_of(str(home), suffix=MACHINES_FILE), stamp_of(str(home / CLOSED), suffix=".json")


def _overcharged(spends: Iterable[SpendItem]) -> Iterator[Finding]:
    """Yield a finding for each machine on which runs cost more than the machine itself."""
    rest: dict[tuple[str, str], Money] = {}
    for each in spends:
        key = (each.run_id, each.name)
        rest[key] = each.cost + rest[key] if key in rest else each.cost
    for (_, name), money in rest.items():
        if money.micros < 0:
            message = f"the runs on it cost {-money} more than the machine: is a price wrong?"
            yield Finding(source=name, message=message, severity="warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedMachine:
    """A rental: its interval ``[start_ns, end_ns)``, and its total cost."""

    hold: Hold
    start_ns: int
    end_ns: int
    rate: Rate
    micros: int


def _rentals(reports: Sequence[RunRow], until_ns: int) -> tuple[list[SpendItem], list[Finding]]:
    from outlay.guard.budget_guard import BudgetGuard
    from outlay.guard.rental.watch import known_logs

    spends: list[SpendItem] = []
    findings: list[Finding] = []
    for path in known_logs():
        try:
            lines = BudgetGuard.of_log(path).log.lines()
        except OutlayError as error:
            findings.append(Finding(source=str(path), message=str(error)))
            continue
        for rented in rented_by(lines, until_ns):
            spends += in_no_run(rented, reports)
    return spends, findings


def rented_by(lines: Iterable[AnyLine], until_ns: int) -> Iterator[RentedMachine]:
    """Yield the rentals of a spend log, from its lines up to ``until_ns``.

    One that came back after its end has two holds, and is one machine.
    """
    from outlay.guard.balance import Books
    from outlay.guard.entries import Captured, Corrected, Simple, parse_timestamp

    books, ended_ns = Books(), dict[str, int]()
    for line in lines:
        if not isinstance(line, Simple):
            at_ns = wall_ns_of(parse_timestamp(line.ts))
            if at_ns > until_ns:
                break
            if isinstance(line, Captured | Corrected):
                ended_ns[line.hold] = at_ns
        books.apply(line)
    found = dict[str, RentedMachine]()
    for hold in books.rentals():
        assert hold.rental is not None
        start_ns, rate = hold.rental.started_ns, recorded_rate(hold.rental.rate)
        end_ns = max(ended_ns.get(hold.id, until_ns), start_ns)
        if (paid := books.paid_for(hold.id)) is not None:
            micros = paid
        elif books.is_open(hold.id) and hold.lives:
            micros = hold.rental.cost_until(end_ns).micros
        else:
            continue  # Released: nothing was rented.
        name = hold.rental.name if hold.rental.ordered else hold.id
        before = found.pop(name, None)
        whole = RentedMachine(hold=hold, start_ns=start_ns, end_ns=end_ns, rate=rate, micros=micros)
        if before is not None:
            whole = dataclasses.replace(before, end_ns=end_ns, micros=before.micros + micros)
        found[hold.rental.name if hold.state == "reappeared" else hold.id] = whole
    yield from found.values()


def in_no_run(rented: RentedMachine, reports: Iterable[RunRow]) -> Iterator[SpendItem]:
    """Yield a rental's cost by month, less the charges of runs on it in that month."""
    rental, hold = rented.hold.rental, rented.hold
    assert rental is not None
    unit = rented.rate.unit
    owner = {"lab": hold.lab, "project": hold.lab, "team": hold.team}

    def cost_until(t_ns: int) -> int:
        return rented.micros if t_ns == rented.end_ns else rental.cost_until(t_ns).micros

    charges = charges_on(hold, unit, reports)
    edges = month_edges(rented.start_ns, rented.end_ns)
    for month in cost_by_month(edges, unit, cost_until, charges):
        yield SpendItem(
            source="rental", run_id=hold.id, model=IN_NO_RUN, name=hold.resource or hold.op_label,
            start_ns=month.start_ns, end_ns=month.end_ns, booked_ns=month.start_ns,
            cost=month.in_no_run, assumed=unit.money(0), user=hold.user,
            tags={name: value for name, value in owner.items() if value},
            provider=rental.vendor.name, machine=hold.resource,
            aliases=tuple(sorted({*hold.ids, rental.name} - {""})),
        )  # fmt: skip


def charges_on(hold: Hold, unit: Unit, reports: Iterable[RunRow]) -> Iterator[RunCharge]:
    """Yield the charges of runs on the rented machine of a hold, of one unit."""
    for report in reports:
        for charge in report.charges or ():
            if report.unit_of(charge) == unit and hold.is_machine(charge.machine):
                yield RunCharge(report.run_id, charge.booked_ns, charge.micros)
