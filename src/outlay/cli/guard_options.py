"""What the commands of ``outlay guard`` share: their options, and how they open a log."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from outlay.errors import InvalidValue
from outlay.escaping import terminal_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.errors import CeilingUnusable
from outlay.guard.vendors import preset

DEFAULT_LOG: Final = Path("spend.jsonl")
Log = Annotated[
    Path,
    typer.Option(
        metavar="PATH", help="The spend log, or its directory.", envvar="OUTLAY_SPEND_LOG"
    ),
]
Ceiling = Annotated[
    str | None,
    typer.Option(help="The hard ceiling; default: the manifest's, else the log's last."),
]
Lab = Annotated[str | None, typer.Option(help="The lab that pays; default: the label's.")]
VendorName = Annotated[
    str | None, typer.Option(help="runpod, vast or lambda, whose commands are known.")
]
Confirm = Annotated[
    list[str] | None,
    typer.Option("--confirm", help="A check that you have made, by its name; repeatable."),
]


def open_guard(log: Path, ceiling: str | None, *, lenient: bool = False) -> BudgetGuard:
    """Return the guard of a log.

    Args:
        log: The log, or the directory it is in.
        ceiling: The ceiling, or None for the one that the manifest or the log states.
        lenient: For reading only: a log that can't be trusted, or states no ceiling, still opens.

    Raises:
        CeilingUnusable: Nothing states a ceiling.
        InvalidValue: There is no log to read.
    """
    path = log / DEFAULT_LOG if log.is_dir() else log
    if ceiling is not None:
        return BudgetGuard(ceiling, path)
    if lenient:
        if not path.exists():  # Somebody may have removed it: that is not to be called sound.
            raise InvalidValue("--log", str(path), "a spend log that exists")
        return BudgetGuard(0, path, environ={})
    try:
        return BudgetGuard.of_log(path)
    except CeilingUnusable as error:
        if path.exists():
            raise
        raise CeilingUnusable(str(path), "no such log", "--log PATH or --ceiling AMOUNT") from error


def say(text: str) -> None:
    """Tell a person something while a command runs; standard output is the command's own."""
    with suppress(OSError):  # Nobody reads it any more; what costs money still has to be ended.
        sys.stderr.write(f"outlay: {terminal_text(text)}\n")
        sys.stderr.flush()


def watched(vendor: str | None) -> tuple[Vendor, ...]:
    """Return a vendor to be looked at, if one was named."""
    return (preset(vendor),) if vendor else ()


def minute_of(ts: str) -> str:
    """Return an instant of the spend log as people read it, to the minute."""
    return f"{ts[:16].replace('T', ' ')}Z"
