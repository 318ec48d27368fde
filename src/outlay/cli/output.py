"""Output of every command: tables, JSON, findings, errors; and the options that many share."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleDimensions,
    ConsoleOptions,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from outlay.errors import Finding, InvalidValue
from outlay.escaping import ascii_json, ascii_text, json_text, one_line, terminal_text


class SafeConsole(Console):
    """A console that shows text literally: no control sequences, markup or emoji codes.

    The name of a run, a span or an offer may hold "[/]" or ":100:", which rich would interpret.
    """

    @property  # type: ignore[misc]  # rich's has a setter, which nothing here uses.
    def size(self) -> ConsoleDimensions:
        """Return the terminal's size; unbounded width without a terminal and COLUMNS."""
        size = super().size
        bounded = self.is_terminal or self._width is not None
        return size if bounded else ConsoleDimensions(_UNBOUNDED, size.height)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text as rich handles it, with control characters made visible."""
        return super().render_str(terminal_text(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield segments with control characters made visible, also in text that skips render_str.

        Control segments are rich's own (a live table moves the cursor); text never becomes one.
        """
        only_ascii = not _shows_unicode(self.encoding)
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control is None and not text.isprintable():
                text = terminal_text(text)
            if only_ascii and not text.isascii():
                text = ascii_text(text)
            yield segment if text is segment.text else segment._replace(text=text)


_UNBOUNDED = 10_000
SHOWN_DIGITS = 12  # Of a hash; enough to identify it.


def new_console(file: TextIO | None = None, *, stderr: bool = False) -> SafeConsole:
    """Return a console on a stream that shows text literally."""
    return SafeConsole(file=file, stderr=stderr, highlight=False, markup=False, emoji=False)


console = new_console()
errors = new_console(stderr=True)

_MAX_TABLE_ROWS = 100  # Longer tables are printed as plain lines.
_MIN_FOLDED_WIDTH = 12


def print_json(value: object) -> None:
    """Print one indented JSON document; structs, dataclasses and paths included."""
    encoded = msgspec.json.format(_encoded(value), indent=2)
    sys.stdout.write(_json_for(sys.stdout, encoded.decode()) + "\n")
    sys.stdout.flush()  # Here, where ``main`` handles a closed pipe.


def print_json_line(value: object) -> None:
    """Print one JSON object on one line, for JSON Lines."""
    sys.stdout.write(_json_for(sys.stdout, _encoded(value).decode()) + "\n")


def _json_for(stream: TextIO, text: str) -> str:
    return json_text(text) if _shows_unicode(stream.encoding) else ascii_json(json_text(text))


def _shows_unicode(encoding: str) -> bool:
    return encoding.lower().startswith("utf")


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # A path may hold bytes that are not Unicode.
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
    """Print each finding on its own line."""
    for finding in findings:
        style = "red" if finding.severity == "error" else "yellow"
        print_problem(finding.severity, style, one_line(str(finding)), to)


def print_problem(kind: str, style: str, text: str, to: Console) -> None:
    """Print an error or finding: wrapped on a terminal, with paths relative to this directory."""
    text = with_shown_paths(text)
    to.print(Text.assemble((kind, style), f" {text}"), soft_wrap=not to.is_terminal)


def print_sentence(text: str, to: Console | None = None, *, style: str | None = None) -> None:
    """Print text: wrapped between words on a terminal, on one line elsewhere."""
    to = to or console
    to.print(text, style=style, soft_wrap=not to.is_terminal)


def print_path(path: Path) -> None:
    """Print a path on a line of its own, never broken, so that it can be copied."""
    console.print(shown_path(path), soft_wrap=True)


def print_title(text: str) -> None:
    """Print a section title; on a terminal, with a rule to its right edge."""
    if console.is_terminal:
        console.rule(text, align="left")
    else:
        console.print(text, soft_wrap=True)


def shown_path(path: str | Path) -> str:
    """Return a path relative to this directory if it is below it."""
    return with_shown_paths(str(path))


def with_shown_paths(text: str) -> str:
    """Return text with every path below this directory made relative."""
    try:
        here = str(Path.cwd()).rstrip("/")
    except OSError:  # The directory was removed.
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(here)}/(?=[^\s/])", "", text) if here else text


def print_head(head: str) -> None:
    """Print the head of a spend log, for a later `guard verify --expect`; nothing without one."""
    if head:
        from outlay.guard.spend_log import head_text  # Most commands need no guard.

        print_sentence(head_text(head))


def short_id(run_id: str) -> str:
    """Shorten an id that outlay generated; return one that a person chose unchanged."""
    return run_id[:SHOWN_DIGITS] if re.fullmatch(r"[0-9a-f]{32}", run_id) else run_id


class FittingTable(Table):
    """A table that never wraps figures.

    If it is wider than the terminal, it drops empty columns and folds headers and text; if that is
    not enough, it shows each row as a list of fields.
    """

    def __init__(self) -> None:
        super().__init__(box=None, pad_edge=False, header_style="bold")
        self._cells: list[Sequence[RenderableType | None]] = []

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        self._cells.append(cells)
        super().add_row(*cells, **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, narrowed or as lists of fields if the terminal requires it."""
        wide = options.update(width=_UNBOUNDED)
        natural = [
            max(Measurement.get(console, wide, cell).maximum for cell in (c.header, *c.cells))
            for c in self.columns
        ]
        if _total(natural) <= options.max_width:
            yield from super().__rich_console__(console, options)
        elif widths := self._narrow_widths(console, wide, options.max_width):
            yield self._narrowed(widths)
        else:
            yield from self._fields()

    def _narrow_widths(
        self, console: Console, wide: ConsoleOptions, room: int
    ) -> dict[int, int] | None:
        """Return the widths of non-empty columns by index; None if figures do not fit."""
        widths: dict[int, int] = {}
        for at, column in enumerate(self.columns):
            cells = list(column.cells)
            if any(str(cell) not in ("", "-") for cell in cells):
                words = str(column.header).split() or [""]
                needed = (Measurement.get(console, wide, cell).maximum for cell in (*words, *cells))
                widths[at] = max(needed)
        texts = [at for at in widths if self.columns[at].justify == "left"]
        for at in sorted(texts, key=lambda at: -widths[at]):
            excess = _total(widths.values()) - room
            widths[at] -= max(0, min(excess, widths[at] - _MIN_FOLDED_WIDTH))
        return widths if _total(widths.values()) <= room else None

    def _narrowed(self, widths: dict[int, int]) -> Table:
        table = Table(
            box=None, pad_edge=False, header_style="bold", caption=self.caption,
            caption_justify=self.caption_justify,
        )  # fmt: skip
        for at, width in widths.items():
            column = self.columns[at]
            table.add_column(column.header, justify=column.justify, overflow="fold", width=width)
        for row, cells in zip(self.rows, self._cells, strict=True):
            shown = (cells[at] if at < len(cells) else "" for at in widths)
            table.add_row(*shown, style=row.style, end_section=row.end_section)
        return table

    def _fields(self) -> RenderResult:
        for number, row in enumerate(self._cells):
            fields = Table.grid(padding=(0, 2, 0, 0))
            fields.add_column(style="bold", no_wrap=True)
            fields.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=False):
                if cell:
                    fields.add_row(column.header, cell)
            yield from ([] if number == 0 else [Text("")])
            yield fields
        yield from [] if self.caption is None else [Text(str(self.caption))]


def _total(widths: Collection[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def new_table(*columns: str) -> FittingTable:
    """Return an empty table; columns whose name starts with ">" are right-aligned."""
    table = FittingTable()
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
    return table


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; a long one as plain lines, which may be wider than the terminal.

    Layout by rich takes ten times as long per cell as everything else together.
    """
    if len(rows) <= _MAX_TABLE_ROWS:
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
    text = "\n".join([*lines, ""])
    sys.stdout.write(text if _shows_unicode(sys.stdout.encoding) else ascii_text(text))
    sys.stdout.flush()


def _pad(cells: Sequence[str], *, right: bool) -> list[str]:
    """Pad the cells of a column to the width of the widest; ``right`` aligns right."""
    widths = [len(cell) if cell.isascii() else cell_len(cell) for cell in cells]
    width = max(widths)
    spaces = [" " * (width - each) for each in widths]
    if right:
        return [space + cell for cell, space in zip(cells, spaces, strict=True)]
    return [cell + space for cell, space in zip(cells, spaces, strict=True)]


def must_exist(path: Path, *, name: str) -> None:
    """Raise InvalidValue if a path does not exist."""
    if not path.exists():
        raise InvalidValue(name, str(path), "a file that exists (no such file or directory)")


def must_be_directory(directory: Path, *, name: str = "DIR") -> None:
    """Raise InvalidValue if a path is not an existing directory."""
    if not directory.is_dir():
        problem = "it is a file" if directory.exists() else "no such directory"
        raise InvalidValue(name, str(directory), f"an existing directory ({problem})")


def fits(table: Table) -> bool:
    """Return whether the terminal can show a table without wrapping a cell."""
    wide = console.options.update(width=_UNBOUNDED)
    return console.measure(table, options=wide).maximum <= console.width


# Shared arguments and options.

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.")]
UserCommand = Annotated[
    list[str] | None, typer.Argument(metavar="-- CMD...", help="The command and its arguments.")
]
SpendLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="PATH",
        help="A spend log, or a book's URL; default: every one known on this machine.",
    ),
]
Png = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write a chart; needs the extra `report`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


# Command classes.

DEFAULT = "show"


class WrappingCommand(TyperCommand):
    """A command whose last argument is a command line of the user, with its own options."""

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; without ``--``, refuse options after the user's command as ambiguous."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("command") or []
        before = given[: len(given) - len(command)]
        if before[-1:] != ["--"] and any(word.startswith("-") for word in command):
            typed = shlex.join([*ctx.command_path.split(), *before, "--", *command])
            ctx.fail(f"Put -- before the command to keep its options apart: {typed}")
        return rest


class DefaultGroup(TyperGroup):
    """A group with a default command, such as ``outlay goodput RUN`` beside ``goodput diff``.

    It runs its hidden ``show`` command if the first word is not one of its commands.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command if none is named."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args.insert(0, DEFAULT)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage of the default command, and that there are others."""
        return [*self.commands[DEFAULT].collect_usage_pieces(ctx), "| COMMAND [ARGS]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help of the default command and list the others."""
        shown = copy(self)
        shown.params, shown.help = self.commands[DEFAULT].params, self.commands[DEFAULT].help
        TyperGroup.format_help(shown, ctx, formatter)
