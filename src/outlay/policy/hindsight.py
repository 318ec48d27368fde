"""The least that a job could have cost, with all prices known in advance."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outlay.policy.simulation import PriceChange
from outlay.policy.situation import JobTerms, unit_of
from outlay.rates import NS_PER_HOUR
from outlay.units import Money

Floats = NDArray[np.float64]


def least_cost(
    series: Sequence[PriceChange], job: JobTerms, *, start_ns: int | None = None, cell_ns: int
) -> Money | None:
    """Return the least cost of doing the job in time; None if it can't be.

    By dynamic programming over cells of time, in each of which a machine starts, works, saves or
    is not rented. Work and starts are rounded down to cells and the time up, so that it is
    never more than the true least cost where the times are not whole cells.
    """
    begin_ns = series[0].at_ns if start_ns is None else start_ns
    cells = math.ceil(job.time_ns / cell_ns)
    modes = [_cell_prices(series, begin_ns, cell_ns, cells)]
    if job.on_demand is not None:
        modes.append(np.full(cells, job.on_demand.micros_per_hour * cell_ns / NS_PER_HOUR))
    micros = _least(
        modes,
        work=job.work_ns // cell_ns,
        start=job.pause.start_ns // cell_ns,
        save=job.pause.save_ns // cell_ns,
        repeated=job.pause.repeated_ns // cell_ns,
    )
    known = [change.price for change in series if change.price is not None]
    unit = unit_of(known[0] if known else None, job)
    return None if micros == math.inf else unit.money(math.floor(micros + 0.5))


def _cell_prices(series: Sequence[PriceChange], begin_ns: int, cell_ns: int, cells: int) -> Floats:
    """Return the cost of each cell at the price at its begin; infinite while not available."""
    times = [change.at_ns for change in series]
    prices = [math.inf if c.price is None else float(c.price.micros_per_hour) for c in series]
    at = [prices[bisect_right(times, begin_ns + n * cell_ns) - 1] for n in range(cells)]
    return np.array(at) * (cell_ns / NS_PER_HOUR)


def _least(
    modes: Sequence[Floats], *, work: int, start: int, save: int, repeated: int = 0
) -> float:
    """Return the least cost of ``work`` cells; ``modes`` are the costs of each cell by machine.

    Backwards in time: ``off[w]`` and ``on[m][w]`` are the least costs to the end with ``w`` cells
    of work left, without a machine and on machine ``m``.
    """
    behind = np.minimum(np.arange(work + 1) + repeated, work)  # The work left after a pause.
    behind[0] = 0
    cells, longest = len(modes[0]), max(start, save) + 1
    never = np.full(work + 1, math.inf)
    never[0] = 0.0
    off_at = {cells: never}
    on_at = [{cells: never} for _ in modes]
    totals = [_running_total(prices) for prices in modes]
    for t in range(cells - 1, -1, -1):
        ons = []
        for mode, prices in enumerate(modes):
            on = never.copy()
            on[1:] = prices[t] + on_at[mode][t + 1][:-1]
            if save and t + save <= cells:
                on = np.minimum(on, _paid(totals[mode], t, t + save) + off_at[t + save][behind])
            ons.append(on)
        off = off_at[t + 1]
        for mode, on in enumerate(ons):
            begun = on_at[mode].get(t + start) if start else on
            if begun is not None:
                off = np.minimum(off, _paid(totals[mode], t, t + start) + begun)
        off_at[t] = off
        for mode, on in enumerate(ons):
            # Ended at no cost: a save takes no time, or the machine is taken back.
            is_free = save == 0 or math.isinf(modes[mode][t])
            on_at[mode][t] = np.minimum(on, off[behind]) if is_free else on
            on_at[mode].pop(t + longest, None)
        off_at.pop(t + longest, None)
    return float(off_at[0][work])


def _running_total(prices: Floats) -> Floats:
    """Return cost and number of unavailable cells before each cell, in two rows."""
    gone = np.isinf(prices)
    rows = np.stack([np.where(gone, 0.0, prices), gone.astype(np.float64)])
    return np.concatenate([np.zeros((2, 1)), np.cumsum(rows, axis=1)], axis=1)


def _paid(totals: Floats, start: int, end: int) -> float:
    """Return the cost of cells; infinite if the machine is not there in one of them."""
    paid, gone = totals[:, end] - totals[:, start]
    return math.inf if gone else float(paid)
