"""The input of alert rules: live and dead runs, budgets, ceilings, rentals, Slurm jobs, prices.

It only reads; ``evaluation`` applies the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from outlay.budget.report import budget_report
from outlay.clock import SYSTEM, Clock, wall_ns_of
from outlay.cost.cost_book import CostBook, budgeted
from outlay.cost.forecast import rest_of
from outlay.errors import Finding, OutlayError
from outlay.export.live_runs import LiveReading, LiveRuns
from outlay.goodput.follower import read_view
from outlay.guard.entries import parse_timestamp
from outlay.guard.rental.watch import RentedHold, living_rentals
from outlay.ledger import AttemptStarted, derive_attempts, read_lives
from outlay.prices.series import Alert, alerts
from outlay.runs.inventory.machines_now import MachinesNow, read_machines_now
from outlay.runs.reading import RunReading
from outlay.slurm import JobStatus, queued_jobs
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Money

_A_DAY_NS = 86_400 * 10**9
_AN_HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpend:
    """A model's budget, what was spent, and what its live runs will still spend."""

    model: str
    limit: Money
    spent: Money
    to_come: Money


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEvidence:
    """A machine that is paid for by the hour: a rental, or a Slurm job's allocation.

    Attributes:
        since_ns: When it was rented or allocated, or its last run was last seen.
        rate: As text; empty if unknown.
    """

    name: str
    since_ns: int
    rate: str = ""
    has_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStop:
    """A run that its own budget ended within the last hour, and the alert's text."""

    dir: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The input of all rules at one instant, in UTC nanoseconds."""

    t_ns: int
    live: LiveReading
    dead: tuple[RunRow, ...]
    stops: tuple[BudgetStop, ...] = ()
    budgets: tuple[ModelSpend, ...]
    machines: tuple[MachineEvidence, ...]
    overdue: tuple[RentedHold, ...]
    price_changes: tuple[Alert, ...]
    now: MachinesNow
    findings: tuple[Finding, ...]

    @property
    def heads(self) -> dict[str, str]:
        """The hash of the last line of each spend log: a later rollback shows against it."""
        return {guard.log_path: guard.head for guard in self.live.guards}


class EvidenceReader:
    """Reads the evidence of each round, following the logs of live runs."""

    def __init__(self, store: Engine, logs: Sequence[str | Path], *, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._logs = tuple(logs)
        self._live = LiveRuns(store, logs, clock=clock)
        self._clock = clock
        self._stops: dict[str, str | None] = {}

    def read(self) -> Evidence:
        """Return the evidence of now; what cannot be read is a finding."""
        live = self._live.read()
        now_ns = live.t_ns
        rented, findings = living_rentals(self._logs, clock=self._clock)
        running = [*(run.figures for run in live.runs), *live.elsewhere]
        now = read_machines_now(self._store, rented, running, now_ns)
        recent = list_runs(self._store, RunFilter(since_ns=now_ns - _A_DAY_NS))
        return Evidence(
            t_ns=now_ns,
            live=live,
            dead=tuple(row for row in recent if row.status == "dead"),
            stops=tuple(self._stopped(recent, now_ns)),
            budgets=tuple(self._budgets(live.runs)),
            machines=tuple(_machines(rented, _jobs(), recent, live.runs)),
            overdue=tuple(each for each in rented if _deadline_ns(each) < now_ns),
            price_changes=tuple(alerts(self._store, since_ns=now_ns - _A_DAY_NS)),
            now=now,
            findings=(*live.findings, *findings, *now.findings),
        )

    def close(self) -> None:
        """Close the connections to books."""
        self._live.close()

    def _stopped(self, recent: Sequence[RunRow], now_ns: int) -> Iterator[BudgetStop]:
        """Yield runs that their budget ended between two rounds, so that no round saw 100 %."""
        since_ns = now_ns - _AN_HOUR_NS
        ended = [row for row in recent if row.ended_ns is not None and row.ended_ns >= since_ns]
        keys = {f"{row.dir} {row.log_mtime_ns}": row for row in ended}
        self._stops = {
            key: self._stops[key] if key in self._stops else _stop_reason(row, now_ns)
            for key, row in keys.items()
        }
        for key, row in keys.items():
            if reason := self._stops[key]:
                yield BudgetStop(dir=row.dir, text=f"{row.name} stopped at its budget: {reason}")

    def _budgets(self, runs: Sequence[RunReading]) -> list[ModelSpend]:
        book = CostBook(self._store)
        found = []
        for model, budget in book.budgets().items():
            currency = budget.limit.currency
            mine = [run for run in runs if run.figures.model == model]
            micros = sum(_to_come(run, currency) for run in mine)
            so_far = budgeted(book.reports(model), budget.limit)
            found.append(
                ModelSpend(
                    model=model,
                    limit=so_far.limit,
                    spent=so_far.spent,
                    to_come=so_far.spent.unit.money(micros),
                )
            )
        return found


def _stop_reason(row: RunRow, now_ns: int) -> str | None:
    """Return the limit that ended a run; None if none did, or its log cannot be read."""
    try:
        report = budget_report(read_view(row.dir, now_ns))
    except (OutlayError, OSError):
        return None
    return None if report is None else report.stop_reason


def _to_come(run: RunReading, currency: str) -> int:
    """Return what a run will still cost until its budget stops it, in micro-units."""
    cost, report = run.cost.cost, run.budget
    if cost is None or cost.currency != currency or report is None or report.forecast is None:
        return 0
    rest = rest_of(run.view, report.forecast.at_step)
    return 0 if rest is None else round(rest.cost.point * 1e6)


def _deadline_ns(rented: RentedHold) -> int:
    assert rented.hold.rental is not None
    return wall_ns_of(parse_timestamp(rented.hold.rental.deadline))


def _machines(
    rented: Sequence[RentedHold],
    jobs: Sequence[JobStatus],
    recent: Sequence[RunRow],
    live: Sequence[RunReading],
) -> list[MachineEvidence]:
    headers = [(_header(row), row.last_seen_ns) for row in recent] if rented or jobs else []
    seen = [(header, at_ns) for header, at_ns in headers if header is not None]
    going = [run.view.timeline.attempts[-1].header for run in live]
    found = []
    for each in rented:
        hold, rental = each.hold, each.hold.rental
        assert rental is not None
        since_ns = wall_ns_of(parse_timestamp(rental.started))
        last = [at for header, at in seen if hold.is_machine(header.instance_id)]
        found.append(
            MachineEvidence(
                name=f"rental {hold.resource or rental.name}",
                since_ns=max([since_ns, *last]),
                rate=rental.rate,
                has_run=any(hold.is_machine(header.instance_id) for header in going),
            )
        )
    for job in jobs:
        if job.start_ns is None:
            continue
        last = [at for header, at in seen if header.slurm_job == job.job]
        found.append(
            MachineEvidence(
                name=f"Slurm job {job.job} ({job.name})",
                since_ns=max([job.start_ns, *last]),
                has_run=any(header.slurm_job == job.job for header in going),
            )
        )
    return found


def _header(row: RunRow) -> AttemptStarted | None:
    try:
        attempts = derive_attempts(read_lives(Path(row.dir)))
    except (OutlayError, OSError):
        return None
    return attempts[-1].header if attempts else None


def _jobs() -> list[JobStatus]:
    """Return this user's running Slurm jobs; none without Slurm, or if squeue fails."""
    return [job for job in queued_jobs() or () if job.state == "RUNNING"]
