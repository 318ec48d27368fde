"""The rest of a live run: how fast it got further so far, and what is left to its target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outlay.cost.forecast import Pace, Rest, forecast_rest, paces_of
from outlay.goodput.follower import RunView
from outlay.rates import NS_PER_HOUR
from outlay.units.money import MICROS

_STRETCHES = 20


def run_paces(view: RunView, stretches: int = _STRETCHES) -> list[Pace]:
    """Return the run so far in equal stretches of time: progress, duration, cost of each."""
    start_ns, end_ns = view.timeline.start_ns, view.timeline.end_ns
    instants = [start_ns + (end_ns - start_ns) * i // stretches for i in range(stretches + 1)]
    return paces_of(instants, steps_reached(view, instants), _costs(view, instants))


def steps_reached(view: RunView, instants_ns: Sequence[int]) -> list[float]:
    """Return how far the run had come at each instant: its last step then, plus one."""
    every = [view.account.segments[a.segment].steps for a in view.timeline.attempts]
    ends = np.concatenate([steps.end for steps in every])
    numbers = np.concatenate([steps.number for steps in every])
    counts = np.concatenate([steps.count for steps in every])
    order = np.argsort(ends, kind="stable")
    ended = np.searchsorted(ends[order], np.array(instants_ns), side="right")
    # Before its first record the run stood where that record begins.
    begun = numbers[order][:1] if len(order) else np.zeros(1)
    reached = np.concatenate([begun, (numbers + counts)[order]])
    return [float(reached[records]) for records in ended]


def rest_of(view: RunView, target_steps: int) -> Rest | None:
    """Return what the run still needs to reach ``target_steps`` steps; None without progress."""
    paces = run_paces(view)
    done = steps_reached(view, [view.timeline.end_ns])[0]
    return forecast_rest(paces, max(0.0, target_steps - done))


def _costs(view: RunView, instants_ns: Sequence[int]) -> list[float]:
    rates = view.rates
    if rates is None:
        return [0.0] * len(instants_ns)
    start_ns = view.timeline.start_ns
    return [rates.units_between(start_ns, t) / NS_PER_HOUR / MICROS for t in instants_ns]
