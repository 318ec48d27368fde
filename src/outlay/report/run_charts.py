"""The charts of one run: phases over time, metrics, step times, what a kill would undo. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Timeline
from outlay.rates import kind_of_cost
from outlay.report.charts import Curve, LineChart, PhaseStrip, StripPart, time_unit
from outlay.sweep.aggregate.rows import unit_of
from outlay.units.money import MICROS

Axis = Literal["steps", "time", "dollars"]
AXES: Final[tuple[Axis, ...]] = ("steps", "time", "dollars")
_COLUMNS: Final = 160
_POINTS: Final = 240
_MOST_CHECKPOINTS: Final = 200


def phase_strip(timeline: Timeline, phases: Sequence[tuple[str, str]]) -> PhaseStrip:
    """Return the run from left to right; ``phases`` in their order, with what is said of each."""
    start_ns, whole_ns = timeline.start_ns, timeline.end_ns - timeline.start_ns
    parts: list[StripPart] = []
    for index in range(_COLUMNS):
        begin_ns = start_ns + whole_ns * index // _COLUMNS
        end_ns = start_ns + whole_ns * (index + 1) // _COLUMNS
        found = timeline.between(begin_ns, end_ns)
        shares = tuple(
            (phase, round(found[phase] / (end_ns - begin_ns), 3))
            for phase, _ in phases
            if found.get(phase)
        )
        begin = (begin_ns - start_ns) / 1e9
        if parts and parts[-1].shares == shares:
            begin = parts.pop().start
        parts.append(StripPart(start=begin, end=(end_ns - start_ns) / 1e9, shares=shares))
    return PhaseStrip(
        title="Timeline", seconds=whole_ns / 1e9, parts=tuple(parts), phases=tuple(phases),
        attempts=tuple((each.start_ns - start_ns) / 1e9 for each in timeline.attempts),
    )  # fmt: skip


def step_times(timeline: Timeline) -> LineChart | None:
    """Return the own time of steps by their order of execution; None of fewer than two.

    A long run is drawn in groups of steps: the median and the longest of each, so that no stall is
    lost between two points.
    """
    own = np.concatenate([each.own_times() for each in _attempt_timelines(timeline)]) / 1e9
    if len(own) < 2:
        return None
    groups = np.array_split(own, min(len(own), _POINTS))
    firsts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    drawn = {"longest": [float(group.max()) for group in groups]}
    if len(own) > len(groups):
        drawn["median"] = [float(np.median(group)) for group in groups]
    curves = tuple(
        Curve(label=label, points=tuple(zip(map(float, firsts), values, strict=True)))
        for label, values in drawn.items()
    )
    labels = tuple(drawn) if len(drawn) > 1 else ()
    return LineChart(
        title="Step times", x_title="steps executed", y_title="seconds a step", curves=curves,
        labels=labels,
    )  # fmt: skip


def at_risk(timeline: Timeline) -> LineChart | None:
    """Return how much work a kill would have undone at each moment.

    None without a checkpoint, and with so many that no eye could tell their teeth apart.
    """
    attempts = _attempt_timelines(timeline)
    count = sum(len(attempt.checkpoints) for attempt in attempts)
    if not 0 < count <= _MOST_CHECKPOINTS:
        return None
    teeth = [_sawtooth(timeline, attempt) for attempt in attempts]
    across, x_title = time_unit((timeline.end_ns - timeline.start_ns) / 1e9)
    up, y_unit = time_unit(max(y for points in teeth for _, y in points))
    curves = tuple(
        Curve(label=f"attempt {number}", points=tuple((x / across, y / up) for x, y in points))
        for number, points in enumerate(teeth, 1)
    )
    return LineChart(
        title="What a kill would have undone, moment by moment", x_title=x_title,
        y_title=f"{y_unit} of work not yet safe", curves=curves,
        labels=tuple(curve.label for curve in curves) if len(curves) > 1 else (),
    )  # fmt: skip


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


def metric_charts(runs: Mapping[str, RunView], axis: Axis, most: int) -> Iterator[LineChart]:
    """Yield each metric of one run, or of several on one axis, by what the runs are called.

    Money of two currencies, or paid and shown back, shares no axis: it has a chart for each.
    """
    names = dict.fromkeys(name for view in runs.values() for name in view.account.metric_names())
    looks = {label: look for look, label in enumerate(runs)}
    for name in list(names)[:most]:
        found = {label: metric_points(view, name, axis) for label, view in runs.items()}
        units = dict.fromkeys(_unit(runs[label], axis) for label in found if found[label])
        for unit in units:
            mine = {n: p for n, p in found.items() if p and _unit(runs[n], axis) == unit}
            longest = max(x for points in mine.values() for x, _ in points)
            divisor, x_title = time_unit(longest) if axis == "time" else (1, unit)
            curves = tuple(
                Curve(
                    label=name if len(runs) == 1 else label, look=looks[label],
                    points=tuple((x / divisor, y) for x, y in points),
                )
                for label, points in mine.items()
            )  # fmt: skip
            if len({x for curve in curves for x, _ in curve.points}) > 1:
                yield LineChart(
                    title=f"{name} over {x_title}", x_title=x_title, y_title=name, curves=curves,
                    labels=tuple(runs) if len(runs) > 1 else (),
                )  # fmt: skip


def _unit(view: RunView, axis: Axis) -> str:
    """Return what an axis counts for a run."""
    if axis != "dollars" or view.rates is None:
        return axis
    return unit_of(view.rates.currency, kind_of_cost(view.timeline.attempts))
