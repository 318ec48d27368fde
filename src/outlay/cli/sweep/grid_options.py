"""The arguments of ``outlay sweep plan`` and ``run``: a grid, or a program with its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from outlay.errors import InvalidValue, choices
from outlay.sweep.grid.command_grid import DEFAULT_STYLE, GridOptions, is_grid
from outlay.sweep.grid.files import plan_command, plan_file
from outlay.sweep.grid.parsing import STYLES
from outlay.sweep.plan.plan import SweepPlan

GridOrProgram = Annotated[
    str,
    typer.Argument(
        metavar="GRID|PROGRAM", help="A YAML or JSON grid; or a program, quoted with its arguments."
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="A program's parameters: lr=0.1,0.2 width=64:512 rate=1e-5:1e-1:log",
    ),
]
BudgetText = Annotated[
    str | None, typer.Option("--budget", help='Where each run is stopped: "iso_cost=2 USD".')
]
CeilingText = Annotated[
    str | None,
    typer.Option("--ceiling", help='Of all runs, above it launches are refused: "20 USD".'),
]
PriceText = Annotated[
    str | None,
    typer.Option("--price", help='Per GPU-hour: "1.50 USD/h", lambda:8xH100; or OUTLAY_PRICE.'),
]
TimeoutText = Annotated[str | None, typer.Option("--timeout", help="Time limit of an attempt: 2h.")]
Style = Annotated[
    str | None,
    typer.Option(
        "--style", help=f"How parameters are passed: {', '.join(STYLES)}; default: {DEFAULT_STYLE}."
    ),
]
Maximize = Annotated[
    str | None, typer.Option("--maximize", metavar="METRIC", help="Compare by it; more is better.")
]
Minimize = Annotated[
    str | None, typer.Option("--minimize", metavar="METRIC", help="Compare by it; less is better.")
]
Method = Annotated[
    str | None, typer.Option("--method", help="Of the search: grid, random, sobol or tpe.")
]
Trials = Annotated[int | None, typer.Option("--trials", min=1, help="Of the search: how many.")]
SearchSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Of the search.")]

Records = Annotated[
    bool, typer.Option("--records", help="The program calls outlay.run() and stops itself.")
]


def read_plan(named: str, words: Sequence[str] | None, options: GridOptions) -> SweepPlan:
    """Return the plan of a grid file, or of a program with its parameters.

    Raises:
        InvalidValue: A grid file is given, and what it states itself is given, too.
    """
    if not is_grid(named):
        return plan_command(named, words or (), options)
    given = [*(f"--{name}" for name in options.given), *(words or ())]
    if given:
        expected = "nothing besides a grid file, which states it; a program is no "
        raise InvalidValue(named, " ".join(given), expected + choices((".yaml", ".yml", ".json")))
    return plan_file(Path(named))
