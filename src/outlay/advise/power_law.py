"""The power law closest to some measurements, exactly where they carry no noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlay.errors import InvalidValue


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
