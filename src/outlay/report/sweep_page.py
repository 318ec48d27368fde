"""A sweep as one page that opens offline: verdict, charts, tables, and what they rest on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from outlay.report import svg
from outlay.report.html import charts, legend, note, section, table, whole_page
from outlay.report.sweep_charts import Chart, Lines, Plane, Spans, Waterfall, charts_of
from outlay.sweep.aggregate.comparison import fairness, replicates, verdict
from outlay.sweep.aggregate.markdown import HEAD
from outlay.sweep.aggregate.rows import Row, Subject, exact_money
from outlay.sweep.journal import Event


def page(
    name: str,
    subjects: Sequence[Subject],
    rows: Sequence[Row],
    events: Sequence[Event],
    *,
    head: str = "",
) -> str:
    """Return the whole page as HTML without any reference to the outside."""
    parts = [
        charts(map(_drawn, charts_of(subjects, rows, events))),
        *_tables(rows),
        *_ground(subjects, head),
    ]
    return whole_page(name, verdict(subjects, rows), parts)


def _drawn(chart: Chart) -> str:
    """Return a chart under its title, with what it rests on."""
    match chart:
        case Plane():
            drawing = svg.scatter(chart.points, x_title=chart.x_title, y_title=chart.y_title)
        case Lines():
            lines = svg.curves(chart.curves, x_title=chart.x_title, y_title=chart.y_title)
            drawing = lines + legend(chart.labels)
        case Waterfall():
            drawing = svg.bars(chart.bars, title=chart.title)
        case Spans():
            drawing = svg.gantt(chart.stretches, title=chart.title)
        case _:
            assert_never(chart)
    return section(chart.title, drawing, note(chart.note))


def _tables(rows: Sequence[Row]) -> Iterable[str]:
    together = replicates(rows)
    if together:
        cells = [[one.label, len(one.runs), str(one), one.cost, one.currency] for one in together]
        headings = ["configuration", "runs", "metric", "mean cost", "currency"]
        yield section("Configurations", table(headings, cells), note(_INTERVAL))
    equal = [
        [one.limit, one.runs, f"{one.least:.1%}", f"{one.most:.1%}", f"{one.spread:.1%}"]
        for one in fairness(rows)
    ]
    if equal:
        headings = ["limit", "runs", "least used", "most used", "spread"]
        yield section("How equal the budgets were", table(headings, equal))
    cells = [[exact_money(name, row.get(name)) for name in _SHOWN] for row in rows]
    yield section("Runs", table(_SHOWN, cells), note(_AMOUNTS))


_SHOWN: Final = (
    "run_id", "status", "accuracy_value", "accuracy_best", "planned_cost", "cost", "charged_cost",
    "currency", "goodput", "errors",
)  # fmt: skip
_AMOUNTS: Final = (
    "cost: from the start of a run's first process to the end of its last, all attempts, as its "
    "ceiling captured it. planned_cost: what its budget or timeout foresaw. charged_cost: what its "
    "own budget charged; the rest of the cost is start-up and what the budget leaves out."
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
