"""``outlay cost import | export``: the files of a cost report script."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.cost.tables import open_books
from outlay.cli.output import AsJson, must_be_directory, print_findings, print_json, print_sentence

if TYPE_CHECKING:
    from outlay.compat.cost_module.analyzer import Exchanged

Files = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the files.")]


def import_files(directory: Files, as_json: AsJson = False) -> None:
    """Import cost_history.json, budgets.json and recommendations.json; repeating changes nothing.

    Example: outlay cost import ~/.context/training
    """
    from outlay.compat.cost_module.analyzer import CostAnalyzer, import_costs
    from outlay.compat.cost_module.optimizer import CostOptimizer, import_recommendations

    source = directory.expanduser()
    must_be_directory(source)
    done = import_costs(CostAnalyzer(), source)
    taken, findings = import_recommendations(CostOptimizer(), source)
    done = replace(done, findings=done.findings + findings)
    _show_exchanged(done, taken, f"read from {directory}", as_json=as_json)


def export_files(directory: Files, as_json: AsJson = False) -> None:
    """Write cost_history.json, budgets.json and recommendations.json, keeping their entries.

    Example: outlay cost export ~/.context/training
    """
    from outlay.compat.cost_module.analyzer import CostAnalyzer, export_costs
    from outlay.compat.cost_module.optimizer import CostOptimizer, export_recommendations

    books = open_books()
    done = export_costs(CostAnalyzer(), directory.expanduser())
    done = replace(done, findings=(*books.findings, *books.unpriced(), *done.findings))
    written = export_recommendations(CostOptimizer(), directory.expanduser())
    _show_exchanged(done, written, f"in {directory}", as_json=as_json)


def _show_exchanged(done: Exchanged, recommendations: int, where: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done) | {"recommendations": recommendations})
        return
    counts = f"{done.reports:,} reports, {done.budgets:,} budgets"
    print_sentence(f"{counts} and {recommendations:,} recommendations {where}")
    print_findings(done.findings)
