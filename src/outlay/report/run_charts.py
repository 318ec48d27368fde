"""The charts of one run: phases over time, metrics, step times, what a kill would undo. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Timeline
from outlay.report import svg
from outlay.report.html import of_phase
from outlay.units.money import MICROS
from outlay.units.quantity import duration_text

Axis = Literal["steps", "time", "dollars"]
AXES: Final[tuple[Axis, ...]] = ("steps", "time", "dollars")
_COLUMNS: Final = 160
_POINTS: Final = 240
_MOST_CHECKPOINTS: Final = 200
_STRIP_HEIGHT: Final = 90


def phase_strip(timeline: Timeline, order: list[str]) -> str:
    """Return the run from left to right, each column split into the phases that filled it."""
    start_ns, whole_ns = timeline.start_ns, timeline.end_ns - timeline.start_ns
    columns = []
    for index in range(_COLUMNS):
        begin_ns = start_ns + whole_ns * index // _COLUMNS
        end_ns = start_ns + whole_ns * (index + 1) // _COLUMNS
        found = timeline.between(begin_ns, end_ns)
        columns.append(_column(index, found, end_ns - begin_ns, order))
    starts = "".join(_start(timeline, each.start_ns) for each in timeline.attempts[1:])
    return (
        f'<svg class="strip" viewBox="0 0 {svg.WIDTH} {_STRIP_HEIGHT}" role="img" '
        'preserveAspectRatio="none" aria-label="Phases over time" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(columns)}{starts}</svg>'
        f'<div class="ends"><span>0</span><span>{duration_text(whole_ns)}</span></div>'
    )


def _start(timeline: Timeline, at_ns: int) -> str:
    """Return a line where another attempt began."""
    whole_ns = timeline.end_ns - timeline.start_ns
    x = (at_ns - timeline.start_ns) / (whole_ns or 1) * svg.WIDTH
    return (
        f'<rect fill="#000" x="{x:.1f}" y="0" width="1.5" height="{_STRIP_HEIGHT}">'
        "<title>another attempt began</title></rect>"
    )


def _column(index: int, found: dict[str, int], whole_ns: int, order: list[str]) -> str:
    width, top, parts = svg.WIDTH / _COLUMNS, 0.0, []
    for phase in order:
        height = found.get(phase, 0) / (whole_ns or 1) * _STRIP_HEIGHT
        if height > 0:
            parts.append(
                f'<rect fill="{of_phase(phase)}" x="{index * width:.1f}" y="{top:.1f}" '
                f'width="{width + 0.2:.1f}" height="{height:.1f}"><title>{html_text(phase)}'
                "</title></rect>"
            )
            top += height
    return "".join(parts)


def phase_legend(order: list[str], texts: dict[str, str]) -> str:
    """Return which colour is which phase, with what is said of each."""
    items = (
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect fill="{of_phase(phase)}" '
        f'width="12" height="12"/></svg> {html_text(phase)} {html_text(texts[phase])}</li>'
        for phase in order
    )
    return f'<ul class="legend squares">{"".join(items)}</ul>'


def step_times(timeline: Timeline) -> tuple[str, list[str]] | None:
    """Return the own time of steps by their order of execution, and what its curves are called.

    A long run is drawn in groups of steps: the median and the longest of each, so that no stall is
    lost between two points.
    """
    own = own_seconds(timeline)
    if len(own) < 2:
        return None
    groups = np.array_split(own, min(len(own), _POINTS))
    firsts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    middle = tuple(
        (float(at), float(np.median(group))) for at, group in zip(firsts, groups, strict=True)
    )
    longest = tuple((float(at), float(g.max())) for at, g in zip(firsts, groups, strict=True))
    curves = [svg.Curve(label="median", points=middle), svg.Curve(label="longest", points=longest)]
    if len(groups) == len(own):
        curves = [svg.Curve(label="each step", points=longest)]
    chart = svg.curves(curves, x_title="steps executed", y_title="seconds a step")
    return chart, [curve.label for curve in curves]


def own_seconds(timeline: Timeline) -> NDArray[np.float64]:
    """Return the own time of every step of the run, in the order of execution."""
    return np.concatenate([attempt.own_times() for attempt in _attempt_timelines(timeline)]) / 1e9


def at_risk(timeline: Timeline) -> str | None:
    """Return how much work a kill would have undone at each moment.

    None without a checkpoint, and with so many that no eye could tell their teeth apart.
    """
    attempts = _attempt_timelines(timeline)
    count = sum(len(attempt.checkpoints) for attempt in attempts)
    if not 0 < count <= _MOST_CHECKPOINTS:
        return None
    curves = [
        svg.Curve(label=f"attempt {number}", points=tuple(_sawtooth(timeline, attempt)))
        for number, attempt in enumerate(attempts, 1)
    ]
    return svg.curves(curves, x_title="seconds", y_title="seconds of work not yet safe")


def _sawtooth(timeline: Timeline, attempt: AttemptTimeline) -> list[tuple[float, float]]:
    points = []
    since_ns = attempt.start_ns
    commits = sorted(c.t_ns for c in attempt.checkpoints if c.t_ns <= attempt.end_ns)
    for until_ns in [*commits, attempt.end_ns]:
        found = timeline.between(since_ns, until_ns)
        worked_ns = found.get(ph.STEP, 0) + found.get(ph.WASTED_PROGRESS, 0)
        points += [
            ((since_ns - timeline.start_ns) / 1e9, 0.0),
            ((until_ns - timeline.start_ns) / 1e9, worked_ns / 1e9),
        ]
        since_ns = until_ns
    return points


def _attempt_timelines(timeline: Timeline) -> list[AttemptTimeline]:
    return [stretch.timeline for stretch in timeline.stretches if stretch.timeline is not None]


# Metrics along steps, time or money.


def metric_points(view: RunView, name: str, axis: Axis) -> list[tuple[float, float]]:
    """Return a metric along an axis; none where the run has no price and dollars are asked for.

    Steps are counted by the training, time in seconds and money in currency units since the start.
    """
    series = view.account.series(name, most=_POINTS)
    start_ns, rates = view.timeline.start_ns, view.rates
    if axis == "steps":
        known = [(p.step, p.value) for p in series if p.step is not None]
        places = known or [(number, point.value) for number, point in enumerate(series)]
        return [(float(x), y) for x, y in places]
    if axis == "time":
        return [((point.t_ns - start_ns) / 1e9, point.value) for point in series]
    if rates is None:
        return []
    return [(rates.cost_between(start_ns, p.t_ns).micros / MICROS, p.value) for p in series]


def axis_title(axis: Axis, views: Sequence[RunView]) -> str:
    """Return what an axis counts."""
    currencies = sorted({view.rates.currency for view in views if view.rates is not None})
    return {"steps": "steps", "time": "seconds", "dollars": ", ".join(currencies)}[axis]


def metric_charts(view: RunView, axes: Sequence[Axis]) -> Iterator[tuple[str, str]]:
    """Yield every metric of a run along each axis, with its title."""
    for name in view.account.metric_names():
        for axis in axes:
            points = metric_points(view, name, axis)
            if len({x for x, _ in points}) > 1:
                curve = svg.Curve(label=name, points=tuple(points))
                title = axis_title(axis, [view])
                yield f"{name} over {title}", svg.curves([curve], x_title=title, y_title=name)
