"""Charts of a sweep: what configurations reached, for what money, and who went on. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from outlay.cost.compare import non_dominated
from outlay.goodput.phases import added
from outlay.report.drawing.charts import (
    Chart,
    ChartStretch,
    Curve,
    GridCell,
    GridChart,
    IntervalChart,
    IntervalRow,
    LineChart,
    ParallelAxis,
    ParallelChart,
    ParallelLine,
    Plane,
    Point,
    RungBar,
    RungChart,
    SpanChart,
    Tick,
    Waterfall,
    Zoom,
    log_ticks,
    short_labels,
    ticks,
)
from outlay.report.drawing.run_charts import money_bars
from outlay.sweep.aggregate.comparison import ranked
from outlay.sweep.aggregate.rows import Cells, SweepRow, in_time, unit_of
from outlay.sweep.grid.parsing import Target
from outlay.sweep.search.results import search_results
from outlay.sweep.state.outcomes import Event
from outlay.units import Money
from outlay.units.shown import amount_text, counted, money_text

_AXES: Final = (
    ("cost", "cost"), ("wall_minutes", "minutes"), ("tokens", "tokens"), ("energy_Wh", "Wh"),
)  # fmt: skip
_ALIKE: Final = 0.05
"""Values within this share of each other count as equal: such an axis shows nothing."""
_FRONT: Final = "Measured, a point per run. The line joins the runs that no cheaper run equals."
_SPREAD: Final = (
    "Estimated: a run's dollars are spread evenly over its wall time, without the time in which it "
    "was paused."
)
_MOST_RANKED: Final = 40
_CROSS: Final = "A cross: the attempt failed, was ended or killed."


def charts_of(rows: Sequence[SweepRow], events: Sequence[Event]) -> list[Chart]:
    """Return every chart for which there are figures."""
    return [
        *ranking_chart(rows),
        *_grid(rows),
        *_parallel(rows),
        *_against(rows),
        *_learning(rows),
        *_waterfall(rows),
        *_over_time(events),
        *rung_charts(rows),
    ]


def _against(rows: Sequence[SweepRow]) -> Iterator[Plane]:
    """Yield the metric against cost, time, tokens and energy, where measured."""
    target = next((row.target for row in rows if row.target.metric), None)
    if target is None:
        return
    drawn: list[list[float]] = []
    for column, used in _AXES:
        known = [row for row in rows if None not in (row.get(column), row.get("accuracy_value"))]
        money = column == "cost"
        for unit in _units(unit_of_row(row) if money else used for row in known):
            mine = [row for row in known if not money or unit_of_row(row) == unit.name]
            values = [row[column] for row in mine]
            charged = [row["charged_cost"] for row in mine if money and row.get("charged_cost")]
            if not any(values) or _is_drawn(values, drawn):
                continue
            drawn.append(values)
            # Equal charges mean a budget: the costs differ only by start-up time.
            if not _are_alike(values) and not _are_alike(charged):
                yield _plane(target, column, mine, unit, used)


def unit_of_row(row: Cells) -> str:
    """Return the unit of a run's cost."""
    return unit_of(row.get("currency"), row.get("cost_kind"))


def _are_alike(values: Sequence[float]) -> bool:
    """Return whether all values are about equal, as a budget makes them."""
    return len(values) > 1 and max(values) - min(values) <= _ALIKE * max(values)


def _is_drawn(values: Sequence[float], before: Sequence[Sequence[float]]) -> bool:
    """Return whether another axis is proportional, as time is to cost at one price."""
    return any(
        len(values) == len(other)
        and all(other)
        and _are_alike([a / b for a, b in zip(values, other, strict=True)])
        for other in before
        if len(values) > 1
    )


def ranking_chart(rows: Sequence[SweepRow]) -> Iterator[IntervalChart]:
    """Yield the configurations with their intervals, if there are several."""
    found = ranked(rows)[:_MOST_RANKED]
    values: dict[str, float] = {row["run_id"]: row.get("accuracy_value", 0.0) for row in rows}
    labels, _ = short_labels([one.label for one in found])
    if len(found) > 1:
        yield IntervalChart(
            name="ranking", title="Ranking", x_title=metric_of(rows),
            rows=tuple(
                IntervalRow(
                    label=label, values=tuple(values[run] for run in one.runs), mean=one.mean,
                    ends=None if one.half_width is None else one.ends,
                )
                for one, label in zip(found, labels, strict=True)
            ),
        )  # fmt: skip


def named_by(names: str) -> str:
    """Return what short labels are values of; "" if they say it."""
    return f"Configurations are named by {names}." if names else ""


def metric_of(rows: Sequence[Cells]) -> str:
    """Return the name of the metric that runs are compared by."""
    return next((str(r["accuracy_metric"]) for r in rows if r.get("accuracy_metric")), "metric")


def _plane(target: Target, column: str, rows: Sequence[Cells], unit: _Unit, used: str) -> Plane:
    pairs = [(row[column], row["accuracy_value"]) for row in rows]
    sign = -1 if target.more_is_better else 1
    front = non_dominated([(x, sign * y) for x, y in pairs])
    looks = dict.fromkeys(row["configuration"] for row in rows)
    places = {label: place for place, label in enumerate(looks)}
    labels, names = short_labels(list(looks))
    return Plane(
        name=unit.in_name(f"metric_against_{used.lower()}"),
        title=unit.in_title(f"{target.metric} against {used}"),
        note=f"{_FRONT} {named_by(names)}".rstrip(),
        x_title=unit.name or used,
        y_title=target.metric,
        points=tuple(
            Point(x=x, y=y, label=row["run_id"], on_front=best, look=places[row["configuration"]])
            for (x, y), row, best in zip(pairs, rows, front, strict=True)
        ),
        labels=labels,
    )


def _learning(rows: Sequence[SweepRow]) -> Iterator[LineChart]:
    known = [row for row in rows if _path(row)]
    for unit in _units(_unit_of(row) for row in known):
        curves, looks = [], dict[str, int]()
        mine = [row for row in known if _unit_of(row) == unit.name]
        for row in mine:
            look = looks.setdefault(row.label, len(looks))
            curves.append(Curve(label=row.run.id, points=tuple(_path(row)), look=look))
        labels, names = short_labels(list(looks))
        yield LineChart(
            name=unit.in_name("learning_for_the_money"), zoom=Zoom(name=unit.in_name("zoom")),
            title=unit.in_title("Learning for the money"),
            note=f"{_SPREAD} {named_by(names)}".rstrip(), x_title=unit.name,
            y_title=mine[0].target.metric, curves=tuple(curves), labels=labels,
        )  # fmt: skip


def _path(row: SweepRow) -> list[tuple[float, float]]:
    """Return a run's metric over its cost up to that moment."""
    facts = row.facts
    if facts is None or facts.row is None or not facts.row.cost:
        return []
    if facts.row.wall_ns <= facts.paused_ns:
        return []
    per_ns = float(facts.row.cost.amount) / (facts.row.wall_ns - facts.paused_ns)
    seen = in_time(facts.metrics.get(row.target.metric, ()))
    return [
        ((one.elapsed_ns - one.paused_ns) * per_ns, one.value)
        for one in seen
        if one.elapsed_ns is not None
    ]


def _waterfall(rows: Sequence[SweepRow]) -> Iterator[Waterfall]:
    known = [row.facts for row in rows if row.facts is not None]
    paid = [facts for facts in known if any(facts.phase_micros.values())]
    for unit in _units(facts.unit for facts in paid):
        micros: dict[str, int] = {}
        for facts in paid:
            if facts.unit == unit.name:
                micros = added(micros, facts.phase_micros)
        largest = sorted(micros.items(), key=lambda item: -item[1])
        total = Money(sum(micros.values()), unit.name)
        yield money_bars(
            {phase: Money(amount, unit.name) for phase, amount in largest if amount},
            name=unit.in_name("where_the_dollars_went"),
            title=unit.in_title("Where the money went"),
            note=f"Measured by the runs' own logs; together {money_text(total)}.",
        )


@dataclass(frozen=True, slots=True)
class _Unit:
    """The unit of an axis; ``several`` if charts in other currencies or kinds exist."""

    name: str
    several: bool

    def in_name(self, text: str) -> str:
        """Return a chart's file name, with the unit if there are several."""
        return f"{text}_{self.name.lower().replace(' ', '_')}" if self.several else text

    def in_title(self, text: str) -> str:
        """Return a chart's title, with the unit if there are several."""
        return f"{text} ({self.name})" if self.several else text


def _units(names: Iterable[str | None]) -> list[_Unit]:
    found = list(dict.fromkeys(name or "" for name in names))
    return [_Unit(name, len(found) > 1) for name in found]


def _unit_of(row: SweepRow) -> str:
    return "" if row.facts is None else row.facts.unit


def _over_time(events: Iterable[Event]) -> Iterator[SpanChart]:
    stretches = sorted(_attempts(events), key=lambda one: (one.start, one.row))
    if stretches:
        first = stretches[0].start
        since = tuple(
            ChartStretch(row=one.row, start=one.start - first, end=one.end - first, mark=one.mark)
            for one in stretches
        )
        yield SpanChart(name="runs_over_time", title="Runs over time", note=_CROSS, stretches=since)


def _attempts(events: Iterable[Event]) -> Iterator[ChartStretch]:
    """Yield the attempts that have ended, in seconds."""
    begun: dict[str, int] = {}
    for event in events:
        if event.passes or event.corrects:
            continue
        if event.status == "running":
            begun[event.run] = event.t_ns
        elif event.run in begun:
            start_ns = begun.pop(event.run)
            is_good = event.status in ("completed", "paused")
            mark = "" if is_good else f"{event.status}: {event.reason}"
            yield ChartStretch(row=event.run, start=start_ns / 1e9, end=event.t_ns / 1e9, mark=mark)


# What runs were given, what they cost, what they reached.

_MOST_LINES: Final = 200
_MOST_AXES: Final = 6
_MOST_TICKS: Final = 7
_WIDE_RANGE: Final = 30
"""Numbers of which the largest is so many times the least are on a logarithmic axis."""
_BRUSH: Final = (
    "A line per run, the better the stronger its colour. Drag along an axis to choose a part of "
    "it: the other charts and the table of runs show what is chosen."
)


def _varied(rows: Sequence[SweepRow]) -> list[str]:
    """Return the parameters that differ between configurations."""
    names = dict.fromkeys(name for row in rows for name in row.run.params if name != "seed")
    return [
        name
        for name in names
        if len({json.dumps(row.run.params.get(name), default=str) for row in rows}) > 1
    ]


def _parallel(rows: Sequence[SweepRow]) -> Iterator[ParallelChart]:
    """Yield the runs that recorded the metric: parameters, cost, metric."""
    known = [row for row in rows if None not in (row.get("cost"), row.get("accuracy_value"))]
    for unit in _units(unit_of_row(row) for row in known):
        mine = [row for row in known if unit_of_row(row) == unit.name]
        names = _varied(mine)[:_MOST_AXES]
        if not names or len(mine) < 2:
            continue
        columns = [(name, [row.run.params.get(name) for row in mine]) for name in names]
        columns.append((f"cost ({unit.name})", [row["cost"] for row in mine]))
        columns.append((metric_of(mine), [row["accuracy_value"] for row in mine]))
        goodness = _goodness([row["accuracy_value"] for row in mine], mine[0].target)
        axes, places = zip(*(_axis(title, values) for title, values in columns), strict=True)
        lines = [
            ParallelLine(
                label=row["run_id"], places=tuple(column[number] for column in places),
                goodness=goodness[number],
                text=", ".join(f"{title} {_text(values[number])}" for title, values in columns),
            )
            for number, row in enumerate(mine)
        ]  # fmt: skip
        best_first = sorted(lines, key=lambda line: line.goodness, reverse=True)[:_MOST_LINES]
        left_out = len(lines) - len(best_first)
        more = f" The best {_MOST_LINES} of {len(lines):,} are shown." if left_out else ""
        yield ParallelChart(
            name=unit.in_name("parameters_cost_metric"),
            axes=axes,
            lines=tuple(best_first[::-1]),
            title=unit.in_title("Parameters, cost and result"),
            note=_BRUSH + more,
        )


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:g}" if isinstance(value, int) else f"{value:.4g}"


def _goodness(values: Sequence[float], target: Target) -> list[float]:
    """Return how good values are among all: 0 for the worst, 1 for the best."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    shares = [(value - low) / (high - low) for value in values]
    return shares if target.more_is_better else [1 - share for share in shares]


def _axis(title: str, values: Sequence[object]) -> tuple[ParallelAxis, list[float]]:
    """Return an axis and the place of each value on it."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or min(numbers) == max(numbers):
        texts = sorted({_text(value) for value in values})
        at = {text: (n + 0.5) / len(texts) for n, text in enumerate(texts)}
        marks = tuple((at[text], text) for text in texts[:: -(-len(texts) // 12)])
        return ParallelAxis(title=title, ticks=marks), [at[_text(value)] for value in values]
    is_log = min(numbers) > 0 and max(numbers) >= _WIDE_RANGE * min(numbers)
    scale = (lambda value: math.log10(value)) if is_log else float
    few = sorted(set(numbers))
    found = [Tick(float(value), _text(value)) for value in few]
    if len(few) > _MOST_TICKS:
        found = log_ticks(numbers) if is_log else ticks(numbers)
    low, high = (scale(found[end].value) for end in (0, -1))
    marks = tuple(((scale(tick.value) - low) / (high - low), tick.label) for tick in found)
    return ParallelAxis(title=title, ticks=marks), [
        (scale(value) - low) / (high - low) for value in numbers
    ]


def _grid(rows: Sequence[SweepRow]) -> Iterator[GridChart]:
    """Yield the mean of the metric by two parameters, if exactly two differ."""
    known = [row for row in rows if row.completed and row.get("accuracy_value") is not None]
    names = _varied(known)
    if len(names) != 2:
        return
    fields: dict[tuple[str, str], list[SweepRow]] = {}
    across, up = ([row.run.params.get(name) for row in known] for name in names)
    for row, x, y in zip(known, across, up, strict=True):
        fields.setdefault((_text(x), _text(y)), []).append(row)
    columns, lines = _in_order(across), _in_order(up)[::-1]
    if min(len(columns), len(lines)) < 2 or max(len(columns), len(lines)) > _MOST_FIELDS:
        return
    means = {at: fmean(row["accuracy_value"] for row in its) for at, its in fields.items()}
    goodness = _goodness(list(means.values()), known[0].target)
    yield GridChart(
        name="grid", title=f"{metric_of(known)} by {names[0]} and {names[1]}",
        x_title=names[0], y_title=names[1], columns=tuple(columns), rows=tuple(lines),
        note="Means over seeds of completed runs, the better the stronger the colour.",
        cells=tuple(
            GridCell(
                column=columns.index(x), row=lines.index(y), text=f"{mean:.3g}", goodness=good,
                said=f"{names[0]} {x}, {names[1]} {y}: {_said_of(mean, fields[x, y])}",
            )
            for ((x, y), mean), good in zip(means.items(), goodness, strict=True)
        ),
    )  # fmt: skip


_MOST_FIELDS: Final = 12


def _said_of(mean: float, rows: Sequence[SweepRow]) -> str:
    costs = [row["cost"] for row in rows if row.get("cost") is not None]
    units = {unit_of_row(row) for row in rows}
    paid = ""
    if len(costs) == len(rows) and len(units) == 1:
        paid = f", {amount_text(fmean(costs), units.pop())} a run"
    return f"{metric_of(rows)} {mean:.4g} over {counted(len(rows), 'run')}{paid}"


def _in_order(values: Sequence[object]) -> list[str]:
    """Return the distinct values as texts, numbers by size."""
    distinct = {_text(value): value for value in values}
    if all(isinstance(value, int | float) for value in distinct.values()):
        return sorted(distinct, key=lambda text: float(distinct[text]))  # type: ignore[arg-type]
    return sorted(distinct)


def rung_charts(rows: Sequence[SweepRow]) -> Iterator[RungChart]:
    """Yield the rungs of each entry: what became of the runs, and what the rung cost."""
    found = search_results((row.run, row.state) for row in rows)
    if found is None:
        return
    seen: list[str] = []
    for entry in dict.fromkeys(row.entry for row in found.rungs):
        rungs = [row for row in found.rungs if row.entry == entry]
        is_one = len(rungs) == len(found.rungs)
        suffix = "" if is_one else f"_{len(seen)}"
        seen.append(entry)
        bars = [
            RungBar(
                label=f"rung {row.rung}: {row.budget}",
                parts=tuple((name, getattr(row, field)) for field, name in _OUTCOMES),
                text="" if row.cost is None else money_text(row.cost),
            )
            for row in rungs
        ]
        used = {name for bar in bars for name, count in bar.parts if count}
        yield RungChart(
            name=f"rungs{suffix}", title="Who went on" if is_one else f"Who went on ({entry})",
            bars=tuple(bars), outcomes=tuple(name for _, name in _OUTCOMES if name in used),
        )  # fmt: skip


_OUTCOMES: Final = (
    ("went_on", "went on"), ("completed", "completed"), ("open", "open"), ("pruned", "pruned"),
    ("failed", "failed"),
)  # fmt: skip
