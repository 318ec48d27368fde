"""``outlay cost budget``: what may be spent on all runs of a model together."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.cost_tables import budget_rows, budget_table, open_books
from outlay.cli.options import AsJson
from outlay.cli.output import console, print_findings, print_json

app = typer.Typer(help="What may be spent on all runs of a model.", no_args_is_help=True)


@app.command("set")
def set_budget(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model; it may have no run yet.")],
    limit: Annotated[str, typer.Argument(metavar="AMOUNT", help='How much, such as "1000 USD".')],
    as_json: AsJson = False,
) -> None:
    """Set a model's budget.

    Example: outlay cost budget set bert-base "1000 USD"
    """
    from outlay.cost.analyzer import CostAnalyzer

    CostAnalyzer().set_budget(model, limit)
    _show(model, as_json=as_json)


@app.command("status")
def status(as_json: AsJson = False) -> None:
    """Show how much of each model's budget is spent, and tell each threshold once.

    Example: outlay cost budget status
    """
    _show(as_json=as_json)


def _show(only: str | None = None, *, as_json: bool) -> None:
    from outlay.cost.analyzer import CostAnalyzer

    books = open_books()
    rows = [row for row in budget_rows(books.book) if only in (None, row.model)]
    analyzer = CostAnalyzer()
    alerts = [alert for row in rows if (alert := analyzer.check_budget(row.model))]
    if as_json:
        print_json({"budgets": rows, "alerts": alerts, "findings": books.findings})
        return
    if not rows:
        console.print('No budget is set: outlay cost budget set MODEL "1000 USD"')
    else:
        console.print(budget_table(rows))
    for alert in alerts:
        console.print("alert ", style="yellow", end="")
        console.print(alert.message)
    print_findings(books.findings)
