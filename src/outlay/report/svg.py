"""Small charts as inline SVG, with round values on their axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from outlay.escaping import html_text

# Round values for an axis: steps of 1, 2 or 5 times a power of ten, each with its label.
#
# Ticks are exact decimals, so that two of them never read the same, and an axis begins and ends
# with one: values that are all positive get no negative tick.

_STEPS: Final = (1, 2, 5, 10)
_SCALES: Final = ((12, "T"), (9, "B"), (6, "M"), (3, "k"))
_LONGEST: Final = 6
"""Zeros that a label may show before it is written with a power of ten, or a letter for one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A round value and how it is written."""

    value: float
    label: str


def ticks(values: Sequence[float], *, about: int = 6) -> list[Tick]:
    """Return two ticks or more, evenly spaced, the first and last around all values.

    Args:
        values: Finite numbers, at least one.
        about: How many ticks are wished for; there may be two more.
    """
    low, high = _span(min(values), max(values))
    step = _step((high - low) / (about - 1))
    first, last = _floor(low, step), -_floor(-high, step)
    exact = [step * number for number in range(first, max(last, first + 1) + 1)]
    return [Tick(float(value), label) for value, label in zip(exact, _labels(exact), strict=True)]


def _span(low: float, high: float) -> tuple[float, float]:
    """Return the ends of what is to be shown; values that hardly differ get room around them."""
    widest = max(abs(low), abs(high))
    if high - low > widest * 1e-9:
        return low, high
    if not widest:
        return 0.0, 1.0
    return low - widest / 10, high + widest / 10


def _step(wished: float) -> Decimal:
    """Return the smallest round step that is at least the wished one."""
    power = Decimal(1).scaleb(math.floor(math.log10(wished)))
    return next(factor * power for factor in _STEPS if float(factor * power) >= wished * (1 - 1e-9))


def _floor(value: float, step: Decimal) -> int:
    """Return the last multiple of the step at or below a value, as a number of steps."""
    return math.floor(Decimal(repr(value)) / step)


def _labels(values: Sequence[Decimal]) -> list[str]:
    """Return exact decimals as text, all on one scale."""
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


# Small charts as inline SVG: points with a front, curves, bars, and runs over time.
#
# Colours are classes that the page's style sheet gives (the Okabe-Ito palette, which colour-blind
# readers can tell apart); shapes and labels say the same again.

WIDTH: Final = 640
HEIGHT: Final = 360
_LEFT: Final = 92
_RIGHT: Final = 20
_TOP: Final = 16
_FOOT: Final = HEIGHT - 46
_INSET: Final = 8
"""Room for a mark on the first or last tick."""
_GUTTER: Final = 206
"""Room for names left of bars."""
_FITTING: Final = 20
_LABELLED: Final = 24
"""Points up to which each may have its name beside it."""
_LABEL_WIDTH: Final = 130
_LABEL_HEIGHT: Final = 15
COLOURS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run in a plane; those of the same look have one colour."""

    x: float
    y: float
    label: str
    on_front: bool = False
    look: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A run's metric along an axis; those of the same look are drawn alike, None is its own."""

    label: str
    points: tuple[tuple[float, float], ...]
    look: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of a whole."""

    label: str
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartStretch:
    """One attempt of a run in time; ``mark`` where it did not end well."""

    row: str
    start: float
    end: float
    mark: str = ""


class _Axes:
    """Where values of a chart lie on the page; each axis begins and ends with a tick."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._xs = ticks(xs)
        self._ys = ticks(ys)

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        room = WIDTH - _LEFT - _RIGHT - 2 * _INSET
        return round(_LEFT + _INSET + _share(value, self._xs) * room, 1)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        return round(_FOOT - _INSET - _share(value, self._ys) * (_FOOT - _TOP - 2 * _INSET), 1)

    def data(self, x_title: str) -> str:
        """Return what a script needs to turn places into values: both ends, and where they are."""
        xs, ys = self._xs, self._ys
        x0, x1, y0, y1 = xs[0].value, xs[-1].value, ys[0].value, ys[-1].value
        return (
            f'data-x="{x0!r} {x1!r} {self.x(x0)} {self.x(x1)}" data-x-title="{html_text(x_title)}" '
            f'data-y="{y0!r} {y1!r} {self.y(y0)} {self.y(y1)}" tabindex="0"'
        )

    def frame(self, x_title: str, y_title: str) -> str:
        """Return the axes with round values on each."""
        across = (
            f'<text class="tick" x="{self.x(tick.value)}" y="{_FOOT + 16}" text-anchor="middle">'
            f"{tick.label}</text>"
            for tick in self._xs
        )
        up = (
            f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{self.y(tick.value)}" '
            f'y2="{self.y(tick.value)}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{self.y(tick.value) + 4}" text-anchor="end">'
            f"{tick.label}</text>"
            for tick in self._ys
        )
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        titles = (
            f'<text class="title" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{html_text(x_title)}</text>"
            f'<text class="title" x="14" y="{HEIGHT / 2}" text-anchor="middle" '
            f'transform="rotate(-90 14 {HEIGHT / 2})">{html_text(y_title)}</text>'
        )
        return "".join([*across, *up, titles])


def _share(value: float, scale: Sequence[Tick]) -> float:
    """Return how far along a scale a value lies, 0 to 1."""
    first, last = scale[0].value, scale[-1].value
    return (value - first) / (last - first)


def picture(title: str, body: str, height: int = HEIGHT, data: str = "") -> str:
    """Return shapes as a picture that scales with the page and names itself to screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html_text(title)}" {data} '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def scatter(points: Sequence[Point], *, x_title: str, y_title: str) -> str:
    """Return runs in a plane, with a line through those that nothing beats."""
    axes = _Axes([p.x for p in points], [p.y for p in points])
    front = sorted((p for p in points if p.on_front), key=lambda p: p.x)
    line = " ".join(f"{axes.x(p.x)},{axes.y(p.y)}" for p in front)
    marks = "".join(_mark(p, axes) for p in points)
    labels = _beside(points, axes) if len(points) <= _LABELLED else ""
    body = f'{axes.frame(x_title, y_title)}<polyline class="front" points="{line}"/>{marks}{labels}'
    return picture(f"{y_title} against {x_title}", body, data=axes.data(x_title))


def _mark(point: Point, axes: _Axes) -> str:
    text = html_text(point.label)
    return (
        f'<circle class="mark c{point.look % COLOURS} {"best" if point.on_front else "dot"}" '
        f'data-label="{text}" data-look="{point.look}" cx="{axes.x(point.x)}" '
        f'cy="{axes.y(point.y)}" r="{7 if point.on_front else 5}">'
        f"<title>{text}: {point.y:.4g} at {point.x:.4g}</title></circle>"
    )


def _beside(points: Sequence[Point], axes: _Axes) -> str:
    """Return the names of points beside them; one that would lie on another is left out."""
    drawn, taken = [], list[tuple[float, float]]()
    for point in sorted(points, key=lambda p: not p.on_front):
        x, y = axes.x(point.x), axes.y(point.y)
        if any(abs(x - a) < _LABEL_WIDTH and abs(y - b) < _LABEL_HEIGHT for a, b in taken):
            continue
        taken.append((x, y))
        is_left = x > WIDTH - _LABEL_WIDTH
        drawn.append(
            f'<text class="tick" x="{x - 10 if is_left else x + 10}" y="{y + 4}" '
            f'text-anchor="{"end" if is_left else "start"}">{html_text(_fitting(point.label))}'
            "</text>"
        )
    return "".join(drawn)


def curves(lines: Sequence[Curve], *, x_title: str, y_title: str) -> str:
    """Return metrics along an axis, a line per run."""
    every = [point for line in lines for point in line.points]
    axes = _Axes([x for x, _ in every], [y for _, y in every])
    drawn = []
    for index, line in enumerate(lines):
        path = " ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in line.points)
        look = index if line.look is None else line.look
        drawn.append(
            f'<polyline {_stroke(look)} data-label="{html_text(line.label)}" data-look="{look}" '
            f'points="{path}"><title>{html_text(line.label)}</title></polyline>'
        )
    body = axes.frame(x_title, y_title) + "".join(drawn)
    return picture(f"{y_title} along {x_title}", body, data=axes.data(x_title))


def stroke(look: int) -> str:
    """Return a piece of the line that curves of this look are drawn with, for a legend."""
    return (
        f'<svg viewBox="0 0 32 8" aria-hidden="true"><polyline {_stroke(look)} '
        'points="0,4 32,4"/></svg>'
    )


def _stroke(look: int) -> str:
    dash = ("", "6 3", "2 3")[look // COLOURS % 3]
    return f'class="curve c{look % COLOURS}" stroke-dasharray="{dash}"'


def bars(parts: Sequence[Bar], *, title: str) -> str:
    """Return the parts of a whole as bars, each beginning where the last ended."""
    whole = sum(part.value for part in parts) or 1.0
    room = WIDTH - _GUTTER - 186
    at, rows = 0.0, []
    for index, part in enumerate(parts):
        y = 6 + 28 * index
        rows.append(
            f"{_name(part.label, y + 15)}"
            f'<rect class="bar" x="{_GUTTER + 8 + at / whole * room:.1f}" y="{y}" '
            f'width="{max(part.value / whole * room, 1):.1f}" height="20"/>'
            f'<text class="tick" x="{WIDTH - 8}" y="{y + 15}" text-anchor="end">'
            f"{html_text(part.text)}</text>"
        )
        at += part.value
    return picture(title, "".join(rows), 28 * len(parts) + 8)


def gantt(stretches: Sequence[ChartStretch], *, title: str) -> str:
    """Return runs over time, a row each; attempts that ended badly bear a cross."""
    rows = {row: number for number, row in enumerate(dict.fromkeys(one.row for one in stretches))}
    divisor, unit = time_unit(max(one.end for one in stretches))
    scale = ticks([0.0, *(one.end / divisor for one in stretches)])
    foot = 24 * len(rows) + 8

    def x(seconds: float) -> float:
        return _GUTTER + 8 + _share(seconds / divisor, scale) * (WIDTH - _GUTTER - 36)

    axis = (
        f'<line class="rule" x1="{x(tick.value * divisor):.1f}" x2="{x(tick.value * divisor):.1f}" '
        f'y1="2" y2="{foot}"/><text class="tick" x="{x(tick.value * divisor):.1f}" '
        f'y="{foot + 15}" text-anchor="middle">{tick.label}</text>'
        for tick in scale
    )
    names = (_name(row, 19 + 24 * number) for row, number in rows.items())
    places = [(one, x(one.start), x(one.end), 6 + 24 * rows[one.row]) for one in stretches]
    drawn = (_stretch(*place) for place in places)
    crosses = (_cross(right, y) for one, _, right, y in places if one.mark)
    under = (
        f'<text class="title" x="{(_GUTTER + WIDTH) / 2}" y="{foot + 34}" '
        f'text-anchor="middle">{unit}</text>'
    )
    return picture(title, "".join([*axis, *names, *drawn, *crosses, under]), foot + 40)


def time_unit(longest_s: float) -> tuple[int, str]:
    """Return how many seconds an axis counts by, and what that is called."""
    units = ((86400, "days"), (3600, "hours"), (60, "minutes"))
    return next((unit for unit in units if longest_s >= 2 * unit[0]), (1, "seconds"))


def _name(text: str, y: int) -> str:
    """Return a row's name left of its bar, shortened at its end where it would not fit."""
    return (
        f'<text class="tick" x="{_GUTTER}" y="{y}" text-anchor="end">'
        f"<title>{html_text(text)}</title>{html_text(_fitting(text))}</text>"
    )


def _fitting(text: str) -> str:
    return text if len(text) <= _FITTING else f"{text[: _FITTING - 1]}…"


def _stretch(one: ChartStretch, left: float, right: float, y: int) -> str:
    said = html_text(f"{one.row}: {one.mark}" if one.mark else one.row)
    return (
        f'<rect class="{"bad" if one.mark else "bar"}" x="{left:.1f}" y="{y}" '
        f'width="{max(right - left, 1.0):.1f}" height="16"><title>{said}</title></rect>'
    )


def _cross(x: float, y: int) -> str:
    """Return a cross just before where an attempt ended, where no later attempt hides it."""
    return f'<text class="cross" x="{x - 2:.1f}" y="{y + 13}" text-anchor="end">&#215;</text>'
