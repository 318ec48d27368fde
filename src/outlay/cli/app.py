"""The ``outlay`` command: what it consists of, and its exit codes.

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
from outlay.cli.output import AsJson, WrappingCommand, errors, print_problem
from outlay.errors import OutlayError
from outlay.store import outlay_home

# What a user wants to do, in the order in which it comes up.
RECORD = "Record"
LOOK = "Look"
DECIDE = "Decide"
HOLD = "Hold"
ACCOUNT = "Account"

PIPE_CLOSED = 141  # As a shell gives it: 128 and SIGPIPE.
INTERRUPTED = "interrupted; what was written so far stays"


class CommandEntry(NamedTuple):
    """A command or a group of commands, as far as ``--help`` and completion show it.

    Attributes:
        target: Where it is defined below ``outlay.cli``: ``module:function``, or the Typer app.
        panel: The panel of the help that it stands in; "" for a former name, which no help shows.
        help: The first paragraph of the command's own help, which a test holds it to.
        wraps: Whether its last argument is a command line of the user's.
    """

    name: str
    target: str
    panel: str
    help: str
    wraps: bool = False

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(f"outlay.cli.{module}"), attribute)


# A command is a line. A former name is a line, too: it is understood, and shown nowhere.
ENTRIES = (
    CommandEntry("exec", "execute:show_exec", RECORD, "Run a command, record what it took.", True),
    CommandEntry("demo", "demo:show_demo", RECORD, "Show all of outlay on a small real training."),
    CommandEntry("runs", "books:show_runs", LOOK, "List runs: status, steps, cost, last seen."),
    CommandEntry("report", "report:show_report", LOOK, "Write one page about a run or a sweep."),
    CommandEntry("web", "report:show_web", LOOK, "Show runs, money and sweeps in a browser, live."),
    CommandEntry("goodput", "goodput:app", LOOK, "How much of a run was productive."),
    CommandEntry("cost", "cost.runs:app", LOOK, "What runs and models cost, and will cost."),
    CommandEntry("budget", "budget:budget", LOOK, "When a run must stop, and how much is left."),
    CommandEntry("log", "importing:log_app", LOOK, "Read and check a run's log."),
    CommandEntry("advise", "advise:show_advice", DECIDE, "Say what to change, and what it saves."),
    CommandEntry("prices", "prices.commands:app", DECIDE, "What a GPU costs, now and before."),
    CommandEntry("sweep", "sweep.commands:app", DECIDE, "Compare configurations on equal budgets."),
    CommandEntry("guard", "guard.commands:app", HOLD, "Ask before spending; end what is rented."),
    CommandEntry("watch", "watch:show_watch", HOLD, "End rentals in time, send alerts."),
    CommandEntry("digest", "cost.digest:show_digest", ACCOUNT, "Show the week on a page."),
    CommandEntry(
        "import", "importing:import_app", ACCOUNT, "Register what was recorded elsewhere."
    ),
    CommandEntry("export", "importing:export_app", ACCOUNT, "Write files for other tools."),
    CommandEntry("survey", "prices.survey:show_survey", "", "Compare vendors, and pick one."),
    CommandEntry("rates", "prices.survey:app", "", "What a GPU-hour costs on each partition."),
    CommandEntry("ledger", "importing:log_app", "", "Read and check a run's log."),
    CommandEntry("collect", "importing:import_runs", "", "Register every run below directories."),
    CommandEntry("cost-report", "cost.report:show_cost_report", "", "Show costs and prices."),
)


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
    loaded, hidden = entry.load(), not entry.panel
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=entry.name, rich_help_panel=entry.panel, hidden=hidden)
    else:
        wraps = WrappingCommand if entry.wraps else None
        app.command(entry.name, cls=wraps, rich_help_panel=entry.panel, hidden=hidden)(loaded)


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
            app.command(
                entry.name, cls=_Unloaded, help=entry.help, rich_help_panel=entry.panel,
                hidden=not entry.panel,
            )(_nothing)  # fmt: skip
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
    """Run the command line; end quietly where its reader has gone away (``outlay … | head``)."""
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:  # Closed by the caller (``>&-``).
                sys.stdout.flush()
    except (SystemExit, BrokenPipeError) as ended:
        seen = ended.__context__ if isinstance(ended, SystemExit) else ended
        if not isinstance(seen, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes it once more.
        sys.exit(PIPE_CLOSED)


def _run() -> None:
    """Run a command; whatever the user can mend becomes one line and its exit code."""
    try:
        _look_for_strays()
        build()()
    except OutlayError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if _is_behind(KeyboardInterrupt, ended):
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


def _is_behind(kind: type[BaseException], ended: BaseException) -> bool:
    """Say whether an exception is behind an end; typer makes an exit without a message of it."""
    behind: BaseException | None = ended
    while behind is not None and not isinstance(behind, kind):
        behind = behind.__cause__ or behind.__context__
    return behind is not None


def _print_error(text: str) -> None:
    print_problem("error:", "red", text, errors)


def __getattr__(name: str) -> Any:
    """Return ``app``, the whole command line, for those who look at all of it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return build(loaded=True)
