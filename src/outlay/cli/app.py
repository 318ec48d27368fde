"""The ``outlay`` command: its groups, by the question they answer, and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a guard or budget.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from outlay import __version__
from outlay.cli.options import AsJson
from outlay.cli.output import errors
from outlay.errors import OutlayError
from outlay.store import outlay_home

# The five questions, in the order in which a user meets them.
MAY_I_LAUNCH = "May I launch this?"
WHEN_MUST_IT_STOP = "When must it stop?"
HOW_MUCH_WAS_PRODUCTIVE = "How much was productive?"
WHAT_DID_IT_COST = "What did it cost, and what should I change?"
WHICH_IS_BEST = "Which configuration is best for the same money?"
THE_BOOKS = "The books"

INTERRUPTED = "interrupted; what was written so far stays"


class Entry(NamedTuple):
    """A command or a group of commands: its name, where it lives, and the question it answers."""

    name: str
    module: str
    attribute: str
    question: str


ENTRIES = (
    Entry("guard", "outlay.cli.guard", "app", MAY_I_LAUNCH),
    Entry("survey", "outlay.cli.survey", "show_survey", MAY_I_LAUNCH),
    Entry("budget", "outlay.cli.budget", "budget", WHEN_MUST_IT_STOP),
    Entry("goodput", "outlay.cli.goodput", "app", HOW_MUCH_WAS_PRODUCTIVE),
    Entry("prices", "outlay.cli.prices", "app", WHAT_DID_IT_COST),
    Entry("cost", "outlay.cli.cost", "app", WHAT_DID_IT_COST),
    Entry("rates", "outlay.cli.rates", "app", WHAT_DID_IT_COST),
    Entry("advise", "outlay.cli.advise", "show_advice", WHAT_DID_IT_COST),
    Entry("cost-report", "outlay.cli.cost_report", "show_cost_report", WHAT_DID_IT_COST),
    Entry("sweep", "outlay.cli.sweep", "app", WHICH_IS_BEST),
    Entry("demo", "outlay.cli.demo", "show_demo", THE_BOOKS),
    Entry("report", "outlay.cli.report", "show_report", THE_BOOKS),
    Entry("exec", "outlay.cli.execute", "show_exec", THE_BOOKS),
    Entry("runs", "outlay.cli.books", "show_runs", THE_BOOKS),
    Entry("collect", "outlay.cli.books", "show_collect", THE_BOOKS),
    Entry("import", "outlay.cli.importing", "app", THE_BOOKS),
    Entry("ledger", "outlay.cli.ledger", "app", THE_BOOKS),
    Entry("export", "outlay.cli.export", "app", THE_BOOKS),
)


class _InOrder(TyperGroup):
    """Lists commands as ``ENTRIES`` does; typer would put every group behind the plain ones."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, those of one question together."""
        del ctx
        return [entry.name for entry in ENTRIES if entry.name in self.commands]


def build(names: Collection[str]) -> typer.Typer:
    """Return the command line with these commands loaded; a call pays for no other."""
    app = typer.Typer(
        name="outlay",
        cls=_InOrder,
        no_args_is_help=False,
        invoke_without_command=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(overview)
    for entry in ENTRIES:
        if entry.name in names:
            loaded = getattr(importlib.import_module(entry.module), entry.attribute)
            if isinstance(loaded, typer.Typer):
                app.add_typer(loaded, name=entry.name, rich_help_panel=entry.question)
            else:
                app.command(entry.name, rich_help_panel=entry.question)(loaded)
    return app


def needed(arguments: Sequence[str]) -> set[str]:
    """Return the commands that a call needs loaded: the one it names, or all to choose from."""
    everything = {entry.name for entry in ENTRIES}
    words = [word for word in arguments if not word.startswith("-")]
    if words and words[0] in everything:
        return {words[0]}
    asks = words or "--help" in arguments or "_OUTLAY_COMPLETE" in os.environ
    return everything if asks else set()


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"outlay {__version__}")
        raise typer.Exit


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
        from outlay.cli import books

        books.overview(as_json=as_json)


def main() -> None:
    """Run the command line; whatever the user can mend becomes one line and its exit code."""
    try:
        _look_for_strays()
        build(needed(sys.argv[1:]))()
    except OutlayError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if _was_interrupted(ended):
            errors.print(INTERRUPTED)
        raise
    except KeyboardInterrupt:  # Before typer took over.
        errors.print(INTERRUPTED)
        sys.exit(130)
    except OSError as error:
        if error.filename is None:
            raise  # It says nothing that a user could mend.
        _print_error(f"{error.filename}: {error.strerror}")
        sys.exit(1)


def _look_for_strays() -> None:
    """Deal with commands whose supervisor and keeper were both killed."""
    try:
        kept = any(os.scandir(outlay_home() / "kept"))
    except OSError:
        return
    if kept:
        from outlay.cli.strays import deal_with_strays

        deal_with_strays()


def _was_interrupted(ended: BaseException) -> bool:
    """Say whether Ctrl-C is behind an end, which typer turns into an exit without a word."""
    behind: BaseException | None = ended
    while behind is not None and not isinstance(behind, KeyboardInterrupt):
        behind = behind.__cause__ or behind.__context__
    return behind is not None


def _print_error(text: str) -> None:
    errors.print("error: ", style="red", end="")
    errors.print(text, soft_wrap=True)


def __getattr__(name: str) -> Any:
    """Return ``app``, the whole command line, for those who look at all of it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return build({entry.name for entry in ENTRIES})
