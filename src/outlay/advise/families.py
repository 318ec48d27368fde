"""Families of learning curves, ready for least squares at some instants.

Each family is linear in a level and one or two amplitudes once its shape is fixed (variable
projection); its shapes are looked for on a grid, which cannot get stuck, and then ever closer to
the best one. The families are the inverse logarithm, the power law and its shifted form, the
exponential and its stretched form (Janoschek), the power of the logarithm and the logistic curve,
after Domhan et al. 2015; two exponentials; and two that turn: an exponential and a power law with a
trend.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from outlay.advise.thinning import Floats, curve_in_blocks, nodes_of

Instants = tuple[float, ...]

_FLAT = 1e-4  # A column that is this close to the others tells nothing about its amplitude.


class Form(NamedTuple):
    """What the curves of a family look like.

    Attributes:
        bounds: Lowest, highest and how many values of each shape parameter, in geometric steps.
        columns: From instants and the shape parameters (a column each) to what is beside the level.
        only_falling: The last column is a trend, and is believed only where it goes down.
    """

    bounds: tuple[tuple[float, float, int], ...]
    columns: Callable[..., tuple[Floats, ...]]
    amplitudes: int = 1
    only_falling: bool = False

    @property
    def parameters(self) -> int:
        """How many figures a curve has: level, amplitudes and shape."""
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
    """Shapes of one family: how to fit them, and what they say elsewhere.

    Attributes:
        axis: The nodes of the instants that were measured, then the instants asked about.
        measured: How many instants were measured.
        shapes: Logarithms of the shape parameters, one row a shape.
        basis: Orthonormal columns at the blocks of measured instants: one (blocks, k) matrix a
            shape.
        ahead: From coordinates in the basis to the curve at the instants asked about.
        trend: From coordinates to the trend, where only a falling one is believed; else None.
    """

    form: Form
    axis: Floats
    measured: int
    shapes: Floats
    basis: Floats
    ahead: Floats
    trend: Floats | None

    def and_near(self, shape: int, part: float) -> Family:
        """Return it with more shapes, next to one: at a part of the grid's steps."""
        steps = [np.log(high / low) / (count - 1) for low, high, count in self.form.bounds]
        offsets = list(itertools.product((-part, 0.0, part), repeat=len(steps)))
        near = self.shapes[shape] + np.array(offsets) * np.array(steps)
        more = _prepared(self.form, self.axis, self.measured, near)
        return replace(
            self,
            shapes=np.concatenate([self.shapes, more.shapes]),
            basis=np.concatenate([self.basis, more.basis]),
            ahead=np.concatenate([self.ahead, more.ahead]),
            trend=None
            if self.trend is None or more.trend is None
            else np.concatenate([self.trend, more.trend]),
        )


@lru_cache(maxsize=8)
def families_at(nodes: Instants, asked: Instants, measured: int) -> tuple[Family, ...]:
    """Return all families, for values measured at some instants and asked about at others.

    Args:
        nodes: The measured instants that stand for all of them (``thinning.nodes_of``).
        asked: Where the curve is wanted.
        measured: How many instants were measured.
    """
    axis = np.array([*nodes, *asked], dtype=np.float64)
    return tuple(_on_grid(form, axis, measured) for form in _forms(max(nodes)))


def _on_grid(form: Form, axis: Floats, measured: int) -> Family:
    values = (np.linspace(np.log(low), np.log(high), n) for low, high, n in form.bounds)
    shapes = np.array(list(itertools.product(*values)), dtype=np.float64)
    return _prepared(form, axis, measured, shapes)


def _prepared(form: Form, axis: Floats, measured: int, shapes: Floats) -> Family:
    beside = form.columns(axis, *np.exp(shapes.T[:, :, None]))
    columns = np.stack([np.ones_like(beside[0]), *beside], axis=2)
    known = len(nodes_of(measured))
    # Of one size, so that what is flat shows; a column of zeros stays one, and is left out below.
    columns = columns / np.maximum(np.abs(columns[:, :known]).max(axis=1, keepdims=True), 1e-300)
    basis, triangle = np.linalg.qr(curve_in_blocks(columns[:, :known], measured))
    tells = np.abs(np.diagonal(triangle, axis1=1, axis2=2)).min(axis=1) > _FLAT
    inverse = np.linalg.inv(triangle[tells])
    return Family(
        form=form,
        axis=axis,
        measured=measured,
        shapes=shapes[tells],
        basis=basis[tells],
        ahead=columns[tells, known:] @ inverse,
        trend=inverse[:, -1, :] if form.only_falling else None,
    )
