"""The ``outlay`` command: its groups, by the question they answer, and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a guard or budget.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from outlay._version import __version__
from outlay.cli.output import AsJson, errors
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


class CommandEntry(NamedTuple):
    """A command or a group of commands, as far as ``--help`` and completion show it.

    Attributes:
        question: What it answers; the panel of the help that it stands in.
        help: The first paragraph of the command's own help, which a test holds it to.
    """

    name: str
    module: str
    attribute: str
    question: str
    help: str


ENTRIES = (
    CommandEntry(
        "guard", "outlay.cli.guard.commands", "app", MAY_I_LAUNCH,
        "Ask before spending, record after it, and end what was rented.",
    ),
    CommandEntry(
        "watch", "outlay.cli.watch", "show_watch", MAY_I_LAUNCH,
        "End what is rented and overdue, settle what is gone, replace watchers that died.",
    ),
    CommandEntry(
        "survey", "outlay.cli.prices.survey", "show_survey", MAY_I_LAUNCH,
        "Compare vendors for a short job and pick one: "
        "cheapest spot with NVLink, else single-node.",
    ),
    CommandEntry(
        "budget", "outlay.cli.budget", "budget", WHEN_MUST_IT_STOP,
        "When a run must stop, and how much is left.",
    ),
    CommandEntry(
        "goodput", "outlay.cli.goodput", "app", HOW_MUCH_WAS_PRODUCTIVE,
        "How much of a run was productive, and where the rest went.",
    ),
    CommandEntry(
        "prices", "outlay.cli.prices.prices", "app", WHAT_DID_IT_COST,
        "What a GPU costs, where, now and before.",
    ),
    CommandEntry(
        "cost", "outlay.cli.cost.runs", "app", WHAT_DID_IT_COST,
        "What runs and models cost, what they will cost, and what that bought.",
    ),
    CommandEntry(
        "rates", "outlay.cli.prices.survey", "app", WHAT_DID_IT_COST,
        "What a GPU-hour costs on each partition of your cluster.",
    ),
    CommandEntry(
        "advise", "outlay.cli.advise", "show_advice", WHAT_DID_IT_COST,
        "Say what to change about a run: what it saves, how sure that is, and on what evidence.",
    ),
    CommandEntry(
        "cost-report", "outlay.cli.cost.report", "show_cost_report", WHAT_DID_IT_COST,
        "Show costs, prices, budgets and advice; without a flag, the summary.",
    ),
    CommandEntry(
        "sweep", "outlay.cli.sweep.commands", "app", WHICH_IS_BEST,
        "Many configurations under the same budget, and which is best.",
    ),
    CommandEntry(
        "demo", "outlay.cli.demo", "show_demo", THE_BOOKS,
        "Show all of outlay on a small real training: "
        "plan, guard, mishaps, ranking, dollars, advice.",
    ),
    CommandEntry(
        "report", "outlay.cli.report", "show_report", THE_BOOKS,
        "Write one page about a run or a sweep: what it got for its time and money, and how sure.",
    ),
    CommandEntry(
        "web", "outlay.cli.report", "show_web", THE_BOOKS,
        "Show runs, money, sweeps and the guard in a browser, live; read-only, until Ctrl-C.",
    ),
    CommandEntry(
        "exec", "outlay.cli.execute", "show_exec", THE_BOOKS,
        "Run any command and record what it took: wall time, attempts, GPU load, cost.",
    ),
    CommandEntry(
        "runs", "outlay.cli.books", "show_runs", THE_BOOKS,
        "List runs: status, attempts, steps, cost, last seen.",
    ),
    CommandEntry(
        "collect", "outlay.cli.books", "show_collect", THE_BOOKS,
        "Register every run below some directories, any number of times with the same result.",
    ),
    CommandEntry(
        "import", "outlay.cli.importing", "import_app", THE_BOOKS,
        "Bring what others recorded into the books.",
    ),
    CommandEntry(
        "ledger", "outlay.cli.importing", "ledger_app", THE_BOOKS, "Look into a run's log."
    ),
    CommandEntry(
        "export", "outlay.cli.importing", "export_app", THE_BOOKS,
        "Write results in the forms that other tools read.",
    ),
)  # fmt: skip


class _Unloaded(TyperCommand):
    """A command by name and help alone, which is what ``--help`` and completion need of it."""


class _LazyCommands(TyperGroup):
    """The commands of ``ENTRIES``, in that order; resolving one loads its module, and no other."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names as ``ENTRIES`` has them; typer would put groups behind the others."""
        del ctx
        return [entry.name for entry in ENTRIES]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called, or whose arguments are completed, and return it."""
        if isinstance(self.commands.get(args[0]), _Unloaded):
            (entry,) = (entry for entry in ENTRIES if entry.name == args[0])
            self.commands[entry.name] = _load(entry)
        return super().resolve_command(ctx, args)


def _load(entry: CommandEntry) -> Any:
    """Import a command and return it as its group holds it."""
    alone = typer.Typer()
    _add(alone, entry)
    return typer.main.get_group(alone).commands[entry.name]


def _add(app: typer.Typer, entry: CommandEntry) -> None:
    loaded = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=entry.name, rich_help_panel=entry.question)
    else:
        app.command(entry.name, rich_help_panel=entry.question)(loaded)


def build(*, loaded: bool = False) -> typer.Typer:
    """Return the command line.

    Args:
        loaded: With every command's module; else each is loaded when it is called.
    """
    app = typer.Typer(
        name="outlay",
        cls=_LazyCommands,
        no_args_is_help=False,
        invoke_without_command=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(overview)
    for entry in ENTRIES:
        if loaded:
            _add(app, entry)
        else:
            panel = entry.question
            app.command(entry.name, cls=_Unloaded, help=entry.help, rich_help_panel=panel)(_nothing)
    return app


def _nothing() -> None:
    """Stand for a command that is not loaded; it is replaced before it is called."""


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
        build()()
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
    """Say whether Ctrl-C is behind an end, which typer turns into an exit without a message."""
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
    return build(loaded=True)
