"""The ``outlay`` command: its table of commands, lazy loading, and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a guard or budget.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from outlay._version import __version__
from outlay.cli.output import (
    AsJson,
    WrappingCommand,
    errors,
    print_json,
    print_problem,
    print_rows,
    print_sentence,
    print_title,
)
from outlay.errors import InvalidValue, OutlayError
from outlay.store import outlay_home

if TYPE_CHECKING:
    from outlay.proc.orphaned_tree import OrphanedTree

FIRST = "First"  # The topic of the commands that `outlay --help` shows one by one.
MORE = "More: outlay help TOPIC"
ALL = "all"

# Topics of `outlay help`, in the order in which they are shown, and the question that each answers.
TOPICS = {
    "look": "Where did the time go, and what was recorded?",
    "money": "What did it cost, when must it stop, what should change?",
    "prices": "What does a GPU cost, now and before?",
    "sweep": "Which configuration is best for the same money?",
    "team": "Who may spend what, on which machines?",
    "files": "How do results of other tools come in, and go out?",
}

PIPE_CLOSED = 141  # As a shell reports it: 128 + SIGPIPE.
INTERRUPTED = "interrupted; everything written so far is kept"


class CommandEntry(NamedTuple):
    """A command or a group of commands, as ``--help`` and completion show it.

    Attributes:
        target: ``module:function`` or ``module:app`` below ``outlay.cli``.
        topic: ``FIRST`` or one of ``TOPICS``; "" for a former name, which is hidden.
        help: The first paragraph of the command's own help; a test compares the two.
        wraps: Whether its last argument is a command line of the user.
    """

    name: str
    target: str
    topic: str
    help: str
    wraps: bool = False

    def load(self) -> Any:
        """Import the command function or Typer app."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(f"outlay.cli.{module}"), attribute)


# One entry per command. Former names still work and are hidden.
ENTRIES = (
    CommandEntry(
        "exec", "execute:show_exec", FIRST, "Run a command, record its time and cost.", True
    ),
    CommandEntry("runs", "runs:show_runs", FIRST, "List runs: status, cost, goodput, last seen."),
    CommandEntry("report", "report:show_report", FIRST, "Write one page about a run or a sweep."),
    CommandEntry("guard", "guard.commands:app", FIRST, "Check before spending; end rentals."),
    CommandEntry(
        "watch",
        "watch:show_watch",
        FIRST,
        "End rentals on time, register runs, ask what costs money, send alerts.",
    ),
    CommandEntry(
        "web", "report:show_web", "look", "Show runs, money and sweeps in a browser, live."
    ),
    CommandEntry("goodput", "goodput:app", "look", "How much of a run was productive."),
    CommandEntry("log", "importing:log_app", "look", "Read and check a run's log."),
    CommandEntry("demo", "demo:show_demo", "look", "Show all of outlay on a small real training."),
    CommandEntry("help", "app:show_help", "look", "List commands by topic."),
    CommandEntry("cost", "cost.runs:app", "money", "What runs and models cost and will cost."),
    CommandEntry("budget", "budget:budget", "money", "When a run must stop and how much is left."),
    CommandEntry("advise", "advise:show_advice", "money", "Show what to change and what it saves."),
    CommandEntry("digest", "report:show_digest", "money", "Show the week on one page."),
    CommandEntry("bill", "books.bill:app", "money", "Vendors' bills beside the books."),
    CommandEntry("books", "books.months:app", "money", "Close months, and show closed ones."),
    CommandEntry("prices", "prices.commands:app", "prices", "What a GPU costs, now and before."),
    CommandEntry("what-if", "what_if:show_what_if", "prices", "Replay a run under other terms."),
    CommandEntry(
        "sweep", "sweep.commands:app", "sweep", "Compare configurations on equal budgets."
    ),
    CommandEntry(
        "team", "team.commands:app", "team", "Share ceilings between machines and people."
    ),
    CommandEntry(
        "slurm", "slurm.commands:app", "team", "Hold money for a cluster's jobs, at its scheduler."
    ),
    CommandEntry("mcp", "mcp:serve_mcp", "team", "Answer agents' questions; spend nothing."),
    CommandEntry("import", "importing:import_app", "files", "Register runs recorded elsewhere."),
    CommandEntry("export", "importing:export_app", "files", "Write files for other tools."),
    CommandEntry("survey", "prices.offers:show_survey", "", "Compare vendors and pick one."),
    CommandEntry(
        "rates", "prices.commands:partition_app", "", "What a GPU-hour costs on each partition."
    ),
    CommandEntry("ledger", "importing:log_app", "", "Read and check a run's log."),
    CommandEntry(
        "collect",
        "importing:import_runs",
        "",
        "Register every run below directories; fetch and register runs that were shipped there.",
    ),
    CommandEntry("cost-report", "cost.report:show_cost_report", "", "Show costs and prices."),
)


class _Unloaded(TyperCommand):
    """A command with only a name and help, which is all ``--help`` and completion need."""


class _LazyCommands(TyperGroup):
    """The commands of ``ENTRIES``, in that order; resolving one imports its module only."""

    _in_help = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the commands of ``FIRST`` one by one, and a line for each topic of the others."""
        self._in_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._in_help = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of ``ENTRIES``; typer would put groups last."""
        del ctx
        if self._in_help:
            return [*(entry.name for entry in ENTRIES if entry.topic == FIRST), *TOPICS, ALL]
        return [entry.name for entry in ENTRIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; in help also the line of a topic, whose name may be a command's."""
        if self._in_help and cmd_name in (*TOPICS, ALL):
            text = TOPICS.get(cmd_name, "Every command.")
            return _Unloaded(cmd_name, help=text, rich_help_panel=MORE)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load and return the command that is called or whose arguments are completed."""
        if isinstance(self.commands.get(args[0]), _Unloaded):
            (entry,) = (entry for entry in ENTRIES if entry.name == args[0])
            self.commands[entry.name] = _load(entry)
        if (called := self.commands.get(args[0])) is not None:
            _fill_paragraphs(called)
        return super().resolve_command(ctx, args)


def _load(entry: CommandEntry) -> Any:
    alone = typer.Typer()
    _add(alone, entry)
    return typer.main.get_group(alone).commands[entry.name]


def _fill_paragraphs(command: Any) -> None:
    """Join the lines of each paragraph of a command's help, which a terminal breaks anew."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.splitlines()) for each in paragraphs)
    for each in getattr(command, "commands", {}).values():
        _fill_paragraphs(each)


def _add(app: typer.Typer, entry: CommandEntry) -> None:
    loaded, hidden = entry.load(), not entry.topic
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=entry.name, rich_help_panel=entry.topic, hidden=hidden)
    else:
        wraps = WrappingCommand if entry.wraps else None
        app.command(entry.name, cls=wraps, rich_help_panel=entry.topic, hidden=hidden)(loaded)


def build(*, loaded: bool = False) -> typer.Typer:
    """Return the command line; ``loaded`` imports every command now instead of when called."""
    app = typer.Typer(
        name="outlay",
        cls=_LazyCommands,
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"]},
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
                entry.name, cls=_Unloaded, help=entry.help, rich_help_panel=entry.topic,
                hidden=not entry.topic,
            )(_placeholder)  # fmt: skip
    return app


def _placeholder() -> None:
    """Replaced by ``_LazyCommands.resolve_command`` before it is called."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"outlay {__version__}")
        raise typer.Exit


def overview(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the books of ML training: what a run may spend, what it spent, what it achieved.

    Without a command: what is running now, its cost per hour, and what is wrong.
    """
    del version
    if context.invoked_subcommand is None:
        from outlay.cli import runs

        runs.overview(as_json=as_json)


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help=f"{', '.join(TOPICS)}, or {ALL}.")]


def show_help(topic: Topic = ALL, as_json: AsJson = False) -> None:
    """List commands by topic.

    Example: outlay help money
    """
    if topic not in (*TOPICS, ALL):
        raise InvalidValue("TOPIC", topic, f"{', '.join(TOPICS)} or {ALL}")
    topics = (FIRST, *TOPICS) if topic == ALL else (topic,)
    if as_json:
        print_json([_document(entry) for each in topics for entry in _entries(each)])
        return
    for each in topics:
        print_title(TOPICS.get(each, each))
        print_rows(
            ("command", "what it does"),
            [(e.name, e.help) for e in _entries(each)],
            prose=("what it does",),
        )
    print_sentence("outlay COMMAND --help shows its options.")


def _entries(topic: str) -> Iterator[CommandEntry]:
    return (entry for entry in ENTRIES if entry.topic == topic)


def _document(entry: CommandEntry) -> dict[str, str]:
    return {"command": entry.name, "topic": entry.topic.lower(), "help": entry.help}


def main() -> None:
    """Run the command line; exit quietly when the reader closed the pipe (``outlay … | head``)."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout again on exit.
        sys.exit(PIPE_CLOSED)


def main_of(*command: str) -> None:
    """Run one command, as ``python -m`` of a package does; ``-V`` is outlay's version."""
    if sys.argv[1:] not in (["-V"], ["--version"]):
        sys.argv[1:1] = command
    main()


def _run() -> None:
    """Run a command; errors that the user can fix become one line and an exit code."""
    try:
        _settle_orphaned_trees()
        build()()
    except OutlayError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if _was_caused_by(KeyboardInterrupt, ended):
            errors.print(INTERRUPTED)
            _forget_interrupt()
        raise
    except KeyboardInterrupt:  # Before typer took over.
        errors.print(INTERRUPTED)
        _forget_interrupt()
        sys.exit(130)
    except OSError as error:
        if error.filename is None:
            raise  # Nothing in it helps the user.
        _print_error(f"{error.filename}: {error.strerror}")
        sys.exit(1)


def _settle_orphaned_trees() -> None:
    """Report commands whose supervisor and keeper were both killed.

    A command of ``outlay exec`` is recorded again; any other is ended.
    """
    kept = outlay_home() / "kept"
    try:
        if not any(os.scandir(kept)):
            return
    except OSError:
        return
    from outlay.proc.orphaned_tree import find_orphaned_trees

    for orphaned in find_orphaned_trees(kept):
        errors.print(f"outlay: {_settle_orphaned(orphaned)}", soft_wrap=True)


def _settle_orphaned(orphaned: OrphanedTree) -> str:
    """Take over or end one orphaned process tree; return the message for the user."""
    from outlay.proc.identity import command_line

    about = orphaned.record.about
    # Only the program's name: its arguments may hold a secret.
    what = ", ".join(f"process {p.pid} ({command_line(p.pid)[0]})" for p in orphaned.alive)
    killed = "its supervisor and its keeper were killed"
    match about.get("kind"):
        case "exec":
            from outlay.runs.exec import take_over

            take_over(orphaned)
            return f"{what} is still running, {killed}. Recording resumed in {about['run_dir']}."
        case "guard":
            hold = f"was still running under hold {about['hold']}"
            return f"{what} {hold}: {killed}. {_capture_orphaned(orphaned)}"
        case _:
            orphaned.end()
            orphaned.forget()
            root = about.get("root", "")
            return f"{what} of the sweep in {root} was still running: {killed}. It was ended."


def _capture_orphaned(orphaned: OrphanedTree) -> str:
    from outlay.guard.supervise import settle_orphaned

    try:
        actual = settle_orphaned(orphaned)
    except OutlayError as error:
        return f"It was ended; its cost could not be recorded: {error}"
    return "It was ended." if actual is None else f"It was ended; {actual} recorded for it."


def _was_caused_by(kind: type[BaseException], ended: BaseException) -> bool:
    """Return whether ``kind`` is in the exception chain; typer turns an interrupt into an exit."""
    cause: BaseException | None = ended
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _forget_interrupt() -> None:
    """Have Python end with an exit code instead of by SIGINT.

    It remembers that ``exec`` of a text, with which dataclasses are made, was interrupted, whether
    or not that was handled since; the next ``exec`` forgets it.
    """
    exec("")  # noqa: S102


def _print_error(text: str) -> None:
    print_problem("error:", "red", text, errors)


def __getattr__(name: str) -> Any:
    """Return ``app``: the command line with every command loaded."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return build(loaded=True)
