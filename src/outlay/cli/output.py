"""Output of every command: tables, JSON, findings, errors; and the options that many share."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from outlay.errors import Finding, InvalidValue
from outlay.escaping import ascii_json, ascii_text, json_text, one_line, terminal_text
from outlay.units import Money, Unit
from outlay.units.shown import decimals_of, money_text


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


_RULE_COLUMNS = 4  # Of a rule beside its title: rich cuts a title that leaves fewer.


def print_title(text: str) -> None:
    """Print a section title; on a terminal, with a rule to its right edge if both have room."""
    if console.is_terminal and len(text) <= console.width - _RULE_COLUMNS:
        console.rule(text, align="left")
    else:
        print_sentence(text)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A cell: exact in a pipe, and as short as a person needs it on a terminal.

    Attributes:
        text: What is shown in a pipe.
        short: What is shown on a terminal, if it is another text.
        money: An amount, which is rounded on a terminal, equally within its column.
        before: Precedes the amount, such as ``~``; ``after`` follows it, such as ``/h``.
    """

    text: str | Text
    short: str | None = None
    money: Money | None = None
    before: str = ""
    after: str = ""
    style: str = ""

    @property
    def plain(self) -> str:
        """Its text without colours."""
        return self.text if isinstance(self.text, str) else self.text.plain


CellContent = TableCell | Money | Text | str | None
"""What a table takes as a cell; of an amount it is the exact text in a pipe."""
_STATUS_STYLES = {
    "completed": "green", "running": "cyan", "error": "red", "failed": "red", "dead": "red",
    "cancelled": "yellow", "preempted": "yellow", "skipped": "yellow",
}  # fmt: skip


def status_cell(status: str) -> TableCell:
    """Return a status in its colour."""
    return TableCell(text=status, style=_STATUS_STYLES.get(status, ""))


def is_for_people() -> bool:
    """Return whether the output has a width: it is a terminal, or COLUMNS is set."""
    return console.width < _UNBOUNDED


def money_cell(money: Money, *, before: str = "", after: str = "") -> TableCell:
    """Return an amount, with what is before and after it."""
    return TableCell(text=f"{before}{money}{after}", money=money, before=before, after=after)


def amounts_cell(amounts: Sequence[Money], none: str) -> TableCell:
    """Return amounts of several units in one cell; ``none`` without any."""
    if len(amounts) == 1:
        return money_cell(amounts[0])
    return TableCell(
        text=", ".join(map(str, amounts)) or none,
        short=", ".join(map(money_text, amounts)) or none,
    )


def _cell(content: CellContent) -> TableCell:
    match content:
        case TableCell():
            return content
        case Money():
            return money_cell(content)
        case Text():
            return TableCell(text=content)
        case _:
            return TableCell(text=content or "")


class FittingTable:
    """A table with a line per row on any terminal; only sentences are wrapped.

    In a pipe it has all columns, with exact amounts and full names. On a terminal amounts are
    rounded. Where it is wider than that, the unit of an amount moves into the heading, empty
    columns go, names and paths get an ellipsis, and at last columns are left out, which it says.

    Attributes:
        caption: A sentence below it.
    """

    def __init__(
        self, columns: Sequence[str], *, first: Sequence[str], prose: Sequence[str]
    ) -> None:
        self._names = [column.lstrip(">") for column in columns]
        self._is_right = [column.startswith(">") for column in columns]
        self._prose = {at for at, name in enumerate(self._names) if name in prose}
        places = {name: place - len(first) for place, name in enumerate(first)}
        ranks = [places.get(name, at) for at, name in enumerate(self._names)]
        self._order = sorted(range(len(ranks)), key=ranks.__getitem__)
        self._rows: list[tuple[list[TableCell], str]] = []
        self._groups: dict[int, str] = {}
        self.caption = ""

    def add_group(self, title: str) -> None:
        """Begin a group of rows under a title; in a pipe there is none."""
        self._groups.setdefault(len(self._rows), title)

    def add_row(self, *cells: CellContent, style: str | None = None) -> None:
        """Add a row."""
        missing = len(self._names) - len(cells)
        row = [*map(_cell, cells), *[TableCell(text="")] * missing]
        self._rows.append((row, style or ""))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the table."""
        only_ascii, has_colours = not _shows_unicode(console.encoding), bool(console.color_system)
        in_pipe = options.max_width >= _UNBOUNDED
        indent = _GAP if self._groups and not in_pipe else ""
        room = options.max_width - len(indent)
        names, widths, columns = self._laid_out(room, in_pipe=in_pipe, only_ascii=only_ascii)
        shown = [at for at in range(len(names)) if at in widths]
        if any(names[at] for at in shown):
            heads = {at: _wrapped(names[at], widths[at]) for at in shown}
            for number in range(max(map(len, heads.values()))):
                head = (heads[at][number] if number < len(heads[at]) else "" for at in shown)
                titles = self._line(head, shown, widths)
                yield Segment(f"{indent}{titles}", console.get_style("bold"))
                yield Segment.line()
        for number, (row, style) in enumerate(self._rows):
            if number in self._groups and not in_pipe:
                title = shortened([one_line(self._groups[number])], options.max_width)[0]
                yield Segment(f"{title}\n", console.get_style("bold"))
            line = [columns[at][number] for at in shown]
            styles = [style or row[at].style for at in shown]
            texts = [row[at].text for at in shown]
            has_parts = has_colours and not all(isinstance(text, str) for text in texts)
            if has_parts or self._prose.intersection(shown):
                yield from self._styled(line, texts, styles, shown, widths, indent)
            elif has_colours and any(styles):
                yield Segment(indent)
                for place, at in enumerate(shown):
                    found = console.get_style(styles[place]) if styles[place] else None
                    yield Segment(self._padded(line[place], at, widths), found)
                    yield Segment(_GAP if place + 1 < len(shown) else "\n")
            else:
                yield Segment(f"{indent}{self._line(line, shown, widths)}\n")
        left_out = [
            name
            for at, name in enumerate(self._names)
            if name
            and at not in widths
            and any(row[at].plain not in _EMPTY for row, _ in self._rows)
        ]
        if left_out:
            yield Text(f"no room for: {', '.join(left_out)}", style="dim")
        if self.caption:
            yield Text(self.caption)

    def _laid_out(
        self, room: int, *, in_pipe: bool, only_ascii: bool
    ) -> tuple[list[str], dict[int, int], list[list[str]]]:
        """Return headings, the widths of the shown columns by index, and all columns as text."""
        cells = [[row[at] for row, _ in self._rows] for at in range(len(self._names))]
        columns = [[c.plain for c in column] if in_pipe else _rounded(column) for column in cells]
        columns = [list(map(one_line, column)) for column in columns]
        names = list(self._names)
        columns = [list(map(ascii_text, c)) for c in columns] if only_ascii else columns
        widths = {at: _widest([names[at], *column]) for at, column in enumerate(columns)}
        if _total(widths.values()) <= room:
            return names, widths, columns
        for at, column in enumerate(cells):
            if (unit := _unit_of(column)) is not None:
                suffix = f" {unit}"
                names[at] = f"{names[at]} ({unit})"
                columns[at] = [text.replace(suffix, "", 1) for text in columns[at]]
        widths = self._fitted(names, columns, room)
        for at, width in widths.items():
            if at not in self._prose and width < _widest(columns[at]):
                mark = "~" if only_ascii else "…"
                columns[at] = shortened(columns[at], width, mark)
        return names, widths, columns

    def _fitted(
        self, names: Sequence[str], columns: Sequence[Sequence[str]], room: int
    ) -> dict[int, int]:
        """Return the widths of the columns that fit, the first ones first."""
        least = min(max(room // 4, _LEAST), _ENOUGH)
        widths: dict[int, int] = {}
        whole: dict[int, int] = {}
        for at in self._order:
            if all(text in _EMPTY for text in columns[at]):
                continue
            heading = max((cell_len(word) for word in names[at].split()), default=0)
            whole[at] = max(heading, _widest(columns[at]))
            is_rigid = self._is_right[at] or not names[at] or whole[at] <= _SHORT
            width = whole[at] if is_rigid else max(heading, min(whole[at], least))
            if _total([*widths.values(), width]) <= room:
                widths[at] = width
            elif not widths:
                widths[at] = room
        # What is left is for headings on one line, then for names.
        for wanted in ({at: cell_len(names[at]) for at in widths}, whole):
            for at in [at for at in self._order if at in widths]:
                spare = room - _total(widths.values())
                widths[at] += max(min(spare, wanted[at] - widths[at]), 0)
        return widths

    def _line(self, line: Iterable[str], shown: Sequence[int], widths: Mapping[int, int]) -> str:
        padded = (self._padded(text, at, widths) for text, at in zip(line, shown, strict=True))
        return _GAP.join(padded).rstrip()

    def _padded(self, text: str, at: int, widths: Mapping[int, int]) -> str:
        spaces = " " * (widths[at] - (len(text) if text.isascii() else cell_len(text)))
        return f"{spaces}{text}" if self._is_right[at] else f"{text}{spaces}"

    def _styled(
        self, line: Sequence[str], texts: Sequence[str | Text], styles: Sequence[str],
        shown: Sequence[int], widths: Mapping[int, int], indent: str,
    ) -> RenderResult:  # fmt: skip
        """Yield a row with colours, or with sentences on several lines."""
        wrapped = [
            _wrapped(text, widths[at]) if at in self._prose else [text]
            for text, at in zip(line, shown, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            drawn = Text(indent, no_wrap=True, overflow="ignore", end="\n")
            for place, at in enumerate(shown):
                cell = wrapped[place][number] if number < len(wrapped[place]) else ""
                padded = self._padded(cell, at, widths)
                start = len(drawn) + (len(padded) - len(cell) if self._is_right[at] else 0)
                drawn.append(padded, style=styles[place] or None)
                if isinstance(text := texts[place], Text):
                    drawn.stylize(text.style, start, start + len(cell))
                    for span in text.spans:
                        drawn.stylize(span.style, start + span.start, start + span.end)
                drawn.append(_GAP if place + 1 < len(shown) else "")
            drawn.rstrip()
            yield drawn


_GAP = "  "
_EMPTY = ("", "-")
_SHORT = 20
"""Times, ids and names that are not wider are never shortened."""
_LEAST, _ENOUGH = 10, 40
"""The least width of a name that is shortened, and of several ones where there is room."""


def _total(widths: Collection[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _widest(texts: Iterable[str]) -> int:
    return max((len(text) if text.isascii() else cell_len(text) for text in texts), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    return [text] if cell_len(text) <= width else textwrap.wrap(text, max(width, 1))


def _rounded(column: Sequence[TableCell]) -> list[str]:
    """Return the cells of a column as text; its amounts have equally many decimals."""
    decimals = decimals_of(cell.money for cell in column if cell.money is not None)
    longest = max((len(cell.after) for cell in column), default=0)
    return [
        (cell.plain if cell.short is None else cell.short)
        if cell.money is None
        else f"{cell.before}{money_text(cell.money, decimals)}{cell.after:{longest}}"
        for cell in column
    ]


def _unit_of(column: Sequence[TableCell]) -> Unit | None:
    """Return the unit of all amounts of a column, if they have one."""
    units = {cell.money.unit for cell in column if cell.money is not None}
    return next(iter(units)) if len(units) == 1 else None


def shortened(texts: Sequence[str], width: int, mark: str = "…") -> list[str]:
    """Return texts that are at most ``width`` wide, with an ellipsis, as different as they can be.

    It is in the middle, else where more of them differ; where they differ only in the middle, it
    is on both sides of that.
    """
    long = list(dict.fromkeys(text for text in texts if cell_len(text) > width))[:_COMPARED]
    found = {cut: len({cut(text) for text in long}) for cut in _cuts(long, width, mark)}
    best = max(found, key=found.__getitem__, default=str)  # Of equals the first.
    return [best(text) if cell_len(text) > width else text for text in texts]


_COMPARED = 100
"""So many texts decide where the ellipsis is in their column."""


def _cuts(texts: Sequence[str], width: int, mark: str) -> Iterator[Callable[[str], str]]:
    """Yield what shortens a text: in the middle, around it, on both sides of a part."""
    kept = max(width - cell_len(mark), 0)
    head = kept // 4
    for tail in sorted(range(kept - head + 1), key=lambda tail: abs(tail - kept // 2)):
        yield partial(_cut, mark=mark, head=kept - tail, tail=tail)
    inside = kept - head - cell_len(mark)
    for start in range(head, max(map(len, texts), default=0)):
        yield partial(_cut_twice, mark=mark, head=head, start=start, inside=inside)


def _cut_twice(text: str, *, mark: str, head: int, start: int, inside: int) -> str:
    """Return the beginning of a text, and a part of it."""
    rest = text[start:]
    is_end = cell_len(rest) <= inside + cell_len(mark)
    shown = rest if is_end else _cut(rest, mark=mark, head=max(inside, 0), tail=0)
    return f"{_cut(text, mark=mark, head=head, tail=0)}{shown}"


def _cut(text: str, *, mark: str, head: int, tail: int) -> str:
    """Return the beginning and the end of a text, by cells of a terminal."""
    if text.isascii():
        return f"{text[:head]}{mark}{text[len(text) - tail :]}"
    end = set_cell_size(text[::-1], tail).strip()[::-1]
    return f"{set_cell_size(text, head).rstrip()}{mark}{end}"


def new_table(*columns: str, first: Sequence[str] = (), prose: Sequence[str] = ()) -> FittingTable:
    """Return an empty table; columns whose name starts with ">" are right-aligned.

    Args:
        columns: The headings.
        first: Those that stay the longest where there is no room; the others follow in order.
        prose: Those with sentences.
    """
    return FittingTable(columns, first=first, prose=prose)


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[CellContent]],
    *,
    first: Sequence[str] = (),
    prose: Sequence[str] = (),
) -> None:
    """Print a table."""
    table = new_table(*columns, first=first, prose=prose)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def must_exist(path: Path, *, name: str) -> None:
    """Raise InvalidValue if a path does not exist."""
    if not path.exists():
        raise InvalidValue(name, str(path), "a file that exists (no such file or directory)")


def must_be_directory(directory: Path, *, name: str = "DIR") -> None:
    """Raise InvalidValue if a path is not an existing directory."""
    if not directory.is_dir():
        problem = "it is a file" if directory.exists() else "no such directory"
        raise InvalidValue(name, str(directory), f"an existing directory ({problem})")


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
