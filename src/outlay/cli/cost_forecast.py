"""``outlay cost forecast``: what planned runs of a model will cost, or the rest of a live run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlay.cli.cost_tables import amount, interval, must_be_drawable, open_books
from outlay.cli.options import AsJson, Png
from outlay.cli.output import console, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.units.money import MICROS
from outlay.units.quantity import duration_text

if TYPE_CHECKING:
    from outlay.cost.forecast import Rest
    from outlay.goodput.follower import RunView


def show_forecast(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model's name.")] = None,
    runs: Annotated[
        int | None, typer.Argument(metavar="[RUNS]", min=0, help="How many runs are planned.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Instead: the rest of this run.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="With --run: how many steps in all; default: to its budget."),
    ] = None,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Show what planned runs of a model will cost, or the rest of a live run.

    Example: outlay cost forecast bert-base 5
    """
    if run is not None:
        if model is not None:
            raise InvalidValue("MODEL", model, "MODEL and RUNS, or --run RUN, not both")
        _show_rest(run, steps, png, as_json=as_json)
        return
    if model is None or runs is None:
        raise InvalidValue("forecast", model, "MODEL and RUNS, or --run RUN")
    if steps is not None:
        raise InvalidValue("--steps", steps, "--run RUN beside it")
    from outlay.cost.analyzer import CostAnalyzer

    findings, analyzer = open_books().findings, CostAnalyzer()
    found = analyzer.forecast_cost(model, runs)
    findings += analyzer.damage
    if png is not None:
        from outlay.cost.chart import save_bars

        must_be_drawable(png, found["history"], f"a cost of {model}")
        ends = (found["low"], found["high"])
        spent = {} if found["spent"] is None else {"spent": found["spent"]}
        save_bars(
            spent | {f"{runs} more runs": found["estimated_total"]},
            png,
            title=f"{model}: forecast",
            unit=found["currency"],
            intervals={} if None in ends else {f"{runs} more runs": ends},
        )
    if as_json:
        print_json(found | {"findings": findings})
        return
    for line in forecast_lines(found):
        console.print(line)
    print_findings(findings)


def forecast_lines(found: dict[str, Any]) -> list[str]:
    """Return a model's forecast, for reading."""
    currency = found["currency"]
    if found["estimated_total"] is None:
        return [f"{found['model_name']}: {found['note']}"]
    shown = interval(found["low"], found["high"], currency)
    total = amount(found["estimated_total"], currency)
    lines = [f"{found['planned_runs']} runs of {found['model_name']}: {total}{shown}"]
    if found["low"] is not None:
        lines.append(f"80 % interval, from {found['history']} runs")
    if found["note"]:
        lines.append(found["note"])
    if found["budget"] is not None:
        used = f"{amount(found['spent'], currency)} of {amount(found['budget'], currency)} spent"
        over = f", {amount(found['overage'], currency)} over" if found["overage"] else ""
        lines.append(f"budget {found['budget_status']}: {used}{over}")
    return lines


def _show_rest(run: Path, steps: int | None, png: Path | None, *, as_json: bool) -> None:
    from outlay.cost.live import rest_of
    from outlay.goodput.follower import read_view

    view = read_view(run, SYSTEM.wall_ns())
    target = _target(view) if steps is None else steps
    rest, findings = rest_of(view, target), view.findings
    if png is not None:
        _save_rest(rest, view, png)
    if as_json:
        print_json({"target_steps": target, "rest": rest, "findings": findings})
        return
    if rest is None:
        console.print("No step was recorded yet: nothing to go by.")
    else:
        for line in _rest_lines(rest, view):
            console.print(line)
    print_findings(findings)


def _save_rest(rest: Rest | None, view: RunView, png: Path) -> None:
    from outlay.cost.chart import save_bars
    from outlay.cost.run_cost import cost_of

    spent = cost_of(view).cost
    if rest is None or spent is None:
        raise InvalidValue("--png", str(png), "a run with a price and a step: this one lacks one")
    low, high = rest.cost.low, rest.cost.high
    save_bars(
        {"spent": spent.micros / MICROS, "to go": rest.cost.point},
        png,
        title=f"{view.identity.name}: forecast",
        unit=spent.currency,
        intervals={} if low is None or high is None else {"to go": (low, high)},
    )


def _target(view: RunView) -> int:
    from outlay.budget.report import budget_report

    report = budget_report(view)
    ahead = None if report is None else report.forecast
    if ahead is None:
        raise InvalidValue("--steps", None, "how far the run goes: it has no budget to go to")
    return ahead.at_step


def _rest_lines(rest: Rest, view: RunView) -> list[str]:
    low, high = rest.seconds.low, rest.seconds.high
    between = ""
    if low is not None and high is not None:
        between = f" ({_time(low)} to {_time(high)})"
    lines = [f"{rest.steps_left:,.0f} steps to go: {_time(rest.seconds.point)}{between}"]
    if view.rates is not None:
        currency = view.rates.currency
        shown = interval(rest.cost.low, rest.cost.high, currency)
        sure = f", {rest.cost.confidence * 100:g} % interval" if shown else ""
        lines.append(f"cost {amount(rest.cost.point, currency)}{shown}{sure}")
    return [*lines, *([rest.cost.note] if rest.cost.note else [])]


def _time(seconds: float) -> str:
    return duration_text(round(seconds * 1e9))
