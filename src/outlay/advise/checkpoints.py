"""How often to save a checkpoint, when failures come at random.

The interval that wastes least, which Young 1974 and Daly 2006 approximate, is for exponential
failures exactly tau = M (1 + W0(-exp(-d/M - 1))), with the time to save d, the mean time to failure
M and the Lambert function W0. All times share any one unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outlay.errors import InvalidValue

# So many mean times to failure are never gone through without one; and beyond e^709 floats end.
_NEVER = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What determines the best interval, in one unit of time.

    Attributes:
        save: How long a checkpoint takes while training stands still.
        mttf: Mean time to failure.
        restart: From a failure until training goes on, without the work that is done again.
    """

    save: float
    mttf: float
    restart: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("save", self.save), ("restart", self.restart)):
            if not 0 <= value < math.inf:
                raise InvalidValue(name, value, "a finite time, zero or more")
        if not 0 < self.mttf < math.inf:
            raise InvalidValue("mttf", self.mttf, "a finite time above zero")


def exact(of: Reliability) -> float:
    """Return the interval of work between saves that wastes least."""
    return of.mttf * (1 + _lambert_w0(-math.exp(-of.save / of.mttf - 1)))


def expected_ratio(of: Reliability, interval: float) -> float:
    """Return the expected wall time per time of work, with a save after each interval of work."""
    if not interval > 0:
        raise InvalidValue("interval", interval, "a time above zero")
    exponent = (interval + of.save) / of.mttf
    if max(exponent, of.restart / of.mttf) > _NEVER:
        return math.inf
    return of.mttf * math.exp(of.restart / of.mttf) * math.expm1(exponent) / interval


def _lambert_w0(z: float) -> float:
    """Return the principal Lambert W of ``z`` in [-1/e, 0], by Halley's iteration."""
    if z >= 0:
        return 0.0
    # The series about the branch point starts it off on the right side.
    p = math.sqrt(max(0.0, 2 * (1 + math.e * z)))
    w = -1 + p - p * p / 3 + 11 * p**3 / 72
    for _ in range(50):
        grown = math.exp(w)
        error = w * grown - z
        slope = grown * (w + 1) - (w + 2) * error / (2 * w + 2) if w > -1 else 0.0
        if slope == 0.0 or abs(error) < 1e-300:
            break
        step = error / slope
        w -= step
        if abs(step) <= 1e-16 * abs(w):
            break
    return w
