"""A sweep's report: its charts, its page, its LaTeX table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from outlay.escaping import latex_text
from outlay.goodput.phases import added
from outlay.report import html, svg
from outlay.report.html import Cell, charts, legend, note, section, table, whole_page
from outlay.report.svg import Bar, ChartStretch, Curve, Point
from outlay.sweep.aggregate.comparison import (
    HEAD,
    fairness,
    is_clear,
    ranked,
    replicates,
    verdict,
)
from outlay.sweep.aggregate.rows import Row, Subject, exact_money, in_time
from outlay.sweep.grid.reading import Target
from outlay.sweep.state.journal import Event
from outlay.units import Money
from outlay.units.shown import number_text

# The configurations of a sweep as a LaTeX table for a paper.


def latex_table(rows: Sequence[Row]) -> str:
    """Return a booktabs table: a line per configuration, means over seeds and their intervals."""
    metric = next((str(r["accuracy_metric"]) for r in rows if r.get("accuracy_metric")), "metric")
    lines = [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        f"configuration & runs & {latex_text(metric)}, mean $\\pm$ half of the 95\\,\\% interval "
        "& mean cost \\\\",
        r"\midrule",
    ]
    for one in replicates(rows):
        spread = "" if one.half_width is None else f" \\pm {one.half_width:.2g}"
        currency = latex_text(one.currency or "")
        cost = "--" if one.cost is None else f"{number_text(one.cost)}~{currency}"
        label = latex_text(one.label)
        lines.append(f"{label} & {len(one.runs)} & ${one.mean:.4g}{spread}$ & {cost} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


# What the charts of a sweep show: points, lines, parts and spans of time, before any drawing.
#
# The page draws them as SVG, and papers get them as pictures; both show the same figures.

_AXES: Final = (
    ("cost", "cost"), ("wall_minutes", "minutes"), ("tokens", "tokens"), ("energy_Wh", "Wh"),
)  # fmt: skip
_ALIKE: Final = 0.05
"""Runs that used the same but for this share of it are not told apart by what they used."""
_FRONT: Final = "Measured, a point per run. The line joins those that no cheaper run equals."
_SPREAD: Final = "Estimated: a run's dollars are spread evenly over its wall time."
_CROSS: Final = "A cross: it failed, was ended or killed."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Titled:
    """What every chart has: a name for files, a title, and what it rests on."""

    name: str
    title: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(_Titled):
    """Runs as points: what they got against what they used; ``labels`` as of a line chart."""

    x_title: str
    y_title: str
    points: tuple[Point, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(_Titled):
    """Learning curves; ``labels`` name the configurations in the order of their looks."""

    x_title: str
    y_title: str
    curves: tuple[Curve, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(_Titled):
    """The parts of a sum, the largest first."""

    x_title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChart(_Titled):
    """The attempts of runs over time, in seconds since the first."""

    stretches: tuple[ChartStretch, ...]


Chart = Plane | LineChart | Waterfall | SpanChart


def charts_of(
    subjects: Sequence[Subject], rows: Sequence[Row], events: Sequence[Event]
) -> list[Chart]:
    """Return every chart that there are figures for."""
    return [
        *_against(subjects, rows),
        *_learning(subjects, rows),
        *_waterfall(subjects),
        *_over_time(events),
    ]


def _against(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[Plane]:
    """Yield the metric against dollars, time, tokens and energy, where they were measured."""
    target = next((s.target for s in subjects if s.target.metric), None)
    if target is None:
        return
    for column, used in _AXES:
        known = [row for row in rows if None not in (row.get(column), row.get("accuracy_value"))]
        money = column == "cost"
        for unit in _units(row.get("currency") if money else used for row in known):
            mine = [row for row in known if not money or (row.get("currency") or "") == unit.name]
            if _differ([row[column] for row in mine]):
                yield _plane(target, column, mine, unit, used)


def _differ(values: Sequence[float]) -> bool:
    """Say whether an axis would show anything: what a budget made equal is none."""
    alike = len(values) > 1 and max(values) - min(values) <= _ALIKE * max(values)
    return any(values) and not alike


def _plane(target: Target, column: str, rows: Sequence[Row], unit: _Unit, used: str) -> Plane:
    """Return the metric of runs against one thing that they used."""
    pairs = [(row[column], row["accuracy_value"]) for row in rows]
    front = pareto(pairs, more_is_better=target.direction == "max")
    looks = dict.fromkeys(row["configuration"] for row in rows)
    places = {label: place for place, label in enumerate(looks)}
    return Plane(
        name=unit.in_name(f"metric_against_{used.lower()}"),
        title=unit.in_title(f"{target.metric} against {used}"),
        note=_FRONT,
        x_title=unit.name or used,
        y_title=target.metric,
        points=tuple(
            Point(x=x, y=y, label=row["run_id"], on_front=best, look=places[row["configuration"]])
            for (x, y), row, best in zip(pairs, rows, front, strict=True)
        ),
        labels=tuple(looks),
    )


def pareto(points: Sequence[tuple[float, float]], *, more_is_better: bool) -> list[bool]:
    """Return which points no other beats: cheaper or as cheap, and better or as good."""
    signed = [(x, y if more_is_better else -y) for x, y in points]
    return [not any(a <= x and b >= y and (a, b) != (x, y) for a, b in signed) for x, y in signed]


def _learning(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[LineChart]:
    known = [(subject, row) for subject, row in zip(subjects, rows, strict=True) if _path(subject)]
    for unit in _units(_currency(subject) for subject, _ in known):
        curves, looks = [], dict[str, int]()
        mine = [(subject, row) for subject, row in known if _currency(subject) == unit.name]
        for subject, row in mine:
            look = looks.setdefault(row["configuration"], len(looks))
            points = tuple(_path(subject))
            curves.append(Curve(label=row["run_id"], points=points, look=look))
        yield LineChart(
            name=unit.in_name("learning_for_the_money"),
            title=unit.in_title("Learning for the money"), note=_SPREAD, x_title=unit.name,
            y_title=mine[0][0].target.metric, curves=tuple(curves), labels=tuple(looks),
        )  # fmt: skip


def _path(subject: Subject) -> list[tuple[float, float]]:
    """Return a run's metric along what it had cost by then."""
    facts = subject.facts
    if facts is None or not facts.cost_micros or not facts.wall_ns:
        return []
    per_ns = facts.cost_micros / 1e6 / facts.wall_ns
    seen = in_time(facts.metrics.get(subject.target.metric, ()))
    return [(one.elapsed_ns * per_ns, one.value) for one in seen if one.elapsed_ns is not None]


def _waterfall(subjects: Sequence[Subject]) -> Iterator[Waterfall]:
    known = [subject.facts for subject in subjects if subject.facts is not None]
    paid = [facts for facts in known if any(facts.phase_micros.values())]
    for unit in _units(facts.currency for facts in paid):
        micros: dict[str, int] = {}
        for facts in paid:
            if facts.currency == unit.name:
                micros = added(micros, facts.phase_micros)
        parts = (
            Bar(label=phase, value=amount, text=str(Money(amount, unit.name)))
            for phase, amount in sorted(micros.items(), key=lambda item: -item[1])
            if amount
        )
        total = Money(sum(micros.values()), unit.name)
        yield Waterfall(
            name=unit.in_name("where_the_dollars_went"),
            title=unit.in_title("Where the money went"), x_title=unit.name,
            note=f"Measured by the runs' own logs; together {total}.", bars=tuple(parts),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Unit:
    """What an axis counts; of money there may be several, which share no axis."""

    name: str
    several: bool

    def in_name(self, text: str) -> str:
        """Return a chart's name, with the unit where another chart has the same name."""
        return f"{text}_{self.name.lower()}" if self.several else text

    def in_title(self, text: str) -> str:
        """Return a chart's title likewise."""
        return f"{text} ({self.name})" if self.several else text


def _units(names: Iterable[str | None]) -> list[_Unit]:
    """Return every unit once."""
    found = list(dict.fromkeys(name or "" for name in names))
    return [_Unit(name, len(found) > 1) for name in found]


def _currency(subject: Subject) -> str:
    return "" if subject.facts is None else subject.facts.currency


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
    """Yield every attempt that has ended, in seconds."""
    begun: dict[str, int] = {}
    for event in events:
        if event.status == "running":
            begun[event.run] = event.t_ns
        elif event.run in begun:
            start_ns = begun.pop(event.run)
            mark = "" if event.status == "completed" else f"{event.status}: {event.reason}"
            yield ChartStretch(row=event.run, start=start_ns / 1e9, end=event.t_ns / 1e9, mark=mark)


# A sweep as one page that opens offline: verdict, charts, tables, and what they rest on.


Link = Callable[[str], str]
"""Where a run of a sweep is shown, by its id; empty for nowhere."""


def page(
    name: str,
    subjects: Sequence[Subject],
    rows: Sequence[Row],
    events: Sequence[Event],
    *,
    head: str = "",
    link: Link | None = None,
) -> str:
    """Return the whole page as HTML without any reference to the outside but to its runs."""
    found = parts(subjects, rows, events, head=head, link=link)
    return whole_page(name, verdict(subjects, rows), found)


def parts(
    subjects: Sequence[Subject],
    rows: Sequence[Row],
    events: Sequence[Event],
    *,
    head: str = "",
    link: Link | None = None,
) -> list[str]:
    """Return the parts of the page below its verdict."""
    return [
        *_ranking(subjects, rows),
        charts(map(_drawn, charts_of(subjects, rows, events))),
        *_tables(rows, link or (lambda _: "")),
        *_ground(subjects, head),
    ]


def _drawn(chart: Chart) -> str:
    """Return a chart under its title, with what it rests on."""
    match chart:
        case Plane():
            drawing = svg.scatter(chart.points, x_title=chart.x_title, y_title=chart.y_title)
            drawing = html.chart(drawing, legend(chart.labels))
        case LineChart():
            lines = svg.curves(chart.curves, x_title=chart.x_title, y_title=chart.y_title)
            drawing = html.chart(lines, legend(chart.labels))
        case Waterfall():
            drawing = svg.bars(chart.bars, title=chart.title)
        case SpanChart():
            drawing = svg.gantt(chart.stretches, title=chart.title)
        case _:
            assert_never(chart)
    return section(chart.title, drawing, note(chart.note))


def _ranking(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the configurations, the best first; those of equal mean share a place."""
    found = ranked(subjects, rows)
    if not found:
        return
    metric = next((str(r["accuracy_metric"]) for r in rows if r.get("accuracy_metric")), "metric")
    best = found[0]
    cells = [
        [
            1 + sum(other.mean != one.mean for other in found[:place]),
            one.label, len(one.runs),
            Cell(text=str(one), value=one.mean, is_number=True),
            "" if one is best else "clear" if is_clear(best, one) else "may be luck",
            _mean_cost(one.cost, one.currency),
        ]
        for place, one in enumerate(found)
    ]  # fmt: skip
    headings = ["place", "configuration", "runs", metric, "behind the first", "mean cost"]
    yield section("Configurations", table(headings, cells, caption="Ranking"), note(_INTERVAL))


def _mean_cost(cost: float | None, currency: str | None) -> object:
    return None if cost is None else Money.parse(cost, currency=currency or "")


def _tables(rows: Sequence[Row], link: Link) -> Iterable[str]:
    equal = [
        [one.limit, one.runs, f"{one.least:.1%}", f"{one.most:.1%}", f"{one.spread:.1%}"]
        for one in fairness(rows)
    ]
    if equal:
        headings = ["limit", "runs", "least used", "most used", "spread"]
        yield section("How equal the budgets were", table(headings, equal, caption="Budgets"))
    left_out = () if any(row.get("assumed_cost") for row in rows) else ("assumed_cost",)
    shown = [name for name in _SHOWN if name not in left_out]
    cells = [[_run_cell(name, row, link) for name in shown] for row in rows]
    titles = ["run" if name == "run_id" else name.replace("_", " ") for name in shown]
    yield section("Runs", table(titles, cells, caption="Runs"), note(_AMOUNTS))


def _run_cell(name: str, row: Row, link: Link) -> object:
    value = row.get(name)
    if name == "run_id":
        return Cell(text=str(value), value=value, href=link(str(value)))
    if name == "status":
        return Cell(text=str(value), value=value, chip=str(value))
    if name == "goodput" and value is not None:
        return Cell(text=f"{value:.1%}", value=value, is_number=True)
    if name in _MONEY and value is not None:
        return _mean_cost(value, row.get("currency"))
    return exact_money(name, value)


_MONEY: Final = ("planned_cost", "cost", "assumed_cost", "charged_cost")
_SHOWN: Final = (
    "run_id", "status", "configuration", "accuracy_value", "accuracy_best", "planned_cost", "cost",
    "assumed_cost", "charged_cost", "goodput", "errors",
)  # fmt: skip
_AMOUNTS: Final = (
    "cost: from the start of a run's first process to the end of its last, all attempts, as its "
    "ceiling captured it. planned_cost: what its budget or timeout foresaw. charged_cost: what its "
    "own budget charged; the rest of the cost is start-up and what the budget leaves out. "
    "assumed_cost: what of the cost in its log no record says that it was to be paid."
)
_INTERVAL: Final = "Mean of the last value ± half of its 95 % interval over seeds."


def _ground(subjects: Sequence[Subject], head: str) -> Iterable[str]:
    figures = [subject.facts for subject in subjects if subject.facts is not None]
    assumed = sorted({text for facts in figures for text in facts.assumptions})
    found = [text for facts in figures for text in facts.findings]
    left_out = [s.static["id"] for s in subjects if s.state.status == "skipped"]
    lines = [
        f"Measured: {len(figures)} of {len(subjects)} runs.",
        "Estimated: what a learning curve cost at each point.",
        "Assumed: " + ("; ".join(assumed) or "nothing") + ".",
        *(f"Finding: {text}" for text in found),
    ]
    if left_out:
        lines.append(f"Skipped, since they no longer fitted the ceiling: {', '.join(left_out)}.")
    if head:
        lines.append(HEAD.format(head))
    yield section("What the figures rest on", *map(note, lines))
