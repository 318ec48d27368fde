"""How much progress is safe: productive time up to the last committed checkpoint, and after it."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Window, break_down
from outlay.goodput.timeline import Timeline
from outlay.rates import RateFunction
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Surviving productive time of a run; what a kill now would take back is *at risk*.

    A record that stands for several steps, of which some are committed, is at risk as a whole.
    """

    last_step: int | None
    committed_step: int | None
    committed_ns: int
    at_risk_ns: int
    committed_cost: Money | None
    at_risk_cost: Money | None


def progress(timeline: Timeline, rates: RateFunction | None) -> Progress:
    """Return how much of the run's progress is committed."""
    attempts = [s.timeline for s in timeline.stretches if s.timeline is not None]
    committed = max(
        (checkpoint for attempt in attempts for checkpoint in attempt.checkpoints),
        key=lambda checkpoint: checkpoint.t_ns,
        default=None,
    )
    step = -1 if committed is None else committed.step
    starts = [start for a in attempts if (start := a.first_kept_after(step)) is not None]
    risk_from_ns = min(starts, default=timeline.end_ns)
    safe = break_down(timeline, rates, [Window(timeline.start_ns, risk_from_ns)])
    risky = break_down(timeline, rates, [Window(risk_from_ns, timeline.end_ns)])
    return Progress(
        last_step=timeline.last_step(),
        committed_step=None if committed is None else committed.step,
        committed_ns=safe.phases.get(ph.STEP, 0),
        at_risk_ns=risky.phases.get(ph.STEP, 0),
        committed_cost=safe.cost_by_phase.get(ph.STEP, _nothing(rates)),
        at_risk_cost=risky.cost_by_phase.get(ph.STEP, _nothing(rates)),
    )


def _nothing(rates: RateFunction | None) -> Money | None:
    return None if rates is None else Money(0, rates.currency)
