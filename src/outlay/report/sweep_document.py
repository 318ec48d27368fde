"""A sweep's report: charts, document, LaTeX table. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outlay.clock import utc_text
from outlay.cost.compare import non_dominated
from outlay.escaping import latex_text
from outlay.goodput.phases import added
from outlay.report.document import Block, ChartBlock, Document, NoteBlock, Table, sections
from outlay.report.drawing.charts import (
    Chart,
    ChartStretch,
    Curve,
    IntervalChart,
    IntervalRow,
    LineChart,
    Plane,
    Point,
    SpanChart,
    Waterfall,
)
from outlay.report.drawing.run_charts import money_bars
from outlay.report.html import Cell
from outlay.sweep.aggregate.comparison import (
    Replicates,
    fairness,
    is_clear,
    ranked,
    replicates,
    verdict,
)
from outlay.sweep.aggregate.losing import losing_runs
from outlay.sweep.aggregate.rows import Cells, SweepRow, in_time, unit_of
from outlay.sweep.grid.parsing import Target
from outlay.sweep.search.results import result_sentences, rung_cells, search_results
from outlay.sweep.state.outcomes import Event
from outlay.units import Money
from outlay.units.shown import amount_text, money_of, money_text


def latex_table(rows: Sequence[Cells]) -> str:
    """Return a booktabs table: a row per configuration, means over seeds and their intervals."""
    metric = latex_text(_metric(rows))
    lines = [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        f"configuration & runs & {metric}, mean $\\pm$ half of the 95\\,\\% interval "
        "& mean cost \\\\",
        r"\midrule",
    ]
    for one in replicates(rows):
        spread = "" if one.half_width is None else f" \\pm {one.half_width:.2g}"
        currency = latex_text(one.currency or "")
        cost = "--" if one.cost is None else amount_text(one.cost, currency).replace(" ", "~")
        label = latex_text(one.label)
        lines.append(f"{label} & {len(one.runs)} & ${one.mean:.4g}{spread}$ & {cost} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


# Charts

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
_CROSS: Final = "A cross: the attempt failed, was ended or killed."


def charts_of(rows: Sequence[SweepRow], events: Sequence[Event]) -> list[Chart]:
    """Return every chart for which there are figures."""
    return [
        *_ranking_chart(rows),
        *_against(rows),
        *_learning(rows),
        *_waterfall(rows),
        *_over_time(events),
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
        for unit in _units(_unit(row) if money else used for row in known):
            mine = [row for row in known if not money or _unit(row) == unit.name]
            values = [row[column] for row in mine]
            charged = [row["charged_cost"] for row in mine if money and row.get("charged_cost")]
            if not any(values) or _is_drawn(values, drawn):
                continue
            drawn.append(values)
            # Equal charges mean a budget: the costs differ only by start-up time.
            if not _are_alike(values) and not _are_alike(charged):
                yield _plane(target, column, mine, unit, used)


def _unit(row: Cells) -> str:
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


def _ranking_chart(rows: Sequence[SweepRow]) -> Iterator[IntervalChart]:
    """Yield the configurations with their intervals, if there are several."""
    found = ranked(rows)
    values: dict[str, float] = {row["run_id"]: row.get("accuracy_value", 0.0) for row in rows}
    if len(found) > 1:
        yield IntervalChart(
            name="ranking", title="Ranking", x_title=_metric(rows),
            rows=tuple(
                IntervalRow(
                    label=one.label, values=tuple(values[run] for run in one.runs), mean=one.mean,
                    half_width=one.half_width,
                )
                for one in found[:_MOST_RANKED]
            ),
        )  # fmt: skip


def _metric(rows: Sequence[Cells]) -> str:
    """Return the name of the metric that runs are compared by."""
    return next((str(r["accuracy_metric"]) for r in rows if r.get("accuracy_metric")), "metric")


def _plane(target: Target, column: str, rows: Sequence[Cells], unit: _Unit, used: str) -> Plane:
    pairs = [(row[column], row["accuracy_value"]) for row in rows]
    sign = -1 if target.more_is_better else 1
    front = non_dominated([(x, sign * y) for x, y in pairs])
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


def _learning(rows: Sequence[SweepRow]) -> Iterator[LineChart]:
    known = [row for row in rows if _path(row)]
    for unit in _units(_unit_of(row) for row in known):
        curves, looks = [], dict[str, int]()
        mine = [row for row in known if _unit_of(row) == unit.name]
        for row in mine:
            look = looks.setdefault(row.label, len(looks))
            curves.append(Curve(label=row.run.id, points=tuple(_path(row)), look=look))
        yield LineChart(
            name=unit.in_name("learning_for_the_money"),
            title=unit.in_title("Learning for the money"), note=_SPREAD, x_title=unit.name,
            y_title=mine[0].target.metric, curves=tuple(curves), labels=tuple(looks),
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


# The document

Link = Callable[[str], str]
"""Returns the address of a run's page, by its id; "" for none."""


def sweep_document(
    name: str,
    rows: Sequence[SweepRow],
    events: Sequence[Event],
    *,
    head: str = "",
    link: Link = lambda _: "",
    directory: str = "DIR",
) -> Document:
    """Return a sweep's report; it links to nothing but its runs."""
    drawn = [c for c in charts_of(rows, events) if not isinstance(c, IntervalChart)]
    return Document(
        title=name,
        verdict=verdict(rows),
        sections=sections(
            [
                ("Unlikely to win", _losing(rows, link, directory)),
                ("Configurations", ranking(rows)),
                ("Rungs", _rungs(rows)),
                ("Pruned", _pruned(rows, link)),
                *((chart.title, [ChartBlock(chart)]) for chart in drawn),
                ("How equal the budgets were", _fairness(rows)),
                ("Runs", _runs(rows, link)),
                ("How the figures are known", _ground(rows, head)),
            ],
            whole=("Unlikely to win", "Rungs", "Pruned", "Runs", "How the figures are known"),
        ),
    )


def _losing(rows: Sequence[SweepRow], link: Link, directory: str) -> Iterator[Block]:
    """Yield the open runs that are unlikely to pass the best."""
    found = losing_runs(rows)
    if not found:
        return
    cells = [
        (
            Cell(text=one.run, value=one.run, href=link(one.run)), one.configuration, one.value,
            one.best, Cell(text=one.chance_text, value=one.chance, is_number=True), one.saves,
        )
        for one in found
    ]  # fmt: skip
    named = ("run", "configuration", _metric(rows), "best", "chance to pass it", "stopping saves")
    yield Table(named, cells)
    chosen = " ".join(one.run for one in found)
    yield NoteBlock(f"To stop them: outlay sweep stop {shlex.quote(directory)} {chosen}")
    yield NoteBlock(_LOSING)


def _rungs(rows: Sequence[SweepRow]) -> Iterator[Block]:
    """Yield the rungs of a search: who went on, at what cost."""
    found = search_results((row.run, row.state) for row in rows)
    if found is None:
        return
    headings, cells = rung_cells(found)
    labels = {row.run.id: row.label for row in rows}
    best = [labels.get(row.best_run or "", "") for row in found.rungs]
    yield Table(
        (*headings, "configuration"),
        [[*each, label] for each, label in zip(cells, best, strict=True)],
    )
    yield NoteBlock(" ".join(result_sentences(found)))
    estimated = any(row.is_estimated for row in found.rungs)
    yield NoteBlock(_RUNGS + (_DIVIDED if estimated else ""))


def _pruned(rows: Sequence[SweepRow], link: Link) -> Iterator[Block]:
    """Yield the runs that did not go on: at which rung, when and why."""
    found = search_results((row.run, row.state) for row in rows)
    if found is None or not found.pruned:
        return
    labels = {row.run.id: row.label for row in rows}
    cells = [
        (
            Cell(text=one.run, value=one.run, href=link(one.run)), labels[one.run], one.rung,
            one.metric, one.cost, "" if one.t_ns is None else utc_text(one.t_ns), one.why,
        )
        for one in found.pruned[:_MOST_RANKED]
    ]  # fmt: skip
    yield Table(("run", "configuration", "rung", _metric(rows), "cost", "when", "why"), cells)
    if len(found.pruned) > _MOST_RANKED:
        more = f"The first {_MOST_RANKED} of {len(found.pruned):,} are shown; "
        yield NoteBlock(f"{more}all of them are among the runs.")


def ranking(rows: Sequence[SweepRow]) -> Iterator[Block]:
    """Yield the configurations, best first; equal means share a place."""
    found = ranked(rows)
    if not found:
        return
    cells = [
        (
            1 + sum(other.mean != one.mean for other in found[:place]), one.label, len(one.runs),
            Cell(text=str(one), value=one.mean, is_number=True), _behind(found[0], one),
            _money(one.cost, one.currency),
        )
        for place, one in enumerate(found)
    ]  # fmt: skip
    yield Table(
        ("place", "configuration", "runs", _metric(rows), "against the best", "mean cost"), cells
    )
    yield from map(ChartBlock, _ranking_chart(rows))
    yield NoteBlock(_INTERVAL)


def _behind(best: Replicates, one: Replicates) -> str:
    if one is best:
        return ""
    return "clearly behind" if is_clear(best, one) else "may be luck"


def _money(cost: float | None, currency: str | None) -> object:
    return None if cost is None else money_of(cost, currency or "")


def _fairness(rows: Sequence[Cells]) -> Iterator[Block]:
    def share(value: float) -> Cell:
        return Cell(text=f"{value:.1%}", value=value, is_number=True)

    equal = [
        (one.limit, one.runs, share(one.least), share(one.most), share(one.spread))
        for one in fairness(rows)
    ]
    if equal:
        yield Table(("limit", "runs", "least used", "most used", "spread"), equal)


def _runs(rows: Sequence[SweepRow], link: Link) -> Iterator[Block]:
    """Yield every run; empty columns are left out."""
    if not rows:
        return
    empty = {"assumed_cost": (None, 0.0), "world_size": (None, 1)}
    shown = [
        name
        for name in _SHOWN
        if any(row.get(name) not in empty.get(name, (None, "")) for row in rows)
    ]
    units = {_unit(row) for row in rows if row.get("cost") is not None}
    usual = units.pop() if len(units) == 1 else ""
    cells = [[_run_cell(column, row, link, usual) for column in shown] for row in rows]
    named = _HEADINGS | {"accuracy_value": _metric(rows)}
    yield Table([named.get(column, column.replace("_", " ")) for column in shown], cells)
    yield NoteBlock(_AMOUNTS)


def _run_cell(column: str, row: SweepRow, link: Link, usual: str) -> object:
    value = row.get(column)
    match column:
        case "run_id":
            return Cell(text=str(value), value=value, href=link(str(value)))
        case "status":
            status = str(row.state.status)
            return Cell(text=status, value=status, chip=status)
        case "goodput" | "scheduling_goodput" if value is not None:
            return Cell(text=f"{value:.1%}", value=value, is_number=True)
        case _ if column in _MONEY:
            return _money(value, _unit(row) or usual)
        case _:
            return value


_MONEY: Final = ("planned_cost", "cost", "assumed_cost", "charged_cost")
_SHOWN: Final = (
    "run_id", "status", "configuration", "accuracy_value", "accuracy_best", "time_to_target_min",
    "planned_cost", "cost", "assumed_cost", "charged_cost", "goodput", "queue_minutes",
    "scheduling_goodput", "energy_Wh", "world_size",
    "ips_mean", "step_time_ms", "bytes_per_step", "errors",
)  # fmt: skip
_HEADINGS: Final = {
    "run_id": "run", "accuracy_best": "best", "time_to_target_min": "minutes to target",
    "energy_Wh": "energy (Wh)", "ips_mean": "items per second", "step_time_ms": "mean step (ms)",
}  # fmt: skip
_MOST_RANKED: Final = 40
_AMOUNTS: Final = (
    "Cost: from the start of a run's first process to the end of its last, all attempts, as "
    "captured by the guard. Planned cost: from its budget or timeout. Charged cost: the part that "
    "its own budget counts; the rest is start-up and what the budget leaves out. Assumed cost: the "
    "part of the cost for which no record says whether it is billed."
)
_HEAD: Final = (
    "Head of the spend log: {}. `outlay guard verify --expect` finds lines removed since."
)
_LOSING: Final = (
    "Estimated: the learning curve of each run, extrapolated to the end of its budget. Nothing is "
    "stopped by this; a learning rate that is about to fall is not seen."
)
_RUNGS: Final = (
    "Cost: of the attempts at each rung, their start-ups included. Best: the best mean over seeds "
    "at that rung's budget. Values of different rungs are not comparable: a pruned run is "
    "censored, and is compared with nothing beyond its rung."
)
_DIVIDED: Final = (
    " Estimated: the cost of a run that does not pause is divided by the time at which it passed "
    "its rungs."
)
_INTERVAL: Final = "Mean of the last value ± half of its 95 % interval over seeds."


def _ground(rows: Sequence[SweepRow], head: str) -> Iterator[Block]:
    figures = [row.facts for row in rows if row.facts is not None]
    assumed = sorted({text for facts in figures if facts.row for text in facts.row.assumptions})
    left_out = [row.run.id for row in rows if row.state.status == "skipped"]
    logs = sum(facts.source == "ledger" for facts in figures)
    yield NoteBlock(
        f"Measured: {len(figures)} of {len(rows)} runs, {logs} by their own logs and "
        f"{len(figures) - logs} by CSV files. Items per second and the mean step are over the time "
        "of all steps, their wait for data included; the metric's value is the last one. "
        "Estimated: the cost at each point of a learning curve. "
        f"Assumed: {'; '.join(assumed) or 'nothing'}."
    )
    yield from (NoteBlock(f"Finding: {text}") for facts in figures for text in facts.findings)
    if left_out:
        skipped = ", ".join(left_out)
        yield NoteBlock(f"Skipped, because the ceiling had no room for them: {skipped}.")
    if head:
        yield NoteBlock(_HEAD.format(head))
