"""Scaling laws: what repeated data is worth, and how to split compute between model and data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outlay.errors import InvalidValue

REPETITION_CONSTANT = 15.39
"""R*: how slowly repeated data loses its worth (Muennighoff et al. 2023, arXiv:2305.16264)."""


def effective_data(unique: float, epochs: float, *, constant: float = REPETITION_CONSTANT) -> float:
    """Return how much fresh data ``epochs`` passes over ``unique`` data are worth.

    D' = U + U R* (1 - exp(-(epochs - 1) / R*)).
    """
    if unique < 0 or epochs < 1:
        raise InvalidValue("epochs", epochs, "one pass or more")
    return unique + unique * constant * -math.expm1(-(epochs - 1) / constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """L = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556)."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model of that size trained on so many tokens."""
        return float(self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens that make the most of a compute budget, C = 6ND."""
        exponent = 1 / (self.alpha + self.beta)
        g = (self.alpha * self.a / (self.beta * self.b)) ** exponent
        parameters = g * (flops / 6) ** (self.beta * exponent)
        return parameters, flops / 6 / parameters
