"""Learning curves extrapolated: several families, and how likely each is.

Every family is c + a f(t) and a transient of the first few steps, with f taken from a grid of
shapes: powers, shifted powers, exponentials, stretched exponentials (Janoschek), exponentials that
fall again, and inverse logarithms, after Domhan et al. 2015. For a given shape the rest is linear,
so its posterior is known in closed form (variable projection): draws from it need no search, cannot
get stuck, and take milliseconds. Values: higher is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outlay.errors import InvalidValue

Floats = NDArray[np.float64]

LEAST_POINTS = 4
DRAWS = 2000
_SEED = 20261115
_NOISE_FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class Shapes:
    """Candidate shapes f at some instants: one row each, with the prior weight of the row."""

    values: Floats
    prior: Floats


@dataclass(frozen=True, slots=True)
class CurveDraws:
    """Draws from what the curve may be: one row per draw, one column per instant asked about.

    Attributes:
        noise: The standard deviation of single measurements about the curve, per draw.
    """

    curve: Floats
    noise: Floats


def _shape_rows(t: Floats) -> list[Floats]:
    alphas = np.geomspace(0.1, 4, 16)[:, None]
    powers = -(t[None, :] ** -alphas)
    shifted = [-((t[None, :] + shift) ** -alphas) for shift in (2.0, 8.0, 32.0)]
    rates = np.geomspace(0.01, 2, 20)[:, None]
    exponentials = -np.exp(-rates * t[None, :])
    stretched = [-np.exp(-rates * t[None, :] ** power) for power in (0.5, 0.75, 1.5)]
    overfitted = [exponentials - drift * t[None, :] for drift in (0.004, 0.015)]
    logarithm = -1 / np.log(t[None, :] + 1)
    return [powers, *shifted, exponentials, *stretched, *overfitted, logarithm]


@lru_cache(maxsize=64)
def _shapes(instants: tuple[float, ...]) -> Shapes:
    rows = _shape_rows(np.array(instants))
    prior = np.concatenate([np.full(len(row), 1 / len(row) / len(rows)) for row in rows])
    return Shapes(np.concatenate(rows), prior)


def draw_curves(
    values: Sequence[float],
    asked: Sequence[float],
    *,
    at: Sequence[float] | None = None,
    noise_floor: float = _NOISE_FLOOR,
    draws: int = DRAWS,
) -> CurveDraws:
    """Return draws of the curve through ``values`` at the instants ``asked``.

    Args:
        values: Measurements, higher is better.
        asked: Where the curve is wanted, on the same axis.
        at: Where the values were measured; 1, 2, 3, ... by default.
        noise_floor: The least standard deviation that measurements are taken to have.
        draws: How many.

    Raises:
        InvalidValue: There are fewer than four finite values.
    """
    y = np.array(values, dtype=np.float64)
    t = np.arange(1.0, len(y) + 1) if at is None else np.array(at, dtype=np.float64)
    if len(y) < LEAST_POINTS or not np.isfinite(y).all() or len(t) != len(y) or (t <= 0).any():
        raise InvalidValue("curve", list(values), f"at least {LEAST_POINTS} finite values")
    # Both sets of instants go through one table, so that a shape is scaled the same in both.
    table = _shapes((*t.tolist(), *map(float, asked)))
    f, ahead = table.values[:, : len(y)], table.values[:, len(y) :]
    fits = _fit(f, t, y, noise_floor)
    freedom = len(y) - fits.coefficients.shape[1]
    generator = np.random.default_rng(_SEED)
    chosen = generator.choice(len(f), draws, p=_weights(fits, table.prior, freedom))
    return _sample(fits, chosen, ahead, np.array(asked, dtype=np.float64), freedom, generator)


@dataclass(frozen=True, slots=True)
class _Fits:
    """Least squares of y on (1, f, transient), one per shape.

    Attributes:
        centre: What f is measured from, so that level and slope hardly depend on each other.
        spread: Of one draw of the coefficients, per unit of noise: a Cholesky factor.
        errors: The sum of squares that is left.
    """

    centre: Floats
    coefficients: Floats
    spread: Floats
    errors: Floats


def _transient(t: Floats) -> Floats:
    """Return how the first few steps differ from the rest: gone after ten of them."""
    return np.exp(-t)


def _fit(f: Floats, t: Floats, y: Floats, noise_floor: float) -> _Fits:
    centre = f.mean(axis=1)
    columns = _columns(f, centre, t)
    # A little is added to the diagonal where a shape is as good as flat, or as the transient.
    gram = columns.transpose(0, 2, 1) @ columns + 1e-12 * np.eye(columns.shape[2])
    inverse = np.linalg.inv(gram)
    coefficients = (inverse @ (columns.transpose(0, 2, 1) @ y)[:, :, None])[:, :, 0]
    residuals = y[None, :] - (columns @ coefficients[:, :, None])[:, :, 0]
    errors = (residuals**2).sum(axis=1) + len(y) * noise_floor**2
    return _Fits(centre, coefficients, np.linalg.cholesky(inverse), errors)


def _columns(f: Floats, centre: Floats, t: Floats) -> Floats:
    shape = f - centre[:, None]
    return np.stack([np.ones_like(f), shape, np.broadcast_to(_transient(t), f.shape)], axis=2)


def _weights(fits: _Fits, prior: Floats, freedom: int) -> Floats:
    """Return how likely each shape is: its prior, times the likelihood with the rest integrated."""
    logs = np.log(prior) - freedom / 2 * np.log(fits.errors)
    weights = np.exp(logs - logs.max())
    total: Floats = weights / weights.sum()
    return total


def _sample(
    fits: _Fits,
    chosen: NDArray[np.int64],
    ahead: Floats,
    asked: Floats,
    freedom: int,
    generator: np.random.Generator,
) -> CurveDraws:
    draws = len(chosen)
    noise = np.sqrt(fits.errors[chosen] / generator.chisquare(freedom, draws))
    standard = generator.standard_normal((draws, fits.coefficients.shape[1], 1))
    doubt = noise[:, None] * (fits.spread[chosen] @ standard)[:, :, 0]
    coefficients = fits.coefficients[chosen] + doubt
    columns = _columns(ahead[chosen], fits.centre[chosen], asked)
    return CurveDraws((columns @ coefficients[:, :, None])[:, :, 0], noise)


def probability_of_beating(
    values: Sequence[float], more: int, *, margin: float = 0.0, draws: int = DRAWS
) -> float:
    """Return how likely the best is still beaten by ``margin`` in the next ``more`` measurements.

    What counts is the measurement where the curve will be highest: that one of many more may be
    lifted above the best by luck alone is no reason to go on.

    Args:
        values: Measurements so far, higher is better.
        more: How many are still to come.
        margin: By how much the best must be beaten.
        draws: How many futures are looked at.
    """
    if more < 1:
        return 0.0
    ahead = range(len(values) + 1, len(values) + more + 1)
    found = draw_curves(values, list(ahead), noise_floor=max(margin / 4, _NOISE_FLOOR), draws=draws)
    noise = found.noise * np.random.default_rng(_SEED + 1).standard_normal(draws)
    return float((found.curve.max(axis=1) + noise > max(values) + margin).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """y = limit - scale * t^-exponent."""

    limit: float
    scale: float
    exponent: float

    def at(self, t: float) -> float:
        """Return the curve at an instant (or size)."""
        return float(self.limit - self.scale * t**-self.exponent)


def fit_power_law(values: Sequence[float], at: Sequence[float]) -> PowerLaw:
    """Return the power law closest to some values, by variable projection.

    For each exponent the rest is linear; the exponent itself is narrowed down on ever finer grids,
    so that no start has to be guessed.

    Raises:
        InvalidValue: There are fewer than three values.
    """
    y, t = np.array(values, dtype=np.float64), np.array(at, dtype=np.float64)
    if len(y) < 3 or len(t) != len(y) or not np.isfinite(y).all() or (t <= 0).any():
        raise InvalidValue("values", list(values), "three or more finite values at sizes above 0")
    low, high = 1e-3, 10.0
    for _ in range(12):
        exponents = np.geomspace(low, high, 33)
        shapes = -(t[None, :] ** -exponents[:, None])
        centred = shapes - shapes.mean(axis=1, keepdims=True)
        slopes = centred @ y / (centred**2).sum(axis=1)
        residuals = y - y.mean() - slopes[:, None] * centred
        best = int(np.argmin((residuals**2).sum(axis=1)))
        low, high = exponents[max(best - 1, 0)], exponents[min(best + 1, 32)]
    return PowerLaw(
        limit=float(y.mean() - slopes[best] * shapes[best].mean()),
        scale=float(slopes[best]),
        exponent=float(exponents[best]),
    )
