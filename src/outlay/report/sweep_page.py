"""A sweep as one page that opens offline: verdict, charts, tables, and what they rest on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from outlay.report import svg
from outlay.report.html import legend, note, section, table, whole_page
from outlay.sweep.aggregate.comparison import fairness, replicates, verdict
from outlay.sweep.aggregate.rows import Row, Subject, in_time
from outlay.sweep.journal import Event
from outlay.units import Money

_AXES: Final = (
    ("cost", "cost"), ("wall_minutes", "minutes"), ("tokens", "tokens"), ("energy_Wh", "Wh"),
)  # fmt: skip


def page(
    name: str, subjects: Sequence[Subject], rows: Sequence[Row], events: Sequence[Event]
) -> str:
    """Return the whole page as HTML without any reference to the outside."""
    parts = [
        *_against(subjects, rows),
        *_learning(subjects),
        *_waterfall(subjects),
        *_over_time(events),
        *_tables(rows),
        *_ground(subjects),
    ]
    return whole_page(name, verdict(subjects, rows), parts)


def _against(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterable[str]:
    """Yield the metric against dollars, time, tokens and energy, where they were measured."""
    target = next((s.target for s in subjects if s.target.metric), None)
    if target is None:
        return
    for column, title in _AXES:
        known = [
            row
            for row in rows
            if row.get(column) is not None and row.get("accuracy_value") is not None
        ]
        if not known or not any(row[column] for row in known):
            continue
        pairs = [(row[column], row["accuracy_value"]) for row in known]
        front = svg.pareto(pairs, more_is_better=target.direction == "max")
        points = [
            svg.Point(x=x, y=y, label=row["run_id"], on_front=best)
            for (x, y), row, best in zip(pairs, known, front, strict=True)
        ]
        unit = known[0].get("currency") or title if column == "cost" else title
        chart = svg.scatter(points, x_title=unit, y_title=target.metric)
        yield section(f"{target.metric} against {title}", chart, note(_FRONT))


_FRONT: Final = "Measured, a point per run. The line joins those that no cheaper run equals."


def _learning(subjects: Sequence[Subject]) -> Iterable[str]:
    lines, unit, metric = [], "", ""
    for subject in subjects:
        facts, metric_of = subject.facts, subject.target.metric
        if facts is None or not facts.cost_micros or not facts.wall_ns:
            continue
        seen = in_time(facts.metrics.get(metric_of, ()))
        per_ns = facts.cost_micros / 1e6 / facts.wall_ns
        path = [(one.elapsed_ns * per_ns, one.value) for one in seen if one.elapsed_ns is not None]
        if path:
            lines.append(svg.Curve(label=subject.static["id"], points=tuple(path)))
            unit, metric = facts.currency, metric_of
    if lines:
        chart = svg.curves(lines, x_title=unit, y_title=metric)
        basis = "Estimated: a run's dollars are spread evenly over its wall time."
        yield section(
            "Learning for the money", chart, legend(line.label for line in lines), note(basis)
        )


def _waterfall(subjects: Sequence[Subject]) -> Iterable[str]:
    micros: dict[str, int] = {}
    currency = ""
    for subject in subjects:
        if subject.facts is not None:
            currency = subject.facts.currency or currency
            for phase, amount in subject.facts.phase_micros.items():
                micros[phase] = micros.get(phase, 0) + amount
    ordered = sorted(micros.items(), key=lambda item: -item[1])
    parts = [
        svg.Bar(label=phase, value=amount, text=str(Money(amount, currency)))
        for phase, amount in ordered
        if amount
    ]
    if parts:
        total = Money(sum(micros.values()), currency)
        basis = f"Measured by the runs' own logs; together {total}."
        chart = svg.bars(parts, title="Where the dollars went")
        yield section("Where the dollars went", chart, note(basis))


def _over_time(events: Sequence[Event]) -> Iterable[str]:
    begun: dict[str, int] = {}
    stretches = []
    for event in events:
        if event.status == "running":
            begun[event.run] = event.t_ns
        elif event.run in begun:
            start_ns = begun.pop(event.run)
            mark = "" if event.status == "completed" else f"{event.status}: {event.reason}"
            stretches.append((event.run, start_ns, event.t_ns, mark))
    if stretches:
        first = min(start_ns for _, start_ns, _, _ in stretches)
        shown = [
            svg.Stretch(row=run, start=(a - first) / 1e9, end=(b - first) / 1e9, mark=mark)
            for run, a, b, mark in stretches
        ]
        chart = svg.gantt(shown, title="Runs over time")
        yield section("Runs over time", chart, note("A cross: it failed, was ended or killed."))


def _tables(rows: Sequence[Row]) -> Iterable[str]:
    together = replicates(rows)
    if together:
        cells = [[one.label or one.runs[0], len(one.runs), str(one), one.cost] for one in together]
        headings = ["configuration", "runs", "metric", "mean cost"]
        yield section("Configurations", table(headings, cells), note(_INTERVAL))
    equal = [
        [one.limit, one.runs, f"{one.least:.1%}", f"{one.most:.1%}", f"{one.spread:.1%}"]
        for one in fairness(rows)
    ]
    if equal:
        headings = ["limit", "runs", "least used", "most used", "spread"]
        yield section("How equal the budgets were", table(headings, equal))
    shown = ["run_id", "status", "accuracy_value", "accuracy_best", "cost", "goodput", "errors"]
    yield section("Runs", table(shown, [[row.get(name) for name in shown] for row in rows]))


_INTERVAL: Final = "Mean of the last value ± half of its 95 % interval over seeds."


def _ground(subjects: Sequence[Subject]) -> Iterable[str]:
    figures = [subject.facts for subject in subjects if subject.facts is not None]
    assumed = sorted({text for facts in figures for text in facts.assumptions})
    found = [f"{text}" for facts in figures for text in facts.findings]
    left_out = [s.static["id"] for s in subjects if s.state.status == "skipped"]
    lines = [
        f"Measured: {len(figures)} of {len(subjects)} runs.",
        "Estimated: what a learning curve cost at each point.",
        "Assumed: " + ("; ".join(assumed) or "nothing") + ".",
        *(f"Finding: {text}" for text in found),
    ]
    if left_out:
        lines.append(f"Skipped, since they no longer fitted the ceiling: {', '.join(left_out)}.")
    yield section("What the figures rest on", *map(note, lines))
