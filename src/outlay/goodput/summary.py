"""Everything the timeline says about a window of a run, as one value to show or to send."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.errors import Finding
from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Breakdown, Window
from outlay.goodput.follower import RunView
from outlay.goodput.progress import Progress, progress
from outlay.goodput.reliability import (
    Disruption,
    MeanTimeToFailure,
    disruptions,
    effective_training_time_ratio,
    mean_time_to_failure,
)
from outlay.goodput.throughput import (
    ModelFlops,
    RankRow,
    Throughput,
    Utilisation,
    throughput,
    utilisation,
)
from outlay.units import Money


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of a breakdown: nanoseconds, share of wall time (0 to 1), money."""

    phase: str
    ns: int
    share: float
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSummary:
    """What became of a window of a run. Times are nanoseconds, shares 0 to 1.

    Attributes:
        goodput: Productive share of wall time; None when the window holds none.
        ettr: Share of wall time not lost to disruptions.
        beside: Overlapped spans by phase, not part of the partition.
        throughput: Of the whole run; None when a window was asked for.
        mfu: Model FLOPs utilisation; None unless throughput is known and the model was described.
    """

    window: Window
    alive: bool
    wall_ns: int
    idle_ns: int
    goodput: float | None
    ettr: float | None
    cost: Money | None
    phases: list[PhaseRow]
    beside: dict[str, int]
    disruptions: list[Disruption]
    mttf: MeanTimeToFailure
    progress: Progress
    typical_step_ns: int | None
    stalls: int
    throughput: Throughput | None
    mfu: Utilisation | None
    ranks: list[RankRow]
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]


def summarise(
    view: RunView,
    window: Window | None = None,
    *,
    exclusions: tuple[Window, ...] = (),
    model: ModelFlops | None = None,
) -> GoodputSummary:
    """Return the summary of a window (default: the whole run), without the exclusions.

    Args:
        view: The run.
        window: Which part of it.
        exclusions: What to leave out.
        model: What the model needs and the GPUs can do, for its utilisation.
    """
    timeline = view.timeline
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen, exclusions=exclusions)
    attempts = [s.timeline for s in timeline.stretches if s.timeline is not None]
    ranks = view.ranks()
    rate = throughput(view.usage(), breakdown) if window is None else None
    gpus = timeline.attempts[-1].header.gpus
    return GoodputSummary(
        window=chosen,
        alive=timeline.alive,
        wall_ns=breakdown.wall_ns,
        idle_ns=breakdown.idle_ns,
        goodput=breakdown.goodput,
        ettr=effective_training_time_ratio(breakdown),
        cost=breakdown.cost,
        phases=_rows(breakdown),
        beside=beside_ns(view, chosen),
        disruptions=disruptions(timeline, chosen),
        mttf=mean_time_to_failure(timeline),
        progress=progress(timeline, view.rates),
        typical_step_ns=None if timeline.typical is None else timeline.typical.step_ns,
        stalls=sum(len(attempt.stalled) for attempt in attempts),
        throughput=rate,
        mfu=None if rate is None or model is None else utilisation(rate, model, gpus),
        ranks=ranks if len(ranks) > 1 else [],
        assumptions=breakdown.assumptions,
        findings=view.findings,
    )


def _rows(breakdown: Breakdown) -> list[PhaseRow]:
    return [
        PhaseRow(name, ns, ns / breakdown.wall_ns, breakdown.cost_by_phase.get(name))
        for name in ph.in_order(breakdown.phases)
        if (ns := breakdown.phases[name])
    ]


def beside_ns(view: RunView, window: Window) -> dict[str, int]:
    """Return how long overlapped spans took in the window, each by itself."""
    totals: dict[str, int] = {}
    for attempt in view.timeline.attempts:
        every = view.fold.segments[attempt.segment].beside.columns()
        for phase, spans in every.within(window.start_ns, window.end_ns).by_phase():
            totals[phase] = totals.get(phase, 0) + int((spans.end - spans.begin).sum())
    return totals
