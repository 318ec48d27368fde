"""What every command of ``outlay guard`` takes: which log, and which ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.output import errors
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import CeilingUnusable

Log = Annotated[
    Path, typer.Option(help="The spend log, or its directory.", envvar="OUTLAY_SPEND_LOG")
]
Ceiling = Annotated[
    str | None,
    typer.Option(help="The hard ceiling; default: the manifest's, else the log's last."),
]


def open_guard(log: Path, ceiling: str | None, *, lenient: bool = False) -> BudgetGuard:
    """Return the guard of a log.

    Args:
        log: The log, or the directory it is in.
        ceiling: The ceiling, or None for the one that the manifest or the log states.
        lenient: For reading only: a log that can't be trusted, or states no ceiling, still opens.
    """
    path = log / "spend.jsonl" if log.is_dir() else log
    if ceiling is not None:
        return BudgetGuard(ceiling, path)
    if lenient:
        return BudgetGuard(0, path, environ={})
    try:
        return BudgetGuard.of_log(path)
    except CeilingUnusable as error:
        if path.exists():
            raise
        raise CeilingUnusable(str(path), "no such log", "--log PATH or --ceiling AMOUNT") from error


def say(text: str) -> None:
    """Tell a person something while a command runs; standard output is the command's own."""
    errors.print(f"outlay: {text}", soft_wrap=True)
