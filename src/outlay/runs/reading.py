"""``outlay.read_run()``: every figure of one run, computed from one reading of its log."""

from __future__ import annotations

from collections import ChainMap
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from outlay import plugins
from outlay.account.run import MetricPoint, RunAccount
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.advise.run_advice import advise_run, floor_of
from outlay.budget.report import BudgetReport, budget_report
from outlay.clock import SYSTEM
from outlay.cost.charges import charges_of
from outlay.cost.run_cost import (
    ACCURACY,
    LOSS,
    PARAMETERS,
    SEQUENCE_LENGTH,
    RunCost,
    best_loss,
    cost_of,
    last_reported,
)
from outlay.errors import Finding
from outlay.goodput.follower import GoodputFollower, GoodputSummary, RunView, read_view, summarise
from outlay.goodput.phases import DATA_LOADING
from outlay.goodput.scheduling import scheduling_of
from outlay.goodput.timeline import Breakdown
from outlay.ledger import gpu_count_of
from outlay.rates import total_gpus
from outlay.record.redaction import CONFIGURATION_NOTE
from outlay.runs.figures import PREFIX, facts_of, line_of, numbers_of
from outlay.store.run_row import RunRow
from outlay.units import Money


class RunReading:
    """The figures of a run at one instant: what the command line and the pages show.

    Each property is computed on first access and cached. All come from the same reading of the log,
    so they agree with each other.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view

    def __repr__(self) -> str:
        return f"<RunReading {line_of(self.figures, self.t_ns)}>"

    def _repr_html_(self) -> str:
        """Return the run's report for a notebook."""
        shown: str = plugins.load(plugins.NOTEBOOK, "run")(self)
        return shown

    @property
    def run_id(self) -> str:
        """The run's unique identifier."""
        return self.view.identity.run_id

    @property
    def status(self) -> str:
        """``running``, ``dead`` (no end, no sign of life), or how the last attempt ended."""
        return self.view.status

    @property
    def t_ns(self) -> int:
        """The instant of the figures, in UTC nanoseconds."""
        return self.view.timeline.end_ns

    @property
    def step(self) -> int:
        """The number of the last step; -1 before the first."""
        return self.figures.steps - 1

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the last attempt, without secrets; {} if none was recorded.

        Includes what was sent to a tracker after the run was opened, which the log keeps as notes.
        """
        header = self.view.timeline.attempts[-1].header
        segments = self.view.account.segments.values()
        notes = [note for segment in segments for note in segment.notes]
        added = [
            note.data
            for note in sorted(notes, key=lambda each: each.t_ns)
            if note.text == CONFIGURATION_NOTE and note.t_ns >= header.t_ns
        ]
        return dict(ChainMap(*reversed(added), header.config)) if added else header.config

    @property
    def command(self) -> tuple[str, ...]:
        """The command of the last attempt, without secrets; () if it was not recorded."""
        return self.view.timeline.attempts[-1].header.command

    @cached_property
    def figures(self) -> RunRow:
        """Status, progress and cost, as ``outlay runs`` lists them."""
        return figures_of(self)

    @cached_property
    def goodput(self) -> GoodputSummary:
        """The productive share of wall time, and the rest by cause."""
        return summarise(self.view)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Wall time and cost of the whole run by phase."""
        return self.view.break_down()

    @property
    def phases(self) -> dict[str, int]:
        """Nanoseconds of wall time by phase, in reading order; they sum to the wall time."""
        return {row.phase: row.ns for row in self.goodput.phases}

    @cached_property
    def cost(self) -> RunCost:
        """Total cost, by phase and per unit of work."""
        return cost_of(self.view)

    @property
    def wasted(self) -> Money | None:
        """The cost of everything but surviving steps; None without a price."""
        cost, productive = self.cost.cost, self.cost.productive
        return None if cost is None or productive is None else cost - productive

    @cached_property
    def budget(self) -> BudgetReport | None:
        """The state of the budget; None if the run was started without one."""
        return budget_report(self.view)

    @cached_property
    def budget_shares(self) -> dict[str, float]:
        """The used share of each limit, by the limit's key: 1 is all of it."""
        if self.budget is None:
            return {}
        used, bounds = self.budget.used, self.budget.budget.bounds_known
        return {bound.dimension.key: bound.share(used) for bound in bounds}

    @property
    def budget_used(self) -> tuple[str, float] | None:
        """The limit with the largest used share, and that share; None without a budget."""
        return max(self.budget_shares.items(), key=lambda each: each[1], default=None)

    @property
    def budget_limit_text(self) -> str:
        """The limit with the largest used share, for people; empty without a budget."""
        if self.budget is None or self.budget_used is None:
            return ""
        key, _ = self.budget_used
        bound = next(b for b in self.budget.budget.bounds_known if b.dimension.key == key)
        return bound.dimension.text(bound.limit)

    @cached_property
    def metrics(self) -> dict[str, list[MetricPoint]]:
        """The metrics that the training logged: finite values in time order, by name."""
        account = self.view.account
        return {name: account.series(name) for name in account.metric_names()}

    @cached_property
    def advice(self) -> list[OptimizationRecommendation]:
        """Recommendations for the next run like this one; savings first, then trades."""
        return advise_run(self.view)

    @property
    def advice_floor(self) -> Money | None:
        """The smallest saving that is recommended; None without a price."""
        return floor_of(self.view)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong in the run's log."""
        return self.view.findings

    # Flat names for experiment trackers

    @property
    def currency_suffix(self) -> str:
        """The currency as it ends a metric's name; ``usd`` without a price."""
        return "usd" if self.cost.cost is None else self.cost.cost.currency.lower()

    @cached_property
    def values(self) -> dict[str, float]:
        """Every number under a flat name; unknown ones are left out."""
        unit = self.currency_suffix
        known: dict[str, float | None] = {"read_at_s": self.t_ns / 1e9}
        known |= numbers_of(self.figures, unit)
        known |= {f"seconds/{name}": ns / 1e9 for name, ns in self.breakdown.phases.items()}
        known |= {f"cost_{unit}/{name}": _amount(c) for name, c in self.cost.by_phase.items()}
        for beside in self.cost.cost_beside:
            unit = beside.cost.currency.lower()
            known[f"cost_{unit}"] = _amount(beside.cost)
            known |= {f"cost_{unit}/{name}": _amount(c) for name, c in beside.by_phase.items()}
        return {f"{PREFIX}{name}": float(v) for name, v in known.items() if v is not None}

    @property
    def facts(self) -> dict[str, str]:
        """Every text about the run under a flat name; empty ones are left out."""
        return {f"{PREFIX}{name}": text for name, text in facts_of(self.figures).items()}


def figures_of(run: RunReading) -> RunRow:
    """Return the figures of a run at the instant of its reading."""
    view = run.view
    timeline, account, work = view.timeline, view.account, view.account.work
    start_ns, end_ns, attempts = timeline.start_ns, timeline.end_ns, timeline.attempts
    last = attempts[-1]
    leading = [account.segments[attempt.segment] for attempt in attempts]
    last_steps = (segment.last_number for segment in reversed(leading))
    metric, metric_value = _metric(account)
    limit, used = run.budget_used or (None, None)
    waited = scheduling_of(attempts)
    return RunRow(
        run_id=view.identity.run_id,
        model=view.identity.model,
        name=view.name,
        dir=str(view.dir or ""),
        status=view.status,
        attempts=len(attempts),
        steps=1 + next((step for step in last_steps if step >= 0), -1),
        tokens=work.tokens,
        samples=work.samples,
        started_ns=start_ns,
        last_seen_ns=timeline.last_seen_ns,
        ended_ns=None if last.end is None else last.end.t_ns,
        wall_ns=view.whole.length_ns - timeline.idle_between(start_ns, end_ns),
        step_ns=sum(segment.work.step_ns for segment in leading),
        wait_ns=run.breakdown.phases.get(DATA_LOADING, 0),
        gpu_ns=run.cost.gpu_ns,
        queue_ns=None if waited is None else waited.queue_ns,
        allocated_ns=None if waited is None else waited.allocated_ns,
        energy_mj=view.energy_mj(),
        gpu_busy_ns=account.gpu_busy_ns,
        user=last.header.user,
        host=last.header.host,
        gpu=last.header.gpu,
        gpus=gpu_count_of(total_gpus(last, last.header.gpus)),
        tags=last.header.tags,
        instance_id=last.header.instance_id,
        slurm_job=last.header.slurm_job,
        slurm_jobs=tuple(dict.fromkeys(a.header.slurm_job for a in attempts if a.header.slurm_job)),
        cost=run.cost.cost,
        assumed=run.cost.assumed,
        wasted=run.wasted,
        cost_beside=tuple(each.cost for each in run.cost.cost_beside),
        assumed_beside=tuple(each.assumed for each in run.cost.cost_beside),
        kind=view.unit.kind,
        burn_micros_per_hour=view.burn_micros_per_hour,
        assumptions=tuple(sorted(run.breakdown.assumptions)),
        findings=view.findings,
        goodput=run.breakdown.goodput if work.steps else None,
        epochs=run.cost.epochs,
        accuracy=run.cost.accuracy,
        loss=best_loss(account),
        loss_trend=_loss_trend(account),
        parameters=last_reported(account, PARAMETERS),
        sequence_length=last_reported(account, SEQUENCE_LENGTH),
        metric=metric,
        metric_value=metric_value,
        budget_used=used,
        budget_limit=limit,
        budget_limit_text=run.budget_limit_text,
    )


def stored_row(run: RunReading) -> RunRow:
    """Return the figures of a run as the store keeps them: with its cost by attempt and month."""
    return replace(run.figures, charges=charges_of(run.view) or None)


_TREND: Final = 24


def _loss_trend(account: RunAccount) -> tuple[float, ...]:
    """Return a few values of the loss, evenly spaced, with the last."""
    values = [point.value for point in account.series(*LOSS, most=_TREND)]
    every = -(-len(values) // _TREND) or 1
    return tuple(float(f"{value:.4g}") for value in values[::-1][::every][::-1])


def _metric(account: RunAccount) -> tuple[str | None, float | None]:
    """Return the metric to show, and its last finite value."""
    reported = account.metric_names()
    for name in [*(n for n in (*ACCURACY, *LOSS) if n in reported), *reported]:
        if points := account.series(name, most=1):
            return name, points[-1].value
    return None, None


def read_run(run_dir: Path | str, now_ns: int | None = None) -> RunReading:
    """Read a run's log and return its figures.

    Args:
        run_dir: The run's directory.
        now_ns: The present, in UTC nanoseconds; default: the system clock.

    Raises:
        NotARun: There is no run log.
    """
    return RunReading(read_view(run_dir, SYSTEM.wall_ns() if now_ns is None else now_ns))


class RunReader:
    """Polls one run; each read parses only what was appended to its log."""

    def __init__(self, run_dir: Path) -> None:
        self._follower = GoodputFollower(run_dir)

    def read_present(self, now_ns: int) -> RunReading:
        """Return the run at ``now_ns``; raises NotARun."""
        return RunReading(self._follower.view(now_ns))

    def read(self, now_ns: int) -> RunReading:
        """Return the run at its end, or at its last record while it is alive.

        At the last record, because no later read takes back what is known up to there: cost only
        grows.

        Raises:
            NotARun: There is no run log.
        """
        view = self._follower.view(now_ns)
        last_ns = view.timeline.last_seen_ns
        if view.timeline.alive and last_ns < now_ns:
            view = self._follower.view(last_ns, alive=True)
        reading = RunReading(view)
        # Sinks use the reading in other threads, and the next read changes the account behind it:
        # compute (and so cache) what they use now.
        _ = reading.values
        return reading


def _amount(money: Money | None) -> float | None:
    return None if money is None else float(money.amount)


def read_figures(run_dir: Path, now_ns: int) -> RunRow:
    """Read a run's log and return its figures at ``now_ns``.

    Raises:
        NotARun: There is no run log.
    """
    return read_run(run_dir, now_ns).figures
