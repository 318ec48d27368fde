"""Learning curves extrapolated: least squares in several families, and a bootstrap over them.

Each draw is a curve that the measurements could have come from: a family is chosen by its Akaike
weight, the residuals of its fit are resampled in moving blocks, every family is fitted to what that
gives, and one of them, again by its weight, says how the curve goes on. So the draws differ by
noise and by what is believed about the shape. Long series are fitted in blocks (``thinning``).
Values: higher is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlay.advise.families import Family, families_at
from outlay.advise.thinning import Floats, block_sizes, in_blocks, nodes_of, some_between
from outlay.errors import InvalidValue

LEAST_POINTS = 4
DRAWS = 1000
FAMILIES = 10
_SEED = 20261115
_NOISE_FLOOR = 1e-9
_PARTS = (0.5, 0.2, 0.06)
_SINGLE_THREADED = 2**17  # Multiplications; OpenBLAS uses threads from 2**18.


@dataclass(frozen=True, slots=True)
class CurveDraws:
    """Draws from what the curve may be: one row per draw, one column per instant asked about.

    Attributes:
        noise: The standard deviation of single measurements about the curve, per draw.
    """

    curve: Floats
    noise: Floats


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
        at: Where the values were measured, above 0; 1, 2, 3, ... by default.
        noise_floor: The least standard deviation that measurements are taken to have.
        draws: How many.

    Raises:
        InvalidValue: There are fewer than four finite values.
    """
    measured = np.array(values, dtype=np.float64)
    t = np.arange(1.0, len(measured) + 1) if at is None else np.array(at, dtype=np.float64)
    if len(measured) < LEAST_POINTS or not np.isfinite(measured).all():
        wrong = f"{len(measured)} values, {int((~np.isfinite(measured)).sum())} of them not finite"
        raise InvalidValue("curve", wrong, f"at least {LEAST_POINTS} finite values")
    assert len(t) == len(measured)
    assert (t > 0).all()
    nodes = t[nodes_of(len(t))]
    table = families_at(tuple(nodes.tolist()), tuple(map(float, asked)), len(t))
    generator = np.random.default_rng(_SEED)
    centre = float(measured.mean())
    y = in_blocks(measured - centre)
    # A family with as many parameters as there are values would go through all of them.
    table = tuple(_closer(family, y) for family in table if family.form.parameters < len(y))
    again = _resample(table, y, noise_floor, draws, generator)
    fits = _fit(table, again.values, noise_floor)
    chosen = _choose(fits, table, generator)
    return CurveDraws(_curves(table, fits, chosen, len(asked)) + centre, again.noise)


def _closer(family: Family, y: Floats) -> Family:
    """Return a family with the grid made finer, step by step, next to the best fit."""
    for part in _PARTS if family.form.bounds else ():
        (best,) = _fit_one(family, y[:, None]).shapes
        family = family.and_near(int(best), part)
    return family


@dataclass(frozen=True, slots=True)
class _Fits:
    """The best shape of each family for each column of values.

    Attributes:
        shapes: Which one: a row per family, a column per column of values.
        coordinates: Of the fit in that shape's basis, per family: a row per column of values.
        errors: The sum of squares that is left, like ``shapes``.
    """

    shapes: NDArray[np.intp]
    coordinates: tuple[Floats, ...]
    errors: Floats


def _fit(table: Sequence[Family], values: Floats, noise_floor: float) -> _Fits:
    """Fit every family to every column of values."""
    found = [_fit_one(family, values) for family in table]
    errors = np.stack([best.errors for best in found])
    return _Fits(
        np.stack([best.shapes for best in found]),
        tuple(best.coordinates for best in found),
        # Rounding may leave less than nothing of an exact fit.
        np.maximum(errors, 0.0) + len(values) * noise_floor**2,
    )


class _Best(NamedTuple):
    """The best shape of one family for each column of values, its coordinates, and what is left."""

    shapes: NDArray[np.intp]
    coordinates: Floats
    errors: Floats


def _fit_one(family: Family, values: Floats) -> _Best:
    coordinates = _coordinates(family, values)
    squares = (values**2).sum(axis=0)
    errors = squares - (coordinates**2).sum(axis=1)
    if family.trend is not None:
        trend = (family.trend[:, :, None] * coordinates).sum(axis=1)
        errors = np.where(trend > 0, squares, errors)
    best = errors.argmin(axis=0)
    each = np.arange(values.shape[1])
    return _Best(best, coordinates[best, :, each], errors[best, each])


def _coordinates(family: Family, values: Floats) -> Floats:
    """Return the coordinates of every column of values in every shape's basis.

    In pieces below the size from which linear algebra libraries wake their threads: for products as
    small as these, waiting for other threads takes far longer than the work.
    """
    count, instants, k = family.basis.shape
    rows = family.basis.transpose(0, 2, 1).reshape(count * k, instants)
    found = np.empty((count * k, values.shape[1]))
    step = max(1, _SINGLE_THREADED // rows.size)
    for first in range(0, values.shape[1], step):
        found[:, first : first + step] = rows @ values[:, first : first + step]
    return found.reshape(count, k, -1)


def _log_weights(fits: _Fits, table: Sequence[Family], count: int) -> Floats:
    """Return half of minus Akaike's criterion: how well a family fits, less what it is free to.

    Its correction for small samples is left out: with few values it leaves only the simplest
    family, and all doubt about the shape is gone just where there is most of it.
    """
    parameters = np.array([family.form.parameters for family in table], dtype=np.float64)
    logs: Floats = -count / 2 * np.log(fits.errors / count) - parameters[:, None]
    return logs


def _choose(
    fits: _Fits, table: Sequence[Family], generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a family for every column, in proportion to the weights (by Gumbel's maximum)."""
    logs = _log_weights(fits, table, table[0].basis.shape[1])
    chosen: NDArray[np.intp] = np.argmax(logs + generator.gumbel(size=logs.shape), axis=0)
    return chosen


@dataclass(frozen=True, slots=True)
class _Resampled:
    """Measurements as they could have been, one column each, and how noisy each column is."""

    values: Floats
    noise: Floats


def _resample(
    table: Sequence[Family],
    y: Floats,
    noise_floor: float,
    draws: int,
    generator: np.random.Generator,
) -> _Resampled:
    fits = _fit(table, y[:, None], noise_floor)
    columns = [
        family.basis[shape] @ coordinates[0]
        for family, (shape,), coordinates in zip(table, fits.shapes, fits.coordinates, strict=True)
    ]
    fitted = np.stack(columns, axis=1)
    freedom = len(y) - np.array([family.form.parameters for family in table], dtype=np.float64)
    residuals = (y[:, None] - fitted) * np.sqrt(len(y) / freedom)
    residuals -= residuals.mean(axis=0)
    wide = _Fits(fits.shapes, fits.coordinates, np.broadcast_to(fits.errors, (len(table), draws)))
    chosen = _choose(wide, table, generator)
    # What few residuals say about the noise is itself in doubt, as in a predictive t interval.
    doubt = np.sqrt(freedom[chosen] / generator.chisquare(freedom[chosen]))
    drawn = residuals[_blocks(len(y), draws, generator), chosen]
    drawn = doubt * drawn + noise_floor * generator.standard_normal((len(y), draws))
    noise = doubt * np.sqrt(fits.errors[chosen, 0] / freedom[chosen])
    return _Resampled(fitted[:, chosen] + drawn, noise)


def _blocks(count: int, draws: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return which residuals each draw takes: blocks of neighbours, the last next to the first.

    Neighbouring residuals resemble each other where the curve is of no family at all; drawn in
    blocks they keep that.
    """
    length = round(count ** (1 / 3))
    starts = generator.integers(0, count, (-(-count // length), 1, draws))
    taken: NDArray[np.intp] = (starts + np.arange(length)[None, :, None]) % count
    return taken.reshape(-1, draws)[:count]


def _curves(table: Sequence[Family], fits: _Fits, chosen: NDArray[np.intp], asked: int) -> Floats:
    found = np.empty((len(chosen), asked))
    for index, family in enumerate(table):
        mine = np.flatnonzero(chosen == index)
        matrices = family.ahead[fits.shapes[index, mine]]
        found[mine] = (matrices @ fits.coordinates[index][mine, :, None])[:, :, 0]
    return found


def probability_of_beating(
    values: Sequence[float], more: int, *, margin: float = 0.0, draws: int = DRAWS
) -> float:
    """Return how likely the best is still beaten by ``margin`` in the next ``more`` measurements.

    What counts is the measurement where the curve will be highest: that one of many more may be
    lifted above the best by luck alone is no reason to go on. Nor is it one to stop that one of
    many was: a long series is judged by the means of its blocks, past and to come.

    Args:
        values: Measurements so far, higher is better.
        more: How many are still to come.
        margin: By how much the best must be beaten.
        draws: How many futures are looked at.
    """
    if more < 1:
        return 0.0
    ahead = some_between(len(values) + 1, len(values) + more)
    found = draw_curves(values, ahead, noise_floor=max(margin / 4, _NOISE_FLOOR), draws=draws)
    roots = np.sqrt(block_sizes(len(values)))
    best = float((in_blocks(np.array(values)) / roots).max())
    noise = found.noise / roots[-1] * np.random.default_rng(_SEED + 1).standard_normal(draws)
    return float((found.curve.max(axis=1) + noise > best + margin).mean())
