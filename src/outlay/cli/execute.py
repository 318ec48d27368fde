"""``outlay exec``: run any command as a recorded run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from outlay.advise.recommendation import total_savings
from outlay.cli.output import AsJson, UserCommand, errors, print_json, print_sentence, shown_path
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.runs.command_budget import CommandBudget, CommandTerms, refuse_uncounted
from outlay.runs.exec import ExecResult, execute
from outlay.runs.figures import BY_NAME
from outlay.runs.options import Arguments, resolve
from outlay.runs.reading import RunReading, read_run
from outlay.store.run_row import RunRow
from outlay.units import Duration, Energy
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, money_of, money_text


def show_exec(
    command: UserCommand = None,
    price: Annotated[
        str | None, typer.Option(help='Per GPU-hour, such as "1.50 USD/h", lambda:8xH100 or auto.')
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs of the whole run, or a share of one: 8, 0.5, 1/7.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Run name; default: the program's.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Run directory; reuse it to resume.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help='Where it ends the command: "iso_time=2h", "iso_cost=5 USD".')
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="The program calls outlay.run() and stops itself.")
    ] = False,
    notice: Annotated[
        str, typer.Option(help="Time from SIGTERM to SIGKILL at the end of the budget.")
    ] = "30s",
    as_json: AsJson = False,
) -> None:
    """Run a command, record its time and cost.

    Shows wall time, attempts, GPU load and cost; with recorded steps also goodput and savings.

    Example: outlay exec --price "1.50 USD/h" --gpus 8 -- python train.py --lr 3e-4
    """
    if not command:
        raise InvalidValue("CMD", "nothing", "a command after --, such as -- python train.py")
    arguments = Arguments(
        model=None, name=name, program=_program_name(command), dir=directory, gpus=gpus,
        price=price, budget=budget,
    )  # fmt: skip
    options = resolve(arguments, os.environ, SYSTEM.wall_ns())
    terms, notice_time = None, Duration.parse(notice, name="--notice")
    if options.budget is not None:
        terms = CommandTerms(budget=options.budget, records=records, notice=notice_time)
        if budget is not None:
            refuse_uncounted(terms, name="--budget")
    result = execute(command, options, terms)
    if as_json:
        print_json(
            {
                "exit_code": result.exit_code,
                "run": result.figures,
                "budget": None if result.budget is None else result.budget.document(),
            }
        )
    elif result.figures is not None:
        print_sentence("\n".join(_summary(result.figures, result)), errors)
    raise typer.Exit(result.exit_code)


def _program_name(command: list[str]) -> str:
    """Return the program's name; for Python, the script or module that it runs."""
    program = Path(command[0]).name
    match command[1:]:
        case ["-m", module, *_] if program.startswith("python"):
            return module
        case [script, *_] if program.startswith("python") and not script.startswith("-"):
            return Path(script).stem
        case _:
            return program


def _summary(figures: RunRow, result: ExecResult) -> list[str]:
    lines = [
        f"outlay: {figures.name} {figures.status} with exit code {result.exit_code}",
        f"  wall time  {duration_text(figures.wall_ns)} in {counted(figures.attempts, 'attempt')}",
    ]
    if figures.steps:
        lines.append(f"  steps      {figures.steps:,}")
    elif result.sampled_gpus:
        busy = figures.gpu_busy_ns / figures.wall_ns if figures.wall_ns else 0.0
        lines.append(f"  GPUs       {busy:.0%} busy, {1 - busy:.0%} idle (sampled)")
        lines.append(f"  energy     {Energy(figures.energy_mj)} ({result.energy_quality})")
    else:
        lines.append("  GPUs       load unknown: NVML is not available here")
    lines += [f"  assumed    {text}" for text in figures.assumptions]
    lines.append(f"  recorded   {shown_path(figures.dir)}")
    lines.append(last_line(read_run(figures.dir), figures.dir))
    return lines if result.budget is None else [*lines, *budget_lines(result.budget)]


def budget_lines(budget: CommandBudget) -> list[str]:
    """Return the limit that ended the command, or those that nothing counted."""
    if budget.reason is not None:
        return [f"outlay: ended by its budget: {budget.reason}"]
    if budget.uncounted:
        limits = ", ".join(budget.uncounted)
        return [
            f"outlay: the program recorded nothing, so {limits} did not apply; call outlay.run()"
        ]
    return []


def last_line(run: RunReading, directory: str) -> str:
    """Return one line with the run's cost, goodput and avoidable cost."""
    cost, goodput = run.cost.cost, run.goodput.goodput
    shares = "goodput unknown (no steps were recorded)"
    if goodput is not None:
        shares = f"goodput {goodput:.1%}"
    if cost is None:
        return f"outlay: no price (set --price), {shares}, avoidable unknown"
    spent = f"cost {BY_NAME['cost'].text(run.figures, run.t_ns)}"
    savings = total_savings(run.advice).items()
    saved = ", ".join(str(money_of(amount, unit)) for unit, amount in savings)
    if saved:
        advise = f"outlay advise {shown_path(directory)}"
        return f"outlay: {spent}, {shares}, avoidable {saved}: {advise}"
    if goodput is None:
        return f"outlay: {spent}, {shares}, avoidable unknown"
    floor = run.advice_floor
    above = "" if floor is None else f" above {money_text(floor)}"
    return f"outlay: {spent}, {shares}, nothing avoidable{above} found"
