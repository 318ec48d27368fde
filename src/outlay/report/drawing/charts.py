"""Charts as values, before drawing: ``svg`` draws them for pages, ``pictures`` for papers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from outlay.goodput import phases as ph

# Colours of phases on light and dark pages: the colour-blind-safe palettes of Okabe and Ito (2008)
# and of Paul Tol. Legends and labels repeat in words what the colours show.

_PHASES: Final = {
    ph.STEP: "#009e73",
    ph.ACCELERATOR_INIT: "#88ccee",
    ph.TRAINING_PREP: "#56b4e9",
    ph.PROGRAM_STARTUP: "#0072b2",
    ph.DATA_LOADING: "#e69f00",
    ph.CHECKPOINT_SAVE: "#cc79a7",
    ph.CHECKPOINT_RESTORE: "#aa4499",
    ph.EVALUATION: "#e5c700",
    ph.ELASTIC_SLICE_DOWN: "#999933",
    ph.ELASTIC_SCALE_UP: "#ddcc77",
    ph.ELASTIC_REINITIALIZATION: "#b8860b",
    ph.STALL: "#d55e00",
    ph.WASTED_PROGRESS: "#cc6677",
    ph.RECOVERY: "#882255",
    ph.PAUSED: "#bbbbbb",
    ph.OTHER: "#999999",
}
_CUSTOM: Final = "#44aa99"
COLOURS: Final = 12
"""Line styles that differ by colour alone; further ones also differ by their dashes."""


def of_phase(phase: str) -> str:
    """Return the colour of a phase; all custom phases share one."""
    return _PHASES.get(phase, _CUSTOM)


def day_text(days: float) -> str:
    """Format a number of days since 1970 as an axis label."""
    return datetime.fromtimestamp(days * 86400, UTC).strftime("%b %d")


def time_unit(longest_s: float) -> tuple[int, str]:
    """Return the unit for a time axis: its length in seconds, and its name."""
    units = ((86400, "days"), (3600, "hours"), (60, "minutes"))
    return next((unit for unit in units if longest_s >= 2 * unit[0]), (1, "seconds"))


_SHORT: Final = 20
"""Characters of a label that fit beside a row on a phone."""


def short_labels(labels: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return labels such as ``lr=1, width=2`` by their values, and what these are values of.

    Labels that are short, or state different names, stay as they are.
    """
    if max(map(len, labels), default=0) <= _SHORT or len(labels) < 2:
        return tuple(labels), ""
    pairs = [[part.partition("=") for part in label.split(", ")] for label in labels]
    names = {tuple(name for name, _, _ in each) for each in pairs}
    if len(names) > 1 or not all(equals for each in pairs for _, equals, _ in each):
        return tuple(labels), ""
    values = tuple(", ".join(value for _, _, value in each) for each in pairs)
    return values, ", ".join(names.pop())


def fitting(labels: Sequence[str], most: int = _SHORT) -> list[str]:
    """Return labels cut to a length; what is left out is where they are alike, if it can be."""
    whole = len(set(labels))
    cuts = (
        [_cut(label, most, most - 1) for label in labels],
        [_cut(label, most, 0) for label in labels],
        [_cut(label, most, most // 2) for label in labels],
    )
    return next((cut for cut in cuts if len(set(cut)) == whole), cuts[0])


def _cut(label: str, most: int, head: int) -> str:
    if len(label) <= most:
        return label
    tail = most - 1 - head
    return f"{label[:head]}…{label[len(label) - tail :]}"


# Axis ticks: multiples of 1, 2 or 5 times a power of ten. They are exact decimals, so that no two
# labels are equal. An axis begins and ends with a tick; positive values get no negative tick.

_STEPS: Final = (1, 2, 5, 10)
_SCALES: Final = ((12, "T"), (9, "B"), (6, "M"), (3, "k"))
_WORTH: Final = Decimal("0.85")
"""A finer step is used if it shortens the axis below this share of its length."""
_LONGEST: Final = 6
"""Most zeros in a label; beyond that it gets a power of ten, or a letter for one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis and its label."""

    value: float
    label: str


def ticks(values: Sequence[float], *, about: int = 6) -> list[Tick]:
    """Return two ticks or more, evenly spaced, that enclose all values.

    Args:
        values: Finite numbers, at least one.
        about: The desired number of ticks; there may be two more.
    """
    low, high = _span(min(values), max(values))
    wished = (high - low) / (about - 1)
    found, finer = (_multiples(low, high, _step(each)) for each in (wished, wished / 2))
    if len(finer) <= about + 2 and finer[-1] - finer[0] < _WORTH * (found[-1] - found[0]):
        found = finer
    return [Tick(float(value), label) for value, label in zip(found, _labels(found), strict=True)]


def log_ticks(values: Sequence[float]) -> list[Tick]:
    """Return ticks of a logarithmic axis, powers of ten and few others, that enclose all values.

    Args:
        values: Positive finite numbers, at least one.
    """
    first, last = (Decimal(value).adjusted() for value in (min(values), max(values)))
    if last == first or max(values) > float(Decimal(1).scaleb(last)):
        last += 1
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = -(-(last - first) // 7)
    found = [
        Decimal(factor).scaleb(power)
        for power in range(first, last + every, every)
        for factor in factors
    ]
    low = max(n for n, value in enumerate(found) if not n or float(value) <= min(values))
    high = next((n for n, value in enumerate(found) if float(value) >= max(values) and n > low), -1)
    chosen = found[low : high + 1] if high > 0 else found[low:]
    return [Tick(float(value), _power_text(value)) for value in chosen]


def _power_text(value: Decimal) -> str:
    if -4 <= value.adjusted() < 5:
        return _plain(value)
    return f"{value.scaleb(-value.adjusted()):f}e{value.adjusted()}"


def _multiples(low: float, high: float, step: Decimal) -> list[Decimal]:
    first, last = _floor(low, step), -_floor(-high, step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def _span(low: float, high: float) -> tuple[float, float]:
    """Return the range to show; nearly equal values are widened by a tenth."""
    widest = max(abs(low), abs(high))
    if high - low > widest * 1e-9:
        return low, high
    if not widest:
        return 0.0, 1.0
    return low - widest / 10, high + widest / 10


def _step(wished: float) -> Decimal:
    """Return the smallest round step that is at least ``wished``."""
    power = Decimal(1).scaleb(math.floor(math.log10(wished)))
    return next(factor * power for factor in _STEPS if float(factor * power) >= wished * (1 - 1e-9))


def _floor(value: float, step: Decimal) -> int:
    return math.floor(Decimal(repr(value)) / step)


def _labels(values: Sequence[Decimal]) -> list[str]:
    """Format ticks, all with the same power of ten."""
    highest = max(abs(value) for value in values).adjusted()
    lowest = min(int(value.as_tuple().exponent) for value in values)
    for power, letter in _SCALES:
        if highest >= max(power, _LONGEST - 1):
            return [f"{_plain(value.scaleb(-power))}{letter if value else ''}" for value in values]
    if lowest < -_LONGEST and highest - lowest < 3:
        return [f"{_plain(value.scaleb(-lowest))}e{lowest}" if value else "0" for value in values]
    return [_plain(value) for value in values]


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run in a plane; points of the same ``look`` have the same colour."""

    x: float
    y: float
    label: str
    on_front: bool = False
    look: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric along an axis; curves of the same ``look`` have the same style, None is unique.

    Attributes:
        times: When each point was, in seconds since the run's start; empty if unknown.
        is_faint: Whether another curve shows the same smoothed.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    look: int | None = None
    times: tuple[float, ...] = ()
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of a sum; ``ends`` is the interval of an estimate."""

    label: str
    value: float
    text: str
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartStretch:
    """One attempt of a run in time, in seconds; ``mark`` says how it failed."""

    row: str
    start: float
    end: float
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One configuration: the values of its runs, their mean, and its interval if there is one."""

    label: str
    values: tuple[float, ...]
    mean: float
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StripPart:
    """A part of a run with constant shares of phases, in seconds since the run's start."""

    start: float
    end: float
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Titled:
    """What all charts have: a file name, a title, and a note on the source of the figures."""

    name: str = ""
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoom:
    """How a part of a chart's horizontal axis is chosen.

    Attributes:
        name: The parameter of the address; charts with the same one are zoomed together.
        per: What one unit of the axis is in the address, such as 3,600 seconds.
        seen: The part that is seen, in units of the axis; None for all.
        metric: The metric of which further points can be asked for; "" for none.
        is_steps: Whether further points are times of steps.
    """

    name: str
    per: float = 1
    seen: tuple[float, float] | None = None
    metric: str = ""
    is_steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(_Titled):
    """A scatter plot of runs; ``labels`` as in ``LineChart``."""

    x_title: str
    y_title: str
    points: tuple[Point, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(_Titled):
    """Values along an axis.

    Attributes:
        labels: The legend: a label for each ``look``, in order; empty for one curve.
        in_days: Whether the horizontal axis counts days since 1970, shown as dates.
        is_log: Whether the vertical axis is logarithmic; ignored if a value is not positive.
        zoom: Whether and how its horizontal axis is zoomed.
        seconds: What one unit of the horizontal axis is in the run's time; 0 if it is no time.
    """

    x_title: str
    y_title: str
    curves: tuple[Curve, ...]
    labels: tuple[str, ...] = ()
    in_days: bool = False
    is_log: bool = False
    zoom: Zoom | None = None
    seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(_Titled):
    """The parts of a sum, the largest first."""

    x_title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChart(_Titled):
    """The attempts of runs over time, in seconds since the first."""

    stretches: tuple[ChartStretch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChart(_Titled):
    """Configurations with the interval of their mean, the best first."""

    x_title: str
    rows: tuple[IntervalRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStrip(_Titled):
    """The phases of a run over time, stacked.

    Attributes:
        phases: In stacking order, each with its text in the legend.
        attempts: When each attempt began, in seconds since the first.
    """

    seconds: float
    parts: tuple[StripPart, ...]
    phases: tuple[tuple[str, str], ...]
    attempts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelAxis:
    """A vertical axis; ``ticks`` are places on it, from 0 at its foot to 1, with their labels."""

    title: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLine:
    """A run: its place on each axis, 0 to 1, and how good it is among all, 0 to 1."""

    label: str
    places: tuple[float, ...]
    text: str
    goodness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelChart(_Titled):
    """Runs as lines over parallel axes: what they were given, what they cost, what they reached."""

    axes: tuple[ParallelAxis, ...]
    lines: tuple[ParallelLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """A field of a grid, with how good its value is among all, 0 to 1."""

    column: int
    row: int
    text: str
    said: str
    goodness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GridChart(_Titled):
    """Values of two parameters against each other, as a heat map; rows from the top."""

    x_title: str
    y_title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[GridCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RungBar:
    """A rung: how many runs it had by what became of them, and what it cost."""

    label: str
    parts: tuple[tuple[str, int], ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RungChart(_Titled):
    """The rungs of a search from the first; ``outcomes`` in stacking order."""

    bars: tuple[RungBar, ...]
    outcomes: tuple[str, ...]


Chart = (
    Plane | LineChart | Waterfall | SpanChart | IntervalChart | PhaseStrip
    | ParallelChart | GridChart | RungChart
)  # fmt: skip
