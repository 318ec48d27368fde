"""A sweep's report: charts, document, LaTeX table. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from outlay.clock import utc_text
from outlay.escaping import latex_text
from outlay.report.document import Block, ChartBlock, Document, NoteBlock, Table, sections
from outlay.report.drawing.charts import (
    IntervalChart,
    ParallelChart,
    RungChart,
    short_labels,
)
from outlay.report.drawing.sweep_charts import (
    charts_of,
    metric_of,
    named_by,
    ranking_chart,
    rung_charts,
    unit_of_row,
)
from outlay.report.html import Cell
from outlay.runs.figures import BY_NAME
from outlay.sweep.aggregate.comparison import (
    Replicates,
    fairness,
    is_clear,
    ranked,
    replicates,
    verdict,
)
from outlay.sweep.aggregate.losing import losing_runs
from outlay.sweep.aggregate.rows import Cells, SweepRow
from outlay.sweep.search.results import (
    cost_by_rung,
    reached_rung,
    result_sentences,
    rung_cells,
    search_results,
)
from outlay.sweep.state.outcomes import Event
from outlay.units.shown import amount_text, money_of


def latex_table(rows: Sequence[Cells]) -> str:
    """Return a booktabs table: a row per configuration, means over seeds and their intervals."""
    metric = latex_text(metric_of(rows))
    lines = [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        f"configuration & runs & {metric}, mean $\\pm$ half of the 95\\,\\% interval "
        "& mean cost \\\\",
        r"\midrule",
    ]
    for one in replicates(rows):
        spread = "" if one.half_width is None else f" \\pm {one.half_width:.2g}"
        if one.is_cut:
            low, high = (abs(end - one.mean) for end in one.ends)
            spread = f"_{{-{low:.2g}}}^{{+{high:.2g}}}"
        currency = latex_text(one.currency or "")
        cost = "--" if one.cost is None else amount_text(one.cost, currency).replace(" ", "~")
        label = latex_text(one.label)
        lines.append(f"{label} & {len(one.runs)} & ${one.mean:.4g}{spread}$ & {cost} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


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
    drawn = [c for c in charts_of(rows, events) if not isinstance(c, IntervalChart | RungChart)]
    whole = [chart for chart in drawn if isinstance(chart, ParallelChart)]
    return Document(
        title=name,
        verdict=verdict(rows),
        sections=sections(
            [
                ("Unlikely to win", _losing(rows, link, directory)),
                ("Rungs", _rungs(rows)),
                ("Run by rung", _run_by_rung(rows, link)),
                ("Pruned", _pruned(rows, link)),
                ("Configurations", ranking(rows)),
                *((chart.title, [ChartBlock(chart)]) for chart in drawn if chart not in whole),
                ("How equal the budgets were", _fairness(rows)),
                *((chart.title, [ChartBlock(chart)]) for chart in whole),
                ("Runs", _runs(rows, link)),
                ("How the figures are known", _ground(rows, head)),
            ],
            whole=(
                "Unlikely to win",
                "Rungs",
                "Run by rung",
                "Pruned",
                "Runs",
                "How the figures are known",
                *(chart.title for chart in whole),
            ),
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
    named = ("run", "configuration", metric_of(rows), "best", "chance to pass it", "stopping saves")
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
    yield from map(ChartBlock, rung_charts(rows))
    yield NoteBlock(" ".join(result_sentences(found)))
    estimated = any(row.is_estimated for row in found.rungs)
    yield NoteBlock(_RUNGS + (_DIVIDED if estimated else ""))


def _run_by_rung(rows: Sequence[SweepRow], link: Link) -> Iterator[Block]:
    """Yield who went on: what each run reached at its rungs, and what they cost."""
    went = [row for row in rows if row.run.rungs and reached_rung(row.run, row.state) > 0]
    if not went:
        return
    rungs = range(max(len(row.run.rungs) for row in went))
    went.sort(key=lambda row: -reached_rung(row.run, row.state))
    headings = [f"{what} at rung {n + 1}" for n in rungs for what in (metric_of(rows), "cost")]
    cells = [
        [
            Cell(text=row.run.id, value=row.run.id, href=link(row.run.id)), row.label,
            *_at_rungs(row, rungs), str(row.state.status),
        ]
        for row in went[:_MOST_RANKED]
    ]  # fmt: skip
    yield Table(("run", "configuration", *headings, "status"), cells, is_list=True)
    if len(went) > _MOST_RANKED:
        yield NoteBlock(f"The first {_MOST_RANKED} of {len(went):,} that went on are shown.")


def _at_rungs(row: SweepRow, rungs: Iterable[int]) -> Iterator[object]:
    costs = cost_by_rung(row.run, row.state)
    for rung in rungs:
        report = row.state.reports.get(rung)
        yield None if report is None else report.metric
        yield costs.get(rung)


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
    headings = ("run", "configuration", "rung", metric_of(rows), "cost", "when", "why")
    yield Table(headings, cells, is_list=True)
    if len(found.pruned) > _MOST_RANKED:
        more = f"The first {_MOST_RANKED} of {len(found.pruned):,} are shown; "
        yield NoteBlock(f"{more}all of them are among the runs.")


def ranking(rows: Sequence[SweepRow]) -> Iterator[Block]:
    """Yield the configurations, best first; equal means share a place."""
    found = ranked(rows)
    if not found:
        return
    labels, names = short_labels([one.label for one in found])
    cells = [
        (
            1 + sum(other.mean != one.mean for other in found[:place]),
            _configuration(one.label, label),
            Cell(text=str(one), value=one.mean, is_number=True), _behind(found[0], one),
            _money(one.cost, one.currency), len(one.runs),
        )
        for place, (one, label) in enumerate(zip(found, labels, strict=True))
    ]  # fmt: skip
    yield Table(
        ("place", "configuration", metric_of(rows), "against the best", "mean cost", "runs"), cells
    )
    yield from map(ChartBlock, ranking_chart(rows))
    yield NoteBlock(f"{_INTERVAL} {named_by(names)}".rstrip())


def _configuration(label: str, short: str) -> Cell:
    return Cell(text=short, value=label, title="" if short == label else label)


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
    units = {unit_of_row(row) for row in rows if row.get("cost") is not None}
    usual = units.pop() if len(units) == 1 else ""
    labels, names = short_labels(list(dict.fromkeys(row.label for row in rows)))
    short = dict(zip(dict.fromkeys(row.label for row in rows), labels, strict=True))
    cells = [[_run_cell(column, row, link, usual, short) for column in shown] for row in rows]
    named = _HEADINGS | {"accuracy_value": metric_of(rows)}
    yield Table([named.get(column, column.replace("_", " ")) for column in shown], cells)
    yield NoteBlock(f"{_AMOUNTS} {named_by(names)}".rstrip())


def _run_cell(
    column: str, row: SweepRow, link: Link, usual: str, short: Mapping[str, str]
) -> object:
    value = row.get(column)
    match column:
        case "configuration":
            return _configuration(row.label, short[row.label])
        case "run_id":
            return Cell(text=str(value), value=value, href=link(str(value)), brushed=str(value))
        case "status":
            status = str(row.state.status)
            return Cell(text=status, value=status, chip=status)
        case "goodput" | "scheduling_goodput" if value is not None:
            return Cell(text=f"{value:.1%}", value=value, is_number=True)
        case _ if column in _MONEY:
            return _money(value, unit_of_row(row) or usual)
        case _:
            return value


_MONEY: Final = ("planned_cost", "cost", "assumed_cost", "charged_cost")
_SHOWN: Final = (
    "run_id", "status", "cost", "cost_beside", "accuracy_value", "configuration", "accuracy_best",
    "time_to_target_min", "planned_cost", "assumed_cost", "charged_cost", "goodput",
    "queue_minutes", "scheduling_goodput", "energy_Wh", "world_size",
    "ips_mean", "step_time_ms", "bytes_per_step", "errors",
)  # fmt: skip
_HEADINGS: Final = {
    "run_id": "run", "cost_beside": BY_NAME["cost_beside"].label, "accuracy_best": "best",
    "time_to_target_min": "minutes to target", "energy_Wh": "energy (Wh)",
    "ips_mean": "items per second", "step_time_ms": "mean step (ms)",
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
