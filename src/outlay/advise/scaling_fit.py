"""Fitting a scaling law to small runs, by variable projection.

For given exponents the law is linear in E, A and B, which are zero or more; only the two exponents
are searched for. Fitting parabolas to slices of equal compute instead is biased (arXiv:2603.22339).
Needs SciPy (the ``advise`` extra); everything else in this package does without.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlay.advise.scaling import ScalingLaw
from outlay.errors import InvalidValue, MissingExtra

_STARTS = tuple(itertools.product((0.2, 0.4, 0.7), repeat=2))


class SmallRun(NamedTuple):
    """One training: parameters, tokens, and the loss it reached."""

    parameters: float
    tokens: float
    loss: float


def fit_scaling_law(runs: Sequence[SmallRun]) -> ScalingLaw:
    """Return the law with the least relative errors on some runs, from several starts.

    Raises:
        InvalidValue: There are fewer runs than the law has parameters.
        MissingExtra: SciPy is not installed.
    """
    if len(runs) < 6 or any(min(run) <= 0 for run in runs):
        raise InvalidValue("runs", len(runs), "six or more runs with figures above zero")
    try:
        from scipy.optimize import minimize, nnls
    except ImportError:
        raise MissingExtra("fitting a scaling law", "advise") from None
    parameters, tokens, losses = np.array(runs, dtype=np.float64).T
    # Relative to their geometric means, so that the columns are of one size.
    n, d = (values / np.exp(np.log(values).mean()) for values in (parameters, tokens))

    def project(exponents: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        alpha, beta = exponents
        columns = np.stack([np.ones_like(n), n**-alpha, d**-beta], axis=1) / losses[:, None]
        weights, distance = nnls(columns, np.ones_like(losses))
        return weights, float(distance)

    fits = (
        minimize(lambda x: project(x)[1], start, method="Nelder-Mead", options={"xatol": 1e-7})
        for start in _STARTS
    )
    best = min(fits, key=lambda fit: float(fit.fun))
    alpha, beta = map(float, best.x)
    (e, a, b), _ = project(best.x)
    return ScalingLaw(
        e=float(e),
        a=float(a) * float(np.exp(np.log(parameters).mean())) ** alpha,
        b=float(b) * float(np.exp(np.log(tokens).mean())) ** beta,
        alpha=alpha,
        beta=beta,
    )
