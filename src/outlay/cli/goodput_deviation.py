"""``outlay goodput deviation``: how far a run's steps are from the ideal one."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.options import AsJson, RunDir
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.goodput.deviation import StepTimes, worst_steps
from outlay.goodput.follower import GoodputFollower, ideal_of
from outlay.units import Duration
from outlay.units.quantity import duration_text


def show_deviation(
    run: RunDir,
    worst: Annotated[int, typer.Option(min=1, help="How many steps to show.")] = 10,
    ideal: Annotated[
        str | None, typer.Option(help='What a step should take, such as "250ms"; else measured.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the ideal step time and the steps that were farthest from it.

    Example: outlay goodput deviation runs/001 --worst 20
    """
    stated = None if ideal is None else Duration.parse(ideal, name="--ideal").seconds
    if stated is not None and stated <= 0:
        raise InvalidValue("--ideal", ideal, "a duration above zero")
    view = GoodputFollower(run).view(SYSTEM.wall_ns())
    times, ideal_ns = StepTimes.of(view.timeline.own), ideal_of(view, stated)
    rows = [] if ideal_ns is None else worst_steps(times, ideal_ns, worst)
    if as_json:
        print_json({"ideal_ns": ideal_ns, "worst": rows, "findings": view.findings})
        return
    if ideal_ns is None:
        console.print("No step has a duration yet: nothing to compare.")
    else:
        basis = "measured" if stated is None else "stated"
        console.print(f"ideal step {duration_text(round(ideal_ns))} ({basis}, host time)")
        table = new_table(">step", ">took", ">off")
        for row in rows:
            sign = "-" if row.off_ns < 0 else "+"
            off = f"{sign}{duration_text(abs(row.off_ns))}"
            table.add_row(str(row.step), duration_text(row.own_ns), off)
        console.print(table)
    print_findings(view.findings)
