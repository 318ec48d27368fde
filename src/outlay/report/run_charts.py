"""Charts of runs: phases over time, metrics, step times, work at risk, cost; GPU prices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Timeline
from outlay.report.charts import (
    Bar,
    Curve,
    LineChart,
    PhaseStrip,
    Plane,
    Point,
    StripPart,
    Waterfall,
    time_unit,
)
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.shown import decimals_of, money_text

if TYPE_CHECKING:
    from outlay.prices.recording import Series
    from outlay.prices.series import PricePoint
    from outlay.store.run_row import RunRow

Axis = Literal["steps", "time", "dollars"]
AXES: Final[tuple[Axis, ...]] = ("steps", "time", "dollars")
_COLUMNS: Final = 160
_POINTS: Final = 240
_MOST_CHECKPOINTS: Final = 200
_DAY_NS: Final = 86_400 * 10**9


def phase_strip(timeline: Timeline, phases: Sequence[tuple[str, str]]) -> PhaseStrip:
    """Return the run's phases over time; ``phases`` in stacking order, with their legend text."""
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
    """Return the own time of steps in order of execution; None with fewer than two.

    A long run is grouped: the median and the longest step of each group, so that every stall shows.
    """
    own = np.concatenate([each.own_times() for each in timeline.attempt_timelines]) / 1e9
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
    """Return the work that a kill would have undone at each moment, since the last checkpoint.

    None without a checkpoint, and with too many to be told apart in the chart.
    """
    attempts = timeline.attempt_timelines
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
        title="Work at risk: what a kill would have undone", x_title=x_title,
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


# Metrics over steps, time or cost.


def metric_points(view: RunView, name: str, axis: Axis) -> list[tuple[float, float]]:
    """Return a metric along an axis; empty for dollars if the run has no price.

    Steps are numbered by the training; time is in seconds and money in currency units since the
    start.
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
    """Yield a chart for each metric, of one run or of several on one axis; ``runs`` by name.

    Amounts of two currencies, or of cash and showback, get separate charts.
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
    """Return the unit of an axis for a run."""
    if axis != "dollars" or view.rates is None:
        return axis
    return str(view.unit)


# Cost and prices. Amounts of two currencies, or of cash and showback, get separate charts.


def money_bars(
    parts: Mapping[str, Money],
    *,
    title: str,
    name: str = "",
    note: str = "",
    intervals: Mapping[str, tuple[Money, Money]] | None = None,
) -> Waterfall:
    """Return amounts of one currency as parts of their sum; there is at least one."""
    decimals = decimals_of(parts.values())
    ends = {label: (low.micros, high.micros) for label, (low, high) in (intervals or {}).items()}
    bars = (
        Bar(label=label, value=m.micros, text=money_text(m, decimals), ends=ends.get(label))
        for label, m in parts.items()
    )
    currency = next(iter(parts.values())).currency
    return Waterfall(name=name, title=title, x_title=currency, bars=tuple(bars), note=note)


def accuracy_against_cost(
    runs: Sequence[RunRow], front: Sequence[RunRow], *, title: str
) -> list[Plane]:
    """Return runs by cost and accuracy, those on the Pareto front joined by a line."""
    points = [(each.paid.unit, each) for each in runs]
    return [
        Plane(
            title=title, x_title=str(unit), y_title="accuracy",
            points=tuple(
                Point(
                    x=float(each.paid.amount), y=each.accuracy, label=each.run_id,
                    on_front=each in front,
                )
                for its, each in points
                if its == unit and each.accuracy is not None
            ),
        )
        for unit in dict(points)
    ]  # fmt: skip


def price_history(points: Sequence[PricePoint], *, title: str) -> list[LineChart]:
    """Return prices over time, a line for each series; a price holds until the next point."""
    found: dict[str, dict[Series, list[tuple[float, float]]]] = {}
    for point in sorted(points, key=lambda point: point.at_ns):
        line = found.setdefault(point.price.currency, {}).setdefault(point.series, [])
        day = point.at_ns / _DAY_NS
        line += [(day, line[-1][1])] if line else []
        line.append((day, float(point.price.amount)))
    return [
        LineChart(
            title=title, x_title="day (UTC)", y_title=f"{currency} per GPU-hour", in_days=True,
            curves=tuple(
                Curve(label=name, points=tuple(line), look=look)
                for look, (name, line) in enumerate(zip(_names(lines), lines.values(), strict=True))
            ),
            labels=_names(lines),
        )
        for currency, lines in found.items()
    ]  # fmt: skip


def _names(found: Iterable[Series]) -> tuple[str, ...]:
    """Return unique names of series: the source is added where several list the same offers."""
    named = [(f"{e.provider} {e.machine} {e.label}", e.source) for e in found]
    count = Counter(name for name, _ in named)
    return tuple(f"{name} ({source})" if count[name] > 1 else name for name, source in named)
