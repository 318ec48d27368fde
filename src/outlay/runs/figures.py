"""The figures of a run that a list shows: status, progress, cost, findings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.errors import Finding
from outlay.ledger import GpuCount, gpu_count_of
from outlay.ledger.price import Kind
from outlay.rates import kind_of_cost, total_gpus
from outlay.units import Money

if TYPE_CHECKING:
    from outlay.account.run import RunAccount
    from outlay.goodput.follower import RunView

PREFIX = "outlay/"  # Of every name in an experiment tracker.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Status, progress and cost of a run. Instants are UTC nanoseconds.

    Attributes:
        status: ``running``, ``dead`` (no end, no sign of life), or how the last attempt ended.
        steps: The number of the last step plus one.
        tokens: Over all ranks and attempts, repeated work included.
        wall_ns: From the first start to the end, without idle time after a completed attempt.
        wait_ns: The part spent waiting for data: before steps and in ``data_loading`` spans.
        kind: Of the cost: ``cash`` or ``showback``; the two are never added.
        assumed: The part of the cost that is assumed: no record says whether it was billed.
        burn_micros_per_hour: The present hourly cost; 0 unless running, None without a price.
        goodput: Productive share of wall time, 0 to 1; None if no step was recorded.
        metric: The metric to show: an accuracy, else a loss, else the first that was logged;
            ``metric_value`` is its last value.
    """

    run_id: str
    model: str
    name: str
    dir: str
    status: str
    attempts: int
    steps: int
    tokens: int
    samples: int
    started_ns: int
    last_seen_ns: int
    ended_ns: int | None
    wall_ns: int
    step_ns: int
    wait_ns: int
    energy_mj: int
    gpu_busy_ns: int
    user: str
    host: str
    gpu: str
    gpus: GpuCount
    tags: dict[str, str]
    cost: Money | None
    assumed: Money | None
    kind: Kind
    burn_micros_per_hour: int | None
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]
    goodput: float | None = None
    metric: str | None = None
    metric_value: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens over wall time; None if no time has passed."""
        return self.tokens / (self.wall_ns / 1e9) if self.wall_ns else None

    def counts(self) -> dict[str, int | float | None]:
        """Return counts and times under their names in trackers."""
        return {
            "attempts": self.attempts,
            "steps": self.steps,
            "tokens": self.tokens,
            "samples": self.samples,
            "wall_s": self.wall_ns / 1e9,
            "step_s": self.step_ns / 1e9,
            "data_wait_s": self.wait_ns / 1e9,
            "tokens_per_s": self.tokens_per_s,
        }

    def flat(self) -> dict[str, str | int | float | None]:
        """Return the figures as a flat dict for an experiment tracker."""
        return {
            f"{PREFIX}run_id": self.run_id,
            **{f"{PREFIX}{name}": value for name, value in self.counts().items()},
            f"{PREFIX}cost": None if self.cost is None else float(self.cost.amount),
            f"{PREFIX}currency": None if self.cost is None else self.cost.currency,
        }


def read_figures(run_dir: Path, now_ns: int) -> RunFigures:
    """Read a run's log and return its figures at ``now_ns``.

    Raises:
        NotARun: There is no run log.
    """
    from outlay.goodput.follower import read_view  # Loads NumPy, which training may never need.

    return figures_of(read_view(run_dir, now_ns))


def figures_of(view: RunView) -> RunFigures:
    """Return the figures of a run at the instant of the view."""
    from outlay.goodput.phases import DATA_LOADING  # Loads NumPy, as the view did already.

    timeline, account, rates = view.timeline, view.account, view.rates
    start_ns, end_ns, attempts = timeline.start_ns, timeline.end_ns, timeline.attempts
    last = attempts[-1]
    leading = [account.segments[attempt.segment] for attempt in attempts]
    work = account.work
    last_steps = (segment.last_number for segment in reversed(leading))
    metric, metric_value = _metric(account)
    return RunFigures(
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
        wait_ns=timeline.between(start_ns, end_ns).get(DATA_LOADING, 0),
        energy_mj=view.energy_mj(),
        gpu_busy_ns=account.gpu_busy_ns,
        user=last.header.user,
        host=last.header.host,
        gpu=last.header.gpu,
        gpus=gpu_count_of(total_gpus(last, last.header.gpus)),
        tags=last.header.tags,
        cost=None if rates is None else rates.cost_between(start_ns, end_ns),
        assumed=None if rates is None else rates.assumed_between(start_ns, end_ns),
        kind=kind_of_cost(attempts),
        burn_micros_per_hour=view.burn_micros_per_hour,
        assumptions=() if rates is None else tuple(sorted({a.text for a in rates.assumptions})),
        findings=view.findings,
        goodput=view.break_down().goodput if work.steps else None,
        metric=metric,
        metric_value=metric_value,
    )


def _metric(account: RunAccount) -> tuple[str | None, float | None]:
    """Return the metric to show, and its last finite value."""
    from outlay.cost.run_cost import ACCURACY, LOSS

    reported = account.metric_names()
    for name in [*(n for n in (*ACCURACY, *LOSS) if n in reported), *reported]:
        if points := account.series(name, most=1):
            return name, points[-1].value
    return None, None
