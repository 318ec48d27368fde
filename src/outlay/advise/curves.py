"""Extrapolation of learning curves: families of curves, least squares, and a bootstrap.

Each draw is a curve that the measurements could have come from: a family is drawn by its Akaike
weight, the residuals of its fit are resampled in moving blocks, every family is fitted to the
resampled values, and one of these fits, again drawn by weight, is the curve. So the draws differ by
noise and by shape. Long series are fitted in blocks. Values: higher is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlay.errors import InvalidValue

# Families of learning curves, prepared for least squares at given instants.
#
# For a given shape each family is linear in a level and one or two amplitudes (variable
# projection); shapes are searched on a grid, which has no local minima, and then on finer grids
# about the best one. The families are the inverse logarithm, the power law and its shifted form,
# the exponential and its stretched form (Janoschek), the power of the logarithm and the logistic
# curve, after Domhan et al. 2015; two exponentials; and two that can turn: an exponential and a
# power law with a trend.

Instants = tuple[float, ...]

_FLAT = 1e-4  # A column this close to a combination of the others has no defined amplitude.


class Form(NamedTuple):
    """The formula of a family.

    Attributes:
        bounds: Lowest value, highest value and number of values of each shape parameter, in
            geometric steps.
        columns: From instants and shape parameters (a column each) to the terms besides the level.
        only_falling: The last term is a trend, and is accepted only if it decreases.
    """

    bounds: tuple[tuple[float, float, int], ...]
    columns: Callable[..., tuple[Floats, ...]]
    amplitudes: int = 1
    only_falling: bool = False

    @property
    def parameters(self) -> int:
        """The number of parameters: level, amplitudes and shape."""
        return 1 + self.amplitudes + len(self.bounds)


def _forms(span: float) -> Iterator[Form]:
    """Yield the families; time constants go from half a step to five times the span."""
    alpha, rate = (0.1, 4, 20), (0.2 / span, 2, 24)
    yield Form((), lambda t: (1 / np.log(t + 1)[None, :],))
    yield Form((alpha,), lambda t, a: (t**-a,))
    yield Form((rate,), lambda t, r: (np.exp(-r * t),))
    yield Form(((1, 32, 6), (0.1, 4, 12)), lambda t, shift, a: ((t + shift) ** -a,))
    yield Form(((0.5, 2, 4), (0.05 / span, 2, 14)), lambda t, s, r: (np.exp(-r * t**s),))
    yield Form(((1, 2 * span, 10), (0.75, 3, 5)), lambda t, m, s: (1 / (1 + (t / m) ** s),))
    yield Form(
        ((0.05 * span, span, 6), (1 / span, 1.5, 8)),
        lambda t, middle, r: (0.5 - 0.5 * np.tanh(r * (t - middle) / 2),),
    )
    yield Form((rate,), lambda t, r: (np.exp(-r * t), _trend(t, r) / span), amplitudes=2)
    yield Form((alpha,), lambda t, a: (t**-a, _trend(t, a) / span), amplitudes=2, only_falling=True)
    yield Form(
        ((0.2 / span, 0.7, 7), (1.5, 30, 5)),
        lambda t, slow, times: (np.exp(-slow * t), np.exp(-slow * times * t)),
        amplitudes=2,
    )


def _trend(t: Floats, shapes: Floats) -> Floats:
    return np.broadcast_to(t, (len(shapes), len(t)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Shapes of one family, with the matrices to fit and to evaluate them.

    Attributes:
        axis: The nodes of the measured instants, then the queried instants.
        measured: The number of measured instants.
        shapes: Logarithms of the shape parameters, one row per shape.
        basis: Functions that are orthonormal at the blocks of measured instants, with their values
            there: one (k, blocks) matrix per shape. The last one grows with the last term.
        ahead: The values of the same functions at the queried instants.
    """

    form: Form
    axis: Floats
    measured: int
    shapes: Floats
    basis: Floats
    ahead: Floats

    def near(self, shape: int, part: float) -> Family:
        """Return shapes about one, itself first, at a part of the grid's steps."""
        steps = [np.log(high / low) / (count - 1) for low, high, count in self.form.bounds]
        # Itself first: where no shape fits better, finer grids stay within the grid.
        offsets = sorted(itertools.product((-part, 0.0, part), repeat=len(steps)), key=any)
        shapes = self.shapes[shape] + np.array(offsets) * np.array(steps)
        return _prepared(self.form, self.axis, self.measured, shapes)


@lru_cache(maxsize=8)
def families_at(nodes: Instants, asked: Instants, measured: int) -> tuple[Family, ...]:
    """Return all families for given measured and queried instants.

    Args:
        nodes: The measured instants at which curves are evaluated (``nodes_of``).
        asked: The queried instants.
        measured: The number of measured instants.
    """
    axis = np.array([*nodes, *asked], dtype=np.float64)
    return tuple(_on_grid(form, axis, measured) for form in _forms(max(nodes)))


def _on_grid(form: Form, axis: Floats, measured: int) -> Family:
    values = (np.linspace(np.log(low), np.log(high), n) for low, high, n in form.bounds)
    shapes = np.array(list(itertools.product(*values)), dtype=np.float64)
    return _prepared(form, axis, measured, shapes)


def _prepared(form: Form, axis: Floats, measured: int, shapes: Floats) -> Family:
    """Orthonormalise the terms of each shape (Gram-Schmidt); shapes with flat terms are dropped."""
    terms = form.columns(axis, *np.exp(shapes.T[:, :, None]))
    known, blocks = len(nodes_of(measured)), len(block_sizes(measured))
    usable = np.ones(len(shapes), dtype=np.bool_)
    functions: list[Floats] = []
    for term in (np.ones_like(terms[0]), *terms):
        scaled = term / np.maximum(np.abs(term[:, :known]).max(axis=1, keepdims=True), 1e-300)
        at_blocks = curve_in_blocks(scaled[:, :known, None], measured)[:, :, 0]
        rest = np.concatenate([at_blocks, scaled[:, known:]], axis=1)
        for other in functions:
            rest -= (rest * other)[:, :blocks].sum(axis=1, keepdims=True) * other
        norm = np.sqrt((rest[:, :blocks] ** 2).sum(axis=1))
        usable &= norm > _FLAT
        functions.append(rest / np.maximum(norm, _FLAT)[:, None])
    every = np.stack(functions, axis=1)[usable]
    return Family(
        form=form,
        axis=axis,
        measured=measured,
        shapes=shapes[usable],
        basis=np.ascontiguousarray(every[:, :, :blocks]),
        ahead=every[:, :, blocks:],
    )


# Long series reduced to blocks, so that the time of a fit does not depend on their length.
#
# The values of a block are summed and divided by the root of their number: then each block has the
# noise of a single measurement, as least squares requires. Curves are summed in the same way, so
# that fits are not biased; only detail within a block is lost. Blocks grow with time, evenly spaced
# in its square root, because curves bend early. Correlated noise sums to more than independent
# noise, and counts as such. Within a block a curve is almost straight, so that it is evaluated at a
# few instants only, the nodes.

Floats = NDArray[np.float64]

MOST = 200
"""Series up to this long are not reduced."""
_NODES = 8


def block_sizes(count: int) -> NDArray[np.intp]:
    """Return the block sizes for ``count`` values: 1 up to ``MOST`` values."""
    if count <= MOST:
        return np.ones(count, dtype=np.intp)
    ends = np.unique((count * (np.arange(MOST + 1) / MOST) ** 2).astype(np.intp))
    return np.diff(ends)


def in_blocks(values: Floats) -> Floats:
    """Return one sum per block, with the noise of a single value."""
    sizes = block_sizes(len(values))
    return _means(values[:, None], sizes)[:, 0] * np.sqrt(sizes)


def nodes_of(count: int) -> NDArray[np.intp]:
    """Return the indices of the nodes of ``count`` values: a few per block, evenly spaced."""
    if count <= MOST:
        return np.arange(count)
    sizes = block_sizes(count)
    nodes = np.minimum(sizes, _NODES)
    place = np.arange(nodes.sum()) - np.repeat(np.cumsum(nodes) - nodes, nodes)
    starts = np.repeat(np.cumsum(sizes) - sizes, nodes)
    offsets = ((place + 0.5) * np.repeat(sizes / nodes, nodes)).astype(np.intp)
    found: NDArray[np.intp] = starts + offsets
    return found


def curve_in_blocks(curve: Floats, count: int) -> Floats:
    """Return a curve through ``count`` values in blocks.

    Its values at the nodes are along the second to last axis.
    """
    if count <= MOST:
        return curve
    sizes = block_sizes(count)
    return _means(curve, np.minimum(sizes, _NODES)) * np.sqrt(sizes)[:, None]


def _means(values: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Return the means of groups of neighbours along the second to last axis."""
    sums: Floats = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=-2)
    return sums / sizes[:, None]


def some_between(first: int, last: int) -> list[int]:
    """Return the integers from ``first`` to ``last``; at most ``MOST`` of them, evenly spaced."""
    if last - first < MOST:
        return list(range(first, last + 1))
    return [int(number) for number in np.linspace(first, last, MOST).round()]


# Draws of the curve.

LEAST_POINTS = 4
DRAWS = 1000
FAMILIES = 10
_SEED = 20261115
_NOISE_FLOOR = 1e-9
_PARTS = (0.5, 0.2, 0.06)
_SINGLE_THREADED = 2**17  # Multiplications; OpenBLAS uses threads from 2**18.


@dataclass(frozen=True, slots=True)
class CurveDraws:
    """Draws of a curve: one row per draw, one column per queried instant.

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
        asked: The queried instants, on the same axis.
        at: The instants of the values, above 0; default: 1, 2, 3, ...
        noise_floor: The least standard deviation of measurements.
        draws: The number of draws.

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
    # A family with as many parameters as values would fit them exactly.
    table = tuple(_refine(family, y) for family in table if family.form.parameters < len(y))
    again, noise = _resample(table, y, noise_floor, draws, generator)
    fits = [_fit(family, again, noise_floor) for family in table]
    chosen = _choose(table, np.stack([fit.errors for fit in fits]), generator)
    return CurveDraws(_curves(table, fits, chosen, len(asked)) + centre, noise)


def _refine(family: Family, y: Floats) -> Family:
    """Return a family with finer grids about the best fit."""
    grids = [family]
    for part in _PARTS if family.form.bounds else ():
        (best,) = _fit(grids[-1], y[:, None]).shapes
        grids.append(grids[-1].near(int(best), part))
    return replace(
        family,
        shapes=np.concatenate([grid.shapes for grid in grids]),
        basis=np.concatenate([grid.basis for grid in grids]),
        ahead=np.concatenate([grid.ahead for grid in grids]),
    )


class _Fit(NamedTuple):
    """The best shape of one family for each column of values.

    Attributes:
        shapes: Index of the shape.
        coordinates: Of the fit in that shape's basis, a row per column of values.
        errors: Residual sum of squares.
    """

    shapes: NDArray[np.intp]
    coordinates: Floats
    errors: Floats


def _fit(family: Family, values: Floats, noise_floor: float = 0.0) -> _Fit:
    """Fit a family to every column of values."""
    coordinates = _coordinates(family, values)
    squares = (values**2).sum(axis=0)
    errors = squares - (coordinates**2).sum(axis=1)
    if family.form.only_falling:
        errors = np.where(coordinates[:, -1] > 0, squares, errors)
    best = errors.argmin(axis=0)
    each = np.arange(values.shape[1])
    # Rounding may make the error of an exact fit negative.
    least = np.maximum(errors[best, each], 0.0) + len(values) * noise_floor**2
    return _Fit(best, coordinates[best, :, each], least)


def _coordinates(family: Family, values: Floats) -> Floats:
    """Return the coordinates of every column of values in every shape's basis.

    In pieces below the size at which BLAS libraries use threads: for such small products waiting
    for other threads takes far longer than the work.
    """
    count, k, blocks = family.basis.shape
    rows = family.basis.reshape(count * k, blocks)
    found = np.empty((count * k, values.shape[1]))
    step = max(1, _SINGLE_THREADED // rows.size)
    for first in range(0, values.shape[1], step):
        found[:, first : first + step] = rows @ values[:, first : first + step]
    return found.reshape(count, k, -1)


def _choose(
    table: Sequence[Family], errors: Floats, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a family for every column of errors, in proportion to Akaike weights.

    Without Akaike's correction for small samples: with few values that leaves only the simplest
    family, where the uncertainty about the shape is largest.
    """
    count = table[0].basis.shape[2]
    parameters = np.array([family.form.parameters for family in table], dtype=np.float64)
    logs = -count / 2 * np.log(errors / count) - parameters[:, None]
    # The maximum with Gumbel noise is a draw in proportion to the weights.
    chosen: NDArray[np.intp] = np.argmax(logs + generator.gumbel(size=logs.shape), axis=0)
    return chosen


def _resample(
    table: Sequence[Family],
    y: Floats,
    noise_floor: float,
    draws: int,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return resampled measurements, one column per draw, and the noise of each column."""
    fits = [_fit(family, y[:, None], noise_floor) for family in table]
    columns = [
        fit.coordinates[0] @ family.basis[fit.shapes[0]]
        for family, fit in zip(table, fits, strict=True)
    ]
    fitted = np.stack(columns, axis=1)
    freedom = len(y) - np.array([family.form.parameters for family in table], dtype=np.float64)
    residuals = (y[:, None] - fitted) * np.sqrt(len(y) / freedom)
    residuals -= residuals.mean(axis=0)
    errors = np.stack([fit.errors for fit in fits])
    chosen = _choose(table, np.broadcast_to(errors, (len(table), draws)), generator)
    # The noise estimated from few residuals is itself uncertain, as in a predictive t interval.
    scale = np.sqrt(freedom[chosen] / generator.chisquare(freedom[chosen]))
    drawn = residuals[_blocks(len(y), draws, generator), chosen]
    drawn = scale * drawn + noise_floor * generator.standard_normal((len(y), draws))
    return fitted[:, chosen] + drawn, scale * np.sqrt(errors[chosen, 0] / freedom[chosen])


def _blocks(count: int, draws: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return the indices of the residuals of each draw: circular blocks of neighbours.

    Blocks keep the correlation of neighbours that residuals have if no family fits the curve.
    """
    length = round(count ** (1 / 3))
    starts = generator.integers(0, count, (-(-count // length), 1, draws))
    taken: NDArray[np.intp] = (starts + np.arange(length)[None, :, None]) % count
    return taken.reshape(-1, draws)[:count]


def _curves(
    table: Sequence[Family], fits: Sequence[_Fit], chosen: NDArray[np.intp], asked: int
) -> Floats:
    found = np.empty((len(chosen), asked))
    for index, (family, fit) in enumerate(zip(table, fits, strict=True)):
        mine = np.flatnonzero(chosen == index)
        functions = family.ahead[fit.shapes[mine]]
        found[mine] = (fit.coordinates[mine, None, :] @ functions)[:, 0]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the measurements ahead may bring.

    Attributes:
        probability: That the best so far is beaten.
        gain: By how much then, in the metric's unit; 0 if it never is.
    """

    probability: float
    gain: float


def outlook(
    values: Sequence[float],
    more: int,
    *,
    margin: float = 0.0,
    bound: float = math.inf,
    draws: int = DRAWS,
) -> Outlook:
    """Return whether the next ``more`` measurements may beat the best by ``margin``.

    Only the measurement at the maximum of the curve counts: that one of many may exceed the best by
    luck is no reason to continue. Nor is a lucky best so far a reason to stop: a long series is
    judged by the means of its blocks. No measurement is above ``bound``.
    """
    roots = np.sqrt(block_sizes(len(values)))
    best = float((in_blocks(np.array(values)) / roots).max())
    floor = max(margin / 4, _NOISE_FLOOR)
    peaks = np.minimum(_peaks(values, more, floor, draws), bound)
    beaten = peaks > best + margin
    gain = float((peaks[beaten] - best).mean()) if beaten.any() else 0.0
    return Outlook(probability=float(beaten.mean()) if len(peaks) else 0.0, gain=gain)


def probability_of_beating(
    values: Sequence[float], more: int, *, margin: float = 0.0, draws: int = DRAWS
) -> float:
    """Return the probability of an ``outlook``."""
    return outlook(values, more, margin=margin, draws=draws).probability


def probability_of_passing(
    values: Sequence[float],
    more: int,
    level: float,
    *,
    noise_floor: float = _NOISE_FLOOR,
    draws: int = DRAWS,
) -> float:
    """Return the probability that the peak of the next ``more`` measurements is above ``level``."""
    peaks = _peaks(values, more, noise_floor, draws)
    return float((peaks > level).mean()) if len(peaks) else 0.0


def _peaks(values: Sequence[float], more: int, noise_floor: float, draws: int) -> Floats:
    """Return draws of the measurement at the peak of the next ``more``; none if ``more`` is 0."""
    if more < 1:
        return np.empty(0)
    ahead = some_between(len(values) + 1, len(values) + more)
    found = draw_curves(values, ahead, noise_floor=noise_floor, draws=draws)
    last = float(np.sqrt(block_sizes(len(values))[-1]))
    noise = found.noise / last * np.random.default_rng(_SEED + 1).standard_normal(draws)
    peaks: Floats = found.curve.max(axis=1) + noise
    return peaks
