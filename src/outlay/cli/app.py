"""The ``outlay`` command: its groups, by the question they answer, and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a guard or budget.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outlay import __version__
from outlay.cli import books, budget, execute, goodput, guard, prices, survey
from outlay.cli.output import AsJson, errors
from outlay.errors import OutlayError

# The five questions, in the order in which a user meets them.
MAY_I_LAUNCH = "May I launch this?"
WHEN_MUST_IT_STOP = "When must it stop?"
HOW_MUCH_WAS_PRODUCTIVE = "How much was productive?"
WHAT_DID_IT_COST = "What did it cost, and what should I change?"
WHICH_IS_BEST = "Which configuration is best for the same money?"
THE_BOOKS = "The books"

app = typer.Typer(
    name="outlay",
    no_args_is_help=False,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"outlay {__version__}")
        raise typer.Exit


@app.callback()
def overview(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the books of ML training: what a run may spend, what it spent, what it got for it.

    Without a command: what is running now, what it burns per hour, and what is wrong.
    """
    del version
    if context.invoked_subcommand is None:
        books.overview(as_json)


app.add_typer(guard.app, name="guard", rich_help_panel=MAY_I_LAUNCH)
app.add_typer(goodput.app, name="goodput", rich_help_panel=HOW_MUCH_WAS_PRODUCTIVE)
app.command("survey", rich_help_panel=MAY_I_LAUNCH)(survey.show_survey)
app.add_typer(prices.app, name="prices", rich_help_panel=WHAT_DID_IT_COST)
app.command("exec", rich_help_panel=THE_BOOKS)(execute.show_exec)
app.command("runs", rich_help_panel=THE_BOOKS)(books.show_runs)
app.command("collect", rich_help_panel=THE_BOOKS)(books.show_collect)
app.add_typer(books.ledger, name="ledger", rich_help_panel=THE_BOOKS)
app.add_typer(budget.budget, name="budget", rich_help_panel=WHEN_MUST_IT_STOP)


def main() -> None:
    """Run the command line; an OutlayError becomes one line and its exit code."""
    try:
        app()
    except OutlayError as error:
        errors.print("[red]error:[/red] ", end="")
        errors.print(str(error), markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (`outlay ... | head`): nothing is wrong and nobody listens.
        sys.stderr.close()
        sys.exit(0)
