"""A run at a glance: status, progress, cost, findings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.errors import Finding
from outlay.ledger import GpuCount, gpu_count_of
from outlay.ledger.price import Kind
from outlay.rates import RateFunction, kind_of_cost, total_gpus
from outlay.units import Money

if TYPE_CHECKING:
    from outlay.account.run import RunAccount
    from outlay.goodput.follower import RunView

PREFIX = "outlay/"  # Of every name in an experiment tracker.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """How a run stands. Instants are UTC nanoseconds.

    Attributes:
        status: ``running``, ``dead`` (no end, no sign of life), or how the last attempt ended.
        steps: The number of the last step plus one: how far the run has come.
        tokens: Over all ranks and attempts, repeated work included.
        wall_ns: From the first start to the end, without what lies after a completed attempt.
        wait_ns: Of that, waiting for data: before steps and in ``data_loading`` spans.
        kind: Of the cost: ``cash``, or ``showback``; the two are never added.
        assumed: What of the cost is assumed: no record says whether it was to be paid.
        burn_micros_per_hour: What it costs now; 0 unless it runs, None without a price.
        goodput: Productive share of wall time, 0 to 1; None where no step was recorded.
        metric: The name of the metric that tells most: an accuracy, else a loss, else the first
            that was reported; ``metric_value`` is its last value.
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
        """Tokens over wall time; None before any has passed."""
        return self.tokens / (self.wall_ns / 1e9) if self.wall_ns else None

    def counts(self) -> dict[str, int | float | None]:
        """Return what was counted and timed, as trackers name it."""
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
        """Return the figures that an experiment tracker can take."""
        return {
            f"{PREFIX}run_id": self.run_id,
            **{f"{PREFIX}{name}": value for name, value in self.counts().items()},
            f"{PREFIX}cost": None if self.cost is None else float(self.cost.amount),
            f"{PREFIX}currency": None if self.cost is None else self.cost.currency,
        }


def read_figures(run_dir: Path, now_ns: int) -> RunFigures:
    """Return how the run in a directory stands at ``now_ns``.

    Raises:
        NotARun: There is no run log.
    """
    from outlay.goodput.follower import read_view  # Loads NumPy, which a training may never need.

    return figures_of(read_view(run_dir, now_ns))


def figures_of(view: RunView) -> RunFigures:
    """Return the figures of a run as it stands."""
    from outlay.goodput.phases import DATA_LOADING  # Loads NumPy, as the view did already.

    timeline, account = view.timeline, view.account
    attempts = timeline.attempts
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
        started_ns=timeline.start_ns,
        last_seen_ns=timeline.last_seen_ns,
        ended_ns=None if last.end is None else last.end.t_ns,
        wall_ns=view.whole.length_ns - timeline.idle_between(timeline.start_ns, timeline.end_ns),
        step_ns=sum(segment.work.step_ns for segment in leading),
        wait_ns=timeline.between(timeline.start_ns, timeline.end_ns).get(DATA_LOADING, 0),
        energy_mj=view.energy_mj(),
        gpu_busy_ns=account.gpu_busy_ns,
        user=last.header.user,
        host=last.header.host,
        gpu=last.header.gpu,
        gpus=gpu_count_of(total_gpus(last, last.header.gpus)),
        tags=last.header.tags,
        cost=_cost(view),
        assumed=_assumed(view),
        kind=kind_of_cost(attempts),
        burn_micros_per_hour=view.burn_micros_per_hour,
        assumptions=_assumptions(view.rates),
        findings=view.findings,
        goodput=view.break_down().goodput if work.steps else None,
        metric=metric,
        metric_value=metric_value,
    )


def _metric(account: RunAccount) -> tuple[str | None, float | None]:
    """Return the metric that tells most, and its last finite value."""
    from outlay.cost.run_cost import ACCURACY, LOSS

    reported = account.metric_names()
    for name in [*(n for n in (*ACCURACY, *LOSS) if n in reported), *reported]:
        if points := account.series(name, most=1):
            return name, points[-1].value
    return None, None


def _cost(view: RunView) -> Money | None:
    if view.rates is None:
        return None
    return view.rates.cost_between(view.timeline.start_ns, view.timeline.end_ns)


def _assumed(view: RunView) -> Money | None:
    if view.rates is None:
        return None
    return view.rates.assumed_between(view.timeline.start_ns, view.timeline.end_ns)


def _assumptions(rates: RateFunction | None) -> tuple[str, ...]:
    return () if rates is None else tuple(sorted({a.text for a in rates.assumptions}))
