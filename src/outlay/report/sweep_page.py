"""A sweep as one page that opens offline: verdict, charts, tables, and what they rest on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from outlay.report import svg
from outlay.sweep.aggregate.comparison import fairness, replicates, verdict
from outlay.sweep.aggregate.rows import Row, Subject, in_time
from outlay.sweep.journal import Event
from outlay.units import Money

_STYLE: Final = """
:root{--ink:#1b1b1b;--paper:#fff;--soft:#6b6b6b;--line:#d9d9d9;--c0:#0072b2;--c1:#d55e00;
--c2:#009e73;--c3:#cc79a7;--c4:#b8860b;--c5:#56b4e9;--c6:#000}
@media (prefers-color-scheme:dark){:root{--ink:#eee;--paper:#16181c;--soft:#a8adb5;--line:#3a3f47;
--c0:#56b4e9;--c1:#e69f00;--c2:#2bc79a;--c3:#e39fc4;--c4:#f0e442;--c5:#7cc4ff;--c6:#fff}}
@media print{:root{--ink:#000;--paper:#fff;--soft:#444;--line:#bbb}section{break-inside:avoid}}
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:60rem;color:var(--ink);
background:var(--paper);font:16px/1.5 system-ui,sans-serif}h1{font-size:1.5rem}
h2{font-size:1.15rem;margin-top:2rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:.8rem}svg{width:100%;height:auto;display:block}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}th,td{padding:.3rem .6rem;text-align:left;
border-bottom:1px solid var(--line);white-space:nowrap}td.n{text-align:right;
font-variant-numeric:tabular-nums}p.note{color:var(--soft);font-size:.9rem}
text{fill:var(--ink);font:12px system-ui,sans-serif}.tick{fill:var(--soft)}.rule{stroke:var(--line)}
.front{fill:none;stroke:var(--c1);stroke-width:2}.dot{fill:var(--c0)}.best{fill:var(--c1);
stroke:var(--ink)}.bar{fill:var(--c0)}.bad{fill:none;stroke:var(--c1);stroke-width:2}
.cross{fill:var(--c1);font-weight:bold}.curve{fill:none;stroke-width:2}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;font-size:.85rem}
.legend svg{display:inline-block;width:1.6rem;height:.6rem;vertical-align:middle}
@media (max-width:40rem){svg text{font-size:17px}.legend{font-size:.8rem}}
"""
_CURVES: Final = "".join(f".c{n}{{stroke:var(--c{n})}}" for n in range(svg.COLOURS))
_AXES: Final = (
    ("cost", "cost"), ("wall_minutes", "minutes"), ("tokens", "tokens"), ("energy_Wh", "Wh"),
)  # fmt: skip


def page(
    name: str, subjects: Sequence[Subject], rows: Sequence[Row], events: Sequence[Event]
) -> str:
    """Return the whole page as HTML without any reference to the outside."""
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="verdict">{escape(verdict(subjects, rows))}</p>',
        *_against(subjects, rows),
        *_learning(subjects),
        *_waterfall(subjects),
        *_over_time(events),
        *_tables(rows),
        *_ground(subjects),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)}</title><style>{_STYLE}{_CURVES}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


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
        yield _section(f"{target.metric} against {title}", chart, _note(_FRONT))


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
        note = "Estimated: a run's dollars are spread evenly over its wall time."
        yield _section("Learning for the money", chart, _legend(lines), _note(note))


def _legend(lines: Sequence[svg.Curve]) -> str:
    items = (f"<li>{svg.stroke(n)} {escape(line.label)}</li>" for n, line in enumerate(lines))
    return f'<ul class="legend">{"".join(items)}</ul>'


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
        note = f"Measured by the runs' own logs; together {total}."
        chart = svg.bars(parts, title="Where the dollars went")
        yield _section("Where the dollars went", chart, _note(note))


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
        yield _section("Runs over time", chart, _note("A cross: it failed, was ended or killed."))


def _tables(rows: Sequence[Row]) -> Iterable[str]:
    together = replicates(rows)
    if together:
        cells = [[one.label or one.runs[0], len(one.runs), str(one), one.cost] for one in together]
        headings = ["configuration", "runs", "metric", "mean cost"]
        yield _section("Configurations", _table(headings, cells), _note(_INTERVAL))
    equal = [
        [one.limit, one.runs, f"{one.least:.1%}", f"{one.most:.1%}", f"{one.spread:.1%}"]
        for one in fairness(rows)
    ]
    if equal:
        headings = ["limit", "runs", "least used", "most used", "spread"]
        yield _section("How equal the budgets were", _table(headings, equal))
    shown = ["run_id", "status", "accuracy_value", "accuracy_best", "cost", "goodput", "errors"]
    yield _section("Runs", _table(shown, [[row.get(name) for name in shown] for row in rows]))


_INTERVAL: Final = "Mean of the last value ± half of its 95 % interval over seeds."


def _table(headings: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{lines}</table></div>'


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{value:.4g}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


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
    yield _section("What the figures rest on", *map(_note, lines))
