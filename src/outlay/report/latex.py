"""The configurations of a sweep as a LaTeX table for a paper. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.escaping import latex_text
from outlay.sweep.aggregate.comparison import replicates
from outlay.sweep.aggregate.rows import Row
from outlay.units.shown import number_text


def table(rows: Sequence[Row]) -> str:
    """Return a booktabs table: a line per configuration, means over seeds."""
    metric = next((str(r["accuracy_metric"]) for r in rows if r.get("accuracy_metric")), "metric")
    lines = [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        f"configuration & runs & {latex_text(metric)} & cost \\\\",
        r"\midrule",
    ]
    for one in replicates(rows):
        spread = "" if one.half_width is None else f" \\pm {one.half_width:.2g}"
        currency = latex_text(one.currency or "")
        cost = "--" if one.cost is None else f"{number_text(one.cost)}~{currency}"
        label = latex_text(one.label)
        lines.append(f"{label} & {len(one.runs)} & ${one.mean:.4g}{spread}$ & {cost} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
