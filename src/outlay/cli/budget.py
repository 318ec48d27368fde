"""``outlay budget``: how much of a run's budget is used, and what another would allow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.budget.limits import MODES, dimension_for
from outlay.budget.report import BudgetPlan, BudgetReport, budget_report, plan_from
from outlay.budget.terms import Budget
from outlay.cli.document import print_blocks
from outlay.cli.output import (
    DEFAULT,
    AsJson,
    DefaultGroup,
    RunDir,
    console,
    print_findings,
    print_json,
    print_rows,
    print_sentence,
)
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, choices
from outlay.goodput.follower import RunView, read_view
from outlay.report import run_sections

if TYPE_CHECKING:
    from outlay.cost.prediction import ProvenPrediction

budget = typer.Typer(
    cls=DefaultGroup, help="When a run must stop and how much is left.", no_args_is_help=True
)


@budget.command(DEFAULT, hidden=True)
def show(run: RunDir, as_json: AsJson = False) -> None:
    """Show a run's budget: how much of each limit is used, and when it will stop.

    Example: outlay budget runs/001
    """
    view = read_view(run, SYSTEM.wall_ns())
    report = _report(view)
    if as_json:
        print_json({"run": view.name, "status": view.status, **report.document()})
        return
    print_blocks(run_sections.budget(report, view.status))
    print_findings(report.findings)


@budget.command("plan")
def plan(
    mode: Annotated[str, typer.Option(help=f"What is limited: {', '.join(MODES)}.")],
    limit: Annotated[str, typer.Option(help='How much, such as "2h", "50k" or "5 USD".')],
    run: Annotated[
        Path,
        typer.Option("--from", metavar="RUN", help="The measured run to take pace and price from."),
    ],
    as_json: AsJson = False,
) -> None:
    """Estimate a budget in steps, tokens and money from a measured run.

    Also predicts the cost of so many tokens or steps from all recorded runs, where that was better
    than the median on these runs.

    Example: outlay budget plan --mode iso_time --limit 2h --from runs/001
    """
    if mode not in MODES:
        raise InvalidValue("--mode", mode, choices(MODES))
    view = read_view(run, SYSTEM.wall_ns())
    limits = {dimension_for(mode, limit).key: limit}
    if mode == "iso_epochs":
        limits |= _epoch_of(view)
    result = plan_from(view, Budget.of(mode, limits))
    likely, currency = _by_configuration(run, result)
    if as_json:
        document = None if likely is None else asdict(likely.prediction) | {"currency": currency}
        print_json(result.document() | {"predicted": document})
        return
    print_rows(("what", ">estimate"), result.lines())
    console.print(f"Estimated from {result.measured_steps:,} measured steps of {view.name}.")
    if likely is not None:
        from outlay.cli.cost.tables import amount, interval

        found = likely.prediction
        shown = interval(found.low, found.high, currency)
        line = f"By configuration: cost {amount(found.cost, currency)}{shown}, {likely.basis}."
        print_sentence(line)
    print_findings(result.findings)


def _by_configuration(run: Path, plan: BudgetPlan) -> tuple[ProvenPrediction | None, str]:
    """Return the cost of what a budget allows, by recorded runs, and its currency."""
    from outlay.cli.cost.tables import open_books
    from outlay.cost.compare import of_last_unit
    from outlay.cost.prediction import changed, configuration_of, past_runs, proven_prediction
    from outlay.runs.reading import read_figures

    rows = of_last_unit(open_books().book.reports())
    if not rows:
        return None, ""
    work = {"tokens": plan.use.tokens} if plan.use.tokens else {"steps": plan.steps}
    own = configuration_of(read_figures(run, SYSTEM.wall_ns()))
    asked = changed(own, **{name: float(amount) for name, amount in work.items() if amount})
    return proven_prediction(asked, past_runs(rows)), rows[-1].paid.currency


def _report(view: RunView) -> BudgetReport:
    report = budget_report(view)
    if report is None:
        raise InvalidValue("run", str(view.dir), "a run that was started with a budget")
    return report


def _epoch_of(view: RunView) -> dict[str, str]:
    steps = _report(view).budget.steps_per_epoch
    if steps is None:
        raise InvalidValue("--from", str(view.dir), "a run that recorded its steps_per_epoch")
    return {"steps_per_epoch": str(steps)}
