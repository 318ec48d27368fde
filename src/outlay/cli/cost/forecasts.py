"""``outlay cost forecast | alert``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.cost.tables import (
    AsOf,
    amount,
    budget_document,
    budget_rows,
    budget_table,
    interval,
    must_be_drawable,
    open_books,
    parse_as_of,
)
from outlay.cli.output import (
    AsJson,
    Png,
    console,
    print_findings,
    print_json,
    print_problem,
    shown_path,
)
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue
from outlay.guard.ceilings import ScopeStanding
from outlay.store import open_store
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, money_of

if TYPE_CHECKING:
    from outlay.cost.forecast import ModelForecast, Rest
    from outlay.export.live_runs import GuardReading
    from outlay.goodput.follower import RunView

# ``outlay cost forecast``.


def show_forecast(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model's name.")] = None,
    runs: Annotated[
        int | None, typer.Argument(metavar="[RUNS]", min=0, help="Number of planned runs.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Forecast the rest of this run instead.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --run: total steps; default: up to its budget.")
    ] = None,
    backtest: Annotated[
        bool,
        typer.Option(
            "--backtest",
            help="Show the error of such forecasts on the model's own history instead.",
        ),
    ] = False,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Forecast the cost of planned runs of a model, or of the rest of a live run.

    Example: outlay cost forecast bert-base 5
    """
    if run is not None:
        if model is not None:
            raise InvalidValue("MODEL", model, "MODEL and RUNS, or --run RUN, not both")
        _show_rest(run, steps, png, as_json=as_json)
        return
    if backtest and model is not None:
        _show_backtest(model, 1 if runs is None else runs, as_json=as_json)
        return
    if model is None or runs is None:
        raise InvalidValue("forecast", model, "MODEL and RUNS, or --run RUN")
    if steps is not None:
        raise InvalidValue("--steps", steps, "--run RUN as well")
    from outlay.cost.forecast import forecast_model

    books = open_books()
    found = forecast_model(model, books.book.reports(model), books.book.budget(model), runs)
    findings = books.findings
    if png is not None:
        must_be_drawable(png, found.history, f"a cost of {model}")
        amounts = {"spent": found.spent, f"{runs} more runs": found.estimated_total}
        known = {name: amount for name, amount in amounts.items() if amount is not None}
        parts = {name: money_of(each, found.currency) for name, each in known.items()}
        _save_forecast(png, model, parts, (found.low, found.high))
    if as_json:
        print_json(asdict(found) | {"findings": findings})
        return
    for line in forecast_lines(found):
        console.print(line)
    print_findings(findings)


def _show_backtest(model: str, runs: int, *, as_json: bool) -> None:
    from outlay.cost.forecast import backtest, past_costs

    books = open_books()
    found, findings = backtest(past_costs(books.book.reports(model)), runs), books.findings
    if as_json:
        document = asdict(found) | {"coverage": found.coverage}
        print_json({"model_name": model} | document | {"findings": findings})
        return
    ahead = counted(runs, "run")
    if not found.forecasts or found.error is None or found.naive_error is None:
        console.print(f"{model}: too few runs to test a forecast of {ahead}.")
    else:
        console.print(
            f"{found.forecasts} forecasts of {ahead} of {model}, each from the runs before"
        )
        console.print(
            f"mean error {found.error:.1%} of the actual cost; "
            f"repeating the last run's cost: {found.naive_error:.1%}"
        )
        held = f"{found.held} of {found.with_interval}"
        console.print(f"{held} intervals of {found.confidence:.0%} contained the actual cost")
    print_findings(findings)


def forecast_lines(found: ModelForecast) -> list[str]:
    """Return a model's forecast as lines of text."""
    currency = found.currency
    if found.estimated_total is None:
        return [f"{found.model_name}: {found.note}"]
    shown = interval(found.low, found.high, currency)
    total = amount(found.estimated_total, currency)
    lines = [f"{counted(found.planned_runs, 'run')} of {found.model_name}: {total}{shown}"]
    if found.low is not None:
        lines.append(f"80 % interval, from {found.history} runs")
    if found.note:
        lines.append(found.note)
    if found.budget is not None:
        used = f"{amount(found.spent, currency)} of {amount(found.budget, currency)} spent"
        lines.append(f"budget: {used}; {_budget_forecast(found)}")
    return lines


def _budget_forecast(found: ModelForecast) -> str:
    """Return the state of the budget after the planned runs."""
    match found.budget_status:
        case "OVER":
            over = amount(found.overage, found.currency)
            return f"forecast {over} over it"
        case "WARNING":
            return "forecast above 90 % of it"
        case "OK":
            return "forecast within it"
        case _:
            return "no forecast"


def _show_rest(run: Path, steps: int | None, png: Path | None, *, as_json: bool) -> None:
    from outlay.cost.forecast import rest_of
    from outlay.goodput.follower import read_view

    view = read_view(run, SYSTEM.wall_ns())
    target = _target(view) if steps is None else steps
    rest, findings = rest_of(view, target), view.findings
    if png is not None:
        _save_rest(rest, view, png)
    if as_json:
        currency = None if view.rates is None else view.rates.currency
        document = {"target_steps": target, "rest": rest, "currency": currency}
        print_json(document | {"findings": findings})
        return
    if rest is None:
        console.print("No step has been recorded yet: no forecast is possible.")
    else:
        for line in _rest_lines(rest, view):
            console.print(line)
    print_findings(findings)


def _save_rest(rest: Rest | None, view: RunView, png: Path) -> None:
    from outlay.cost.run_cost import cost_of

    spent = cost_of(view).cost
    if rest is None or spent is None:
        raise InvalidValue("--png", str(png), "a run with a price and at least one step")
    parts = {"spent": spent, "to go": money_of(rest.cost.point, spent.unit)}
    _save_forecast(png, view.identity.name, parts, (rest.cost.low, rest.cost.high))


def _save_forecast(
    png: Path, name: str, parts: dict[str, Money], ends: tuple[float | None, float | None]
) -> None:
    """Draw the parts; ``ends`` is the interval of the last one, the forecast."""
    from outlay.report.drawing.pictures import save_charts
    from outlay.report.drawing.run_charts import money_bars

    label, unit = list(parts)[-1], next(iter(parts.values())).unit
    low, high = (None if end is None else money_of(end, unit) for end in ends)
    intervals = {} if low is None or high is None else {label: (low, high)}
    save_charts([money_bars(parts, title=f"{name}: forecast", intervals=intervals)], png)


def _target(view: RunView) -> int:
    from outlay.budget.report import budget_report

    report = budget_report(view)
    ahead = None if report is None else report.forecast
    if ahead is None:
        raise InvalidValue(
            "--steps", None, "the total number of steps, since the run has no budget"
        )
    return ahead.at_step


def _rest_lines(rest: Rest, view: RunView) -> list[str]:
    low, high = rest.seconds.low, rest.seconds.high
    between = ""
    if low is not None and high is not None:
        between = f" ({_time(low)} to {_time(high)})"
    lines = [f"{rest.steps_left:,.0f} steps left: {_time(rest.seconds.point)}{between}"]
    if view.rates is not None:
        currency = view.rates.currency
        shown = interval(rest.cost.low, rest.cost.high, currency)
        sure = f", {rest.cost.confidence * 100:g} % interval" if shown else ""
        lines.append(f"cost {amount(rest.cost.point, currency)}{shown}{sure}")
    return [*lines, *([rest.cost.note] if rest.cost.note else [])]


def _time(seconds: float) -> str:
    return duration_text(round(seconds * 1e9))


# ``outlay cost alert``, formerly ``outlay cost ceiling``.

app = typer.Typer(
    help="Alert on what all runs of a model cost; it stops nothing.", no_args_is_help=True
)
_PATIENCE_S = 10.0  # for a book's server


@app.command("set")
def set_budget(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model; it may have no run.")],
    limit: Annotated[str, typer.Argument(metavar="AMOUNT", help='Such as "1000 USD".')],
    as_json: AsJson = False,
) -> None:
    """Alert when the runs of a model have cost 50, 75, 90 and 100 % of an amount; it stops nothing.

    Example: outlay cost alert set bert-base "1000 USD"
    """
    from outlay.cost.cost_book import CostBook

    keep_cost_files("costs")
    CostBook(open_store()).set_budget(model, limit, SYSTEM.wall_ns())
    _show(model, as_json=as_json)


@app.command("status")
def status(as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Show how much of each model's amount is spent, beside the limits of spend logs, which refuse.

    Each threshold alerts once. Limits are those of now, of the spend logs and books known here.

    Example: outlay cost alert status
    """
    _show(as_of=as_of, as_json=as_json, with_limits=as_of is None)


def _show(
    only: str | None = None, *, as_of: str | None = None, as_json: bool, with_limits: bool = False
) -> None:
    books = open_books(parse_as_of(as_of))
    rows = [row for row in budget_rows(books) if only in (None, row.model)]
    checked = rows if as_of is None else []  # The past raises no alerts.
    found = (books.book.check_budget(row.model, books.now_ns) for row in checked)
    alerts = [alert for alert in found if alert is not None]
    findings = [*books.findings, *(each for row in rows for each in books.unpriced(row.model))]
    guards = _guards(findings) if with_limits else ()
    if as_json:
        budgets = [budget_document(row) for row in rows]
        limits = [_limit_row(guard, row) for guard in guards for row in guard.standings]
        print_json(
            {
                "budgets": budgets, "alerts": alerts, "as_of": as_of, "limits": limits,
                "findings": findings,
            }
        )  # fmt: skip
        return
    if not rows:
        console.print('No model has an amount. Set one: outlay cost alert set MODEL "1000 USD"')
    else:
        console.print(budget_table(rows))
    _print_limits(guards)
    for alert in alerts:
        print_problem("alert", "yellow", alert.message, console)
    print_findings(findings)


def _guards(findings: list[Finding]) -> tuple[GuardReading, ...]:
    from outlay.export.live_runs import read_guards_once
    from outlay.export.spend_logs import shown_logs

    return read_guards_once(shown_logs(None), findings, patience_s=_PATIENCE_S)


def _limit_row(guard: GuardReading, row: ScopeStanding) -> dict[str, object]:
    return {
        "log": guard.log_path, "scope": str(row.scope), "limit": row.limit, "spent": row.captured,
        "held": row.held, "remaining": row.remaining, "refuses": row.refuses,
    }  # fmt: skip


def _print_limits(guards: Sequence[GuardReading]) -> None:
    from outlay.cli.guard.log import scopes_table

    for guard in guards:
        refusing = tuple(row for row in guard.standings if row.refuses)
        if refusing:
            console.print(f"\nLimits that refuse, {shown_path(guard.log_path)}", style="bold")
            console.print(scopes_table(refusing))
