"""Charts of runs: phases over time, metrics, step times, work at risk, cost; GPU prices. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from outlay.account.run import MetricCurve
from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Timeline
from outlay.report.drawing.charts import (
    Bar,
    Curve,
    LineChart,
    PhaseStrip,
    Plane,
    Point,
    StripPart,
    Waterfall,
    Zoom,
    time_unit,
)
from outlay.report.drawing.thinning import extremes, smoothed, within
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.shown import decimals_of, money_text

if TYPE_CHECKING:
    from outlay.prices.recording import Series
    from outlay.prices.series import PricePoint
    from outlay.rates import RateFunction
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


def step_times(
    timeline: Timeline, seen: tuple[float, float] | None = None, most: int = _POINTS
) -> LineChart | None:
    """Return the own time of steps in order of execution; None with fewer than two.

    A long run is grouped: the median and the longest step of each group, so that every stall shows.

    Args:
        timeline: The run's.
        seen: The part that is seen, in steps executed; None for all.
        most: Groups at most.
    """
    own = np.concatenate([each.own_times() for each in timeline.attempt_timelines]) / 1e9
    if len(own) < 2:
        return None
    low, high = seen or (0.0, float(len(own)))
    begin = min(max(math.floor(low), 0), len(own) - 2)
    end = min(max(math.ceil(high) + 1, begin + 2), len(own))
    shown = own[begin:end]
    groups = np.array_split(shown, min(len(shown), most))
    firsts = begin + np.cumsum([0, *(len(group) for group in groups[:-1])])
    ends_ns = np.concatenate([each.step_ends() for each in timeline.attempt_timelines])
    times = tuple(((ends_ns[firsts] - timeline.start_ns) / 1e9).tolist())
    drawn = {"longest": [float(group.max()) for group in groups]}
    if len(shown) > len(groups):
        drawn["median"] = [float(np.median(group)) for group in groups]
    curves = tuple(
        Curve(label=label, points=tuple(zip(map(float, firsts), values, strict=True)), times=times)
        for label, values in drawn.items()
    )
    labels = tuple(drawn) if len(drawn) > 1 else ()
    return LineChart(
        title="Step times", x_title="steps executed", y_title="seconds a step", curves=curves,
        labels=labels, zoom=Zoom(name="zoom-steps", seen=seen, is_steps=True),
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
        seconds=across, zoom=Zoom(name="zoom-risk", per=across),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    """How metrics are drawn.

    Attributes:
        zoom: The part of the axis that is seen, in steps, seconds or units of money; None for all.
        is_log: Whether values are on a logarithmic scale.
        smoothing: The weight of ``thinning.smoothed``; 0 for none.
        columns: For each, a line has its least and its largest value.
        steps: The part of the chart of step times that is seen, in steps executed; None for all.
    """

    axis: Axis = "steps"
    zoom: tuple[float, float] | None = None
    is_log: bool = False
    smoothing: float = 0.0
    columns: int = _POINTS // 2
    steps: tuple[float, float] | None = None


def metric_charts(
    runs: Mapping[str, RunView],
    wanted: MetricView,
    most: int | None = None,
    names: Container[str] | None = None,
) -> Iterator[LineChart]:
    """Yield a chart for each metric, of one run or of several on one axis; ``runs`` by name.

    Amounts of two currencies, or of cash and showback, get separate charts.

    Args:
        runs: The runs, by the label of their lines.
        wanted: How they are drawn.
        most: How many metrics are drawn at most.
        names: The metrics to draw; None for all.
    """
    found = dict.fromkeys(name for view in runs.values() for name in view.account.metric_names())
    chosen = [name for name in found if names is None or name in names][:most]
    for name in chosen:
        units = dict.fromkeys(_unit(view, wanted.axis) for view in runs.values())
        for unit in units:
            mine = {n: view for n, view in runs.items() if _unit(view, wanted.axis) == unit}
            chart = _metric_chart(name, unit, mine, wanted, list(runs))
            if chart is not None:
                yield chart


def _metric_chart(
    name: str, unit: str, runs: Mapping[str, RunView], wanted: MetricView, labels: Sequence[str]
) -> LineChart | None:
    """Return a metric of runs with one unit; None if its points have one place in all."""
    axes = {label: _Places.of(view, name, wanted.axis) for label, view in runs.items()}
    known = {label: found for label, found in axes.items() if len(found.x)}
    ends = [end for found in known.values() for end in (found.x.min(), found.x.max())]
    if not ends or min(ends) == max(ends):
        return None
    if wanted.axis == "time":
        per, x_title = time_unit(max(ends))
    else:
        per, x_title = 1, unit
    curves = [
        curve
        for label, places in known.items()
        for curve in places.curves(
            name if len(labels) == 1 else label, labels.index(label), wanted, per
        )
    ]
    return LineChart(
        title=f"{name} over {x_title}", x_title=x_title, y_title=name, curves=tuple(curves),
        labels=tuple(labels) if len(labels) > 1 else (), is_log=wanted.is_log,
        seconds=per if wanted.axis == "time" and len(labels) == 1 else 0,
        zoom=Zoom(
            name="zoom", per=per, metric=name,
            seen=None if wanted.zoom is None else (wanted.zoom[0] / per, wanted.zoom[1] / per),
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """A metric of a run with the place of each value on an axis.

    Attributes:
        x: Steps, seconds or, on the axis of money, the cost up to then; this is exact only
            where a price holds.
    """

    view: RunView
    curve: MetricCurve
    axis: Axis
    x: NDArray[np.float64]

    @classmethod
    def of(cls, view: RunView, name: str, axis: Axis) -> _Places:
        """Return a metric's places; none for dollars if the run has no price."""
        curve = view.account.curve(name)
        seconds = (curve.t_ns - view.timeline.start_ns) / 1e9
        if axis == "steps":
            return cls(view, curve, axis, curve.step.astype(np.float64))
        if axis == "time":
            return cls(view, curve, axis, seconds)
        if view.rates is None:
            return cls(view, curve.at(np.empty(0, np.int64)), axis, np.empty(0))
        return cls(view, curve, axis, _cost_at(view, view.rates, curve.t_ns))

    def curves(self, label: str, look: int, wanted: MetricView, per: float) -> Iterator[Curve]:
        """Yield the line, and before it the values that it smooths, if it does."""
        low, high = wanted.zoom or (-np.inf, np.inf)
        near = within(self.x, low, high)
        x, curve = self.x[near], self.curve.at(near)
        if wanted.is_log:
            above = curve.value > 0
            x, curve = x[above], curve.at(above)
        if not len(x):
            return
        kept = extremes(x, curve.value, wanted.columns)
        shown = curve.at(kept)
        yield Curve(
            label=label, look=look, points=_pairs(x[kept] / per, shown.value),
            times=self._times(shown.t_ns), is_faint=wanted.smoothing > 0,
        )  # fmt: skip
        if wanted.smoothing > 0:
            places, values = smoothed(x, curve.value, wanted.smoothing, wanted.columns)
            points = _pairs(places / per, values)
            yield Curve(label=f"{label} smoothed", look=look, points=points)

    def _times(self, t_ns: NDArray[np.int64]) -> tuple[float, ...]:
        """Return seconds since the run's start, for a cursor over charts of other axes."""
        if self.axis == "time":
            return ()  # They are the places.
        return tuple(((t_ns - self.view.timeline.start_ns) / 1e9).tolist())


def _pairs(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def _cost_at(view: RunView, rates: RateFunction, t_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cost of a run up to each instant, in units of its currency.

    Within a piece of the rates it grows evenly, so that only their ends are computed exactly.
    """
    start_ns = view.timeline.start_ns
    ends = {end for piece in rates.pieces for end in (piece.start_ns, piece.end_ns)}
    known = sorted({start_ns, int(t_ns[-1]) if len(t_ns) else start_ns, *ends})
    known = [end_ns for end_ns in known if end_ns >= start_ns]
    costs = [rates.cost_between(start_ns, end_ns).micros / MICROS for end_ns in known]
    since = np.array(known, dtype=np.int64) - start_ns
    found: NDArray[np.float64] = np.interp(t_ns - start_ns, since, costs)
    return found


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
