"""Where a series of values got level, or worse: by means of its parts, not by curves. Pure.

Extrapolates nothing. Higher values are better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEAST = 8  # With fewer values nothing is concluded from their noise.
_LEAST_STRETCH = 0.1  # Of the values; a shorter stretch is not worth a change.
_EQUAL = 0.001  # Of the gain: as good as the best.
_MAY_IMPROVE = 0.03  # Of the gain: what may be hidden by noise in a plateau.
_CURVES_MAY = 0.02  # The same, by curves.
_CLEAR, _CLEAR_IF_EXPECTED = 1.64, 2.6  # Standard errors of a clear improvement.
_SMALL = 5e-4  # Of the gain: below it, a difference is none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch at the end of a training or of a stage that brought nothing.

    Attributes:
        first: The number of values before it; ``end`` the number up to its end.
        spread: Half the width of an 80 % interval of its length.
        tolerance: Differences below this do not count, in the metric's unit.
    """

    kind: Literal["turn", "plateau"]
    first: int
    end: int
    spread: float
    tolerance: float

    @property
    def length(self) -> int:
        """How many values it has."""
        return self.end - self.first

    def text(self, unit: str, each: int) -> str:
        """Return what was seen."""
        what = "got worse" if self.kind == "turn" else f"did not improve by {self.tolerance:.2g}"
        return f"After {unit} {self.first * each} the metric {what} up to {unit} {self.end * each}"


def turn_of(values: Sequence[float]) -> Stretch | None:
    """Return the time after the best value, if the end is clearly worse (overfitting)."""
    y = np.array(values, dtype=np.float64)
    count = len(y)
    if count < _LEAST:
        return None
    noise, width = noise_of(y), _width(count)
    smooth = _smooth(y, width)
    peak, gain = int(smooth.argmax()), float(smooth.max() - y[0])
    error = noise * math.sqrt(2 / width)
    worse = float(smooth[peak] - y[-width:].mean())
    if gain <= 0 or worse < max(4 * error, 0.02 * gain) or count - peak < _LEAST_STRETCH * count:
        return None
    peak = _vertex(y, peak, width)
    # Values about the peak differ from it by less than noise.
    near = np.flatnonzero(smooth >= smooth.max() - max(error, _EQUAL * gain))
    around = max(width / 24, (near[-1] - near[0]) / 34)
    as_good = _first_as_good(smooth, peak, max(_EQUAL * gain, 0.1 * noise))
    first = min(peak, as_good) + 1
    tolerance = max(0.005 * gain, noise)
    return Stretch(kind="turn", first=first, end=count, spread=float(around), tolerance=tolerance)


def level_from(
    values: Sequence[float],
    offset: int = 0,
    whole_gain: float = 0.0,
    *,
    is_stage: bool = False,
    curves_gain: float | None = None,
) -> Stretch | None:
    """Return the plateau at the end of some values, if noise allows to see one.

    The last quarter must not be better than the one before, and what noise hides of an improvement
    must be small beside what was gained, here or in the whole training. That stages of a learning
    rate get level is expected: more must speak against it.

    Args:
        values: Higher is better.
        offset: The number of values before them.
        whole_gain: What was gained in the whole training.
        is_stage: They are of a stage of the learning rate.
        curves_gain: By how much the last quarter is better at most, by curves through all values;
            they say more than two quarters do where noise hides much.
    """
    y = np.array(values, dtype=np.float64)
    count = len(y)
    if count < _LEAST:
        return None
    noise, quarter = noise_of(y), count // 4
    is_expected = is_stage or curves_gain is not None
    clear = _CLEAR_IF_EXPECTED if is_expected else _CLEAR
    level = float(y[-2 * quarter :].mean())
    gain = level - float(y[0])
    better = float(y[-quarter:].mean() - y[-2 * quarter : -quarter].mean())
    error = noise * math.sqrt(2 / quarter)
    hidden = max(better, 0.0) + 1.28 * error if curves_gain is None else curves_gain
    if (
        gain <= 0
        or better > max(clear * error, _SMALL * gain)
        or hidden > (_MAY_IMPROVE if curves_gain is None else _CURVES_MAY) * max(gain, whole_gain)
    ):
        return None
    within = max(_EQUAL * gain, 0.1 * noise)
    first = _settled(y, level, within, noise)
    if first is None or count - first < _LEAST_STRETCH * count:
        return None
    begin = y[first : first + max(3, quarter // 2)]
    better = float(y[-quarter:].mean() - begin.mean())
    error = noise * math.sqrt(1 / quarter + 1 / len(begin))
    if better > max(clear * error, _SMALL * gain):
        return None
    return Stretch(
        kind="plateau",
        first=offset + first,
        end=offset + count,
        # How long the last bit of an exponential takes, where noise hides it.
        spread=0.2 + 0.02 * first + min(1.0, 50 * noise / gain) * (0.9 + 0.04 * first),
        # What may have been gained unseen since.
        tolerance=max(0.005 * gain, noise, better + 4 * error),
    )


def still_improves(values: Sequence[float]) -> bool:
    """Return whether the last quarter is clearly better than the one before."""
    y = np.array(values, dtype=np.float64)
    quarter = len(y) // 4
    if quarter < 1:
        return False
    better = float(y[-quarter:].mean() - y[-2 * quarter : -quarter].mean())
    gain = float(y.max() - y[0])
    return better > max(2 * noise_of(y) * math.sqrt(2 / quarter), _SMALL * gain)


def is_falling_back(values: Sequence[float]) -> bool:
    """Return whether a curve got worse too briefly to say that it will not turn back.

    It got worse for a shorter time than it got better before, or is getting better again. So does
    a loss in the bump of a double descent (Nakkiran et al. 2019, arXiv:1912.02292).
    """
    y = np.array(values, dtype=np.float64)
    count = len(y)
    if count < _LEAST:
        return False
    noise, width = noise_of(y), _width(count)
    smooth = _smooth(y, width)
    peak = int(smooth.argmax())
    worse = float(smooth[peak] - y[-width:].mean())
    if worse < max(3 * noise * math.sqrt(2 / width), 0.01 * float(y.max() - y[0])):
        return False
    since = count - 1 - peak
    recovers = float(y[-width:].mean() - smooth[peak:].min()) > 2 * noise * math.sqrt(2 / width)
    worst = int(smooth[peak:].argmin())
    return since < max(peak, 2 * width) or (recovers and worst < since - width)


def noise_of(y: Floats) -> float:
    """Return the standard deviation of single values about a smooth curve.

    By second differences, which a smooth curve does not contribute to.
    """
    if len(y) < 3:
        return 0.0
    second = y[:-2] - 2 * y[1:-1] + y[2:]
    # The early bend of a learning curve is no noise.
    later = second[len(second) // 3 :]
    return math.sqrt(float((later**2).mean()) / 6)


def _width(count: int) -> int:
    return max(3, count // 10)


def _smooth(y: Floats, width: int) -> Floats:
    """Return centred moving means; shorter ones at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(y)])
    at = np.arange(len(y))
    half = width // 2
    first, beyond = np.maximum(at - half, 0), np.minimum(at + half + 1, len(y))
    means: Floats = (sums[beyond] - sums[first]) / (beyond - first)
    return means


def _vertex(y: Floats, peak: int, width: int) -> int:
    """Return the top of a parabola about the peak, or the peak itself if it has none near."""
    first, beyond = max(0, peak - 2 * width), min(len(y), peak + 2 * width + 1)
    if beyond - first < 5:
        return peak
    bend, slope, _ = np.polyfit(np.arange(first, beyond) - peak, y[first:beyond], 2)
    if bend >= 0:
        return peak
    top = peak - slope / (2 * bend)
    return round(float(np.clip(top, max(first, peak - width), min(beyond - 1, peak + width))))


def _first_as_good(smooth: Floats, peak: int, within: float) -> int:
    """Return the first index from which on all values up to the peak are as good as it."""
    below = np.flatnonzero(smooth[: peak + 1] < smooth[peak] - within)
    return int(below[-1]) + 1 if len(below) else 0


def _settled(y: Floats, level: float, within: float, noise: float) -> int | None:
    """Return the number of values before a series settles at its level.

    An exponential through what is clearly below the level says when the rest of the way, which
    noise hides, is gone.
    """
    below = level - y
    clear = np.flatnonzero(below < max(2 * noise, within))
    seen = int(clear[0]) if len(clear) else None
    if seen is None:
        return None
    used = np.flatnonzero(below[: seen + 1] > max(noise, within))
    # Not all ways end like an exponential: the last part of it may be shorter.
    ways = [_way(below, part, within) for part in (used, used[-max(3, len(used) // 2) :])]
    gone = min((each for each in ways if each is not None), default=0)
    return max(seen + 1, min(len(y), gone))


def _way(below: Floats, used: NDArray[np.intp], within: float) -> int | None:
    """Return when an exponential through some distances is within a distance of its level."""
    if len(used) < 3:
        return None
    slope, start = np.polyfit(used, np.log(below[used]), 1)
    return math.ceil((math.log(within) - start) / slope) + 1 if slope < 0 else None
