"""``outlay cost``: what runs and models cost, what they will cost, and what that bought."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.advise.exchange import export_recommendations, import_recommendations
from outlay.advise.optimizer import CostOptimizer
from outlay.budget.report import read_report
from outlay.cli import cost_allocate, cost_budget
from outlay.cli.cost_tables import (
    amount,
    comparison_table,
    interval,
    open_books,
    run_table,
    score,
    unit_lines,
)
from outlay.cli.groups import DefaultGroup
from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM, utc_text
from outlay.cost.analyzer import CostAnalyzer
from outlay.cost.chart import save_bars, save_front
from outlay.cost.compare import ModelComparison, by_model, candidates_of, compare, pareto_front
from outlay.cost.exchange import Exchanged, export_costs, import_costs
from outlay.cost.forecast import Rest
from outlay.cost.live import rest_of
from outlay.cost.reading import RunReading, read_whole_run
from outlay.cost.run_cost import cost_of
from outlay.errors import InvalidValue, OutlayError, choices
from outlay.units.money import MICROS
from outlay.units.quantity import duration_text

app = typer.Typer(
    cls=DefaultGroup,
    help="What runs and models cost, what they will cost, and what that bought.",
    no_args_is_help=True,
)
app.add_typer(cost_budget.app, name="budget")
app.command("allocate")(cost_allocate.allocate_cost)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.")]
Png = Annotated[Path | None, typer.Option(help="Also draw a picture into this file.")]


@app.command("show")
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")],
    as_json: AsJson = False,
) -> None:
    """Show what a run cost: by phase, and per step, sample, token and point of accuracy.

    Example: outlay cost runs/001
    """
    cost = cost_of(read_whole_run(run, SYSTEM.wall_ns()))
    if as_json:
        print_json({"cost": cost, "per": cost.unit_costs()})
        return
    console.print(run_table(cost))
    for line in unit_lines(cost):
        console.print(line)
    print_findings(cost.findings)


@app.command("summary")
def summary(png: Png = None, as_json: AsJson = False) -> None:
    """Show what every model cost so far.

    Example: outlay cost summary --png cost.png
    """
    books = open_books()
    models = {name: compare(rows) for name, rows in by_model(books.book.reports()).items()}
    if png is not None:
        _must_be_drawable(png, models, "a cost")
        save_bars(
            {name: figures.total_cost for name, figures in models.items()},
            png,
            title="Cost by model",
            unit="/".join(sorted({figures.currency for figures in models.values()})),
        )
    if as_json:
        print_json({"models": models, "totals": _totals(models), "findings": books.findings})
        return
    if not models:
        console.print("No costs are known. Register runs with: outlay collect DIR")
    else:
        console.print(comparison_table(models))
        for currency, total in _totals(models).items():
            console.print(f"\nIn all: {amount(total, currency)}")
    print_findings(books.findings)


@app.command("model")
def show_model(model: Model, as_json: AsJson = False) -> None:
    """Show the runs of a model: what each cost and reached.

    Example: outlay cost model bert-base
    """
    books = open_books()
    rows = books.book.reports(model)
    if not rows:
        raise UnknownModel(model, [row.model for row in books.book.reports()])
    models = {name: compare(found) for name, found in by_model(rows).items()}
    if as_json:
        print_json({"model": model, "figures": models, "runs": rows, "findings": books.findings})
        return
    console.print(comparison_table(models))
    table = new_table("run", "when", ">cost", ">GPU-hours", ">accuracy", "source")
    for row in rows:
        table.add_row(
            row.run_id, utc_text(row.at_ns)[:10], str(row.cost),
            f"{row.gpu_us / 3.6e9:,.2f}", score(row.accuracy), row.source,
        )  # fmt: skip
    console.print()
    console.print(table)
    print_findings(books.findings)


@app.command("compare")
def compare_models(
    model: Annotated[
        str | None, typer.Option(help="Compare the runs of this model instead of models.")
    ] = None,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: which of them nothing beats in accuracy, cost, time and energy.

    Example: outlay cost compare --model bert-base --png front.png
    """
    books = open_books()
    rows = books.book.reports(model)
    candidates = candidates_of(rows)
    front = pareto_front(candidates)
    models = {name: compare(found) for name, found in by_model(rows).items()}
    if png is not None:
        _must_be_drawable(png, candidates, "a run with an accuracy")
        save_front(candidates, front, png, title=model or "All runs")
    if as_json:
        print_json({"models": models, "front": front, "findings": books.findings})
        return
    if models:
        console.print(comparison_table(models))
    if front:
        console.print("\nNothing beats", style="bold")
        table = new_table("run", ">accuracy", ">cost", ">hours", ">Wh")
        for each in front:
            energy = "-" if each.energy_wh is None else f"{each.energy_wh:,.1f}"
            hours = f"{each.hours:,.2f}"
            cost = amount(each.cost, each.currency)
            table.add_row(each.name, score(each.metric), cost, hours, energy)
        console.print(table)
    else:
        console.print("No run with an accuracy is known: run.metric('accuracy', ...) records one.")
    print_findings(books.findings)


@app.command("forecast")
def forecast(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model.")] = None,
    runs: Annotated[int | None, typer.Argument(metavar="[RUNS]", min=0, help="How many.")] = None,
    run: Annotated[Path | None, typer.Option(help="Instead: the rest of this run.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --run: how far it goes; else to its budget.")
    ] = None,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Show what planned runs of a model will cost, or the rest of a live run.

    Example: outlay cost forecast bert-base 5
    """
    if run is not None:
        _show_rest(run, steps, png, as_json=as_json)
        return
    if model is None or runs is None:
        raise InvalidValue("forecast", model, "MODEL and RUNS, or --run RUN")
    findings = open_books().findings
    found = CostAnalyzer().forecast_cost(model, runs)
    if png is not None:
        _must_be_drawable(png, found["history"], f"a cost of {model}")
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


@app.command("roi")
def roi(model: Model, as_json: AsJson = False) -> None:
    """Show what a model's runs cost and what accuracy that bought.

    Example: outlay cost roi bert-base
    """
    books = open_books()
    found = CostAnalyzer().get_roi_analysis(model)
    if not found["runs"]:
        raise UnknownModel(model, [row.model for row in books.book.reports()])
    if as_json:
        print_json(found | {"findings": books.findings})
        return
    currency = found["currency"]
    console.print(f"{found['runs']} runs, {amount(found['total_investment'], currency)}")
    console.print(
        f"accuracy: first {score(found['first_accuracy'])}, "
        f"last {score(found['current_accuracy'])}, best {score(found['best_accuracy'])}"
    )
    if found["gains"]:
        table = new_table("run", ">accuracy", ">gained", ">spent since", f">per {currency}")
        for gain in found["gains"]:
            rate = "-" if gain["per_dollar"] is None else f"{gain['per_dollar']:.3g}"
            table.add_row(
                gain["run_id"], score(gain["accuracy"]), f"{gain['gained']:+.4f}",
                amount(gain["spent"], currency), rate,
            )  # fmt: skip
        console.print(table)
    print_findings(books.findings)


Files = Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are.")]


@app.command("import")
def import_files(directory: Files, as_json: AsJson = False) -> None:
    """Import cost_history.json, budgets.json and recommendations.json; again with no effect.

    Example: outlay cost import ~/.context/training
    """
    done = import_costs(CostAnalyzer(), directory.expanduser())
    taken, findings = import_recommendations(CostOptimizer(), directory.expanduser())
    done = replace(done, findings=done.findings + findings)
    _show_exchanged(done, taken, f"read from {directory}", as_json=as_json)


@app.command("export")
def export_files(directory: Files, as_json: AsJson = False) -> None:
    """Write cost_history.json, budgets.json and recommendations.json, keeping what they hold.

    Example: outlay cost export ~/.context/training
    """
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


class UnknownModel(OutlayError):
    """No run of a model has a cost."""

    exit_code = 2

    def __init__(self, model: str, known: list[str]) -> None:
        others = f"; known are {choices(set(known))[7:]}" if known else ""
        super().__init__(f"no cost of {model!r} is known{others}. outlay collect DIR adds runs.")


def _totals(models: dict[str, ModelComparison]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for figures in models.values():
        totals[figures.currency] = totals.get(figures.currency, 0.0) + figures.total_cost
    return totals


def _show_rest(run: Path, steps: int | None, png: Path | None, *, as_json: bool) -> None:
    reading = read_whole_run(run, SYSTEM.wall_ns())
    target = _target(reading) if steps is None else steps
    rest, findings = rest_of(reading.view, target), reading.view.findings
    if png is not None:
        _save_rest(rest, reading, png)
    if as_json:
        print_json({"target_steps": target, "rest": rest, "findings": findings})
        return
    if rest is None:
        console.print("No step was recorded yet: nothing to go by.")
    else:
        for line in _rest_lines(rest, reading):
            console.print(line)
    print_findings(findings)


def _must_be_drawable(png: Path, found: object, wanted: str) -> None:
    """Refuse to draw nothing: whoever asked for a picture would look for it in vain."""
    if not found:
        expected = f"{wanted} to draw, and none is known: outlay collect DIR adds runs"
        raise InvalidValue("--png", str(png), expected)


def _save_rest(rest: Rest | None, reading: RunReading, png: Path) -> None:
    spent = cost_of(reading).cost
    if rest is None or spent is None:
        raise InvalidValue("--png", str(png), "a run with a price and a step: this one lacks one")
    low, high = rest.cost.low, rest.cost.high
    save_bars(
        {"spent": spent.micros / MICROS, "to go": rest.cost.point},
        png,
        title=f"{reading.identity.name}: forecast",
        unit=spent.currency,
        intervals={} if low is None or high is None else {"to go": (low, high)},
    )


def _target(reading: RunReading) -> int:
    ahead = read_report(reading.dir, reading.view.timeline.end_ns).forecast
    if ahead is None:
        raise InvalidValue("--steps", None, "how far the run goes: it has no budget to go to")
    return ahead.at_step


def _rest_lines(rest: Rest, reading: RunReading) -> list[str]:
    low, high = rest.seconds.low, rest.seconds.high
    between = ""
    if low is not None and high is not None:
        between = f" ({_time(low)} to {_time(high)})"
    lines = [f"{rest.steps_left:,.0f} steps to go: {_time(rest.seconds.point)}{between}"]
    if reading.view.rates is not None:
        currency = reading.view.rates.currency
        shown = interval(rest.cost.low, rest.cost.high, currency)
        lines.append(f"cost {amount(rest.cost.point, currency)}{shown}, 80 % interval")
    return [*lines, *([rest.cost.note] if rest.cost.note else [])]


def _time(seconds: float) -> str:
    return duration_text(round(seconds * 1e9))
