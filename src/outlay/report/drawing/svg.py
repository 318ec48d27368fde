"""Charts as inline SVG that fills its column at any width. Pure.

Coordinates are percentages of the plot, so that text and strokes keep their size at any width; axis
labels are in the SVG's padding, which the style sheet sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from outlay.escaping import html_text
from outlay.report.drawing.charts import (
    COLOURS,
    Chart,
    ChartStretch,
    Curve,
    GridChart,
    IntervalChart,
    IntervalRow,
    LineChart,
    ParallelAxis,
    ParallelChart,
    ParallelLine,
    PhaseStrip,
    Plane,
    Point,
    RungChart,
    SpanChart,
    StripPart,
    Tick,
    Waterfall,
    day_text,
    fitting,
    log_ticks,
    of_phase,
    ticks,
    time_unit,
)
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, number_text

# Colours are classes of the style sheet: the Okabe-Ito palette, which is colour-blind safe. Shapes
# and labels repeat what the colours show.

_ROW: Final = 24
_LABELLED: Final = 12
"""The most points that get a name beside them; of more, those on the front do."""
_WIDE, _HIGH = 560.0, 190.0
"""The approximate size of a plot in pixels, to find names that would overlap."""
_NAMED_ATTEMPTS: Final = 8
_ROOM: Final = 30
"""Characters that fit below an axis on a phone; beyond that every second label is hidden there."""
_XMLNS: Final = 'xmlns="http://www.w3.org/2000/svg"'


class _Axes:
    """Maps values to shares of the plot, 0 to 1; each axis begins and ends with a tick."""

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        in_days: bool = False,
        is_log: bool = False,
    ) -> None:
        self._in_days = in_days
        self._is_log = is_log and min(ys) > 0
        self._xs, self._ys = ticks(xs), log_ticks(ys) if self._is_log else ticks(ys)

    def x(self, value: float) -> float:
        """Return the share from the left."""
        return _share(value, self._xs)

    def y(self, value: float) -> float:
        """Return the share from the top."""
        if not self._is_log:
            return 1 - _share(value, self._ys)
        first, last = math.log10(self._ys[0].value), math.log10(self._ys[-1].value)
        return 1 - (math.log10(value) - first) / (last - first)

    def data(self, x_title: str) -> str:
        """Return attributes with which the script places its cursor and words its read-out."""
        xs = self._xs
        days = ' data-days="1"' if self._in_days else ""
        return (
            f'data-x="{xs[0].value!r} {xs[-1].value!r}" data-x-title="{html_text(x_title)}"{days}'
        )

    def frame(self, x_title: str, y_title: str) -> str:
        """Return rules, tick labels and titles."""
        up = (
            f'<line class="rule" x2="100%" y1="{_percent(self.y(tick.value))}" '
            f'y2="{_percent(self.y(tick.value))}"/><text class="tick" dx="-7" dy="4" '
            f'y="{_percent(self.y(tick.value))}" text-anchor="end">{tick.label}</text>'
            for tick in self._ys
        )
        labels = [day_text(tick.value) if self._in_days else tick.label for tick in self._xs]
        crowded = sum(map(len, labels)) > _ROOM
        across = (
            _below(self.x(tick.value), label, kind="tick more" if crowded and n % 2 else "tick")
            for n, (tick, label) in enumerate(zip(self._xs, labels, strict=True))
        )
        titles = (
            f'<text class="title" dx="-56" dy="-13">{html_text(y_title)}</text>'
            f'<text class="title" x="50%" y="100%" dy="36" text-anchor="middle">'
            f"{html_text(x_title)}</text>"
        )
        return "".join([*up, *across, titles])


def _share(value: float, scale: Sequence[Tick]) -> float:
    first, last = scale[0].value, scale[-1].value
    return (value - first) / (last - first)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _below(share: float, label: str, y: str = "100%", kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{_percent(share)}" y="{y}" dy="18" text-anchor="middle">'
        f"{html_text(label)}</text>"
    )


def draw(chart: Chart) -> str:
    """Return a chart as SVG with an ARIA label, focusable by keyboard."""
    match chart:
        case Plane():
            return _scatter(chart)
        case LineChart():
            return _curves(chart)
        case Waterfall():
            return _waterfall(chart)
        case SpanChart():
            return _gantt(chart)
        case IntervalChart():
            return _intervals(chart)
        case PhaseStrip():
            return _strip(chart)
        case ParallelChart():
            return _parallel(chart)
        case GridChart():
            return _grid(chart)
        case RungChart():
            return _rungs(chart)
        case _:
            assert_never(chart)


def _picture(kind: str, title: str, body: str, more: str = "") -> str:
    return (
        f'<svg class="{kind}" role="img" tabindex="0" aria-label="{html_text(title)}" {more} '
        f"{_XMLNS}>{body}</svg>"
    )


def _plot(
    axes: _Axes, chart: Plane | LineChart, lines: str, marks: str = "", more: str = ""
) -> str:
    """Return axes with lines, which stretch with the plot, and marks, which do not."""
    clip = " clip" if isinstance(chart, LineChart) and chart.zoom and chart.zoom.seen else ""
    stretched = (
        f'<svg class="lines{clip}" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" '
        f'height="100%">{lines}</svg>'
    )
    body = f"{axes.frame(chart.x_title, chart.y_title)}{stretched}{marks}"
    title = f"{chart.y_title} against {chart.x_title}"
    return _picture("plot", title, body, axes.data(chart.x_title) + more)


def _path(points: Sequence[tuple[float, float]], axes: _Axes) -> str:
    return " ".join(f"{1000 * axes.x(x):.1f},{1000 * axes.y(y):.1f}" for x, y in points)


def _exact(points: Iterable[tuple[float, float]]) -> str:
    """Return the values behind points, for the script; the drawing has only their places."""
    return " ".join(f"{x:.9g},{y:.8g}" for x, y in points)


def _curves(chart: LineChart) -> str:
    every = [point for line in chart.curves for point in line.points]
    seen = None if chart.zoom is None else chart.zoom.seen
    ys = [y for _, y in every] or [0.0]  # A part of the axis can be empty.
    axes = _Axes(seen or [x for x, _ in every], ys, in_days=chart.in_days, is_log=chart.is_log)
    lines = "".join(_line(number, curve, axes) for number, curve in enumerate(chart.curves))
    return _plot(axes, chart, lines, more=_zoom_data(chart))


def _zoom_data(chart: LineChart) -> str:
    """Return what the script needs to zoom a chart, and to set its cursor by another chart's."""
    given: dict[str, object] = {"seconds": f"{chart.seconds:.9g}"} if chart.seconds else {}
    given |= {"log": 1} if chart.is_log else {}
    if chart.zoom is not None:
        given |= {"zoom": chart.zoom.name, "per": f"{chart.zoom.per:.9g}"}
        given |= {"metric": chart.zoom.metric} if chart.zoom.metric else {}
        given |= {"steps": 1} if chart.zoom.is_steps else {}
        if chart.zoom.seen is not None:
            given["seen"] = " ".join(f"{end:.9g}" for end in chart.zoom.seen)
    return "".join(f' data-{name}="{html_text(str(value))}"' for name, value in given.items())


def _line(index: int, curve: Curve, axes: _Axes) -> str:
    look = index if curve.look is None else curve.look
    label = html_text(curve.label)
    faint = " faint" if curve.is_faint else ""
    times = ""
    if curve.times:
        times = f' data-times="{" ".join(f"{t:.7g}" for t in curve.times)}"'
    return (
        f'<polyline {_stroke(look, faint)} data-label="{label}" data-look="{look}" '
        f'data-values="{_exact(curve.points)}"{times} '
        f'points="{_path(curve.points, axes)}"><title>{label}</title></polyline>'
    )


def _stroke(look: int, kind: str = "") -> str:
    dash = ("", "6 3", "2 3")[look // COLOURS % 3]
    return f'class="curve c{look % COLOURS}{kind}" stroke-dasharray="{dash}"'


def _scatter(chart: Plane) -> str:
    """Return points, with a line through the Pareto front."""
    points = chart.points
    axes = _Axes([p.x for p in points], [p.y for p in points])
    front = sorted((p.x, p.y) for p in points if p.on_front)
    line = f'<polyline class="front" points="{_path(front, axes)}"/>'
    return _plot(axes, chart, line, _names(points, axes) + "".join(_mark(p, axes) for p in points))


def _mark(point: Point, axes: _Axes) -> str:
    text = html_text(point.label)
    kind = ("best" if point.on_front else "dot") + _hollow(point.look)
    return (
        f'<circle class="mark c{point.look % COLOURS} {kind}" '
        f'data-label="{text}" data-look="{point.look}" '
        f'data-values="{_exact([(point.x, point.y)])}" cx="{_percent(axes.x(point.x))}" '
        f'cy="{_percent(axes.y(point.y))}" r="{6 if point.on_front else 5}">'
        f"<title>{text}: {number_text(point.y)} at {number_text(point.x)}</title></circle>"
    )


def _hollow(look: int) -> str:
    """Return the class of a mark that has the colour of another."""
    return " hollow" if look // COLOURS % 2 else ""


def _names(points: Sequence[Point], axes: _Axes) -> str:
    """Return names beside points; one that would overlap another mark is left out."""
    places = [(axes.x(p.x) * _WIDE, axes.y(p.y) * _HIGH) for p in points]
    taken = [(x - 7, x + 7, y) for x, y in places]
    drawn = []
    all_named = len(points) <= _LABELLED
    names = fitting([point.label for point in points])
    for point, name, (x, y) in sorted(
        zip(points, names, places, strict=True), key=lambda each: not each[0].on_front
    ):
        if not (all_named or point.on_front):
            break
        width = 7.0 * len(name)
        for begin, end, anchor, dx in (
            (x + 9, x + 9 + width, "start", 10),
            (x - 9 - width, x - 9, "end", -10),
        ):
            inside = begin >= -50 and end <= _WIDE + 15
            if inside and not any(a < end and begin < b and abs(y - c) < 14 for a, b, c in taken):
                taken.append((begin, end, y))
                drawn.append(
                    f'<text class="tick" data-brushed="{html_text(point.label)}" '
                    f'x="{_percent(x / _WIDE)}" y="{_percent(y / _HIGH)}" '
                    f'dx="{dx}" dy="4" text-anchor="{anchor}">'
                    f"{html_text(name)}</text>"
                )
                break
    return "".join(drawn)


# Charts of rows: a name at the left, a bar or marks in the plot.


def _rows(title: str, count: int, body: str) -> str:
    return _picture("rows", title, body, f'height="{_ROW * count + 48}"')


def _row_names(texts: Iterable[str], height: float = _ROW) -> list[str]:
    """Return the names of rows, cut to fit where they are alike."""
    whole = list(texts)
    return [
        f'<text class="tick" dx="-8" y="{height * row + height / 2 + 4:.0f}" text-anchor="end">'
        f"<title>{html_text(text)}</title>{html_text(short)}</text>"
        for row, (text, short) in enumerate(zip(whole, fitting(whole), strict=True))
    ]


def _scale(scale: Sequence[Tick], count: int, title: str) -> str:
    foot = _ROW * count + 4
    lines = (
        f'<line class="rule" x1="{_percent(_share(tick.value, scale))}" y2="{foot}" '
        f'x2="{_percent(_share(tick.value, scale))}"/>'
        f"{_below(_share(tick.value, scale), tick.label, str(foot - 2))}"
        for tick in scale
    )
    under = (
        f'<text class="title" x="50%" y="{foot + 34}" text-anchor="middle">'
        f"{html_text(title)}</text>"
    )
    return "".join([*lines, under])


def _bar(kind: str, start: float, end: float, row: int) -> str:
    return (
        f'<rect class="{kind}" x="{_percent(start)}" y="{_ROW * row + 4}" '
        f'width="{_percent(max(end - start, 0.002))}" height="{_ROW - 8}"/>'
    )


def _said(text: str, body: str) -> str:
    """Return a part of a chart with its read-out text."""
    said = html_text(text)
    return f'<g data-said="{said}"><title>{said}</title>{body}</g>'


def _waterfall(chart: Waterfall) -> str:
    """Return the parts of a sum as bars, each beginning where the last ended."""
    whole = sum(part.value for part in chart.bars) or 1.0
    at, rows = 0.0, []
    names = _row_names(part.label for part in chart.bars)
    for row, part in enumerate(chart.bars):
        text = (
            f'<text class="tick" x="100%" dx="8" y="{_ROW * row + 16}">{html_text(part.text)}'
            "</text>"
        )
        bar = _bar("bar", at / whole, (at + part.value) / whole, row)
        if part.ends is not None:
            low, high = (_percent((at + end) / whole) for end in part.ends)
            y = _ROW * row + 12
            bar += f'<line class="interval" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
        share = f"{part.value / whole:.1%}"
        drawn = names[row] + bar + text
        rows.append(_said(f"{part.label}: {part.text}, {share}", drawn))
        at += part.value
    height = f'height="{_ROW * len(rows) + 8}"'
    return _picture("rows sums", chart.title, "".join(rows), height)


def _gantt(chart: SpanChart) -> str:
    """Return runs over time, a row each; attempts that failed have a cross."""
    stretches = chart.stretches
    rows = {row: number for number, row in enumerate(dict.fromkeys(one.row for one in stretches))}
    divisor, unit = time_unit(max(one.end for one in stretches))
    scale = ticks([0.0, *(one.end / divisor for one in stretches)])
    names = "".join(_row_names(rows))

    def drawn(one: ChartStretch) -> str:
        start, end = (_share(at / divisor, scale) for at in (one.start, one.end))
        bar = _bar("bad" if one.mark else "bar", start, end, rows[one.row])
        took = duration_text(round((one.end - one.start) * 1e9))
        return _said(f"{one.row}: {took}{', ' if one.mark else ''}{one.mark}", bar)

    crosses = "".join(
        f'<text class="cross" x="{_percent(_share(one.end / divisor, scale))}" dx="-2" '
        f'y="{_ROW * rows[one.row] + 17}" text-anchor="end">&#215;</text>'
        for one in stretches
        if one.mark
    )
    body = _scale(scale, len(rows), unit) + names + "".join(map(drawn, stretches)) + crosses
    return _rows(chart.title, len(rows), body)


def _intervals(chart: IntervalChart) -> str:
    ends = [end for row in chart.rows for end in (*row.values, *_ends(row))]
    scale, names = ticks(ends), _row_names(row.label for row in chart.rows)

    def drawn(number: int, row: IntervalRow) -> str:
        y = _ROW * number + 12
        low, high = (_percent(_share(end, scale)) for end in _ends(row))
        dots = "".join(
            f'<circle class="mark c0 dot" cx="{_percent(_share(value, scale))}" cy="{y}" r="4"/>'
            for value in row.values
        )
        mean = _percent(_share(row.mean, scale))
        line = f'<line class="interval" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
        tick = f'<line class="interval" x1="{mean}" x2="{mean}" y1="{y - 7}" y2="{y + 7}"/>'
        spread = ""
        if row.ends is not None:
            spread = f" ({' to '.join(map(number_text, row.ends))})"
        said = f"{row.label}: {number_text(row.mean)}{spread}, {counted(len(row.values), 'run')}"
        return _said(said, names[number] + line + dots + tick)

    body = "".join(drawn(number, row) for number, row in enumerate(chart.rows))
    count = len(chart.rows)
    return _rows(chart.title, count, _scale(scale, count, chart.x_title) + body)


def _ends(row: IntervalRow) -> tuple[float, float]:
    return row.ends or (row.mean, row.mean)


def _strip(chart: PhaseStrip) -> str:
    whole = chart.seconds or 1.0
    parts = "".join(_strip_part(part, whole) for part in chart.parts)
    divisor, unit = time_unit(whole)
    marks = ticks([0.0, whole / divisor])
    across = (
        _below(tick.value * divisor / whole, f"{tick.label} {unit[0]}" if tick.value else "0")
        for tick in marks
        if tick.value * divisor <= whole
    )
    starts, last = [], -1.0
    for number, at in enumerate(chart.attempts, 1):
        place = _percent(at / whole)
        named = len(chart.attempts) <= _NAMED_ATTEMPTS and at / whole - last >= 0.12
        last = at / whole if named else last
        text = f'<text class="tick" x="{place}" dy="-6">attempt {number}</text>' if named else ""
        starts.append(f'<line class="attempt" x1="{place}" x2="{place}" y1="-4" y2="100%"/>{text}')
    several = "".join(starts) if len(chart.attempts) > 1 else ""
    kind = "strip named" if several else "strip"
    drawn = parts + several + "".join(across)
    return _picture(kind, "Phases over time", drawn, f'data-seconds="{whole:.9g}"')


def _strip_part(part: StripPart, whole: float) -> str:
    top, rects = 0.0, []
    for phase, share in part.shares:
        rects.append(
            f'<rect fill="{of_phase(phase)}" x="{_percent(part.start / whole)}" '
            f'y="{_percent(top)}" width="{_percent((part.end - part.start) / whole + 0.0005)}" '
            f'height="{_percent(share)}"/>'
        )
        top += share
    begin, end = (duration_text(round(at * 1e9)) for at in (part.start, part.end))
    shares = ", ".join(f"{phase} {share:.0%}" for phase, share in part.shares)
    return _said(f"{begin} to {end}: {shares}", "".join(rects))


# Charts of sweeps.

_FIELD: Final = 34
_SHADES: Final = 5
_STAGGER: Final = 16


def _shade(goodness: float) -> str:
    return f"q{min(int(goodness * _SHADES), _SHADES - 1)}"


def _parallel(chart: ParallelChart) -> str:
    """Return lines over vertical axes; an axis can be brushed, by pointer or by keyboard."""
    last = max(len(chart.axes) - 1, 1)
    axes = "".join(
        _parallel_axis(number, last, axis, title)
        for number, (axis, title) in enumerate(zip(chart.axes, _axis_titles(chart), strict=True))
    )
    lines = "".join(_parallel_line(line, last) for line in chart.lines)
    body = (
        '<svg class="lines" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" '
        f'height="100%">{lines}</svg>{axes}'
    )
    return (
        f'<svg class="parallel" role="group" tabindex="0" aria-label="{html_text(chart.title)}" '
        f"{_XMLNS}>{body}</svg>"
    )


def _axis_titles(chart: ParallelChart) -> list[str]:
    """Return titles as long as there is room; every second one is above the others."""
    return fitting([axis.title for axis in chart.axes], max(14, 96 // len(chart.axes)))


def _parallel_axis(number: int, last: int, axis: ParallelAxis, title: str) -> str:
    x = _percent(number / last)
    anchor = "start" if number == 0 else "end" if number == last else "middle"
    side, dx = ("end", -7) if number == last else ("start", 7)
    marks = "".join(
        f'<text class="tick" x="{x}" y="{_percent(1 - place)}" dx="{dx}" dy="4" '
        f'text-anchor="{side}">{html_text(label)}</text>'
        for place, label in axis.ticks
    )
    return (
        f'<g class="axis" tabindex="0" role="button" aria-label="Filter by {html_text(axis.title)}"'
        f' data-axis="{number}"><line class="attempt" x1="{x}" x2="{x}" y2="100%"/>{marks}'
        f'<text class="title" x="{x}" y="{-12 - _STAGGER * (number % 2)}" text-anchor="{anchor}">'
        f"<title>{html_text(axis.title)}</title>{html_text(title)}</text>"
        f'<rect class="grip" x="{x}" width="28" height="100%" transform="translate(-14)"/></g>'
    )


def _parallel_line(line: ParallelLine, last: int) -> str:
    at = " ".join(
        f"{1000 * number / last:.1f},{1000 * (1 - place):.1f}"
        for number, place in enumerate(line.places)
    )
    places = " ".join(f"{place:.4g}" for place in line.places)
    label, text = html_text(line.label), html_text(f"{line.label}: {line.text}")
    return (
        f'<g data-said="{text}" data-brushed="{label}" data-places="{places}"><title>{text}</title>'
        f'<polyline class="curve {_shade(line.goodness)}" points="{at}"/>'
        f'<polyline class="grip" points="{at}"/></g>'
    )


def _grid(chart: GridChart) -> str:
    """Return a heat map with the value in each field."""
    wide = 1 / len(chart.columns)
    cells = "".join(
        _said(
            cell.said,
            f'<g class="{_shade(cell.goodness)}"><rect x="{_percent(cell.column * wide)}" '
            f'y="{cell.row * _FIELD + 1}" width="{_percent(wide - 0.002)}" '
            f'height="{_FIELD - 2}"/><text x="{_percent((cell.column + 0.5) * wide)}" '
            f'y="{cell.row * _FIELD + _FIELD / 2 + 4:.0f}" text-anchor="middle">'
            f"{html_text(cell.text)}</text></g>",
        )
        for cell in chart.cells
    )
    foot = len(chart.rows) * _FIELD
    below = "".join(
        _below((number + 0.5) * wide, label, str(foot))
        for number, label in enumerate(fitting(chart.columns, max(4, 40 // len(chart.columns))))
    )
    titles = (
        f'<text class="title" x="50%" y="{foot + 36}" text-anchor="middle">'
        f'{html_text(chart.x_title)}</text><text class="title" dx="-8" y="-7" text-anchor="end">'
        f"<title>{html_text(chart.y_title)}</title>{html_text(fitting([chart.y_title])[0])}</text>"
    )
    names = "".join(_row_names(chart.rows, _FIELD))
    return _picture(
        "rows grid", chart.title, names + cells + below + titles, f'height="{foot + 64}"'
    )


def _rungs(chart: RungChart) -> str:
    """Return a bar per rung, divided by what became of its runs."""
    most = max(sum(count for _, count in bar.parts) for bar in chart.bars) or 1
    names = _row_names(bar.label for bar in chart.bars)
    rows = []
    for row, bar in enumerate(chart.bars):
        at, drawn = 0, [names[row]]
        for outcome, count in bar.parts:
            if count:
                kind = f"bar {outcome.replace(' ', '-')}"
                drawn.append(_bar(kind, at / most, (at + count) / most, row))
                middle = _percent((at + count / 2) / most)
                drawn.append(
                    f'<text class="count {outcome.replace(" ", "-")}" x="{middle}" '
                    f'y="{_ROW * row + 16}" text-anchor="middle">{count}</text>'
                )
                at += count
        drawn.append(
            f'<text class="tick" x="100%" dx="8" y="{_ROW * row + 16}">{html_text(bar.text)}</text>'
        )
        counts = ", ".join(f"{count} {outcome}" for outcome, count in bar.parts if count)
        cost = f"; {bar.text}" if bar.text else ""
        rows.append(_said(f"{bar.label}: {counts}{cost}", "".join(drawn)))
    return _picture("rows sums", chart.title, "".join(rows), f'height="{_ROW * len(rows) + 8}"')


# Legends


def legend(chart: Chart) -> str:
    """Return a legend: buttons that hide lines; of phases, colours and shares."""
    match chart:
        case Plane() | LineChart() if chart.labels:
            items = (
                f'<button type="button" class="key" data-look="{look}" aria-pressed="true">'
                f"{_sample(look, is_dot=isinstance(chart, Plane))} {html_text(label)}</button>"
                for look, label in enumerate(chart.labels)
            )
            return f'<div class="legend" role="group" aria-label="Lines">{"".join(items)}</div>'
        case PhaseStrip():
            squares = (
                f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect fill="{of_phase(phase)}" '
                f'width="12" height="12"/></svg> {html_text(phase)} {html_text(text)}</li>'
                for phase, text in chart.phases
            )
            return f'<ul class="legend squares">{"".join(squares)}</ul>'
        case RungChart():
            squares = (
                '<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" '
                f'class="bar {outcome.replace(" ", "-")}"/></svg> {html_text(outcome)}</li>'
                for outcome in chart.outcomes
            )
            return f'<ul class="legend squares">{"".join(squares)}</ul>'
        case _:
            return ""


def _sample(look: int, *, is_dot: bool) -> str:
    if is_dot:
        drawn = f'<circle class="mark c{look % COLOURS}{_hollow(look)}" cx="16" cy="4" r="4"/>'
    else:
        drawn = f'<polyline {_stroke(look)} points="0,4 32,4"/>'
    return f'<svg viewBox="0 0 32 8" aria-hidden="true">{drawn}</svg>'


def last_values(chart: Chart) -> str:
    """Return the last values of up to three curves: the read-out before any hovering."""
    if not isinstance(chart, LineChart) or len(chart.curves) > 3:
        return ""
    curves = [curve for curve in chart.curves if curve.points]
    ends = [(curve.label, curve.points[-1][1]) for curve in curves]
    return "last: " + ", ".join(f"{label} {number_text(value)}" for label, value in ends)
