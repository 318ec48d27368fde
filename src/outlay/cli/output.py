"""How every command speaks: tables, JSON, errors; and the options that many share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from outlay.errors import Finding, InvalidValue
from outlay.escaping import json_text, one_line, terminal_text

# How every command speaks: tables for people, JSON for programs, one line for an error.


# Text is shown as it is: the name of a run, a span or an offer may hold "[/]" or ":100:", which
# rich would take for a style or a picture.
class SafeConsole(Console):
    """A console on which text is seen and never obeyed, whoever wrote it."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text as rich handles it; what a terminal would obey is made visible first."""
        return super().render_str(terminal_text(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is written; text that came here by another way is made visible, too.

        Control segments are rich's own (a live table moves the cursor): no text becomes one.
        """
        for segment in super().render(renderable, options):
            if segment.control is not None or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=terminal_text(segment.text))


console = SafeConsole(highlight=False, markup=False, emoji=False)
errors = SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)

_LAID_OUT = 100  # Rows.


def print_json(value: object) -> None:
    """Print one indented JSON document; structs, dataclasses and paths included."""
    encoded = msgspec.json.format(_encoded(value), indent=2)
    sys.stdout.write(json_text(encoded.decode()) + "\n")
    sys.stdout.flush()  # Now, where a reader that went away is answered without a traceback.


def print_json_line(value: object) -> None:
    """Print one JSON object on a line of its own, for streams of them."""
    sys.stdout.write(json_text(_encoded(value).decode()) + "\n")


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # A path need not be Unicode, and JSON is.
        return msgspec.json.encode(_visible(msgspec.to_builtins(value, enc_hook=str)))


def _visible(value: object) -> object:
    match value:
        case str():
            return terminal_text(value)
        case dict():
            return {_visible(key): _visible(item) for key, item in value.items()}
        case list() | tuple():
            return [_visible(item) for item in value]
        case _:
            return value


def print_findings(findings: Iterable[Finding], to: Console = console) -> None:
    """Show what is wrong in the data, beside whatever was shown before."""
    for finding in findings:
        style = "red" if finding.severity == "error" else "yellow"
        to.print(f"{finding.severity} ", style=style, end="")
        to.print(one_line(str(finding)), soft_wrap=True)


def print_sentence(text: str) -> None:
    """Print a sentence: broken between words on a terminal, on one line for whoever reads on."""
    console.print(text, soft_wrap=not console.is_terminal)


def counted(count: int, noun: str) -> str:
    """Return "1 run", "2 runs", "1,000 runs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def new_table(*columns: str) -> Table:
    """Return an empty table in the house style; columns that start with ">" align right.

    What is too wide for its column goes on below: a figure or a name that is cut is a wrong one.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
    return table


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; one that is longer than any screen as plain lines, however wide they are.

    Laying out a cell takes rich ten times as long as everything else that is done for a row.
    """
    if len(rows) <= _LAID_OUT:
        table = new_table(*columns)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    padded = [
        _pad([name.lstrip(">"), *cells], right=name.startswith(">"))
        for name, cells in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    head, *lines = ("  ".join(cells).rstrip() for cells in zip(*padded, strict=True))
    console.print(head, style="bold", soft_wrap=True)
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def _pad(cells: Sequence[str], *, right: bool) -> list[str]:
    """Return the cells of a column at the width of the widest; ``right`` aligns them there."""
    widths = [len(cell) if cell.isascii() else cell_len(cell) for cell in cells]
    width = max(widths)
    spaces = [" " * (width - each) for each in widths]
    if right:
        return [space + cell for cell, space in zip(cells, spaces, strict=True)]
    return [cell + space for cell, space in zip(cells, spaces, strict=True)]


def must_be_directory(directory: Path, *, name: str = "DIR") -> None:
    """Refuse a directory that is not there, or is a file."""
    if not directory.is_dir():
        problem = "a file" if directory.exists() else "no such directory"
        raise InvalidValue(name, str(directory), f"an existing directory ({problem})")


def fits(table: Table) -> bool:
    """Return whether the terminal is wide enough to show a table without wrapping any cell."""
    wide = console.options.update(width=10_000)
    return console.measure(table, options=wide).maximum <= console.width


# What many commands take, each with one name, one sentence and one place in the help.

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.")]
Png = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also draw a picture into it; needs the extra `report`."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


# A command group that is also a command: ``outlay goodput RUN`` beside ``outlay goodput diff``.

DEFAULT = "show"


class DefaultGroup(TyperGroup):
    """Runs its hidden ``show`` command when the first word names none of its commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command where none is named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args.insert(0, DEFAULT)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return how the default command is called, and that there are others."""
        return [*self.commands[DEFAULT].collect_usage_pieces(ctx), "| COMMAND [ARGS]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help of the default command, and the names of the others."""
        shown = copy(self)
        shown.params, shown.help = self.commands[DEFAULT].params, self.commands[DEFAULT].help
        TyperGroup.format_help(shown, ctx, formatter)
