"""How long advice on stopping takes for a loss that was logged at every step.

The alternative is what people write themselves: a bootstrap of SciPy's ``curve_fit`` with one power
law, where outlay fits ten families a thousand times. Run: python benchmarks/advise.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit
from timing import Figure, Timing, compare, machine, row, show, verdict

from outlay.advise.curves import families_at
from outlay.advise.stopping import EpochPrice, recommend_early_stopping

POINTS, ROUNDS, DRAWS = (60, 300, 3_000, 30_000), 3, 1000
CLAIMED = 3_000
EPOCH = EpochPrice(hours=0.01, price_per_hour=3.0)


def losses(count: int) -> list[float]:
    """Return a noisy power law."""
    steps = np.arange(1, count + 1)
    noise = np.random.default_rng(1).normal(0, 0.05, count)
    return [float(value) for value in 2 + 3 * steps**-0.4 + noise]


def advise(values: list[float]) -> None:
    """Ask outlay whether to stop half-way, as if no curve of this length had been fitted before."""
    families_at.cache_clear()
    recommend_early_stopping(
        [-value for value in values], EPOCH, total_epochs=2 * len(values), probability=1.0
    )


def bootstrap(values: list[float]) -> None:
    """Fit one power law to as many resamples."""

    def law(t: np.ndarray, level: float, scale: float, power: float) -> np.ndarray:
        return level + scale * t**-power

    steps, measured = np.arange(1.0, len(values) + 1), np.array(values)
    start, _ = curve_fit(law, steps, measured, p0=(2.0, 3.0, 0.5))
    residuals, generator = measured - law(steps, *start), np.random.default_rng(2)
    for _ in range(DRAWS):
        again = law(steps, *start) + generator.choice(residuals, len(values))
        curve_fit(law, steps, again, p0=start)


def main() -> None:
    warnings.simplefilter("ignore", OptimizeWarning)
    series = {count: losses(count) for count in POINTS}
    works: dict[str, Callable[[], object]] = {
        f"outlay, {count:,} losses": partial(advise, values) for count, values in series.items()
    }
    ours = compare(works, calls=1, rounds=ROUNDS)
    (theirs,) = compare(
        {f"SciPy, one family, {CLAIMED:,} losses": lambda: bootstrap(series[CLAIMED])},
        calls=1,
        rounds=1,
    )
    print(machine())
    show("Advice on stopping", [*ours, theirs], unit="s", scale=1)
    claimed: Timing = ours[POINTS.index(CLAIMED)]
    peer = Figure("SciPy bootstrap, one family", theirs.seconds)
    row(f"advice on {CLAIMED:,} losses", claimed.seconds, peer, unit="s")
    verdict(f"advice on {CLAIMED:,} losses, in seconds", claimed.seconds, 1.5)


if __name__ == "__main__":
    main()
