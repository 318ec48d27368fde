"""``outlay cost import`` and ``export``: the files of a cost report script."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, print_findings, print_json
from outlay.errors import InvalidValue

if TYPE_CHECKING:
    from outlay.cost.exchange import Exchanged

Files = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the files.")]


def import_files(directory: Files, as_json: AsJson = False) -> None:
    """Import cost_history.json, budgets.json and recommendations.json; again with no effect.

    Example: outlay cost import ~/.context/training
    """
    from outlay.advise.exchange import import_recommendations
    from outlay.advise.optimizer import CostOptimizer
    from outlay.cost.analyzer import CostAnalyzer
    from outlay.cost.exchange import import_costs

    source = directory.expanduser()
    if not source.is_dir():
        raise InvalidValue("DIR", str(directory), "an existing directory")
    done = import_costs(CostAnalyzer(), source)
    taken, findings = import_recommendations(CostOptimizer(), source)
    done = replace(done, findings=done.findings + findings)
    _show_exchanged(done, taken, f"read from {directory}", as_json=as_json)


def export_files(directory: Files, as_json: AsJson = False) -> None:
    """Write cost_history.json, budgets.json and recommendations.json, keeping what they hold.

    Example: outlay cost export ~/.context/training
    """
    from outlay.advise.exchange import export_recommendations
    from outlay.advise.optimizer import CostOptimizer
    from outlay.cost.analyzer import CostAnalyzer
    from outlay.cost.exchange import export_costs

    done = export_costs(CostAnalyzer(), directory.expanduser())
    written = export_recommendations(CostOptimizer(), directory.expanduser())
    _show_exchanged(done, written, f"in {directory}", as_json=as_json)


def _show_exchanged(done: Exchanged, recommendations: int, where: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done) | {"recommendations": recommendations})
        return
    counts = f"{done.reports:,} reports, {done.budgets:,} budgets"
    console.print(f"{counts} and {recommendations:,} recommendations {where}", soft_wrap=True)
    print_findings(done.findings)
