"""The summary as a Markdown page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from outlay.escaping import markdown_row, markdown_text
from outlay.sweep.aggregate.comparison import fairness, replicates, verdict
from outlay.sweep.aggregate.rows import Row, Subject, exact_money
from outlay.units.shown import number_text

_LEADING: Final = ("run_id", "status")
_FIGURES: Final = (
    "world_size", "ips_mean", "step_time_ms", "bytes_per_step", "accuracy_metric",
    "accuracy_value", "accuracy_best", "time_to_target_min", "planned_cost", "cost",
    "charged_cost", "currency", "energy_Wh", "goodput", "errors",
)  # fmt: skip


HEAD: Final = "Head of the spend log: {}. `outlay guard verify --expect` finds what is gone since."


def page(name: str, subjects: Sequence[Subject], rows: Sequence[Row], *, head: str = "") -> str:
    """Return the whole page."""
    parts = [
        f"# {markdown_text(name)}",
        markdown_text(verdict(subjects, rows)),
        "## Runs",
        _runs(rows),
    ]
    together = replicates(rows)
    if any(len(one.runs) > 1 for one in together):
        parts += ["## Over seeds", "Mean of the last value ± half of its 95 % interval."]
        cells = [
            [one.label, str(len(one.runs)), str(one), _cell(one.cost), _cell(one.currency)]
            for one in together
        ]
        headings = ["configuration", "runs", "metric", "mean cost", "currency"]
        parts.append(_table(headings, cells))
    parts += ["## How equal the budgets were", _fairness(rows)]
    if left_out := [s.static["id"] for s in subjects if s.state.status == "skipped"]:
        parts += [
            "## Left out",
            f"No longer fitted under the ceiling: {markdown_text(', '.join(left_out))}.",
        ]
    parts += ["## What the figures rest on", *_ground(subjects)]
    if head:
        parts.append(HEAD.format(head))
    return "\n\n".join(parts) + "\n"


def _runs(rows: Sequence[Row]) -> str:
    params = dict.fromkeys(name for row in rows for name in row if name.startswith("param_"))
    shown = [name for name in _FIGURES if any(row.get(name) not in (None, "") for row in rows)]
    columns = [*_LEADING, *params, *shown]
    return _table(
        columns, [[_cell(exact_money(name, row.get(name))) for name in columns] for row in rows]
    )


def _fairness(rows: Sequence[Row]) -> str:
    found = fairness(rows)
    if not found:
        return "No completed run had a limit whose use was recorded."
    cells = [
        [one.limit, str(one.runs), f"{one.least:.1%}", f"{one.most:.1%}", f"{one.spread:.1%}"]
        for one in found
    ]
    return _table(["limit", "runs", "least used", "most used", "spread"], cells)


def _ground(subjects: Sequence[Subject]) -> Iterable[str]:
    figures = [subject.facts for subject in subjects if subject.facts is not None]
    logs = sum(facts.source == "ledger" for facts in figures)
    yield (
        f"Measured: {logs} of {len(subjects)} runs from their own logs, "
        f"{len(figures) - logs} from CSV files. Throughput is everything over all the time; "
        "the metric's value is the last one, its best is beside it."
    )
    assumed = sorted({text for facts in figures for text in facts.assumptions})
    yield "Assumed: " + (markdown_text("; ".join(assumed)) if assumed else "nothing") + "."
    found = [text for facts in figures for text in facts.findings]
    if found:
        yield "Findings:\n\n" + "\n".join(f"- {markdown_text(text)}" for text in found)


def _table(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = [markdown_row(columns), "|" + " --- |" * len(columns), *map(markdown_row, cells)]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return number_text(value) if isinstance(value, float) else str(value)
