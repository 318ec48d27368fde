"""Small charts as inline SVG: points with a front, curves, bars, and runs over time. Pure.

Colours are classes that the page's style sheet gives (the Okabe-Ito palette, which colour-blind
readers can tell apart); shapes and labels say the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 360
_LEFT: Final = 92
_RIGHT: Final = 20
_TOP: Final = 16
_BOTTOM: Final = 46
COLOURS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run in a plane."""

    x: float
    y: float
    label: str
    on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A run's metric along an axis."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of a whole."""

    label: str
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One attempt of a run in time; ``mark`` where it did not end well."""

    row: str
    start: float
    end: float
    mark: str = ""


class _Axes:
    """Where values of a chart lie on the page."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._x0, self._x1 = _widened(xs)
        self._y0, self._y1 = _widened(ys)

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        share = (value - self._x0) / (self._x1 - self._x0)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        share = (value - self._y0) / (self._y1 - self._y0)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    def frame(self, x_title: str, y_title: str) -> str:
        """Return the axes with four values on each."""
        parts = []
        for step in range(4):
            x = self._x0 + (self._x1 - self._x0) * step / 3
            y = self._y0 + (self._y1 - self._y0) * step / 3
            anchor = ("start", "middle", "middle", "end")[step]
            below = HEIGHT - _BOTTOM
            parts.append(
                f'<text class="tick" x="{self.x(x)}" y="{below + 16}" text-anchor="{anchor}">'
                f"{x:.4g}</text>"
                f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{self.y(y)}" '
                f'y2="{self.y(y)}"/>'
                f'<text class="tick" x="{_LEFT - 6}" y="{self.y(y) + 4}" text-anchor="end">'
                f"{y:.4g}</text>"
            )
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(
            f'<text class="title" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(x_title)}</text>"
            f'<text class="title" x="14" y="{HEIGHT / 2}" text-anchor="middle" '
            f'transform="rotate(-90 14 {HEIGHT / 2})">{escape(y_title)}</text>'
        )
        return "".join(parts)


def _widened(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def picture(title: str, body: str, height: int = HEIGHT) -> str:
    """Return shapes as a picture that scales with the page and names itself to screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{body}</svg>'
    )


def scatter(points: Sequence[Point], *, x_title: str, y_title: str) -> str:
    """Return runs in a plane, with a line through those that nothing beats."""
    axes = _Axes([p.x for p in points], [p.y for p in points])
    front = sorted((p for p in points if p.on_front), key=lambda p: p.x)
    line = " ".join(f"{axes.x(p.x)},{axes.y(p.y)}" for p in front)
    marks = "".join(
        f'<circle class="{"best" if p.on_front else "dot"}" cx="{axes.x(p.x)}" cy="{axes.y(p.y)}" '
        f'r="{6 if p.on_front else 4}"><title>{escape(p.label)}: {p.y:.4g} at {p.x:.4g}</title>'
        "</circle>"
        for p in points
    )
    body = f'{axes.frame(x_title, y_title)}<polyline class="front" points="{line}"/>{marks}'
    return picture(f"{y_title} against {x_title}", body)


def pareto(points: Sequence[tuple[float, float]], *, more_is_better: bool) -> list[bool]:
    """Return which points no other beats: cheaper or as cheap, and better or as good."""
    signed = [(x, y if more_is_better else -y) for x, y in points]
    return [not any(a <= x and b >= y and (a, b) != (x, y) for a, b in signed) for x, y in signed]


def curves(lines: Sequence[Curve], *, x_title: str, y_title: str) -> str:
    """Return metrics along an axis, one line per run."""
    every = [point for line in lines for point in line.points]
    axes = _Axes([x for x, _ in every], [y for _, y in every])
    drawn = []
    for index, line in enumerate(lines):
        path = " ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in line.points)
        drawn.append(
            f'<polyline {_stroke(index)} points="{path}"><title>{escape(line.label)}</title>'
            "</polyline>"
        )
    return picture(f"{y_title} along {x_title}", axes.frame(x_title, y_title) + "".join(drawn))


def stroke(index: int) -> str:
    """Return a piece of the line that the curve of this number is drawn with, for a legend."""
    return (
        f'<svg viewBox="0 0 32 8" aria-hidden="true"><polyline {_stroke(index)} '
        'points="0,4 32,4"/></svg>'
    )


def _stroke(index: int) -> str:
    dash = ("", "6 3", "2 3")[index // COLOURS % 3]
    return f'class="curve c{index % COLOURS}" stroke-dasharray="{dash}"'


def bars(parts: Sequence[Bar], *, title: str) -> str:
    """Return the parts of a whole as bars, each beginning where the last ended."""
    whole = sum(part.value for part in parts) or 1.0
    height, at, rows = 28 * len(parts) + 8, 0.0, []
    for index, part in enumerate(parts):
        x = 190 + at / whole * 300
        width = part.value / whole * 300
        y = 6 + 28 * index
        rows.append(
            f'<text class="tick" x="182" y="{y + 15}" text-anchor="end">{escape(part.label)}</text>'
            f'<rect class="bar" x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="20"/>'
            f'<text class="tick" x="{WIDTH - 8}" y="{y + 15}" text-anchor="end">'
            f"{escape(part.text)}</text>"
        )
        at += part.value
    return picture(title, "".join(rows), height)


def gantt(stretches: Sequence[Stretch], *, title: str) -> str:
    """Return runs over time, a row each; attempts that ended badly bear a cross."""
    rows = list(dict.fromkeys(one.row for one in stretches))
    last = max(one.end for one in stretches) or 1.0
    height, drawn = 24 * len(rows) + 28, []
    for one in stretches:
        y = 6 + 24 * rows.index(one.row)
        x = 190 + one.start / last * (WIDTH - 210)
        width = max((one.end - one.start) / last * (WIDTH - 210), 1.0)
        kind = "bad" if one.mark else "bar"
        drawn.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="16">'
            f"<title>{escape(one.row)} {escape(one.mark)}</title></rect>"
        )
        if one.mark:
            drawn.append(f'<text class="cross" x="{x + width + 3:.1f}" y="{y + 13}">&#215;</text>')
    for index, row in enumerate(rows):
        drawn.append(
            f'<text class="tick" x="182" y="{19 + 24 * index}" text-anchor="end">'
            f"{escape(row)}</text>"
        )
    drawn.append(
        f'<text class="tick" x="190" y="{height - 6}">0</text>'
        f'<text class="tick" x="{WIDTH - 20}" y="{height - 6}" text-anchor="end">'
        f"{last:.4g} s</text>"
    )
    return picture(title, "".join(drawn), height)
