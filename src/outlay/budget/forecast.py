"""When a run will stop, if it goes on at the pace it was measured at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlay.budget.limits import Bound
from outlay.budget.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The limit that will stop the run first, and how far away it is; an estimate.

    Attributes:
        bound: That limit.
        steps_left: How many more steps will run.
        time_left_ns: How long they will take at the mean pace so far.
        at_step: How many steps the run will then have made in all.
    """

    bound: Bound
    steps_left: int
    time_left_ns: int
    at_step: int


def forecast(
    total: Usage, measured: Usage, training_ns: int, bounds: Iterable[Bound]
) -> Forecast | None:
    """Return where the run is heading, or None where nothing measured leads to a limit.

    Args:
        total: What the run has used in all.
        measured: The part of it that was measured in this attempt, over ``measured.steps`` steps.
        training_ns: How long those steps took.
        bounds: The limits.
    """
    if not measured.steps:
        return None
    forecasts = []
    for bound in bounds:
        pace = bound.used(measured)
        if pace <= 0:
            continue
        left = max(0, bound.left(total)) * measured.steps
        # A predictable limit is never passed, so the last step is one that still fits.
        steps = left // pace if bound.dimension.predictable else -(-left // pace)
        forecasts.append(
            Forecast(
                bound=bound,
                steps_left=steps,
                time_left_ns=steps * training_ns // measured.steps,
                at_step=total.steps + steps,
            )
        )
    return min(forecasts, key=lambda each: each.steps_left, default=None)
